package harness

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// foreverEnv names a file that TestForever writes when its process reaches its time limit.
const foreverEnv = "BINNACLE_E2E_FOREVER"

// TestForever does not end if TestOnTimeout has started this process. Otherwise it does nothing.
func TestForever(t *testing.T) {
	file := os.Getenv(foreverEnv)
	if file == "" {
		return
	}
	t.Run("ended", func(t *testing.T) {
		OnTimeout(t, func() { t.Error("the function of a test that has ended ran") })
	})
	OnTimeout(t, func() {
		if err := os.WriteFile(file, []byte("stopped"), 0o600); err != nil {
			t.Error(err)
		}
	})
	select {}
}

// TestOnTimeout shows that a test process which reaches its time limit first runs the functions that
// its tests have registered, and fails.
func TestOnTimeout(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "stopped")
	cmd := exec.Command(program, "-test.run=^TestForever$", "-test.timeout="+(spare+2*time.Second).String())
	cmd.Env = append(os.Environ(), foreverEnv+"="+file)
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != 2 || !strings.Contains(string(out), "\n--- FAIL: TestForever\n") || strings.Contains(string(out), "has ended ran") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
