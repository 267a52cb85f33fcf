package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward"
)

// setupFailed is the exit code of a child process that could not set up its sandbox.
const setupFailed = 125

// init sets up the sandbox and runs the program if this process was started as the first
// process of a sandbox. It is in this package and not in main, so that every program
// that uses the package, including a test, can re-execute itself.
func init() {
	if len(os.Args) == 0 || os.Args[0] != initName {
		return
	}
	runtime.LockOSThread()
	err := become()
	_, _ = unix.Write(statusFD, fmt.Appendf(nil, "%s: %v", initName, err))
	os.Exit(setupFailed)
}

// become sets up the sandbox and replaces this process by the program (execveat). It
// returns only if one of these fails. With StopBefore, the process exits with code 0
// instead of becoming the program.
func become() error {
	cfg := os.NewFile(setupFD, "setup")
	var s setup
	if err := json.NewDecoder(cfg).Decode(&s); err != nil {
		return fmt.Errorf("setup: %w", err)
	}
	if s.Listener != 0 {
		if _, err := forward.Send(s.Listener); err != nil { // execveat closes the listener
			return fmt.Errorf("egress: %w", err)
		}
	}
	if err := buildRoot(s); err != nil {
		return err
	}
	if err := sendFolders(); err != nil {
		return fmt.Errorf("folders: %w", err)
	}
	if err := setLimits(s); err != nil {
		return err
	}
	// Join a new, empty session keyring. If keyctl is denied here, the filter below
	// denies access to the inherited keyring.
	if _, _, e := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); e != 0 && e != unix.ENOSYS && e != unix.EPERM {
		return fmt.Errorf("keyring: %w", e)
	}
	// closeOnExec makes execveat close all descriptors above standard error, including
	// those that this process inherited.
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

// arguments returns the command line and environment of the program in the form that
// execveat requires.
func arguments(s setup) (argv, env []*byte, err error) {
	if argv, err = syscall.SlicePtrFromStrings(s.Argv); err != nil {
		return nil, nil, fmt.Errorf("arguments: %w", err)
	}
	if env, err = syscall.SlicePtrFromStrings(append([]string{"PATH=" + searchPath(s.Host), "HOME=/work", "TMPDIR=/tmp"}, s.Env...)); err != nil {
		return nil, nil, fmt.Errorf("environment: %w", err)
	}
	return argv, env, nil
}

// searchPath returns the variable PATH of a sandbox that has the programs of the host or only the
// pack.
func searchPath(host bool) string {
	if host {
		return "/usr/local/bin:/usr/bin:/bin:/pack"
	}
	return "/pack"
}

// closeOnExec sets the close-on-exec flag of every descriptor above standard error.
func closeOnExec() error {
	err := unix.CloseRange(setupFD, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) { // CLOSE_RANGE_CLOEXEC exists since Linux 5.11
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

// buildRoot creates the sandbox's root file system and enters it. The order of the steps
// matters: mounts are made private before any is added, and the host's root is detached
// only when it is no longer needed.
func buildRoot(s setup) error {
	unix.Umask(0o022) // the sandbox's user must be able to enter the folders, whatever the umask of the service is
	r := root{dir: s.Root}
	r.step("private mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") })
	r.step("root", func() error {
		return unix.Mount("tmpfs", s.Root, "tmpfs", unix.MS_NOSUID, fmt.Sprintf("size=%d,mode=755", rootSize+s.Script+int64(len(s.CA))))
	})
	for _, d := range append([]string{"dev", "pack", "old"}, writable...) {
		r.step("folder", func() error { return os.Mkdir(r.path(d), 0o755) })
	}
	if s.Host {
		r.host()
	}
	if s.Script > 0 { // the interpreter opens the script by its path
		r.step("script", func() error { return copyScript(r.path("pack/main"), s.Script) })
	}
	if len(s.CA) > 0 {
		r.step("certificate authority", func() error {
			if err := os.Mkdir(r.path("run"), 0o755); err != nil {
				return err
			}
			return os.WriteFile(r.path(CAPath), s.CA, 0o444)
		})
	}
	for _, d := range []string{"dev/null", "dev/zero", "dev/urandom"} {
		r.bind("/"+d, d)
	}
	for _, d := range writable {
		r.step(d, func() error {
			return unix.Mount("tmpfs", r.path(d), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, strings.Join(FolderOptions(s.DiskMiB), ","))
		})
	}
	r.step("pivot_root", func() error { return unix.PivotRoot(s.Root, r.path("old")) })
	r.step("work", func() error { return os.Chdir("/work") })
	r.step("detach host", func() error { return unix.Unmount("/old", unix.MNT_DETACH) })
	r.step("detach host", func() error { return os.Remove("/old") })
	r.step("read-only root", func() error {
		return unix.Mount("", "/", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
	})
	r.step("hostname", func() error { return unix.Sethostname([]byte("sandbox")) })
	return r.err
}

// writable lists the folders that the program can write to; the rest of its root is read-only.
var writable = []string{"tmp", "work"}

// rootSize is the size of the root file system in bytes, not counting a script and a
// certificate authority.
const rootSize = 1 << 20

// root is a root file system that is being built. After a step has failed, step skips
// all further steps.
type root struct {
	dir string
	err error
}

func (r *root) path(name string) string { return filepath.Join(r.dir, name) }

func (r *root) step(what string, do func() error) {
	if r.err != nil {
		return
	}
	if err := do(); err != nil {
		r.err = fmt.Errorf("%s: %w", what, err)
	}
}

// hostFolders lists the folders of the host with its programs and libraries. Those that are
// symbolic links, such as /bin on most distributions, are links in the sandbox too.
var hostFolders = []string{"usr", "bin", "lib", "lib32", "lib64", "etc/alternatives"}

// host mounts the folders in hostFolders that exist, read-only and without setuid.
func (r *root) host() {
	for _, d := range hostFolders {
		info, err := os.Lstat("/" + d)
		if err != nil {
			continue
		}
		r.step("folder /"+d, func() error {
			if err := os.MkdirAll(filepath.Dir(r.path(d)), 0o755); err != nil {
				return err
			}
			if info.Mode().Type() == os.ModeSymlink {
				to, err := os.Readlink("/" + d)
				if err != nil {
					return err
				}
				return os.Symlink(to, r.path(d))
			}
			if err := os.Mkdir(r.path(d), 0o755); err != nil {
				return err
			}
			if err := unix.Mount("/"+d, r.path(d), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return err
			}
			return unix.MountSetattr(unix.AT_FDCWD, r.path(d), unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV})
		})
	}
}

// bind mounts a device of the host in the root, without setuid and without execution.
func (r *root) bind(from, to string) {
	at := r.path(to)
	r.step("file "+to, func() error {
		f, err := os.Create(at)
		if err != nil {
			return err
		}
		return f.Close()
	})
	r.step("bind "+at, func() error { return unix.Mount(from, at, "", unix.MS_BIND, "") })
	r.step("remount "+at, func() error {
		return unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NOEXEC, "")
	})
}

// setLimits sets the rlimits of this process, which the program inherits. If there is no
// active cgroup, they also limit memory and the number of processes.
func setLimits(s setup) error {
	cpu := uint64(s.Limits.WallMS/1000 + 1)
	file := uint64(s.DiskMiB+1) << 20 // above the size of a folder, so that a full one returns ENOSPC
	limits := []struct {
		what int
		v    uint64
	}{{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_NOFILE, 256}, {unix.RLIMIT_FSIZE, file}, {unix.RLIMIT_CPU, cpu}}
	if !s.Cgroup {
		// Limit the data segment and not the address space: Go's runtime, for example,
		// reserves gigabytes of address space and uses little of it.
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

// copyScript copies the sealed script of the given size to a file in the sandbox's root.
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

// dropPrivileges drops every capability and the means to gain one. If uid is not 0, it
// also changes the user and group. It affects only the calling thread, which becomes the
// program.
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
		// Changing the user cleared the parent death signal, so set it again.
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
