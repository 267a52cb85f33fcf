package containerd

import (
	"errors"
	"strings"
	"testing"
)

// TestMissingOCIRuntime checks which errors mean that the configured OCI runtime is missing.
func TestMissingOCIRuntime(t *testing.T) {
	absent, other := errors.New(`exec: "crun": executable file not found in $PATH: unknown`), errors.New("disk full")
	for _, x := range []struct {
		oci     ociRuntime
		runtime string
		err     error
		setting string
	}{{"crun", "", absent, "session-runner.oci_runtime"}, {"crun", "", other, ""}, {"", "", absent, ""}, {"crun", "io.containerd.kata.v2", other, "session-runner.microvm.runtime"}} {
		err := x.oci.missing(x.runtime, x.err)
		if Unavailable(err) != (x.setting != "") || !strings.Contains(err.Error(), x.setting) || !errors.Is(err, x.err) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}
