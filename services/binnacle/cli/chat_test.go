package cli

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// TestPrintStream checks the output and the error of a stream that is complete, ends too
// early, breaks off, has a line that is too long, or contains an error.
func TestPrintStream(t *testing.T) {
	const hi = `data: {"choices":[{"delta":{"content":"hi"}}]}` + "\n\n"
	for name, x := range map[string]struct {
		r   io.Reader
		err string
	}{
		"complete":      {strings.NewReader(hi + "data: [DONE]\n"), ""},
		"too early":     {strings.NewReader(hi), "the stream ended without [DONE]"},
		"breaks off":    {io.MultiReader(strings.NewReader(hi), iotest.ErrReader(errors.New("connection reset"))), "the stream broke off: connection reset"},
		"long line":     {strings.NewReader(hi + "data: " + strings.Repeat("x", 5<<20) + "\n"), "the stream broke off: bufio.Scanner: token too long"},
		"with an error": {strings.NewReader(hi + `data: {"error":{"message":"no more"}}` + "\n\n"), "no more"},
	} {
		var out bytes.Buffer
		err := printStream(&env{out: &out, format: output.Table}, x.r)
		if (err == nil) != (x.err == "") || err != nil && err.Error() != x.err {
			t.Errorf("%s: %v, want %q", name, err, x.err)
		}
		if !strings.HasPrefix(out.String(), "hi") {
			t.Errorf("%s: %q", name, out.String())
		}
	}
}
