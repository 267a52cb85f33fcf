// Package sse reads server-sent events (WHATWG HTML, section 9.2) and preserves their
// bytes.
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// MaxEvent is the maximum size of one event, in bytes.
const MaxEvent = 16 << 20

// ErrTooLarge is returned by Next for an event larger than MaxEvent.
var ErrTooLarge = errors.New("an event of the stream is larger than 16 MiB")

// Event is one server-sent event. Raw holds the bytes as received, so that the event can
// be forwarded unchanged. The slices are valid until the next read.
type Event struct {
	Name string
	Data []byte // values of the data fields, joined by newlines
	Raw  []byte // all bytes of the event, with the blank line after it
}

// Reader reads the events of one stream. It is not safe for concurrent use. In an event,
// comments and fields other than event and data are preserved in Raw only. Blocks
// without data are dropped.
type Reader struct {
	r    *bufio.Reader
	raw  []byte
	data []byte
}

// NewReader returns a Reader of the events in r. Next returns an event as soon as its
// last byte is received, without waiting for more bytes.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 4<<10)} }

// Next returns the next event that has data. It returns io.EOF if the stream ends
// between two events, io.ErrUnexpectedEOF if it ends inside one, ErrTooLarge for an
// event larger than MaxEvent, and any other error of the underlying reader.
func (s *Reader) Next() (Event, error) {
	s.raw, s.data = s.raw[:0], s.data[:0]
	name, lines := "", 0
	for {
		start := len(s.raw)
		for {
			part, err := s.r.ReadSlice('\n')
			s.raw = append(s.raw, part...)
			if len(s.raw) > MaxEvent {
				return Event{}, ErrTooLarge
			}
			if err == nil {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				if errors.Is(err, io.EOF) && (lines > 0 || len(bytes.TrimSpace(s.raw)) > 0) {
					err = io.ErrUnexpectedEOF
				}
				return Event{}, err
			}
		}
		line := bytes.TrimRight(s.raw[start:], "\r\n")
		if len(line) == 0 {
			if lines > 0 {
				return Event{Name: name, Data: s.data, Raw: s.raw}, nil
			}
			s.raw, name = s.raw[:0], ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if lines++; lines > 1 {
				s.data = append(s.data, '\n')
			}
			s.data = append(s.data, value...)
		case "event":
			name = string(value)
		}
	}
}
