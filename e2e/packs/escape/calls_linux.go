package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inherited lists the file descriptors below 1024 that the program inherited, except
// standard input, output and error.
var inherited = func() []int {
	open := []int{}
	for fd := 3; fd < 1024; fd++ {
		if _, _, e := unix.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GETFD, 0); e == 0 {
			open = append(open, fd)
		}
	}
	return open
}()

// burn uses CPU time until the process has used ms milliseconds of it.
func burn(ms int64) {
	for {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil || ts.Nano() >= ms*1e6 {
			return
		}
	}
}

// forks creates processes that wait, until that fails, and returns their number, which is at
// most 4096. It does not execute a program, because tier process has no file of it.
func forks() (n int) {
	for ; n < 4096; n++ {
		pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e != 0 {
			break
		}
		for pid == 0 {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return n
}

// held keeps the arguments of system calls reachable, so that the garbage collector does
// not free them.
var held [][]byte

func facts() map[string]any {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	_ = unix.Capget(&hdr, &caps[0])
	noNew, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	seccomp, _ := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return map[string]any{"uid": os.Getuid(), "inherited": inherited, "capabilities": caps[0].Effective | caps[0].Permitted | caps[1].Effective | caps[1].Permitted, "no_new_privs": noNew, "seccomp": seccomp}
}

func call(name string, nr uintptr, args ...uintptr) attempt {
	return attempt{name, func() error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
			return e
		}
		return nil
	}}
}

func socket(name string, family int) attempt {
	return attempt{"socket " + name, func() error {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
			if fd, err := unix.Socket(family, kind, 0); err == nil {
				return unix.Close(fd)
			}
		}
		return unix.EAFNOSUPPORT
	}}
}

func calls() []attempt {
	hold := func(b []byte) uintptr { held = append(held, b); return uintptr(unsafe.Pointer(&b[0])) }
	null := func(s string) uintptr { return hold(append([]byte(s), 0)) }
	block := hold(make([]byte, 4096)) // zeroed memory for arguments
	user, payload := null("user"), null("x")
	signed := func(n int) uintptr { return uintptr(n) }
	out := []attempt{
		call("keyctl: the user's keyring", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, signed(unix.KEY_SPEC_USER_KEYRING), 1),
		call("keyctl: the session's keyring", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, signed(unix.KEY_SPEC_SESSION_KEYRING), 1),
		call("add_key", unix.SYS_ADD_KEY, user, payload, payload, 1, signed(unix.KEY_SPEC_USER_KEYRING)),
		call("request_key", unix.SYS_REQUEST_KEY, user, payload, 0, signed(unix.KEY_SPEC_USER_KEYRING)),
		call("unshare user", unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		call("unshare net", unix.SYS_UNSHARE, unix.CLONE_NEWNET),
		{"clone into a new user namespace", func() error {
			pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			if e != 0 {
				return e
			}
			if pid == 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			return nil
		}},
		{"clone3", func() error {
			args := [11]uint64{unix.CLONE_NEWUSER, 0, 0, 0, uint64(unix.SIGCHLD)}
			pid, _, e := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
			if e != 0 {
				return e
			}
			if pid == 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			return nil
		}},
		{"setns", func() error {
			fd, err := unix.Open("/proc/self/ns/mnt", unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			return unix.Setns(fd, 0)
		}},
		socket("AF_VSOCK", unix.AF_VSOCK), socket("AF_NETLINK", unix.AF_NETLINK), socket("AF_PACKET", unix.AF_PACKET), socket("AF_ALG", unix.AF_ALG), socket("AF_BLUETOOTH", unix.AF_BLUETOOTH), socket("AF_XDP", unix.AF_XDP),
		call("ptrace", unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(os.Getppid())),
		call("ptrace: be traced", unix.SYS_PTRACE, unix.PTRACE_TRACEME),
		call("process_vm_readv", unix.SYS_PROCESS_VM_READV, uintptr(os.Getpid()), block, 0, block, 0),
		call("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, uintptr(os.Getpid()), block, 0, block, 0),
		call("bpf", unix.SYS_BPF, 0, block, 128),
		call("perf_event_open", unix.SYS_PERF_EVENT_OPEN, block, 0, signed(-1), signed(-1), 0),
		call("userfaultfd", unix.SYS_USERFAULTFD, 1),
		call("io_uring_setup", unix.SYS_IO_URING_SETUP, 8, block),
		call("mount", unix.SYS_MOUNT, null("tmpfs"), null("/tmp"), null("tmpfs"), 0, 0),
		call("umount", unix.SYS_UMOUNT2, null("/tmp"), unix.MNT_DETACH),
		call("open_tree", unix.SYS_OPEN_TREE, signed(unix.AT_FDCWD), null("/"), unix.OPEN_TREE_CLONE),
		call("fsopen", unix.SYS_FSOPEN, null("tmpfs"), 0),
		call("pivot_root", unix.SYS_PIVOT_ROOT, null("/tmp"), null("/tmp")),
		call("chroot", unix.SYS_CHROOT, null("/tmp")),
		call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0),
		call("init_module", unix.SYS_INIT_MODULE, block, 0, payload),
		call("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, signed(unix.AT_FDCWD), block, 0),
		{"name_to_handle_at", func() error { _, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/", 0); return err }},
		call("kcmp", unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getpid()), 0, 0, 1),
		call("setuid 0", unix.SYS_SETUID, 0),
		call("sethostname", unix.SYS_SETHOSTNAME, payload, 1),
		call("fanotify_init", unix.SYS_FANOTIFY_INIT, 0, 0),
	}
	if os.Getuid() == 0 { // user id 0 of a new user namespace, for which setuid 0 succeeds without an escape
		for i := range out {
			if out[i].name == "setuid 0" {
				out = append(out[:i], out[i+1:]...)
				break
			}
		}
	}
	return out
}
