package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A containerd that is killed while it starts a shim has no record of that shim after its
// restart, and removes neither the shim nor the processes of its container. sweepShims
// removes both.

// killTime is the longest time that sweepShims waits for the end of one shim.
const killTime = 2 * time.Second

// sweepShims kills the shims of this daemon and namespace whose containers no run has, and of
// which containerd has no task, with the processes of their containers. A shim that this
// process has started by a request is not killed, because r records the id of the container
// before the request. sweepShims has no effect where this process does not see the shims, or
// where it uses another path for the daemon's socket than the daemon.
func sweepShims(ctx context.Context, r *Runner) error {
	found := shims(r.socket, r.ns)
	if len(found) == 0 {
		return nil
	}
	defer func() {
		for _, s := range found {
			_ = s.file.Close()
		}
	}()
	known, err := knownTasks(ctx, r) // read after the shims, so that it has the task of every shim found
	if err != nil {
		return err
	}
	var problems []error
	for _, s := range found {
		if !known[s.id] && !r.keeps(s.id) {
			problems = append(problems, s.kill(r.ns))
		}
	}
	return errors.Join(problems...)
}

// shim is the shim of a container.
type shim struct {
	id   string   // of the container
	file *os.File // refers to the process, and to no other one that gets its id (pidfd_open(2))
}

// shims returns the shims of a daemon, given the path of its socket, for a namespace. The
// caller must close their files.
func shims(socket, ns string) (out []shim) {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		if shimID(path, socket, ns) == "" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		file := os.NewFile(uintptr(fd), "pidfd")
		if id := shimID(path, socket, ns); id != "" { // the process is the one that was opened
			out = append(out, shim{id, file})
		} else {
			_ = file.Close()
		}
	}
	return out
}

// command is the command line of a shim.
type command struct {
	namespace, address, id string // address is the path of the daemon's socket
	delete                 bool   // the process is no shim: it removes what a killed shim left
}

// shimCommand returns the command line in a file of procfs, or the zero command if it is not
// that of a shim.
func shimCommand(path string) (c command) {
	line, err := os.ReadFile(path)
	if err != nil {
		return c // it has ended
	}
	args := strings.Split(string(line), "\x00")
	if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") {
		return c
	}
	value := map[string]string{}
	for i := 1; i+1 < len(args); i++ {
		value[args[i]] = args[i+1]
	}
	return command{namespace: value["-namespace"], address: value["-address"], id: value["-id"], delete: slices.Contains(args, "delete")}
}

// shimID returns the id of the container of a shim, given the file with its command line. It
// returns "" if that is not the command line of a shim of the daemon and the namespace.
// containerd's commands "delete" are no shims.
func shimID(path, socket, ns string) string {
	c := shimCommand(path)
	if c.namespace != ns || c.address != socket || c.delete {
		return ""
	}
	return c.id
}

// kill kills the shim and the processes in the control group of its container, and waits until
// the shim has ended, for at most killTime.
func (s shim) kill(ns string) error {
	if err := unix.PidfdSendSignal(int(s.file.Fd()), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("shim of %s: %w", s.id, err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/" + ns + "/" + s.id, "/sys/fs/cgroup/*/" + ns + "/" + s.id} {
		groups, _ := filepath.Glob(pattern)
		for _, g := range groups {
			emptyGroup(g)
		}
	}
	poll := []unix.PollFd{{Fd: int32(s.file.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, int(killTime.Milliseconds())); n == 0 && err == nil {
		return fmt.Errorf("the shim of %s has not ended %v after it was killed", s.id, killTime)
	}
	return nil
}

// emptyGroup kills the processes of a control group until it has none, for at most killTime.
func emptyGroup(path string) {
	for end := time.Now().Add(killTime); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		list, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil || len(strings.TrimSpace(string(list))) == 0 {
			return
		}
		for text := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(text); err == nil && pid > 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}
