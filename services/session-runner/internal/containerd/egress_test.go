package containerd

import (
	"errors"
	"os"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// TestBelongs checks that a process is accepted as one of a container only if the last
// element of the path of a control group of it is the container's id.
func TestBelongs(t *testing.T) {
	for file, want := range map[string]bool{
		"0::/ns/sandbox-A\n": true, "9:memory:/ns/sandbox-A\n1:name=systemd:/\n": true, "0::/../../ns/sandbox-A\n": true,
		"0::/ns/sandbox-AB\n": false, "0::/ns/a-sandbox-A\n": false, "0::/sandbox-A/b\n": false, "0::/\n": false, "": false,
	} {
		if got := inGroup([]byte(file), "sandbox-A"); got != want {
			t.Errorf("%q: %v", file, got)
		}
	}
	own, err := forward.Process(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if err := belongs(own, "sandbox-A"); !errors.Is(err, sandbox.ErrNoEgress) {
		t.Errorf("a process of no container: %v", err)
	}
}
