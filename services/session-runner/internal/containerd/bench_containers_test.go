//go:build bench && containers

package containerd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// TestLatency measures a run of a small program in a cold and in a prepared container beside
// bubblewrap, runc without containerd, and a plain process, interleaved, and the number of runs per
// second that eight callers sustain, also with crun as OCI runtime. It prints the medians and the 90th
// percentiles, the memory of an idle container, and the CPU time of a run with the filter that runc
// compiles and with the one that the launcher installs.
func TestLatency(t *testing.T) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Fatal("bwrap is missing: install the Debian package bubblewrap")
	}
	d, p := startDaemon(t), probe(t)
	spent := cpuTime(t, d)
	cold, warm := d.open(t, 0), d.openAs(t, testNamespace+"-warm", 8)
	defer cold.Close()
	defer warm.Close()
	other := startDaemonIn(t, t.TempDir(), crun)
	coldCrun, warmCrun := other.openAs(t, testNamespace+"-crun", 0), other.openAs(t, testNamespace+"-crun-warm", 8)
	defer coldCrun.Close()
	defer warmCrun.Close()
	bundle := runcBundle(t, p)
	path := filepath.Join(bundle, "rootfs/pack/main")
	command := func(name string, args ...string) func() {
		return func() {
			if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
		}
	}
	in := func(r *Runner) func() {
		return func() {
			if got, err := r.Run(t.Context(), run(p, "", time.Minute)); err != nil || got.Exit != 0 {
				t.Fatalf("%+v %v", got, err)
			}
		}
	}
	id := 0
	rows := []struct {
		name string
		one  func()
		took []time.Duration
	}{
		{name: "process", one: command(path)},
		{name: "bubblewrap", one: command("bwrap", "--unshare-all", "--ro-bind", filepath.Join(bundle, "rootfs"), "/", "--dev", "/dev", "--proc", "/proc", "/pack/main")},
		{name: "runc run", one: func() {
			id++
			command("runc", "--root", filepath.Join(d.dir, "runc"), "run", "--bundle", bundle, fmt.Sprint("bench-", id))()
		}},
		{name: "cold container", one: in(cold)},
		{name: "cold, crun", one: in(coldCrun)},
		{name: "prepared container", one: func() { filled(t, warm, 1); in(warm)() }},
	}
	in(warm)()
	const rounds = 30
	for range rounds {
		for i := range rows {
			if rows[i].name == "prepared container" {
				filled(t, warm, 1)
			}
			begin := time.Now()
			rows[i].one()
			rows[i].took = append(rows[i].took, time.Since(begin))
		}
	}
	for _, r := range rows {
		slices.Sort(r.took)
		t.Logf("%-20s p50 %6.1f ms, p90 %6.1f ms", r.name, ms(r.took[rounds/2]), ms(r.took[rounds*9/10]))
	}
	filled(t, warm, 1)
	n := warm.Prepared()
	t.Logf("%-20s %.1f MiB of memory for each of %d (proportional set size of shim and launcher)", "idle container", float64(idleKiB(t, d, testNamespace+"-warm"))/1024/float64(n), n)
	compareFilters(t, cold, p, spent)
	for _, r := range []struct {
		name string
		of   *Runner
	}{{"cold", cold}, {"prepared", warm}, {"cold, crun", coldCrun}, {"prepared, crun", warmCrun}} {
		var wg sync.WaitGroup
		begin := time.Now()
		for range 8 {
			wg.Go(func() {
				for range 20 {
					in(r.of)()
				}
			})
		}
		wg.Wait()
		t.Logf("%-20s %.1f runs/s with eight callers", r.name, 160/time.Since(begin).Seconds())
	}
}

// compareFilters measures the CPU time of cold runs with the filter in the specification of the
// container and with the launcher that installs it, interleaved.
func compareFilters(t *testing.T, r *Runner, p *program.Program, spent func() time.Duration) {
	t.Helper()
	installed := r.host.options
	defer func() { r.host.options = installed }()
	rows := []struct {
		name string
		argv string
		took []time.Duration
	}{{name: "filter of runc", argv: launcherPath}, {name: "filter of launcher", argv: filteredPath}}
	const runs = 4
	for range 15 {
		for i := range rows {
			r.host.options = func(of profile, argv, env []string, uid uint32, way wayOut) containerd.NewContainerOpts {
				return installed(of, append([]string{rows[i].argv}, argv[1:]...), env, uid, way)
			}
			r.discards.all.Wait()
			before := spent()
			for range runs {
				if got, err := r.Run(t.Context(), run(p, "", time.Minute)); err != nil || got.Exit != 0 {
					t.Fatalf("%+v %v", got, err)
				}
			}
			r.discards.all.Wait()
			rows[i].took = append(rows[i].took, (spent()-before)/runs)
		}
	}
	for _, row := range rows {
		slices.Sort(row.took)
		t.Logf("%-20s %.1f ms of CPU time for a cold run (p50), %.1f ms at least", row.name, ms(row.took[len(row.took)/2]), ms(row.took[0]))
	}
}

// cpuTime moves the daemon into a control group of its own and returns a function. The differences
// between results of the function are the CPU times of this process, of the daemon with its shims
// and commands, and of the containers in the test's namespace.
func cpuTime(t *testing.T, d *daemon) func() time.Duration {
	t.Helper()
	root, file, unit := "/sys/fs/cgroup/cpuacct", "cpuacct.usage", time.Nanosecond
	if _, err := os.Stat(root); err != nil {
		root, file, unit = "/sys/fs/cgroup", "cpu.stat", time.Microsecond
	}
	group := filepath.Join(root, fmt.Sprint("binnacle-bench-", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // runs before the daemon is stopped
		_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(d.cmd.Process.Pid)), 0o600)
		_ = os.Remove(group)
	})
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(d.cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	used := func(group string) time.Duration {
		body, err := os.ReadFile(filepath.Join(group, file))
		if err != nil {
			return 0 // no container was created yet
		}
		var n int64
		if _, err := fmt.Sscan(strings.TrimPrefix(string(body), "usage_usec "), &n); err != nil {
			t.Fatal(err)
		}
		return time.Duration(n) * unit
	}
	return func() time.Duration {
		var self syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
			t.Fatal(err)
		}
		return used(group) + used(filepath.Join(root, testNamespace)) + time.Duration(self.Utime.Nano()+self.Stime.Nano())
	}
}

// idleKiB returns the proportional set size in KiB of the shims of a namespace and of the
// processes in its containers.
func idleKiB(t *testing.T, d *daemon, ns string) (sum int) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/smaps_rollup")
	for _, f := range files {
		dir := filepath.Dir(f)
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		args := strings.Split(string(line), "\x00")
		shim := slices.Contains(args, d.socket) && slices.Contains(args, ns)
		if !shim && !strings.Contains(string(group), "/"+ns+"/") {
			continue
		}
		body, _ := os.ReadFile(f)
		for l := range strings.Lines(string(body)) {
			var kib int
			if _, err := fmt.Sscanf(l, "Pss: %d kB", &kib); err == nil {
				sum += kib
			}
		}
	}
	return sum
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// runcBundle writes a bundle with which runc runs the program, and returns its
// folder.
func runcBundle(t *testing.T, p *program.Program) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"pack", "proc", "dev", "sys"} {
		if err := os.MkdirAll(filepath.Join(dir, "rootfs", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	body, err := p.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rootfs/pack/main"), body, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("runc", "spec", "--bundle", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	config := filepath.Join(dir, "config.json")
	spec, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	spec = bytes.ReplaceAll(spec, []byte(`"terminal": true`), []byte(`"terminal": false`))
	spec = bytes.ReplaceAll(spec, []byte(`"sh"`), []byte(`"/pack/main"`))
	if err := os.WriteFile(config, spec, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
