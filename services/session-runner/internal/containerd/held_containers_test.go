//go:build containers

package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// shellImage writes an OCI archive whose image has busybox as its shell and tools, and
// returns its path.
func shellImage(t testing.TB) string {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v: install the Debian package busybox-static", err)
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	put := func(h tar.Header, body []byte) {
		h.Size = int64(len(body))
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_, _ = tw.Write(body)
	}
	put(tar.Header{Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o755}, nil)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, busybox)
	for _, name := range []string{"sh", "cat", "sleep", "id", "tail", "head", "stat", "dd", "rm", "kill", "ls"} {
		put(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}, nil)
	}
	_ = tw.Close()
	archive, _, err := ociArchive("binnacle.invalid/shell:test", &base{}, layer.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "shell.tar")
	if err := os.WriteFile(path, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// heldLimits are the limits of the held sandboxes of the tests.
var heldLimits = contract.Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 1 << 20, Pids: 32, Tier: "container", WallMS: 60_000}

// hold creates a held sandbox.
func hold(t testing.TB, r *Holder, image, id string, life time.Duration) *Held {
	t.Helper()
	r.store.archives = filepath.Dir(image)
	digest, err := r.Named("shell")
	if err != nil {
		t.Fatal(err)
	}
	img, err := r.OpenImage(digest)
	if err != nil {
		t.Fatal(err)
	}
	h, err := r.Hold(img, HeldSpec{ID: id, Limits: heldLimits, DiskMiB: 8, Life: life})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(int(h.task.Pid()), syscall.SIGKILL)
		}
	})
	return h
}

// sh runs a shell script in a held sandbox and returns its exit code and output.
func sh(t testing.TB, h *Held, id, script string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	exit, timedOut, err := h.Exec(t.Context(), Command{ID: id, Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Wall: 20 * time.Second, Stdout: &out, Stderr: &out})
	if err != nil || timedOut {
		t.Fatalf("%s: %v (timed out: %v)", script, err, timedOut)
	}
	return exit, out.String()
}

const heldNamespace = "binnacle-test-held"

// holder opens a runner, and returns it with a holder whose namespace is heldNamespace.
func (d *daemon) holder(t testing.TB) (*Runner, *Holder) {
	t.Helper()
	r := d.openAs(t, "binnacle-test-runs", 0)
	h, err := r.Holder(heldNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return r, h
}

// none is the argument of Sweep if no sandbox is open.
func none(string) bool { return false }

// abandon ends a runner as a kill of its process does: nothing is removed.
func abandon(r *Runner) {
	r.stop()
	r.swept.Wait()
	_ = r.client.Close()
}

// TestHeld shows that the commands of a held sandbox share its files, are not root, have
// no network, cannot write to the root or more to /work than its size, and cannot end the
// first process; that a command receives its input and returns its exit code, and ends at
// its time limit or when it is cancelled; that ended processes do not accumulate; that
// usage is measured; that a command that does not exist is an error; and that nothing is
// left after Remove.
func TestHeld(t *testing.T) {
	d := startDaemon(t)
	r, holder := d.holder(t)
	image := shellImage(t)
	h := hold(t, holder, image, rand.Text(), time.Hour)
	if exit, out := sh(t, h, "a", "echo kept > /work/f; echo out; exit 3"); exit != 3 || out != "out\n" {
		t.Errorf("exit %d: %q", exit, out)
	}
	if _, out := sh(t, h, "b", "cat /work/f"); out != "kept\n" {
		t.Errorf("files do not outlive a command: %q", out)
	}
	var out bytes.Buffer
	if _, _, err := h.Exec(t.Context(), Command{ID: "c", Argv: []string{"/bin/cat"}, Stdin: []byte("input"), Wall: 20 * time.Second, Stdout: &out, Stderr: &out}); err != nil || out.String() != "input" {
		t.Errorf("input: %q %v", out.String(), err)
	}
	for what, script := range map[string]string{
		"root":     "id -u | { read u; [ $u -ge 65534 ] || echo uid $u; }",
		"writable": "echo x > /f && echo written",
		"network":  "ls /sys/class/net",
		"disk":     "dd if=/dev/zero of=/work/big bs=1024k count=9 2>/dev/null && echo fits; rm -f /work/big",
		"escape":   "kill -9 1; sleep 0.1; ls /proc/1/root/proc >/dev/null || true",
	} {
		if _, out := sh(t, h, "d-"+what, "("+script+") 2>/dev/null"); strings.TrimSpace(strings.Trim(strings.TrimSpace(out), "lo\n")) != "" {
			t.Errorf("%s: %q", what, out)
		}
	}
	began := time.Now()
	_, timedOut, err := h.Exec(t.Context(), Command{ID: "e", Argv: []string{"/bin/sleep", "60"}, Wall: 100 * time.Millisecond, Stdout: &out, Stderr: &out})
	if err != nil || !timedOut || time.Since(began) > 10*time.Second {
		t.Errorf("time limit: %v %v after %v", timedOut, err, time.Since(began))
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, timedOut, err = h.Exec(ctx, Command{ID: "f", Argv: []string{"/bin/sleep", "60"}, Wall: time.Minute, Stdout: &out, Stderr: &out}); err != nil || timedOut {
		t.Errorf("cancellation: %v %v", timedOut, err)
	}
	// Each script leaves an orphan, which the first process must not accumulate.
	for range 3 {
		sh(t, h, "g", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do (sleep 0.01 >/dev/null 2>&1 &) ; done; sleep 0.2")
	}
	if _, out := sh(t, h, "z", "cat /proc/[0-9]*/stat"); strings.Contains(out, ") Z ") {
		t.Errorf("ended processes were not removed:\n%s", out)
	}
	if u := h.Usage(); u.CPUMillis == 0 || u.MemoryPeakBytes == 0 {
		t.Errorf("usage: %+v", u)
	}
	if _, _, err := h.Exec(t.Context(), Command{ID: "h", Argv: []string{"/bin/none"}, Wall: time.Second, Stdout: &out, Stderr: &out}); err == nil {
		t.Error("a command that does not exist was started")
	}
	h.Remove()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if left := d.leftIn(t, heldNamespace); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestHeldLife shows that a held sandbox ends when its maximum life has passed,
// without a call of the runner, and that another runner then reports it as gone and
// removes it.
func TestHeldLife(t *testing.T) {
	d := startDaemon(t)
	r, holder := d.holder(t)
	short := rand.Text()
	h := hold(t, holder, shellImage(t), short, time.Second)
	done := h.Done()
	<-done
	abandon(r)
	r, holder = d.holder(t)
	if _, err := holder.Adopt(short, nil); !errors.Is(err, ErrGone) {
		t.Errorf("a container that has ended was adopted: %v", err)
	}
	if err := errors.Join(holder.Sweep(none), r.Close()); err != nil {
		t.Error(err)
	}
	if left := d.leftIn(t, heldNamespace); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestHeldRestart shows that held sandboxes survive the end of the runner and a restart
// of containerd with their files and processes, that the next runner adopts those that it
// names and ends the commands whose output is lost, and that it removes the others.
func TestHeldRestart(t *testing.T) {
	d := startDaemon(t)
	r, holder := d.holder(t)
	host := holder.Host()
	image := shellImage(t)
	stays, goes := rand.Text(), rand.Text()
	h := hold(t, holder, image, stays, time.Hour)
	hold(t, holder, image, goes, time.Hour)
	sh(t, h, "a", "echo kept > /work/f; (sleep 1000 >/dev/null 2>&1 &)")
	running := make(chan struct{})
	go func() {
		_, _, _ = h.Exec(context.Background(), Command{ID: "runs", Argv: []string{"/bin/sh", "-c", "echo begun > /work/begun; sleep 1001"}, Env: []string{"PATH=/bin"}, Wall: time.Hour, Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}})
		close(running)
	}()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if exit, _ := sh(t, h, "b", "cat /work/begun 2>/dev/null"); exit == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the command did not start")
		}
	}
	abandon(r)
	d.stop()
	d.start(t)
	r, holder = d.holder(t)
	if holder.Host() != host || host == "" {
		t.Errorf("the daemon's id was %q and is %q", host, holder.Host())
	}
	h, err := holder.Adopt(stays, []string{"runs"})
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Sweep(func(id string) bool { return id == stays }); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Adopt(goes, nil); !errors.Is(err, ErrGone) {
		t.Errorf("a sandbox that no runner named was left: %v", err)
	}
	_, out := sh(t, h, "c", "cat /work/f; cat /proc/[0-9]*/cmdline | busybox tr '\\000' ' '")
	if !strings.HasPrefix(out, "kept\n") || !strings.Contains(out, "sleep 1000 ") || strings.Contains(out, "sleep 1001 ") {
		t.Errorf("after the restart: %q", out)
	}
	h.Remove()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if left := d.leftIn(t, heldNamespace); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
