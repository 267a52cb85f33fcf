package sse

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReader(t *testing.T) {
	in := ": comment\n\nevent: a\ndata: 1\ndata:2\n\n\r\ndata: x\r\nid: 7\r\n\r\ndata: " + strings.Repeat("y", 100_000) + "\n\n"
	r := NewReader(iotest.OneByteReader(strings.NewReader(in)))
	var names, data []string
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names, data = append(names, e.Name), append(data, string(e.Data))
	}
	if len(data) != 3 || data[0] != "1\n2" || names[0] != "a" || data[1] != "x" || len(data[2]) != 100_000 {
		t.Errorf("%q %q", names, data)
	}
	for in, want := range map[string]error{"data: x\n": io.ErrUnexpectedEOF, "data: x": io.ErrUnexpectedEOF, "": io.EOF, "\n\n": io.EOF, "data: a\n\ndata:": io.ErrUnexpectedEOF} {
		r := NewReader(strings.NewReader(in))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", in, err, want)
		}
	}
}

// TestNames shows that an event without data is not returned, and that its name does not
// apply to the next event (WHATWG HTML, section 9.2.6).
func TestNames(t *testing.T) {
	r := NewReader(strings.NewReader("event: lost\n\ndata: 1\n\nevent: b\ndata: 2\n\ndata: 3\n\n"))
	for _, want := range []string{" 1", "b 2", " 3"} {
		e, err := r.Next()
		if got := e.Name + " " + string(e.Data); err != nil || got != want {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("event: a\ndata: 1\n\ndata: 2\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		for {
			e, err := r.Next()
			if err != nil {
				return
			}
			if !bytes.Contains(in, e.Raw) {
				t.Fatalf("%q is not in %q", e.Raw, in)
			}
		}
	})
}
