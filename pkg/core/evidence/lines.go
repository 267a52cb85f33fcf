package evidence

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Limits on the input of a verifier, so that a hostile file causes an error and does not
// exhaust the memory. A pack is held in memory as a whole. For a ledger or an archive,
// the verifier holds a bounded number of lines, the keys, policies and tenants, the ids
// of the sessions' events, and the state of each session and call. It stores these ids
// and states only after it has verified the checkpoint over all lines.
const (
	MaxPack = 2 << 30  // greatest size of a pack in bytes
	MaxLine = 16 << 20 // greatest size of one event and its newline in bytes; the mesh's servers accept 1 MiB
)

var errLine = fmt.Errorf("a line of more than %d bytes", MaxLine)

// lineReader reads lines of at most MaxLine bytes, including the newline that
// must end each.
type lineReader struct {
	in  *bufio.Reader
	buf []byte
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(r, 256<<10)}
}

// next returns the next line without its newline, or io.EOF at the end. It returns an
// error for a line that is too long or has no newline, and errors of the reader
// unchanged. The slice is valid until the next call.
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

// last reports whether all bytes have been read, or the next read fails. It invalidates
// the line that next returned.
func (l *lineReader) last() bool {
	_, err := l.in.Peek(1)
	return err != nil
}
