package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// cgroup limits one run by a Linux control group (version 1 or 2), if the host allows
// that.
type cgroup struct {
	dirs map[string]string // folder by controller; in version 2 the only key is "unified"
}

// cgroupFS is the mount point of the cgroup hierarchies. Tests replace it.
var cgroupFS = "/sys/fs/cgroup"

// newCgroup creates a group with the given limits. With version 1, it omits each
// controller that it cannot configure; for version 2, see v2. active reports whether the
// group limits memory and processes. If swap cannot be limited, the controller for memory
// is used nevertheless.
func newCgroup(id string, l contract.Sandbox) *cgroup {
	c := &cgroup{dirs: map[string]string{}}
	if _, err := os.Stat(cgroupFS + "/cgroup.controllers"); err == nil {
		c.v2(id, l)
		return c
	}
	files := map[string][][2]string{
		"memory": {{"memory.limit_in_bytes", strconv.FormatInt(l.MemoryMiB<<20, 10)}, {"memory.memsw.limit_in_bytes", strconv.FormatInt(l.MemoryMiB<<20, 10)}},
		"pids":   {{"pids.max", strconv.FormatInt(l.Pids, 10)}},
		"cpu":    {{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", strconv.FormatInt(l.CPUMillis*100, 10)}},

		"cpuacct": nil,
	}
	for ctl, settings := range files {
		dir := filepath.Join(cgroupFS, ctl, "binnacle", id)
		if os.MkdirAll(dir, 0o755) != nil {
			continue
		}
		ok := true
		for _, s := range settings {
			if err := os.WriteFile(filepath.Join(dir, s[0]), []byte(s[1]), 0o644); err != nil && !strings.Contains(s[0], "memsw") {
				ok = false
			}
		}
		if ok {
			c.dirs[ctl] = dir
		} else {
			os.Remove(dir)
		}
	}
	return c
}

// v2 creates the group in a cgroup 2 hierarchy. If the group cannot be created or its
// limits cannot be set, the group remains inactive.
func (c *cgroup) v2(id string, l contract.Sandbox) {
	parent := filepath.Join(cgroupFS, "binnacle")
	if os.MkdirAll(parent, 0o755) != nil {
		return
	}
	_ = os.WriteFile(cgroupFS+"/cgroup.subtree_control", []byte("+memory +pids +cpu"), 0o644)
	_ = os.WriteFile(parent+"/cgroup.subtree_control", []byte("+memory +pids +cpu"), 0o644)
	dir := filepath.Join(parent, id)
	if os.MkdirAll(dir, 0o755) != nil {
		return
	}
	for _, s := range [][2]string{{"memory.max", strconv.FormatInt(l.MemoryMiB<<20, 10)}, {"pids.max", strconv.FormatInt(l.Pids, 10)},
		{"cpu.max", fmt.Sprintf("%d 100000", l.CPUMillis*100)}} {
		if err := os.WriteFile(filepath.Join(dir, s[0]), []byte(s[1]), 0o644); err != nil {
			os.Remove(dir)
			return
		}
	}
	_ = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0o644)
	c.dirs["unified"] = dir
}

// active reports whether the group limits both the memory and the number of processes.
func (c *cgroup) active() bool {
	return c.dirs["unified"] != "" || c.dirs["memory"] != "" && c.dirs["pids"] != ""
}

// enforced returns the entries of the attestation for the limits on memory, processes
// and CPU: those of the group or, if it is not active, those of the rlimits that replace
// it.
func (c *cgroup) enforced() []string {
	if c.dirs["unified"] != "" {
		return []string{"memory:cgroup2", "pids:cgroup2", "cpu:cgroup2"}
	}
	if !c.active() {
		return []string{"memory:rlimit_data", "pids:rlimit_nproc", "cpu_time:rlimit"}
	}
	out := []string{"memory:cgroup1", "pids:cgroup1"}
	if c.dirs["cpu"] != "" {
		out = append(out, "cpu:cgroup1")
	}
	return out
}

// add moves a process into the group. Children that the process starts later are in the
// group too.
func (c *cgroup) add(pid int) error {
	for ctl, dir := range c.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("cgroup %s: %w", ctl, err)
		}
	}
	return nil
}

// oom reports whether the kernel killed a process of the group because memory was
// exhausted. It returns false if the group does not limit memory.
func (c *cgroup) oom() bool {
	if d := c.dirs["unified"]; d != "" {
		b, _ := os.ReadFile(d + "/memory.events")
		n, _ := field(string(b), "oom_kill ")
		return n > 0
	}
	if d := c.dirs["memory"]; d != "" {
		b, _ := os.ReadFile(d + "/memory.oom_control")
		n, _ := field(string(b), "oom_kill ")
		return n > 0
	}
	return false
}

// usage returns the CPU time and the peak memory in bytes of the group's processes, and
// whether each is known. Both include the creation of the sandbox.
func (c *cgroup) usage() (cpu time.Duration, memory int64, cpuKnown, memoryKnown bool) {
	if d := c.dirs["unified"]; d != "" {
		b, _ := os.ReadFile(d + "/cpu.stat")
		us, ok := field(string(b), "usage_usec ")
		memory, memoryKnown = number(d + "/memory.peak") // the file exists since Linux 5.19
		return time.Duration(us) * time.Microsecond, memory, ok, memoryKnown
	}
	if d := c.dirs["cpuacct"]; d != "" {
		var ns int64
		ns, cpuKnown = number(d + "/cpuacct.usage")
		cpu = time.Duration(ns)
	}
	if d := c.dirs["memory"]; d != "" {
		memory, memoryKnown = number(d + "/memory.max_usage_in_bytes")
	}
	return cpu, memory, cpuKnown, memoryKnown
}

func number(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// field returns the number that follows name in the first line of doc that begins with
// name. It reports whether there is such a number.
func field(doc, name string) (int64, bool) {
	for line := range strings.Lines(doc) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
			n, err := strconv.ParseInt(v, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// destroy removes the group. It retries for about 100 ms per folder, because a folder
// cannot be removed before the last process has ended.
func (c *cgroup) destroy() {
	for _, dir := range c.dirs {
		for range 50 {
			if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}
