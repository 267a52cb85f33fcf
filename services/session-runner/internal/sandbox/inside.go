package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const setupFailed = 125

// init turns this process into the sandbox's first process when the parent
// started it as such. It is here, and not in main, so that every binary that
// embeds the runner has it.
func init() {
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
	cfg := os.NewFile(setupFD, "setup")
	var s setup
	if err := json.NewDecoder(cfg).Decode(&s); err != nil {
		return fmt.Errorf("setup: %w", err)
	}
	if err := buildRoot(s); err != nil {
		return err
	}
	if err := setLimits(s); err != nil {
		return err
	}
	// A session keyring of its own, which is empty. Where that is denied, the
	// filter below keeps the inherited one out of reach all the same.
	if _, _, e := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); e != 0 && e != unix.ENOSYS && e != unix.EPERM {
		return fmt.Errorf("keyring: %w", e)
	}
	// Nothing but standard input, output and error outlives the exec: neither
	// what is open here nor what this program's own parents left open.
	if err := closeOnExec(); err != nil {
		return err
	}
	argv, env, err := arguments(s)
	if err != nil {
		return err
	}
	if err := dropPrivileges(s.UID); err != nil {
		return err
	}
	if err := installFilter(); err != nil {
		return err
	}
	if s.StopBefore {
		os.Exit(0)
	}
	empty := [1]byte{}
	_, _, e := unix.RawSyscall6(unix.SYS_EXECVEAT, programFD, uintptr(unsafe.Pointer(&empty[0])), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])), unix.AT_EMPTY_PATH, 0)
	return fmt.Errorf("exec: %w", e)
}

func arguments(s setup) (argv, env []*byte, err error) {
	if argv, err = syscall.SlicePtrFromStrings(s.Argv); err != nil {
		return nil, nil, fmt.Errorf("arguments: %w", err)
	}
	if env, err = syscall.SlicePtrFromStrings(append([]string{"PATH=/pack", "HOME=/work", "TMPDIR=/tmp"}, s.Env...)); err != nil {
		return nil, nil, fmt.Errorf("environment: %w", err)
	}
	return argv, env, nil
}

// closeOnExec marks every descriptor above standard error.
func closeOnExec() error {
	err := unix.CloseRange(setupFD, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) { // Linux 5.11
		return err
	}
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &most); err != nil {
		return err
	}
	for fd := setupFD; fd < int(min(most.Max, 1<<20)); fd++ {
		unix.CloseOnExec(fd)
	}
	return nil
}

// buildRoot makes the root of the sandbox and enters it.
func buildRoot(s setup) error {
	r := s.Root
	unix.Umask(0o022) // the child's own: its user must enter what is made for it, however strict the service is
	step := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	if err := step("private mounts", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	if err := step("root", unix.Mount("tmpfs", r, "tmpfs", unix.MS_NOSUID, fmt.Sprintf("size=%d,mode=755", 1<<20+s.Script))); err != nil {
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
	if s.Script > 0 { // the interpreter opens it by its name
		if err := copyScript(filepath.Join(r, "pack/main"), s.Script); err != nil {
			return step("script", err)
		}
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

// copyScript copies the sealed script into the sandbox's own root.
func copyScript(to string, size int64) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o555)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, io.NewSectionReader(os.NewFile(scriptFD, "script"), 0, size)); err != nil {
		return err
	}
	return f.Chmod(0o555)
}

// dropPrivileges leaves no capability, no way to gain one, and, if uid is not 0,
// another user. Only this thread matters: it becomes the program.
func dropPrivileges(uid int) error {
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("bounding set: %w", err)
		}
	}
	if uid != 0 {
		for _, f := range []struct {
			nr   uintptr
			what string
			a, b uintptr
		}{{unix.SYS_SETGROUPS, "groups", 0, 0}, {unix.SYS_SETGID, "gid", uintptr(uid), 0}, {unix.SYS_SETUID, "uid", uintptr(uid), 0}} {
			if _, _, e := unix.RawSyscall(f.nr, f.a, f.b, 0); e != 0 {
				return fmt.Errorf("%s: %w", f.what, e)
			}
		}
		// The change of user cleared it.
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return fmt.Errorf("parent death signal: %w", err)
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
