package sessionrunner

import (
	"os"
	"testing"
)

// TestSocket: a socket that is named is used whether it exists or not; auto means the
// default socket if it exists, and none otherwise.
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
