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

// cgroup limits one run where the host lets us: v1 controllers or v2.
type cgroup struct {
	dirs map[string]string // by controller; v2 has the one key "unified"
}

const cgroupFS = "/sys/fs/cgroup"

// newCgroup makes a group with the limits, or an inactive one where the
// hierarchy is not writable.
func newCgroup(id string, l contract.Sandbox) (*cgroup, error) {
	c := &cgroup{dirs: map[string]string{}}
	if _, err := os.Stat(cgroupFS + "/cgroup.controllers"); err == nil {
		return c, c.v2(id, l)
	}
	files := map[string][][2]string{
		"memory": {{"memory.limit_in_bytes", strconv.FormatInt(l.MemoryMiB<<20, 10)}, {"memory.memsw.limit_in_bytes", strconv.FormatInt(l.MemoryMiB<<20, 10)}},
		"pids":   {{"pids.max", strconv.FormatInt(l.Pids, 10)}},
		"cpu":    {{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", strconv.FormatInt(l.CPUMillis*100, 10)}},
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
	return c, nil
}

func (c *cgroup) v2(id string, l contract.Sandbox) error {
	parent := filepath.Join(cgroupFS, "binnacle")
	if os.MkdirAll(parent, 0o755) != nil {
		return nil
	}
	_ = os.WriteFile(cgroupFS+"/cgroup.subtree_control", []byte("+memory +pids +cpu"), 0o644)
	_ = os.WriteFile(parent+"/cgroup.subtree_control", []byte("+memory +pids +cpu"), 0o644)
	dir := filepath.Join(parent, id)
	if os.MkdirAll(dir, 0o755) != nil {
		return nil
	}
	for _, s := range [][2]string{{"memory.max", strconv.FormatInt(l.MemoryMiB<<20, 10)}, {"pids.max", strconv.FormatInt(l.Pids, 10)},
		{"cpu.max", fmt.Sprintf("%d 100000", l.CPUMillis*100)}} {
		if err := os.WriteFile(filepath.Join(dir, s[0]), []byte(s[1]), 0o644); err != nil {
			os.Remove(dir)
			return nil
		}
	}
	_ = os.WriteFile(filepath.Join(dir, "memory.swap.max"), []byte("0"), 0o644)
	c.dirs["unified"] = dir
	return nil
}

// active reports whether memory and pids are both limited here.
func (c *cgroup) active() bool {
	return c.dirs["unified"] != "" || c.dirs["memory"] != "" && c.dirs["pids"] != ""
}

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

func (c *cgroup) add(pid int) error {
	for ctl, dir := range c.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("cgroup %s: %w", ctl, err)
		}
	}
	return nil
}

func (c *cgroup) oom() bool {
	if d := c.dirs["unified"]; d != "" {
		b, _ := os.ReadFile(d + "/memory.events")
		for line := range strings.Lines(string(b)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
				return n != "0"
			}
		}
	}
	if d := c.dirs["memory"]; d != "" {
		b, _ := os.ReadFile(d + "/memory.oom_control")
		for line := range strings.Lines(string(b)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
				return n != "0"
			}
		}
	}
	return false
}

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
