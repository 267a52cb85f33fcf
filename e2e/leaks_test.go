package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
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

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

var leakCalls = flag.Int("leak-calls", 100, "number of calls of TestMeshLeaks")

// ownContainerd is a containerd of a test, with folders of its own.
type ownContainerd struct {
	t      *testing.T
	dir    string
	socket string
	cmd    *exec.Cmd
}

// startContainerd starts a containerd, which is killed at the end of the test.
func startContainerd(t *testing.T) *ownContainerd {
	t.Helper()
	dir := t.TempDir()
	d := &ownContainerd{t: t, dir: dir, socket: filepath.Join(dir, "state", "c.sock")}
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n", filepath.Join(dir, "root"), filepath.Join(dir, "state"), d.socket)
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	t.Cleanup(d.kill)
	return d
}

func (d *ownContainerd) start() {
	d.t.Helper()
	d.cmd = exec.Command("containerd", "--config", filepath.Join(d.dir, "config.toml"))
	if err := d.cmd.Start(); err != nil {
		d.t.Fatalf("%v: install the Debian packages containerd and runc, and run the tests as root", err)
	}
	eventually(d.t, "containerd responds", 30*time.Second, func() bool {
		_, err := d.ctr("version")
		return err == nil
	})
}

func (d *ownContainerd) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// ctr returns the lines that a command of containerd's client prints.
func (d *ownContainerd) ctr(args ...string) ([]string, error) {
	cmd := exec.Command("ctr", append([]string{"--address", d.socket, "--timeout", "5s"}, args...)...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ctr %q: %w: %s", args, err, errors.Bytes())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// shims returns the process ids of the shims of d.
func (d *ownContainerd) shims() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if s := strings.ReplaceAll(string(b), "\x00", " "); strings.Contains(s, "containerd-shim") && strings.Contains(s, "-address "+d.socket) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// rows returns the first column of a table of ctr in a namespace.
func (d *ownContainerd) rows(ns string, args ...string) (out []string) {
	d.t.Helper()
	lines, err := d.ctr(append([]string{"--namespace", ns}, args...)...)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 0 && !slices.Contains([]string{"CONTAINER", "TASK", "KEY", "ID"}, f[0]) && (args[0] != "snapshots" || f[len(f)-1] != "Committed") {
			out = append(out, args[0]+" "+f[0]+" of "+ns)
		}
	}
	return out
}

// namespaces returns the namespaces of d.
func (d *ownContainerd) namespaces() []string {
	d.t.Helper()
	lines, err := d.ctr("namespaces", "list", "--quiet")
	if err != nil {
		d.t.Fatal(err)
	}
	return slices.DeleteFunc(lines, func(ns string) bool { return ns == "" })
}

// left lists what belongs to calls: containers, tasks, snapshots that are not images, leases, shims, mounts,
// processes and network namespaces of control groups, control groups, and folders of runc and of tasks.
func (d *ownContainerd) left() (out []string) {
	d.t.Helper()
	for _, pid := range d.shims() {
		out = append(out, fmt.Sprintf("shim %d", pid))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, d.dir) {
			out = append(out, "mount "+line)
		}
	}
	for _, ns := range d.namespaces() {
		for _, args := range [][]string{{"containers", "list"}, {"tasks", "list"}, {"snapshots", "list"}, {"leases", "list"}} {
			out = append(out, d.rows(ns, args...)...)
		}
		for _, pattern := range []string{"/sys/fs/cgroup/*/" + ns + "/*/", "/sys/fs/cgroup/" + ns + "/*/", filepath.Join(d.dir, "state/io.containerd.runtime.v2.task", ns, "*"), "/run/containerd/runc/" + ns + "/*"} {
			names, _ := filepath.Glob(pattern)
			out = append(out, names...)
		}
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, proc := range procs {
			if group, _ := os.ReadFile(filepath.Join(proc, "cgroup")); bytes.Contains(group, []byte("/"+ns+"/")) {
				network, _ := os.Readlink(filepath.Join(proc, "ns/net"))
				out = append(out, proc+" with the network namespace "+network)
			}
		}
	}
	return out
}

// TestMeshLeaks makes calls in tier container, with one process per service and two session-runners:
// programs that end, exceed their time, are cancelled, or leave processes, while session-runners and
// shims are killed and containerd is killed and started again. First it shows that what a killed
// session-runner left is removed within 40 seconds although it was started again before its lease had
// ended. At the end, every call has one outcome, and nothing of any call is left.
func TestMeshLeaks(t *testing.T) {
	d, packs := startContainerd(t), t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(packs, "linger"), "./packs/linger")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write := func(name string, text string) {
		if err := os.WriteFile(filepath.Join(packs, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("linger.pack.yaml", "tier: container\ntimeout_s: 2\nmemory_mib: 32\ninput_schema: {properties: {how: {type: string}, n: {type: integer}}}\n")
	m := harness.Processes(t, harness.Options{Containerd: d.socket, Packs: packs, Env: []string{"BINNACLE_WARM=2"}})
	m.StartService("session-runner-b", "session-runner")
	runners := []string{"session-runner", "session-runner-b"}
	m.WaitReady()
	call := func(ctx context.Context, n int, how string) (int, string) {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		r, err := m.Do(ctx, "POST", "/api/v1/packs/cmd.linger", fmt.Sprintf("s-linger-%d", n%20), fmt.Sprintf(`{"how":%q,"n":%d}`, how, n))
		if err != nil {
			return 0, err.Error()
		}
		return r.Status, string(r.Body)
	}
	removedSoon(t, d, m, runners[0], func() { call(t.Context(), 0, "end") })

	stop := make(chan struct{})
	var chaos, calls sync.WaitGroup
	kills := map[string]int{}
	chaos.Go(func() {
		rng := rand.New(rand.NewPCG(2, 1))
		for second := 0; ; second++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Second):
			}
			switch x := second % 16; {
			case x == 1 || x == 9: // the process is started again within its lease
				m.Restart(runners[x/8])
				kills["session-runner"]++
			case x == 3 && kills["containerd"] < 3:
				d.kill()
				d.start()
				kills["containerd"]++
			case x%2 == 0:
				if pids := d.shims(); len(pids) > 0 {
					_ = syscall.Kill(pids[rng.IntN(len(pids))], syscall.SIGKILL)
					kills["shim"]++
				}
			}
		}
	})
	began := time.Now()
	var mu sync.Mutex
	ended := map[string]int{}
	for w := range 8 {
		calls.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for n := w; n < *leakCalls; n += 8 {
				ctx, cancel := context.WithCancel(t.Context())
				how := []string{"end", "end", "orphan", "sleep", "sleep"}[rng.IntN(5)]
				if how == "sleep" && rng.IntN(2) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(500))*time.Millisecond, cancel)
				}
				status, _ := call(ctx, n+1, how)
				cancel()
				mu.Lock()
				ended[fmt.Sprint(how, " ", status)]++
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	close(stop)
	chaos.Wait()
	t.Logf("%d calls in %v: %v; killed %v", *leakCalls, time.Since(began).Round(time.Second), ended, kills)
	if ended["end 200"] == 0 || ended["orphan 200"] == 0 || kills["session-runner"] == 0 || kills["shim"] == 0 || kills["containerd"] == 0 {
		t.Error("the test shows too little")
	}
	eventually(t, "a call succeeds after all", time.Minute, func() bool { status, _ := call(t.Context(), 0, "end"); return status == 200 })

	// A session-runner that has had no calls has no prepared containers, and removes what others left.
	for _, r := range runners {
		m.Signal(r, syscall.SIGTERM)
		m.Exited(r, time.Minute)
	}
	m.Restart(runners[0])
	eventuallySlow(t, "nothing is left", 90*time.Second, d.left)
	m.WaitReady()
	proves(t, m)
}

// eventuallySlow waits until left returns nothing.
func eventuallySlow(t *testing.T, what string, within time.Duration, left func() []string) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(500 * time.Millisecond) {
		l := left()
		if len(l) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("never: %s; left:\n%s", what, strings.Join(l, "\n"))
		}
	}
}

// removedSoon kills a session-runner during calls and starts it again at once, so that it gets another
// slot, and waits until the containers of the killed process are removed.
func removedSoon(t *testing.T, d *ownContainerd, m *harness.Mesh, runner string, call func()) {
	t.Helper()
	before := map[string][]string{}
	eventually(t, "both instances have containers", time.Minute, func() bool {
		call()
		clear(before)
		for _, ns := range d.namespaces() {
			if c := d.rows(ns, "containers", "list"); len(c) > 0 {
				before[ns] = c
			}
		}
		return len(before) == 2
	})
	killed := time.Now()
	m.Restart(runner)
	eventuallySlow(t, "the containers of the killed session-runner are removed", 40*time.Second, func() []string {
		gone := []string{}
		for ns, was := range before {
			now := d.rows(ns, "containers", "list")
			if !slices.ContainsFunc(was, func(c string) bool { return slices.Contains(now, c) }) {
				return nil
			}
			gone = append(gone, now...)
		}
		return gone
	})
	t.Logf("the containers of a killed session-runner were removed after %v", time.Since(killed).Round(time.Second))
}
