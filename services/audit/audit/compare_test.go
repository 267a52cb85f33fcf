package audit

import (
	"errors"
	"os"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/run"
)

// TestCompareUnread shows that a checkpoint file which cannot be read is an error, but
// not a loss of the ledger, after which policy denies every call. A file whose content
// is not a checkpoint of audit counts as a loss. A missing file is no error.
func TestCompareUnread(t *testing.T) {
	s := &Service{Config: Config{Dir: t.TempDir()}, env: &run.Env{Trust: &run.Trust{}}}
	if err := s.compare(); err != nil {
		t.Error("without a checkpoint:", err)
	}
	if err := os.Mkdir(s.checkpointFile(), 0o700); err != nil { // a folder, which not even root can read as a file
		t.Fatal(err)
	}
	if err := s.compare(); err == nil || errors.Is(err, errLost) {
		t.Error("a failed read:", err)
	}
	if err := errors.Join(os.Remove(s.checkpointFile()), os.WriteFile(s.checkpointFile(), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := s.compare(); !errors.Is(err, errLost) {
		t.Error("another content:", err)
	}
}
