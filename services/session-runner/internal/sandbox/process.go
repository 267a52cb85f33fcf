package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Process is the tier "process".
type Process struct {
	StateDir string // holds one empty directory per run
}

// Tier implements Runner.
func (Process) Tier() string { return "process" }

const initName = "binnacle-sandbox-init"

// setup is what the parent tells the child before it becomes the program.
type setup struct {
	Root    string
	Program string
	Env     []string
	Limits  contract.Sandbox
	Cgroup  bool // memory and pids are limited by cgroup
	Drop    bool // change to an unprivileged user
}

// Run implements Runner.
func (p Process) Run(ctx context.Context, s Spec) (Outcome, error) {
	root := filepath.Join(p.StateDir, s.ID)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return Outcome{}, err
	}
	defer os.Remove(root) // empty again: its mounts die with the namespace
	cg, err := newCgroup(s.ID, s.Limits)
	if err != nil {
		return Outcome{}, err
	}
	defer cg.destroy()

	isRoot := privileged()
	read, write, err := os.Pipe()
	if err != nil {
		return Outcome{}, err
	}
	defer read.Close()
	defer write.Close()
	// #nosec: re-exec of ourselves.
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{initName}
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{read}
	cmd.Stdin = bytes.NewReader(s.Stdin)
	stdout, stderr := &Capped{Max: s.Limits.OutputBytes}, &Capped{Max: StderrMax}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	if !isRoot {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
	cmd.WaitDelay = 500 * time.Millisecond

	// Pdeathsig follows the thread that forked, so it must not go away.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return Outcome{}, fmt.Errorf("namespaces: %w", err)
	}
	if err := cg.add(cmd.Process.Pid); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return Outcome{}, err
	}
	doc, err := json.Marshal(setup{Root: root, Program: s.Program, Env: s.Env, Limits: s.Limits, Cgroup: cg.active(), Drop: isRoot})
	if err == nil {
		_, err = write.Write(doc)
	}
	write.Close()
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return Outcome{}, err
	}
	var timedOut bool
	done := make(chan struct{})
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		wall := time.NewTimer(time.Duration(s.Limits.WallMS) * time.Millisecond)
		defer wall.Stop()
		select {
		case <-done:
		case <-ctx.Done():
			cmd.Process.Kill() // pid 1 of its namespace: everything in it dies
		case <-wall.C:
			timedOut = true
			cmd.Process.Kill()
		}
	}()
	werr := cmd.Wait()
	close(done)
	<-killed
	out := Outcome{Exit: cmd.ProcessState.ExitCode(), Stdout: stdout.Buf, Stderr: stderr.Buf, Overflow: stdout.Over, TimedOut: timedOut, OOM: cg.oom()}
	out.CPUMillis = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Milliseconds()
	enforced := append([]string{"namespaces:mount,pid,net,ipc,uts", "no_network", "read_only_root", "no_new_privs", "no_capabilities", "wall_clock", "output_bytes"}, cg.enforced()...)
	if !isRoot {
		enforced = append(enforced, "namespaces:user")
	}
	out.Attest = contract.Attestation{Enforced: enforced, ImageDigest: s.Digest, Limits: s.Limits, Tier: "process"}
	if out.Exit == setupFailed && bytes.HasPrefix(stderr.Buf, []byte(initName)) {
		return out, errors.New(string(bytes.TrimSpace(stderr.Buf)))
	}
	var exit *exec.ExitError
	if werr != nil && !errors.As(werr, &exit) && !errors.Is(werr, exec.ErrWaitDelay) && !errors.Is(werr, syscall.EPIPE) {
		return out, werr
	}
	return out, nil
}

// privileged reports whether namespaces can be made without a user namespace:
// root alone does not suffice where a container engine took its capabilities.
func privileged() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	return os.Geteuid() == 0 && unix.Capget(&hdr, &have[0]) == nil && have[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Probe tells whether this host can make the sandbox.
func (p Process) Probe() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	_, err = p.Run(context.Background(), Spec{ID: "probe", Program: self, Limits: contract.Sandbox{CPUMillis: 1000, MemoryMiB: 256, OutputBytes: 1024, Pids: 64, WallMS: 3000},
		Env: []string{probeEnv + "=1"}})
	if err != nil && strings.Contains(err.Error(), "exec:") {
		return nil // everything up to the program itself worked
	}
	return err
}

const (
	setupFailed = 125
	probeEnv    = "BINNACLE_SANDBOX_PROBE"
)

// init turns this process into the sandbox's first process when the parent
// started it as such. It is here, and not in main, so that every binary that
// embeds the runner has it.
func init() {
	if os.Getenv(probeEnv) == "1" && os.Args[0] == "/pack/main" {
		os.Exit(0)
	}
	if len(os.Args) == 0 || os.Args[0] != initName {
		return
	}
	runtime.LockOSThread()
	err := become()
	fmt.Fprintf(os.Stderr, "%s: %v\n", initName, err)
	os.Exit(setupFailed)
}

// become does not return unless something failed.
func become() error {
	cfg := os.NewFile(3, "setup")
	var s setup
	if err := json.NewDecoder(cfg).Decode(&s); err != nil {
		return fmt.Errorf("setup: %w", err)
	}
	cfg.Close()
	program, err := os.Open(s.Program)
	if err != nil {
		return err
	}
	if err := buildRoot(s, program); err != nil {
		return err
	}
	if err := setLimits(s); err != nil {
		return err
	}
	if err := dropPrivileges(s.Drop); err != nil {
		return err
	}
	env := append([]string{"PATH=/pack", "HOME=/work", "TMPDIR=/tmp"}, s.Env...)
	return fmt.Errorf("exec: %w", unix.Exec("/pack/main", []string{"/pack/main"}, env))
}

func buildRoot(s setup, program *os.File) error {
	r := s.Root
	step := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	if err := step("private mounts", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	if err := step("root", unix.Mount("tmpfs", r, "tmpfs", unix.MS_NOSUID, "size=1m,mode=755")); err != nil {
		return err
	}
	for _, d := range []string{"dev", "tmp", "work", "pack", "old"} {
		if err := os.Mkdir(filepath.Join(r, d), 0o755); err != nil {
			return err
		}
	}
	bind := func(from, to string, flags uintptr) error {
		f, err := os.Create(to)
		if err != nil {
			return err
		}
		f.Close()
		if err := step("bind "+to, unix.Mount(from, to, "", unix.MS_BIND, "")); err != nil {
			return err
		}
		return step("remount "+to, unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""))
	}
	if err := bind(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), filepath.Join(r, "pack/main"), unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV); err != nil {
		return err
	}
	for _, d := range []string{"null", "zero", "urandom"} {
		if err := bind("/dev/"+d, filepath.Join(r, "dev", d), unix.MS_NOSUID|unix.MS_NOEXEC); err != nil {
			return err
		}
	}
	for _, d := range []string{"tmp", "work"} {
		if err := step(d, unix.Mount("tmpfs", filepath.Join(r, d), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64m,mode=1777")); err != nil {
			return err
		}
	}
	program.Close()
	if err := step("pivot_root", unix.PivotRoot(r, filepath.Join(r, "old"))); err != nil {
		return err
	}
	if err := os.Chdir("/work"); err != nil {
		return err
	}
	if err := step("detach host", unix.Unmount("/old", unix.MNT_DETACH)); err != nil {
		return err
	}
	if err := os.Remove("/old"); err != nil {
		return err
	}
	if err := step("read-only root", unix.Mount("", "/", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")); err != nil {
		return err
	}
	return step("hostname", unix.Sethostname([]byte("sandbox")))
}

func setLimits(s setup) error {
	cpu := uint64(s.Limits.WallMS/1000 + 1)
	limits := []struct {
		what int
		v    uint64
	}{{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_NOFILE, 256}, {unix.RLIMIT_FSIZE, 64 << 20}, {unix.RLIMIT_CPU, cpu}}
	if !s.Cgroup {
		// What is written to counts, and not address space: runtimes such as Go's
		// reserve gigabytes of that and touch a little.
		limits = append(limits, struct {
			what int
			v    uint64
		}{unix.RLIMIT_DATA, uint64(s.Limits.MemoryMiB) << 20}, struct {
			what int
			v    uint64
		}{unix.RLIMIT_NPROC, uint64(s.Limits.Pids)})
	}
	for _, l := range limits {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.v, Max: l.v}); err != nil {
			return fmt.Errorf("rlimit %d: %w", l.what, err)
		}
	}
	return nil
}

const nobody = 65534

// dropPrivileges leaves no capability, no way to gain one, and, started as
// root, another user. Only this thread matters: it becomes the program.
func dropPrivileges(changeUser bool) error {
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("bounding set: %w", err)
		}
	}
	if changeUser {
		for _, f := range []struct {
			nr   uintptr
			what string
			a, b uintptr
		}{{unix.SYS_SETGROUPS, "groups", 0, 0}, {unix.SYS_SETGID, "gid", nobody, 0}, {unix.SYS_SETUID, "uid", nobody, 0}} {
			if _, _, e := unix.RawSyscall(f.nr, f.a, f.b, 0); e != 0 {
				return fmt.Errorf("%s: %w", f.what, e)
			}
		}
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&hdr, &none[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}
