package resident

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Start starts a helper, which listens at path: the command with the socket as file 3, in a
// session of its own, without the standard streams of this process. Connections are
// accepted into the queue of the socket at once, also before the helper is ready. Another
// helper at the path gets no new connections.
func Start(path, program string, args []string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := checkFolder(filepath.Dir(path)); err != nil {
		return err
	}
	// The socket gets its name only when it accepts connections.
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	defer f.Close()
	if err = os.Chmod(temp, 0o600); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return cmd.Process.Release()
}
