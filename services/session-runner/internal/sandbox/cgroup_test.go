package sandbox

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestCgroup2 checks that newCgroup creates a group in a folder with the layout of a
// cgroup 2 hierarchy, and that the group's methods read files in Linux's format.
func TestCgroup2(t *testing.T) {
	root := t.TempDir()
	defer func(was string) { cgroupFS = was }(cgroupFS)
	cgroupFS = root
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := newCgroup("run", contract.Sandbox{CPUMillis: 500, MemoryMiB: 64, Pids: 32})
	if !c.active() {
		t.Fatal(c)
	}
	if err := c.add(4711); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "binnacle/run")
	for name, want := range map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "pids.max": "32", "cpu.max": "50000 100000", "cgroup.procs": "4711",
		"../cgroup.subtree_control": "+memory +pids +cpu", "../../cgroup.subtree_control": "+memory +pids +cpu"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v, want %q", name, b, err, want)
		}
	}
	if got := c.enforced(); len(got) != 3 || got[0] != "memory:cgroup2" {
		t.Errorf("enforced %v", got)
	}
	if cpu, memory, cpuKnown, memoryKnown := c.usage(); cpuKnown || memoryKnown || c.oom() {
		t.Errorf("of no files: %v %d %v %v", cpu, memory, cpuKnown, memoryKnown)
	}
	for _, name := range []string{"cpu.stat", "memory.peak", "memory.events"} {
		b, err := os.ReadFile(filepath.Join("testdata/cgroup2", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cpu, memory, cpuKnown, memoryKnown := c.usage()
	if cpu != 911505*time.Microsecond || memory != 18472960 || !cpuKnown || !memoryKnown || !c.oom() {
		t.Errorf("%v %d %v %v, oom %v", cpu, memory, cpuKnown, memoryKnown, c.oom())
	}
	if err := os.Remove(filepath.Join(dir, "memory.peak")); err != nil {
		t.Fatal(err)
	}
	if cpu, _, cpuKnown, memoryKnown := c.usage(); cpu == 0 || !cpuKnown || memoryKnown {
		t.Errorf("before Linux 5.19: %v %v %v", cpu, cpuKnown, memoryKnown)
	}
}
