package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHookProgram checks that the hooks of a client run binnacle-hook only if there is such
// a program beside this one.
func TestHookProgram(t *testing.T) {
	dir := t.TempDir()
	self, small := filepath.Join(dir, "binnacle"), filepath.Join(dir, "binnacle-hook")
	if got := hookProgram(self); got != self {
		t.Error(got)
	}
	if err := os.WriteFile(small, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := hookProgram(self); got != self {
		t.Error("a file that is not a program:", got)
	}
	if err := os.Chmod(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := hookProgram(self); got != small {
		t.Error(got)
	}
}
