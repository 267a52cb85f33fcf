package endless

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Run(m, time.Second) }

// TestLoop requires that an endless loop fails the tests, in a process of its own.
func TestLoop(t *testing.T) {
	if os.Getenv("ENDLESS") != "" {
		for {
			_ = used()
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestLoop$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), "ENDLESS=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a loop does not end") {
		t.Errorf("%v: %s", err, out)
	}
}
