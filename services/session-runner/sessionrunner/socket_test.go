package sessionrunner

import (
	"os"
	"testing"
)

// TestSocket checks that a named socket is used even if it does not exist, that an empty name
// means none, and that auto means the default socket if it exists and otherwise none.
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

// TestNamespace checks the name of an instance's containerd namespace, and that
// another instance, and an instance of the same name in another mesh, have other
// namespaces.
func TestNamespace(t *testing.T) {
	const one, two = "k-61d54284795f7804c3077d83b2f13dfd", "k-8ef3b6528dd49b53550bd0f971a16000"
	if got := namespace(one, "session-runner-1"); got != "binnacle-61d54284795f7804-session-runner-1" {
		t.Error(got)
	}
	if namespace(one, "session-runner-1") == namespace(two, "session-runner-1") || namespace(one, "session-runner-1") == namespace(one, "session-runner-2") {
		t.Error("two namespaces are equal")
	}
}
