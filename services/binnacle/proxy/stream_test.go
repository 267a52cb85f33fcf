package proxy

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// TestLines shows that lines end at \n, \r and \r\n wherever the reads are split, and that
// the bytes of an incomplete line are not searched again.
func TestLines(t *testing.T) {
	for _, in := range []string{"", "a", "\n", "\r", "\r\n", "\n\r", "a\nb", "a\rb", "a\r\nb", "a\r\n\r\nb\r", "a\n\nb\r\rc\r\n", strings.Repeat("x", 200) + "\r\ny"} {
		want := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(in), "\n")
		if want[len(want)-1] == "" {
			want = want[:len(want)-1]
		}
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(in), "by byte": iotest.OneByteReader(strings.NewReader(in)), "with the end": iotest.DataErrReader(strings.NewReader(in))} {
			sc := bufio.NewScanner(r)
			sc.Split(lines())
			var got []string
			for sc.Scan() {
				got = append(got, sc.Text())
			}
			if sc.Err() != nil || !slices.Equal(got, want) {
				t.Errorf("%q %s: %q, want %q (%v)", in, name, got, want, sc.Err())
			}
		}
	}
	split, b := lines(), []byte("abcdef")
	if n, _, _ := split(b, false); n != 0 {
		t.Fatal(n)
	}
	b[2] = '\n' // only a search from the beginning finds it
	if n, line, _ := split(append(b, '\n'), false); n != 7 {
		t.Errorf("%d bytes are taken for %q: the line is searched again", n, line)
	}
	if n, line, _ := split([]byte("\n"), false); n != 1 || len(line) != 0 {
		t.Errorf("the next line: %d %q", n, line)
	}
}

// TestCallLimit shows that a stream may hold maxCalls tool calls at once, of all choices
// together, and not one more, and that those of a choice that has ended do not count.
func TestCallLimit(t *testing.T) {
	const done = "data: [DONE]\n\n"
	in := func(choice, n int, ends bool) (s string) {
		for i := range n {
			s += fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"tool_calls":[{"index":%d,"id":"a","function":{"name":"ok","arguments":"{}"}}]}}]}`+"\n\n", choice, i)
		}
		if ends {
			s += fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{},"finish_reason":"tool_calls"}]}`+"\n\n", choice)
		}
		return s
	}
	for name, c := range map[string]struct {
		stream string
		fits   bool
	}{
		"the limit":              {in(0, maxCalls, true) + done, true},
		"one more":               {in(0, maxCalls+1, true) + done, false},
		"of two choices":         {in(0, maxCalls-1, false) + in(1, 2, true) + in(0, 0, true) + done, false},
		"one choice after other": {in(0, maxCalls, true) + in(1, maxCalls, true) + done, true},
	} {
		_, got, _ := newStand(t, answering(c.stream)).post(t, "/v1/chat/completions", ask)
		if rejected := strings.Contains(got, fmt.Sprintf("more than %d tool calls", maxCalls)); rejected == c.fits || c.fits != strings.Contains(got, done) {
			t.Errorf("%s: %.300s", name, got)
		}
	}
}
