package private

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestNotDumpable shows, in a process of its own, that the kernel reports the process as
// not dumpable after NotDumpable, and that the limit of core files is zero in a process
// that it starts.
func TestNotDumpable(t *testing.T) {
	if os.Getenv("BINNACLE_TEST_DUMPABLE") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNotDumpable$", "-test.v")
		cmd.Env = append(os.Environ(), "BINNACLE_TEST_DUMPABLE=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestNotDumpable") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const prGetDumpable = 3
	dumpable := func() uintptr {
		r, _, _ := syscall.Syscall(syscall.SYS_PRCTL, prGetDumpable, 0, 0)
		return r
	}
	if dumpable() != 1 {
		t.Fatal("a new process is not dumpable already")
	}
	if err := NotDumpable(); err != nil {
		t.Fatal(err)
	}
	if dumpable() != 0 {
		t.Error("the process is dumpable")
	}
	out, err := exec.Command("/bin/sh", "-c", "ulimit -Hc").Output()
	if err != nil || strings.TrimSpace(string(out)) != "0" {
		t.Errorf("the limit of core files of a started process: %s %v", out, err)
	}
}
