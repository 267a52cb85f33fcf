package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// Process implements the tier "process": each run has its own namespaces and a minimal
// root file system. Its fields must not change after the first run. It is safe for
// concurrent use.
type Process struct {
	StateDir string // folder in which each run creates a folder, the mount point of its root file system
	UIDs     *UIDs  // nil if all runs share one user id
}

// Tier implements Runner. Runs in this tier share the host's kernel, restricted by a
// system call filter.
func (Process) Tier() string { return "process" }

// OwnUID implements Runner. A separate user id requires that this process is privileged,
// and a folder for the locks on user ids.
func (p Process) OwnUID() bool { return p.UIDs != nil && privileged() }

// initName is the name (argv[0]) under which this program runs as the first process of a
// sandbox.
const initName = "binnacle-sandbox-init"

// setup is the message from the parent to the child, which then becomes the program. The
// child executes the descriptor programFD, which is the program or, for a script, its
// interpreter.
type setup struct {
	Root       string
	Argv       []string
	Script     int64 // size of the script at scriptFD; 0 if the program is not a script
	Host       bool  // the sandbox has the programs of the host
	Env        []string
	Limits     contract.Sandbox
	DiskMiB    int64  // size of each writable folder in MiB
	Cgroup     bool   // memory and processes are limited by a cgroup
	UID        int    // user and group id to change to; 0 means no change
	Listener   int    // descriptor of the socket through which the child sends the descriptor of its listener; 0 if it sends none
	CA         []byte // contents of the file CAPath; empty if there is none
	StopBefore bool   // exit before the program starts; set by Probe
}

// Descriptors of the child in addition to standard input, output and error.
const (
	setupFD   = 3
	statusFD  = 4 // socket for the folders and for the error if the sandbox could not be made (see reportOf); closed when the program starts
	programFD = 5
	scriptFD  = 6
)

// Run implements Runner. The program is killed when ctx is done or its time limit has
// passed. Run removes the processes, the mounts and the cgroup of the run before it
// returns.
func (p Process) Run(ctx context.Context, s Spec) (Outcome, error) {
	if err := s.Program.Problem(); err != nil {
		return Outcome{}, err
	}
	if err := s.Egress.Check(); err != nil {
		return Outcome{}, err
	}
	doc := setup{Argv: s.Program.Argv(), Host: s.Program.Host, Env: s.Egress.Environment(s.Env), Limits: s.Limits}
	if s.Egress != nil {
		doc.CA = s.Egress.CA
	}
	files := []*os.File{s.Program.File()}
	if i := s.Program.Interpreter; i != nil {
		doc.Script, files = s.Program.Size, []*os.File{i.File(), s.Program.File()}
	}
	return p.run(ctx, s, doc, files)
}

// run creates a sandbox for the program files[0] and waits until the program has ended.
// For a script, files[0] is its interpreter and files[1] the script. run removes the
// run's processes, cgroup and folder before it returns.
func (p Process) run(ctx context.Context, s Spec, doc setup, files []*os.File) (Outcome, error) {
	doc.Root = filepath.Join(p.StateDir, s.ID)
	if err := os.MkdirAll(doc.Root, 0o700); err != nil {
		return Outcome{}, err
	}
	defer os.Remove(doc.Root) // the folder is empty: the mounts were removed with the namespace
	cg := newCgroup(s.ID, s.Limits)
	defer cg.destroy()
	doc.Cgroup = cg.active()
	if doc.DiskMiB = cmp.Or(s.DiskMiB, DefaultDiskMiB); !doc.Cgroup { // no limit on memory counts the folders
		doc.DiskMiB = min(doc.DiskMiB, s.Limits.MemoryMiB)
	}
	fact, release, err := p.user(&doc)
	if err != nil {
		return Outcome{}, err
	}
	defer release()
	read, write, err := os.Pipe()
	if err != nil {
		return Outcome{}, err
	}
	defer read.Close()
	defer write.Close()
	statusEnd, status, err := socketPair()
	if err != nil {
		return Outcome{}, err
	}
	defer status.Close()
	defer statusEnd.Close()
	extra := append([]*os.File{read, statusEnd}, files...)
	way, err := newHanded(s.Egress)
	if err != nil {
		return Outcome{}, err
	}
	defer way.close()
	if way != nil {
		doc.Listener = setupFD + len(extra)
		extra = append(extra, way.inside)
	}
	cmd := command(extra)
	cmd.Stdin = bytes.NewReader(s.Stdin)
	stdout, stderr := &Capped{Max: s.Limits.OutputBytes}, NewStderr(&s)
	cmd.Stdout, cmd.Stderr = stdout, stderr

	// Pdeathsig is sent when the thread that started the child ends, so keep this
	// goroutine on its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return Outcome{}, fmt.Errorf("namespaces: %w", err)
	}
	statusEnd.Close() // so that reads from status end when the child has closed its copy
	stop, err := begin(cmd, cg, write, doc, s.Egress, way)
	if err != nil {
		return Outcome{}, err
	}
	timedOut, werr := wait(ctx, cmd, time.Duration(s.Limits.WallMS)*time.Millisecond)
	sent := stop()
	out := Outcome{Exit: cmd.ProcessState.ExitCode(), Stdout: stdout.Buf, Stderr: stderr.Bytes(), Overflow: stdout.Over, TimedOut: timedOut, OOM: cg.oom(), Usage: usageOf(cg, cmd.ProcessState, sent)}
	folders, failed := reportOf(status)
	defer func() { folders.Close() }() // also after an error, with the folders received before it
	out.DiskFull = out.Exit != 0 && !timedOut && ctx.Err() == nil && folders.Full()
	out.Attest = contract.Attestation{Enforced: enforced(s, &doc, cg, fact), ImageDigest: s.Program.Digest, Limits: s.Limits, Tier: p.Tier()}
	return out, errors.Join(failed, failure(werr))
}

// user sets the user id of a run in doc, if this process can change to another one. It
// returns the entry for the user id in the attestation, and a function that releases the
// id.
func (p Process) user(doc *setup) (fact string, release func(), err error) {
	switch {
	case p.OwnUID():
		own, release, err := p.UIDs.Take()
		if err != nil {
			return "", nil, fmt.Errorf("user id: %w", err)
		}
		doc.UID = own
		return "uid:per_run", release, nil
	case privileged():
		doc.UID = SharedUID
		return "uid:shared", func() {}, nil
	}
	return "uid:mapped", func() {}, nil
}

// begin adds the child to its cgroup, starts the forwarder of a run with egress, and then
// sends the setup. If way is not nil, it sends the setup first, because the forwarder then
// needs the listener that the child sends. The child waits for the setup, so no part of the
// program runs without limits. begin returns the function that ends the forwarder (see
// Egress.Forward). If a step fails, the forwarder is ended and the child is killed.
func begin(cmd *exec.Cmd, cg *cgroup, to *os.File, doc setup, e *Egress, way *handed) (stop func() int64, err error) {
	defer func() {
		to.Close()
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	if err := cg.add(cmd.Process.Pid); err != nil {
		return nil, err
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	if way != nil {
		if _, err = to.Write(b); err != nil {
			return nil, err
		}
		return way.forward(e)
	}
	if stop, err = e.forwardChild(cmd.Process.Pid); err != nil {
		return nil, err
	}
	if _, err = to.Write(b); err != nil {
		stop()
	}
	return stop, err
}

// failure returns the error of waiting for the child. It returns nil if the program exited with
// another code than 0, did not read its input, or left its output open.
func failure(waited error) error {
	var exit *exec.ExitError
	if errors.As(waited, &exit) || errors.Is(waited, exec.ErrWaitDelay) || errors.Is(waited, syscall.EPIPE) {
		return nil
	}
	return waited
}

// command returns a command that re-executes this program in new namespaces, with files
// as descriptors from 3 on.
func command(files []*os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{initName}
	cmd.Env = []string{}
	cmd.ExtraFiles = files
	cmd.WaitDelay = 500 * time.Millisecond
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	if !privileged() {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return cmd
}

// wait waits until the program has ended. It kills the program when ctx is done or the
// time limit has passed. timedOut reports whether the time limit was the cause.
func wait(ctx context.Context, cmd *exec.Cmd, most time.Duration) (timedOut bool, err error) {
	done, killed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(killed)
		wall := time.NewTimer(most)
		defer wall.Stop()
		select {
		case <-done:
		case <-ctx.Done():
			_ = cmd.Process.Kill() // this is process 1 of the PID namespace: when it ends, the kernel kills every other process in the namespace
		case <-wall.C:
			timedOut = true
			_ = cmd.Process.Kill()
		}
	}()
	err = cmd.Wait()
	close(done)
	<-killed
	return timedOut, err
}

// usageOf returns the amounts that a run used; egress is the number of bytes that it
// sent and received. If the cgroup does not report the CPU time, it is that of the
// ended process and not listed as measured, because it does not include children for
// which a program does not wait. If the cgroup does not report the peak memory, it is
// the maximum resident set size of the ended process.
func usageOf(cg *cgroup, state *os.ProcessState, egress int64) contract.Usage {
	u := contract.Usage{EgressBytes: egress, Measured: []string{contract.MeasureEgress}}
	cpu, memory, cpuKnown, memoryKnown := cg.usage()
	if !cpuKnown {
		cpu = state.UserTime() + state.SystemTime()
	}
	if cpuKnown {
		u.Measured = append([]string{contract.MeasureCompute}, u.Measured...)
	}
	u.CPUMillis = ceilMillis(cpu)
	if r, ok := state.SysUsage().(*syscall.Rusage); ok && !memoryKnown {
		memory, memoryKnown = r.Maxrss<<10, true
	}
	if u.MemoryPeakBytes = memory; memoryKnown {
		u.Measured = append(u.Measured, contract.MeasureMemory)
	}
	return u
}

func ceilMillis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// enforced returns the entries of the attestation for the restrictions on a run.
func enforced(s Spec, doc *setup, cg *cgroup, uid string) []string {
	out := append([]string{"namespaces:mount,pid,net,ipc,uts", s.Egress.Fact(), "read_only_root", "no_new_privs", "no_capabilities", "seccomp:allow_list", "descriptors:closed", "no_keyring",
		"program:sealed", uid, DiskFact(doc.DiskMiB), "wall_clock", "output_bytes"}, cg.enforced()...)
	if !privileged() {
		out = append(out, "namespaces:user")
	}
	if p := s.Program; p != nil && p.Interpreter != nil {
		out = append(out, "interpreter:"+p.Interpreter.Digest)
	}
	if p := s.Program; p != nil && p.Host {
		out = append(out, "programs:host")
	}
	return out
}

// privileged reports whether this process can create namespaces without a user
// namespace. Root cannot do so in a container whose engine removed the capability
// CAP_SYS_ADMIN.
func privileged() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	return os.Geteuid() == 0 && unix.Capget(&hdr, &have[0]) == nil && have[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Probe returns an error that names the failed step if this host cannot create the
// sandbox. It creates a sandbox that ends before a program would start.
func (p Process) Probe() error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	s := Spec{ID: fmt.Sprintf("probe-%d", os.Getpid()), Program: &program.Program{}, Limits: contract.Sandbox{CPUMillis: 1000, MemoryMiB: 256, OutputBytes: 1024, Pids: 64, WallMS: 3000}}
	out, err := p.run(context.Background(), s, setup{Limits: s.Limits, StopBefore: true}, []*os.File{null})
	if err == nil && out.Exit != 0 {
		err = fmt.Errorf("exit %d: %s", out.Exit, out.Stderr)
	}
	return err
}
