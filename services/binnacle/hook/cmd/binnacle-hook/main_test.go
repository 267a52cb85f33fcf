package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/resident"
)

// TestWithoutHelper checks that the program binnacle answers if there is no helper, and that the
// status is 2, with which clients do not run the tool, if that program denies, fails or cannot
// be started.
func TestWithoutHelper(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for name, c := range map[string]struct {
		script, out string
		status      int
	}{
		"no objection":      {"cat", "document", 0},
		"denied":            {"exit 2", "", 2},
		"another status":    {"exit 1", "", 2},
		"killed":            {"kill -9 $$", "", 2},
		"no program":        {"", "", 2},
		"cannot be started": {"\x00", "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "binnacle")
			// The script is not a helper: it ends when it is started as one.
			text := "#!/bin/sh\ncase \"$*\" in *--resident*) exit 1 ;; esac\n" + c.script + "\n"
			if c.script == "\x00" {
				text = c.script
			}
			if c.script != "" {
				if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			var out, errOut bytes.Buffer
			if status := run(program, []string{"hook", "run", "claude-code"}, strings.NewReader("document"), &out, &errOut); status != c.status || out.String() != c.out {
				t.Errorf("status %d, %q, want %d, %q; %s", status, &out, c.status, c.out, &errOut)
			}
		})
	}
}

// TestRefused checks that the program runs nothing for other arguments than those of
// 'hook run' or for a document that cannot be read, and that it passes the first
// MaxDocument+1 bytes of a document that is too long to the program binnacle.
func TestRefused(t *testing.T) {
	program := filepath.Join(t.TempDir(), "binnacle")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nwc -c\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	for _, args := range [][]string{nil, {"up"}, {"hook", "install", "codex"}} {
		if status := run(program, args, strings.NewReader(""), &out, &errOut); status != denied {
			t.Errorf("%q: status %d", args, status)
		}
	}
	if status := run(program, []string{"hook", "run", "codex"}, iotest.ErrReader(os.ErrClosed), &out, &errOut); status != denied || out.Len() > 0 {
		t.Errorf("status %d, %q", status, &out)
	}
	if status := run(program, []string{"hook", "run", "codex"}, strings.NewReader(strings.Repeat("x", resident.MaxDocument+9)), &out, &errOut); status != 0 || strings.TrimSpace(out.String()) != "16777217" {
		t.Errorf("status %d, %q", status, &out)
	}
}
