package cli

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// TestShallow checks that a reader returns messages unchanged until one is nested too
// deeply, wherever reads split the stream.
func TestShallow(t *testing.T) {
	good := strings.Repeat(`{"a":"[[[[\"[\\","b":[{"c":`+strings.Repeat("[", 120)+strings.Repeat("]", 120)+"}]}\n", 50)
	for _, wrap := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.HalfReader} {
		got, err := io.ReadAll(&shallow{Reader: wrap(strings.NewReader(good))})
		if err != nil || !bytes.Equal(got, []byte(good)) {
			t.Error("changed or refused:", err)
		}
		if _, err := io.ReadAll(&shallow{Reader: wrap(strings.NewReader(good + strings.Repeat("[", 129)))}); !errors.Is(err, errDeep) {
			t.Error(err)
		}
	}
}
