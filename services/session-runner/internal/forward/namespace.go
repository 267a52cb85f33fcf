package forward

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// within calls do on a thread that is in the network namespace ns. A socket that do
// creates belongs to ns.
func within(ns *os.File, do func() error) error {
	done := make(chan error)
	go func() { done <- enter(ns, do) }()
	return <-done
}

// enter is within for a goroutine that ends after it. It changes the namespace of its
// thread back. If that fails, the goroutine remains locked to the thread, so that no
// other goroutine runs in ns.
func enter(ns *os.File, do func() error) (err error) {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	if err = distinct(own, ns); err == nil {
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("network namespace: %w", err)
		}
	}
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = do()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// distinct returns an error if a and b are the same namespace.
func distinct(a, b *os.File) error {
	i, err := a.Stat()
	if err != nil {
		return err
	}
	j, err := b.Stat()
	if err != nil {
		return err
	}
	if os.SameFile(i, j) {
		return errors.New("the sandbox has no network namespace of its own")
	}
	return nil
}

// loopbackUp sets the loopback device of the thread's network namespace up, unless it is
// up already.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	device, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, device); err != nil {
		return fmt.Errorf("loopback device: %w", err)
	}
	flags := device.Uint16()
	if flags&unix.IFF_UP != 0 {
		return nil
	}
	device.SetUint16(flags | unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, device); err != nil {
		return fmt.Errorf("loopback device: %w", err)
	}
	return nil
}

// Process opens the folder in /proc of a process, which the caller must close. Files that are
// opened through it belong to that process, even if another process has got its id meanwhile:
// if the process has ended, they cannot be opened.
func Process(pid int) (*os.File, error) {
	return open(unix.AT_FDCWD, fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY)
}

// Namespace opens the network namespace of a process, given its folder in /proc. The caller
// must close the result.
func Namespace(process *os.File) (*os.File, error) {
	return open(int(process.Fd()), "ns/net", unix.O_RDONLY)
}

// open opens a file whose path is relative to the folder dir.
func open(dir int, path string, flags int) (*os.File, error) {
	fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
