//go:build containers

package containerd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
)

// startShim starts a shim of which containerd has no record.
func startShim(t *testing.T, socket, ns, id string) {
	t.Helper()
	bundle := t.TempDir()
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion":"1.0.2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(bundle, "log") // the shim needs a reader
	if err := syscall.Mkfifo(logs, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(logs, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	cmd := exec.Command("containerd-shim-runc-v2", "-namespace", ns, "-address", socket, "-publish-binary", "/bin/true", "-id", id, "start")
	cmd.Dir, cmd.Env = bundle, append(os.Environ(), "TTRPC_ADDRESS="+socket+".ttrpc")
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "unix://") {
		t.Fatalf("%v %s", err, out)
	}
}

// TestLostShims shows that a sweep kills a shim of which containerd has no task, as a killed
// containerd leaves it, and does not kill a shim of another namespace or daemon, or the shim of
// a prepared container.
func TestLostShims(t *testing.T) {
	d, p := startDaemon(t), probe(t)
	r := d.open(t, 1)
	if _, err := r.Run(t.Context(), run(p, "echo", time.Minute)); err != nil {
		t.Fatal(err)
	}
	filled(t, r, 1)
	start := func(socket, ns, id string) { t.Helper(); startShim(t, socket, ns, id) }
	count := func(socket, ns string) (ids []string) {
		for _, s := range shims(socket, ns) {
			ids = append(ids, s.id)
			_ = s.file.Close()
		}
		return ids
	}
	others := [][2]string{{d.socket, testNamespace + "-other"}, {d.socket + "2", testNamespace}}
	start(d.socket, testNamespace, "sandbox-LOST")
	for _, o := range others {
		start(o[0], o[1], "sandbox-OTHER")
	}
	if got := count(d.socket, testNamespace); len(got) != 2 {
		t.Errorf("shims: %v", got)
	}
	if err := r.sweep(r.ctx(t.Context())); err != nil {
		t.Error(err)
	}
	if got := count(d.socket, testNamespace); len(got) != 1 || got[0] == "sandbox-LOST" {
		t.Errorf("shims after a sweep: %v", got)
	}
	if got, err := r.Run(t.Context(), run(p, "echo on", time.Minute)); err != nil || string(got.Stdout) != "on" {
		t.Errorf("after a sweep: %+v, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	for _, o := range others {
		if got := count(o[0], o[1]); len(got) != 1 {
			t.Errorf("shims of %s for %s: %v", o[0], o[1], got)
		}
		for _, s := range shims(o[0], o[1]) {
			if err := s.kill(o[1]); err != nil {
				t.Error(err)
			}
			_ = s.file.Close()
		}
	}
	if l := d.left(t); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// TestLostRecord shows that a sweep ends a task whose container record was deleted, which the daemon
// refuses to delete.
func TestLostRecord(t *testing.T) {
	d, p := startDaemon(t), probe(t)
	r := d.open(t, 1)
	if _, err := r.Run(t.Context(), run(p, "echo", time.Minute)); err != nil {
		t.Fatal(err)
	}
	filled(t, r, 1)
	r.discards.all.Wait()
	ctx := r.ctx(t.Context())
	list, err := r.client.ContainerService().List(ctx)
	if err != nil || len(list) != 1 {
		t.Fatal(len(list), err)
	}
	if err := r.client.ContainerService().Delete(ctx, list[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: list[0].ID}); err == nil {
		t.Error("the daemon deletes a task without a record")
	}
	other := &Runner{client: r.client, socket: r.socket, ns: r.ns} // to which the container does not belong
	if err := other.sweep(ctx); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	// The next process removes the FIFOs.
	if l := slices.DeleteFunc(d.left(t), func(s string) bool { return strings.Contains(s, "/fifo/") }); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// TestLostBundles shows that a sweep removes a bundle of which containerd has no task, with the
// mount of the root, the files that containerd keeps for it and the processes in the control
// group of the container, and removes no file of the mounted root. It does not remove a bundle
// of another namespace or one in which another file system is mounted, and programs run after
// it.
func TestLostBundles(t *testing.T) {
	d, p := startDaemon(t), probe(t)
	r := d.open(t, 1)
	if _, err := r.Run(t.Context(), run(p, "echo", time.Minute)); err != nil {
		t.Fatal(err)
	}
	filled(t, r, 1)
	root := t.TempDir()
	file := filepath.Join(root, "file of the root")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lose := func(ns, name string) (bundle, work string) {
		t.Helper()
		bundle = filepath.Join(d.dir, "state", bundlesName, ns, name)
		work = filepath.Join(t.TempDir(), bundlesName, ns, strings.TrimPrefix(name, "."))
		for _, dir := range []string{filepath.Join(bundle, "rootfs"), work} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(work, filepath.Join(bundle, "work")); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount(root, filepath.Join(bundle, "rootfs"), "", syscall.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		return bundle, work
	}
	lost, work := lose(testNamespace, "sandbox-LOST")
	hidden, hiddenWork := lose(testNamespace, ".sandbox-HIDDEN")
	other, _ := lose(testNamespace+"-other", "sandbox-LOST")
	used, usedWork := lose(testNamespace, "sandbox-USED") // with a mount point that runc created after the root was unmounted
	if err := syscall.Unmount(filepath.Join(used, "rootfs"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(used, "rootfs", "proc"), 0o700); err != nil {
		t.Fatal(err)
	}
	kept, _ := lose(testNamespace, "sandbox-KEPT") // with a file system mounted in a root that is not mounted
	mounted := filepath.Join(kept, "rootfs", "dev")
	if err := syscall.Unmount(filepath.Dir(mounted), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(root, mounted, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}

	group := filepath.Join("/sys/fs/cgroup/pids", testNamespace, "sandbox-LOST")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		group = filepath.Join("/sys/fs/cgroup", testNamespace, "sandbox-LOST")
	}
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	program := exec.Command("sleep", "1000")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(program.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := r.sweep(r.ctx(t.Context())); err != nil {
		t.Error(err)
	}
	for _, path := range []string{lost, work, hidden, hiddenWork, used, usedWork, group} {
		if isDir(path) {
			t.Errorf("%s was not removed", path)
		}
	}
	if !isDir(other) {
		t.Error("the bundle of another namespace was removed")
	}
	if !isDir(kept) {
		t.Error("a bundle with a mounted file system was removed")
	}
	if err := errors.Join(syscall.Unmount(mounted, 0), removeBundle(kept)); err != nil {
		t.Error(err)
	}
	if err := removeBundle(other); err != nil || isDir(other) {
		t.Errorf("%s was not removed: %v", other, err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if err := program.Wait(); err == nil {
		t.Error("the process of the lost container was not killed")
	}
	if got, err := r.Run(t.Context(), run(p, "echo on", time.Minute)); err != nil || string(got.Stdout) != "on" {
		t.Errorf("after a sweep: %+v, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if l := d.left(t); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// TestShimCommand shows that containerd's commands which remove what a killed shim left are
// not regarded as shims, so that no sweep kills them.
func TestShimCommand(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "n", "-id", "x", "-address", "/s"}, "x"},
		{[]string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "n", "-address", "/s", "-publish-binary", "/c", "-id", "x", "-bundle", "/b", "delete"}, ""},
		{[]string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "other", "-id", "x", "-address", "/s"}, ""},
		{[]string{"/usr/bin/sleep", "-namespace", "n", "-id", "x", "-address", "/s"}, ""},
	} {
		path := filepath.Join(t.TempDir(), "cmdline")
		if err := os.WriteFile(path, []byte(strings.Join(c.args, "\x00")+"\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := shimID(path, "/s", "n"); got != c.want {
			t.Errorf("%v: %q, want %q", c.args, got, c.want)
		}
	}
}
