//go:build containers

package containerd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// TestMicroVM shows that runs of tier microvm are made by the configured runtime, which the
// attestation names, cold and prepared; that a runtime that the host does not have, one that hangs,
// and a run with a network are refused as unavailable; that tier container can still be used; and that
// nothing is left. The host of the tests has no runtime with a kernel of its own, so the
// runtime is the shim of runc under another name: the test shows the selection, and not the
// isolation of a virtual machine.
func TestMicroVM(t *testing.T) {
	shim, err := exec.LookPath("containerd-shim-runc-v2")
	if err != nil {
		t.Fatal("install the Debian package containerd")
	}
	dir := t.TempDir()
	if err := os.Symlink(shim, filepath.Join(dir, "containerd-shim-testvm-v2")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	d, p := startDaemon(t), probe(t)
	r := d.open(t, 2)
	vm := NewMicroVM(r, "io.containerd.testvm.v2")
	for i := range 3 {
		got, err := vm.Run(t.Context(), run(p, "echo some text", time.Minute))
		if err != nil || string(got.Stdout) != "some text" || got.Attest.Tier != "microvm" || !slices.Contains(got.Attest.Enforced, "runtime:io.containerd.testvm.v2") {
			t.Fatalf("run %d: %+v, %v", i, got, err)
		}
		filled(t, r, 1)
	}
	list, err := r.client.Containers(r.ctx(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	vms := 0
	for _, c := range list {
		if info, err := c.Info(r.ctx(t.Context())); err == nil && info.Runtime.Name == "io.containerd.testvm.v2" {
			vms++
		}
	}
	if vms == 0 {
		t.Error("no prepared container has the configured runtime")
	}
	if got, err := r.Run(t.Context(), run(p, "echo", time.Minute)); err != nil || got.Attest.Tier != "container" {
		t.Errorf("tier container beside it: %+v, %v", got, err)
	}
	_, err = NewMicroVM(r, "io.containerd.absent.v2").Run(t.Context(), run(p, "echo", time.Minute))
	if missing := (*MissingRuntime)(nil); !errors.As(err, &missing) || !Unavailable(err) || !strings.Contains(err.Error(), "session-runner.microvm.runtime") {
		t.Errorf("a runtime that is not installed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "containerd-shim-hangs-v2"), []byte("#!/bin/sh\nexec sleep 20\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	usual := createTime
	createTime = time.Second
	_, err = NewMicroVM(r, "io.containerd.hangs.v2").Run(t.Context(), run(p, "echo", time.Minute))
	if createTime = usual; !Unavailable(err) || !strings.Contains(err.Error(), "not created within 1s") {
		t.Errorf("a runtime that hangs: %v", err)
	}
	s := run(p, "echo", time.Minute)
	s.Egress = &sandbox.Egress{}
	if _, err := vm.Run(t.Context(), s); !errors.Is(err, ErrNoEgress) || !Unavailable(err) {
		t.Errorf("a run with a network: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if l := d.left(t); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// TestOthers shows that the containers which an instance left, and a shim of which containerd
// has no record, are listed and removed by another instance of the mesh, and that no container
// is removed that was created after they were listed or is in the namespace of another mesh.
func TestOthers(t *testing.T) {
	d, p := startDaemon(t), probe(t)
	open := func(mesh, instance string) *Runner {
		r, err := Open(t.Context(), d.socket, mesh, instance, filepath.Join(d.dir, "fifo"), d.dir, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Run(t.Context(), run(p, "echo", time.Minute)); err != nil {
			t.Fatal(err)
		}
		filled(t, r, 1)
		return r
	}
	gone, mine, foreign := open("mesh-a-", "one"), open("mesh-a-", "two"), open("mesh-b-", "one")
	gone.stop() // as a kill does: nothing is removed
	gone.swept.Wait()
	startShim(t, d.socket, "mesh-a-one", "sandbox-LOST")
	var remains []Remains
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // the container of the run is removed in the background
		var err error
		if remains, err = Others(mine); err != nil || len(remains) != 1 || remains[0].Namespace != "mesh-a-one" {
			t.Fatalf("%+v, %v", remains, err)
		}
		if len(d.containers(t, "mesh-a-one")) == 1 || time.Now().After(end) {
			break
		}
	}
	later, err := gone.prepare(profile{image: imageID{p.Digest, ""}, memoryMiB: 64, cpuMillis: 1000, pids: 32, diskMiB: 8}, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := remains[0].Remove(); err != nil {
		t.Error(err)
	}
	for _, s := range shims(d.socket, "mesh-a-one") {
		if s.id == "sandbox-LOST" {
			t.Error("a shim that containerd does not know is left")
		}
		_ = s.file.Close()
	}
	if got := d.containers(t, "mesh-a-one"); len(got) != 1 || !later.alive() {
		t.Errorf("the container that was created since: %v, alive %v", got, later.alive())
	}
	later.remove()
	if l := d.leftIn(t, "mesh-a-one"); slices.ContainsFunc(l, func(s string) bool {
		return strings.HasPrefix(s, "container") || strings.HasPrefix(s, "task") || strings.HasPrefix(s, "snapshot")
	}) {
		t.Errorf("left: %v", l)
	}
	for _, r := range []*Runner{mine, foreign} {
		if n := r.Prepared(); n != 1 || len(d.containers(t, r.ns)) != 1 {
			t.Errorf("%s: %d prepared, containers %v", r.ns, n, d.containers(t, r.ns))
		}
	}
	if err := errors.Join(mine.Close(), foreign.Close()); err != nil {
		t.Error(err)
	}
}

// TestServing shows that a daemon that does not run is reported, also as the cause of a
// run that failed, and that it is reported as serving when it runs again.
func TestServing(t *testing.T) {
	d, p := startDaemon(t), probe(t)
	r := d.open(t, 0)
	if err := Serving(t.Context(), r); err != nil {
		t.Error(err)
	}
	d.stop()
	if err := Serving(t.Context(), r); err == nil {
		t.Error("a daemon that does not run is reported as serving")
	}
	if _, err := r.Run(t.Context(), run(p, "echo", time.Minute)); err == nil || !Unavailable(err) {
		t.Errorf("a run without a daemon: %v", err)
	}
	d.start(t)
	for end := time.Now().Add(20 * time.Second); Serving(t.Context(), r) != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon that runs again is not reported as serving")
		}
	}
	if got, err := r.Run(t.Context(), run(p, "echo again", time.Minute)); err != nil || string(got.Stdout) != "again" {
		t.Errorf("after the restart: %+v, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// containers returns the ids of the containers in a namespace.
func (d *daemon) containers(t testing.TB, ns string) (ids []string) {
	t.Helper()
	for _, part := range d.leftIn(t, ns) {
		if id, ok := strings.CutPrefix(part, "container "); ok {
			ids = append(ids, id)
		}
	}
	return ids
}
