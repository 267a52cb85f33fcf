//go:build containers

package containerd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startShim starts a shim that containerd does not know.
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
// containerd leaves it, and does not kill a shim of another namespace or daemon, or the shims
// of runs.
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
