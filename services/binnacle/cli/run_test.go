package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRunInput checks the sources of a command's standard input, its maximum size, and that bytes
// that are not text are refused.
func TestRunInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prompt.txt")
	if err := os.WriteFile(file, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", maxInput)
	for name, c := range map[string]struct{ option, in, want string }{
		"none": {"", "not read", ""}, "file": {file, "not read", "from a file\n"}, "standard input": {"-", "ü\x00\n", "ü\x00\n"}, "maximum": {"-", long, long},
	} {
		o := runOptions{stdin: c.option}
		if got, err := o.input(strings.NewReader(c.in)); err != nil || got != c.want {
			t.Errorf("%s: %d bytes %v", name, len(got), err)
		}
	}
	for name, c := range map[string]struct{ option, in string }{"too long": {"-", long + "x"}, "not text": {"-", "\xff"}, "no file": {file + "x", ""}} {
		o := runOptions{stdin: c.option}
		if got, err := o.input(strings.NewReader(c.in)); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
