package private

import "syscall"

// NoCoreDumps sets the limit of the size of core files to zero, for this process and those
// that it starts, so that the kernel writes no memory to a file when a process crashes. A
// program to which the kernel pipes core dumps (core(5)) still receives them.
func NoCoreDumps() error {
	return syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
}

// NotDumpable calls NoCoreDumps, makes the kernel produce no core dump of this process at
// all, and denies other processes of the same user access to its memory (PR_SET_DUMPABLE
// in prctl(2)). Unlike the limit that NoCoreDumps sets, this does not apply to processes
// that this one starts.
func NotDumpable() error {
	if err := NoCoreDumps(); err != nil {
		return err
	}
	const prSetDumpable = 4
	if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
