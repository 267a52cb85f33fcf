//go:build containers

package containerd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/containerd/snapshots"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// daemon is a containerd of the test's own.
type daemon struct {
	dir     string
	socket  string
	cmd     *exec.Cmd
	runtime string // OCI runtime of the runners; "" means runc
}

// startDaemon starts containerd with folders of its own. It needs root, containerd and
// runc.
func startDaemon(t testing.TB) *daemon {
	t.Helper()
	return startDaemonIn(t, t.TempDir(), "")
}

// startDaemonIn is startDaemon with the given folder for containerd's persistent data, and the OCI
// runtime of the runners.
func startDaemonIn(t testing.TB, root, runtime string) *daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("containers need root: run the tests as root")
	}
	for _, p := range []string{"containerd", "runc", "crun", "containerd-shim-runc-v2"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%s is missing: install the Debian packages containerd, runc and crun", p)
		}
	}
	dir := t.TempDir()
	d := &daemon{runtime: runtime, dir: dir, socket: filepath.Join(dir, "state", "c.sock")} // in the folder of the state, as containerd's default is
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n", root, filepath.Join(dir, "state"), d.socket)
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start(t)
	t.Cleanup(d.stop)
	return d
}

// crun is the OCI runtime that runners may use instead of runc. With the controllers of version 1, it
// refuses a host whose hierarchy of version 2 has a controller, too. hideUnified hides that hierarchy
// from the daemon.
const (
	crun        = "crun"
	hideUnified = `mountpoint -q /sys/fs/cgroup/unified && umount /sys/fs/cgroup/unified; exec "$@"`
)

func (d *daemon) start(t testing.TB) {
	t.Helper()
	args := []string{"containerd", "--config", filepath.Join(d.dir, "config.toml")}
	if d.runtime == crun {
		args = append([]string{"unshare", "--mount", "sh", "-c", hideUnified, "sh"}, args...)
	}
	d.cmd = exec.Command(args[0], args[1:]...)
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := containerd.New(d.socket, containerd.WithTimeout(time.Second))
		if err == nil {
			_, err = c.Version(t.Context())
			_ = c.Close()
		}
		if err == nil {
			return
		}
		if time.Now().After(end) {
			body, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			t.Fatalf("containerd did not start: %v\n%s", err, body)
		}
	}
}

func (d *daemon) stop() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// probe builds the test program.
func probe(t testing.TB) *program.Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	cmd := exec.Command("go", "build", "-o", path, "./testdata/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p, err := program.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

const testNamespace = "binnacle-test"

// open opens a runner that prepares at most warm containers.
func (d *daemon) open(t testing.TB, warm int) *Runner {
	t.Helper()
	return d.openAs(t, testNamespace, warm)
}

// openAs is open with another namespace.
func (d *daemon) openAs(t testing.TB, ns string, warm int) *Runner {
	t.Helper()
	r, err := Open(t.Context(), d.socket, ns, "", filepath.Join(d.dir, "fifo"), d.dir, d.runtime, warm)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// run returns a run of the test program with the given input.
func run(p *program.Program, in string, wall time.Duration) sandbox.Spec {
	return sandbox.Spec{Program: p, DiskMiB: 8, Stdin: []byte(in), Env: []string{"COLOR=red", "HOME=/tmp"},
		Limits: contract.Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 1 << 20, Pids: 32, WallMS: wall.Milliseconds()}}
}

// filled waits until the runner has n prepared containers.
func filled(t testing.TB, r *Runner, n int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		r.pool.mu.Lock()
		have := 0
		for _, s := range r.pool.shelves {
			have += len(s.ready)
		}
		r.pool.mu.Unlock()
		if have >= n {
			return
		}
	}
	t.Fatalf("%d containers were not prepared in time", n)
}

// left lists everything in the test's namespace that belongs to runs: containers, tasks,
// temporary snapshots, leases, shims, processes, network namespaces, mounts, control groups
// and FIFOs.
func (d *daemon) left(t testing.TB) []string { return d.leftIn(t, testNamespace) }

// leftIn is left for another namespace.
func (d *daemon) leftIn(t testing.TB, ns string) []string {
	t.Helper()
	c, err := containerd.New(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := namespaces.WithNamespace(context.Background(), ns)
	var out []string
	add := func(kind string, names ...string) {
		for _, n := range names {
			out = append(out, kind+" "+n)
		}
	}
	list, err := c.Containers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, ctr := range list {
		add("container", ctr.ID())
	}
	running, err := c.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range running.Tasks {
		add("task", task.ID)
	}
	if err := c.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			add("snapshot", i.Name)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	leases, err := c.LeasesService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		add("lease", l.ID)
	}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range commands {
		b, _ := os.ReadFile(f)
		if s := strings.ReplaceAll(string(b), "\x00", " "); strings.Contains(s, "containerd-shim") && strings.Contains(s, "-address "+d.socket) {
			add("shim", f)
		} else if s != "" && inGroups(filepath.Dir(f), ns) { // it is empty if the process has ended
			add("process", f, s)
		}
	}
	add("network namespace", d.networks(ns)...)
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", d.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, d.dir) {
			add("mount", line)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + ns + "/*/", "/sys/fs/cgroup/" + ns + "/*/", filepath.Join(d.dir, "fifo", ns, "*"),
		filepath.Join(d.dir, "state/io.containerd.runtime.v2.task", ns, "*"), "/run/containerd/runc/" + ns + "/*"} {
		names, _ := filepath.Glob(pattern)
		add("file", names...)
	}
	return out
}

// inGroups reports whether a process is in a control group of a containerd namespace. Other
// meshes of the host have other namespaces.
func inGroups(proc, ns string) bool {
	group, _ := os.ReadFile(filepath.Join(proc, "cgroup"))
	return strings.Contains(string(group), "/"+ns+"/")
}

// networks returns the network namespaces, other than the host's, of the processes in a
// containerd namespace, and those that the daemon or this process has open, each with the path
// of its link in /proc. Network namespaces that only a mount keeps are among the mounts of left.
func (d *daemon) networks(ns string) (out []string) {
	host, _ := os.Readlink("/proc/self/ns/net")
	holders := []string{fmt.Sprint(os.Getpid()), fmt.Sprint(d.cmd.Process.Pid)}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		links := []string{}
		if slices.Contains(holders, filepath.Base(proc)) {
			links, _ = filepath.Glob(proc + "/fd/*")
		} else if inGroups(proc, ns) {
			links = append(links, proc+"/ns/net")
		}
		for _, link := range links {
			if to, _ := os.Readlink(link); strings.HasPrefix(to, "net:[") && to != host {
				out = append(out, to+" of "+link)
			}
		}
	}
	return out
}

// TestRun checks the results of runs in cold and in prepared containers, of runc and of crun: output,
// the environment, that no file or process of another run is there, and how runs end.
func TestRun(t *testing.T) {
	for _, runtime := range []string{"", crun} {
		t.Run("runtime "+runtime, func(t *testing.T) { runs(t, startDaemonIn(t, t.TempDir(), runtime)) })
	}
}

// runs is TestRun for one daemon.
func runs(t *testing.T, d *daemon) {
	p := probe(t)
	for _, warm := range []int{0, 2} {
		r := d.open(t, warm)
		for name, c := range map[string]struct {
			in   string
			wall time.Duration
			out  string
			want sandbox.Outcome
		}{
			"output":      {"echo some text", time.Minute, "some text", sandbox.Outcome{}},
			"environment": {"environment", time.Minute, "PATH=/pack\nHOME=/tmp\nTMPDIR=/tmp\nCOLOR=red", sandbox.Outcome{}},
			"filter":      {"filter", time.Minute, "mode 2, filters 1, clone3 function not implemented, unshare operation not permitted, keyctl operation not permitted", sandbox.Outcome{}},
			"alone":       {"processes", time.Minute, "1\n", sandbox.Outcome{}},
			"wall clock":  {"sleep", 300 * time.Millisecond, "", sandbox.Outcome{Exit: 137, TimedOut: true}},
			"memory":      {"memory", time.Minute, "", sandbox.Outcome{Exit: 137, OOM: true}},
			"exit 137":    {"kill", time.Minute, "", sandbox.Outcome{Exit: 137}},
			"orphan":      {"orphan", time.Minute, "<nil>", sandbox.Outcome{}},
			"places":      {"places", time.Minute, "/dev/mqueue 0\n/dev/shm 8\n/tmp 8\n/work 8\n", sandbox.Outcome{}},
			"disk":        {"disk /work", time.Minute, "no space left on device", sandbox.Outcome{Exit: 1, DiskFull: true}},
			"disk tmp":    {"disk /tmp", time.Minute, "no space left on device", sandbox.Outcome{Exit: 1, DiskFull: true}},
			"disk shm":    {"disk /dev/shm", time.Minute, "no space left on device", sandbox.Outcome{Exit: 1, DiskFull: true}},
			"names":       {"names /work", time.Minute, "no space left on device", sandbox.Outcome{Exit: 1, DiskFull: true}},
			"forks":       {"forks", time.Minute, "resource temporarily unavailable", sandbox.Outcome{}},
			"no SIGTERM":  {"ignore", 300 * time.Millisecond, "", sandbox.Outcome{Exit: 137, TimedOut: true}},
		} {
			t.Run(fmt.Sprintf("warm %d/%s", warm, name), func(t *testing.T) {
				if warm > 0 {
					_, _ = r.Run(t.Context(), run(p, "echo", time.Minute))
					filled(t, r, 1)
				}
				got, err := r.Run(t.Context(), run(p, c.in, c.wall))
				if err != nil {
					t.Fatal(err)
				}
				if named := slices.Contains(got.Attest.Enforced, "oci_runtime:"+crun); named != (d.runtime == crun) {
					t.Errorf("%v", got.Attest.Enforced)
				}
				if !slices.Contains(got.Attest.Enforced, "disk:8_mib") || string(got.Stdout) != c.out || got.Overflow || got.Exit != c.want.Exit || got.TimedOut != c.want.TimedOut || got.OOM != c.want.OOM || got.DiskFull != c.want.DiskFull {
					t.Errorf("%q, exit %d, timed out %v, out of memory %v; %s", got.Stdout, got.Exit, got.TimedOut, got.OOM, got.Stderr)
				}
			})
		}
		for range 3 { // no run sees the file of an earlier one
			if got, err := r.Run(t.Context(), run(p, "mark", time.Minute)); err != nil || string(got.Stdout) != "0" {
				t.Errorf("%s files of an earlier run, %v", got.Stdout, err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if l := d.left(t); len(l) > 0 {
			t.Errorf("left after Close: %v", l)
		}
	}
}

// TestRestart checks that a run in progress survives a restart of containerd, that another
// program can run afterwards, and that nothing is left after Close.
func TestRestart(t *testing.T) {
	d, p := startDaemon(t), probe(t)
	r := d.open(t, 2)
	if _, err := r.Run(t.Context(), run(p, "echo", time.Minute)); err != nil {
		t.Fatal(err)
	}
	filled(t, r, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		got, err := r.Run(t.Context(), run(p, "sleep", 4*time.Second))
		if err != nil || !got.TimedOut {
			t.Errorf("a run over the restart: %+v, %v", got, err)
		}
	})
	time.Sleep(500 * time.Millisecond) // the run has begun
	d.stop()
	d.start(t)
	if got, err := r.Run(t.Context(), run(p, "echo again", time.Minute)); err != nil || string(got.Stdout) != "again" {
		t.Errorf("after the restart: %+v, %v", got, err)
	}
	wg.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if l := d.left(t); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// TestLeaks runs 500 programs that end, are cancelled, exceed their time or leave
// processes, while shims are killed at random, after processes with runners were killed
// in the middle of their runs. Nothing must be left afterwards, and a sweep must not
// touch what belongs to another namespace.
func TestLeaks(t *testing.T) {
	if dir := os.Getenv("CONTAINERD_TEST_DIR"); dir != "" {
		crash(t, dir)
		return
	}
	d, p := startDaemon(t), probe(t)
	foreign := d.openAs(t, testNamespace+"-other", 1)
	if _, err := foreign.Run(t.Context(), run(p, "echo", time.Minute)); err != nil {
		t.Fatal(err)
	}
	filled(t, foreign, 1)
	for i := range 4 { // processes that are killed in the middle of their runs
		cmd := exec.Command(os.Args[0], "-test.run=^TestLeaks$")
		cmd.Env = append(os.Environ(), "CONTAINERD_TEST_DIR="+d.dir)
		cmd.ExtraFiles = []*os.File{p.File()}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(1500+400*i) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	r := d.open(t, 4)
	stop := make(chan struct{})
	networks := 0 // maximum number of network namespaces while programs run; 0 would mean that d.networks, which left uses, does not find them
	var killer sync.WaitGroup
	killer.Go(func() {
		for {
			networks = max(networks, len(d.networks(testNamespace)))
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
				killShim(d.socket, testNamespace)
			}
		}
	})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for range 125 {
				ctx, cancel := context.WithCancel(t.Context())
				in, wall := "echo x", time.Minute
				switch rnd.IntN(6) {
				case 0:
					in = "orphan"
				case 1:
					in, wall = "sleep", time.Duration(rnd.IntN(100))*time.Millisecond
				case 2:
					in = "sleep"
					time.AfterFunc(time.Duration(rnd.IntN(100))*time.Millisecond, cancel)
				}
				_, _ = r.Run(ctx, run(p, in, wall)) // fails if its shim was killed
				cancel()
			}
		})
	}
	wg.Wait()
	close(stop)
	killer.Wait()
	if networks == 0 {
		t.Error("no program had a network namespace of its own")
	}
	got, err := r.Run(t.Context(), run(p, "echo last", time.Minute))
	for range 4 { // a prepared container may be used shortly after its shim was killed
		if err == nil {
			break
		}
		got, err = r.Run(t.Context(), run(p, "echo last", time.Minute))
	}
	if err != nil || string(got.Stdout) != "last" {
		t.Errorf("after all: %+v, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if got, err := foreign.Run(t.Context(), run(p, "echo mine", time.Minute)); err != nil || string(got.Stdout) != "mine" {
		t.Errorf("another namespace: %+v, %v", got, err)
	}
	if err := foreign.Close(); err != nil {
		t.Error(err)
	}
	// Sweeps remove what killed shims left. One that coincides with a removal by containerd may
	// leave the rest to the next one.
	var l []string
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if err := d.open(t, 0).Close(); err != nil {
			t.Error(err)
		}
		if l = d.left(t); len(l) == 0 || time.Now().After(end) {
			break
		}
	}
	if len(l) > 0 {
		t.Errorf("left:\n%s", strings.Join(l, "\n"))
	}
}

// crash runs programs until the process is killed.
func crash(t *testing.T, dir string) {
	p, err := program.Open(probePath(t))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), filepath.Join(dir, "state", "c.sock"), testNamespace, "", filepath.Join(dir, "fifo"), "", "", 2)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		go func() {
			for {
				_, _ = r.Run(context.Background(), run(p, "orphan", time.Minute))
			}
		}()
	}
	select {}
}

// probePath copies the inherited test program to a file, because program.Open does not
// follow links.
func probePath(t *testing.T) string {
	body, err := os.ReadFile("/proc/self/fd/3")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(path, body, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// killShim kills a shim of the namespace, chosen at random, if there is one.
func killShim(socket, ns string) {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	rand.Shuffle(len(commands), func(i, j int) { commands[i], commands[j] = commands[j], commands[i] })
	for _, f := range commands {
		b, _ := os.ReadFile(f)
		args := strings.Split(string(b), "\x00")
		i := slices.Index(args, "-namespace")
		if i < 0 || i+1 >= len(args) || args[i+1] != ns || !slices.Contains(args, socket) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(f, "/proc/%d/cmdline", &pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return
	}
}
