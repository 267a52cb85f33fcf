package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// TestWayOut checks that everything that a container for a run with egress has mounted for it
// exists and is read-only; that egress needs an authority; and for which architectures there
// is a listener.
func TestWayOut(t *testing.T) {
	w := wayOut(filepath.Join(t.TempDir(), "w"))
	if err := w.create(); err != nil {
		t.Fatal(err)
	}
	for _, m := range w.mounts() {
		if _, err := os.Stat(m.Source); err != nil || !strings.Contains(strings.Join(m.Options, ","), "bind,ro,nosuid,nodev,noexec") {
			t.Error(m, err)
		}
	}
	if checkEgress(nil) != nil || checkEgress(&sandbox.Egress{}) == nil {
		t.Error("egress without an authority")
	}
	if err := checkEgress(&sandbox.Egress{CA: []byte("x")}); err != nil && !errors.Is(err, sandbox.ErrNoEgress) {
		t.Error(err)
	}
	if listenerELF("amd64") == nil || listenerELF("arm64") == nil || listenerELF("riscv64") != nil {
		t.Error("listeners")
	}
}
