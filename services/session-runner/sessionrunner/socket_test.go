package sessionrunner

import (
	"os"
	"testing"
)

// TestSocket checks that a named socket is used whether it exists or not, and that auto
// means the default socket if it exists and otherwise none.
func TestSocket(t *testing.T) {
	for _, name := range []string{"", "/no/such.sock"} {
		if got := Socket(name); got != name {
			t.Errorf("%q: %q", name, got)
		}
	}
	const usual = "/run/containerd/containerd.sock"
	want := ""
	if i, err := os.Stat(usual); err == nil && i.Mode()&os.ModeSocket != 0 {
		want = usual
	}
	if got := Socket("auto"); got != want {
		t.Errorf("auto: %q, want %q", got, want)
	}
}
