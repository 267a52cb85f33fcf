//go:build containers

package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// TestDiskFull shows that, while the disk of containerd is full, a program whose image must be
// stored does not run, and the error contains the reason; that a program whose image is stored
// has the correct output or fails; that both run when there is space again; and that nothing of
// these runs is left.
func TestDiskFull(t *testing.T) {
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=96m"); err != nil {
		t.Fatalf("a file system for containerd: %v: run the tests as root", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
	d, p := startDaemonIn(t, root, ""), probe(t)
	r := d.open(t, 0)
	if got, err := r.Run(t.Context(), run(p, "echo first", time.Minute)); err != nil || string(got.Stdout) != "first" {
		t.Fatalf("%+v, %v", got, err)
	}
	body, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", p.File().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "other") // the same program with another digest
	if err := os.WriteFile(path, append(body, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	other, err := program.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	filler := filepath.Join(root, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) || f.Close() != nil {
		t.Fatal(err)
	}
	if got, err := r.Run(t.Context(), run(other, "echo x", time.Minute)); err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("a program whose image cannot be stored: %+v, %v", got, err)
	}
	if got, err := r.Run(t.Context(), run(p, "echo full", time.Minute)); err == nil && string(got.Stdout) != "full" {
		t.Errorf("a program whose image is stored: %+v", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Run(t.Context(), run(other, "echo other", time.Minute)); err != nil || string(got.Stdout) != "other" {
		t.Errorf("with space again: %+v, %v", got, err)
	}
	if got, err := r.Run(t.Context(), run(p, "echo again", time.Minute)); err != nil || string(got.Stdout) != "again" {
		t.Errorf("with space again: %+v, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if l := d.left(t); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}
