package sandbox

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The filter of tier "process" allows only the listed system calls, such as those for
// memory, processes, time, files of the sandbox, and sockets, which have no route to any
// host. It denies keyrings, bpf, ptrace, io_uring, userfaultfd, perf, mounts, namespaces,
// modules, setting clocks, and file handles. Some calls are allowed or denied by their
// arguments. System calls newer than newestCall return ENOSYS, so that libraries fall
// back to older ones.

// commonCalls lists the system calls that are allowed on every architecture, whatever
// their arguments.
var commonCalls = []uintptr{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_LSEEK, unix.SYS_MMAP, unix.SYS_MPROTECT, unix.SYS_MUNMAP, unix.SYS_BRK,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPENDING, unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_SIGSUSPEND, unix.SYS_SIGALTSTACK,
	unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREADV, unix.SYS_PWRITEV, unix.SYS_PREADV2, unix.SYS_PWRITEV2,
	unix.SYS_SCHED_YIELD, unix.SYS_MREMAP, unix.SYS_MSYNC, unix.SYS_MINCORE, unix.SYS_MADVISE, unix.SYS_MLOCK, unix.SYS_MUNLOCK, unix.SYS_MLOCK2,
	unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_NANOSLEEP, unix.SYS_GETITIMER, unix.SYS_SETITIMER, unix.SYS_SENDFILE, unix.SYS_CONNECT, unix.SYS_ACCEPT, unix.SYS_ACCEPT4,
	unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_SENDMMSG, unix.SYS_RECVMMSG, unix.SYS_SHUTDOWN, unix.SYS_BIND, unix.SYS_LISTEN,
	unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT, unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_WAIT4, unix.SYS_WAITID,
	unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_UNAME, unix.SYS_FCNTL, unix.SYS_FLOCK, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE, unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE,
	unix.SYS_GETDENTS64, unix.SYS_GETCWD, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_READLINKAT,
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UMASK, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_UTIMENSAT,
	unix.SYS_GETTIMEOFDAY, unix.SYS_GETRLIMIT, unix.SYS_PRLIMIT64, unix.SYS_GETRUSAGE, unix.SYS_SYSINFO, unix.SYS_TIMES,
	unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETTID, unix.SYS_GETUID, unix.SYS_GETGID, unix.SYS_GETEUID, unix.SYS_GETEGID, unix.SYS_GETRESUID, unix.SYS_GETRESGID, unix.SYS_GETGROUPS,
	unix.SYS_GETPGID, unix.SYS_SETPGID, unix.SYS_GETSID, unix.SYS_SETSID, unix.SYS_CAPGET, unix.SYS_PRCTL, unix.SYS_FUTEX, unix.SYS_FUTEX_WAITV, unix.SYS_SET_TID_ADDRESS, unix.SYS_SET_ROBUST_LIST, unix.SYS_GET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_MEMBARRIER, unix.SYS_RESTART_SYSCALL,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_GETPARAM, unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_GET_PRIORITY_MAX, unix.SYS_SCHED_GET_PRIORITY_MIN, unix.SYS_GETPRIORITY, unix.SYS_GETCPU,
	unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_GETTIME, unix.SYS_TIMER_GETOVERRUN, unix.SYS_TIMER_DELETE, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP,
	unix.SYS_TIMERFD_CREATE, unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMERFD_GETTIME, unix.SYS_EVENTFD2, unix.SYS_SIGNALFD4, unix.SYS_PIPE2, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_PPOLL, unix.SYS_PSELECT6,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH, unix.SYS_SPLICE, unix.SYS_TEE, unix.SYS_COPY_FILE_RANGE, unix.SYS_READAHEAD, unix.SYS_FADVISE64, unix.SYS_GETRANDOM, unix.SYS_MEMFD_CREATE, unix.SYS_CLOSE_RANGE,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL,
}

// newestCall is the highest system call number that was considered for the list.
const newestCall = unix.SYS_MSEAL

// namespaceFlags is the set of flags of clone(2) that create a namespace.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Offsets in struct seccomp_data (seccomp(2)). offArg is the offset of the low 32 bits
// of the first argument.
const (
	offCall = 0
	offArch = 4
	offArg  = 16
)

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

// jump returns an instruction that compares the accumulator with k. If the comparison
// holds, it skips the number of instructions in yes, and otherwise the number in no.
func jump(op uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

func refuse(e unix.Errno) unix.SockFilter { return ret(unix.SECCOMP_RET_ERRNO | uint32(e)) }

var allow = ret(unix.SECCOMP_RET_ALLOW)

// filter returns the filter as a classic BPF program.
func filter() []unix.SockFilter {
	f := []unix.SockFilter{
		load(offArch), jump(unix.BPF_JEQ, auditArch, 1, 0), ret(unix.SECCOMP_RET_KILL_PROCESS),
		load(offCall),
	}
	// decide appends the instructions for the system call with the number call. They are
	// skipped if the accumulator contains another number.
	decide := func(call uintptr, body ...unix.SockFilter) {
		f = append(append(f, jump(unix.BPF_JEQ, uint32(call), 0, uint8(len(body)))), body...)
	}
	decide(unix.SYS_CLONE, load(offArg), jump(unix.BPF_JSET, namespaceFlags, 0, 1), refuse(unix.EPERM), allow)
	decide(unix.SYS_CLONE3, refuse(unix.ENOSYS)) // the flags of clone3 are in memory, which a filter cannot read
	decide(unix.SYS_SOCKET, load(offArg), jump(unix.BPF_JEQ, unix.AF_UNIX, 2, 0), jump(unix.BPF_JEQ, unix.AF_INET, 1, 0), jump(unix.BPF_JEQ, unix.AF_INET6, 0, 1), allow, refuse(unix.EAFNOSUPPORT))
	decide(unix.SYS_SOCKETPAIR, load(offArg), jump(unix.BPF_JEQ, unix.AF_UNIX, 0, 1), allow, refuse(unix.EAFNOSUPPORT))
	decide(unix.SYS_IOCTL, load(offArg+8), jump(unix.BPF_JEQ, unix.TIOCSTI, 1, 0), jump(unix.BPF_JEQ, unix.TIOCLINUX, 0, 1), refuse(unix.EPERM), allow)
	for _, r := range ranges(append(slices.Clone(commonCalls), archCalls...)) {
		f = append(f, jump(unix.BPF_JGE, r[0], 0, 2), jump(unix.BPF_JGT, r[1], 1, 0), allow)
	}
	return append(f, jump(unix.BPF_JGT, newestCall, 0, 1), refuse(unix.ENOSYS), refuse(unix.EPERM))
}

// ranges returns the numbers in calls as ranges (first, last) of consecutive numbers, in
// ascending order. It sorts the slice calls.
func ranges(calls []uintptr) [][2]uint32 {
	slices.Sort(calls)
	var out [][2]uint32
	for _, c := range calls {
		if n := uint32(c); len(out) > 0 && n <= out[len(out)-1][1]+1 {
			out[len(out)-1][1] = n
		} else {
			out = append(out, [2]uint32{n, n})
		}
	}
	return out
}

// installFilter installs the filter on the calling thread. Its child processes inherit
// the filter, and it cannot be removed.
func installFilter() error {
	runtime.LockOSThread()
	f := filter()
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	runtime.KeepAlive(f)
	return nil
}
