package evidence

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Limits of what a verifier reads, so that a hostile file fails with an error
// and not for want of memory. A pack is held in memory whole; of ledgers and
// archives one line is, and what the checks need for each session and call,
// which is stored only after the checkpoint over all lines has been verified.
const (
	MaxPack = 2 << 30  // bytes of a pack
	MaxLine = 16 << 20 // bytes of one event; our servers take 1 MB
)

var errLine = fmt.Errorf("a line of more than %d bytes", MaxLine)

// lineReader reads lines that end in a newline, of at most MaxLine bytes with it.
type lineReader struct {
	in  *bufio.Reader
	buf []byte
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(r, 256<<10)}
}

// next returns the next line without its newline, valid until the next call, or
// io.EOF.
func (l *lineReader) next() ([]byte, error) {
	l.buf = l.buf[:0]
	for {
		part, err := l.in.ReadSlice('\n')
		if err == nil && len(l.buf) == 0 && len(part) <= MaxLine {
			return part[:len(part)-1], nil
		}
		if len(l.buf)+len(part) > MaxLine {
			return nil, errLine
		}
		l.buf = append(l.buf, part...)
		switch {
		case err == nil:
			return l.buf[:len(l.buf)-1], nil
		case errors.Is(err, io.EOF) && len(l.buf) > 0:
			return nil, errors.New("last line has no newline")
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// last reports whether no byte follows what was read. The line returned last
// is no longer valid.
func (l *lineReader) last() bool {
	_, err := l.in.Peek(1)
	return err != nil
}
