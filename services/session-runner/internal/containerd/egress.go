package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// egress writes the certificate authority of the call into the container and starts the
// forwarder. It must be called before the program starts. It returns a function that ends
// the forwarder (see sandbox.Egress.Forward). If way is nil, the container has no egress.
func (c *prepared) egress(way *sandbox.Egress) (stop func() int64, err error) {
	if way == nil {
		return way.Forward(nil)
	}
	process, err := forward.Process(int(c.task.Pid()))
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	defer process.Close()
	if err := belongs(process, c.task.ID()); err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	if err := writeCA(process, way.CA); err != nil {
		return nil, fmt.Errorf("egress: certificate authority: %w", err)
	}
	return way.Forward(process)
}

// belongs returns an error unless the process whose folder in /proc is given is in the
// control group of the container with the given id. It wraps sandbox.ErrNoEgress, because
// the usual reason is that containerd counts processes in another PID namespace.
func belongs(process *os.File, id string) error {
	f, err := openAt(process, "cgroup", &unix.OpenHow{Flags: unix.O_RDONLY})
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return err
	}
	if !inGroup(b, id) {
		return fmt.Errorf("%w: the process is not one of container %s", sandbox.ErrNoEgress, id)
	}
	return nil
}

// inGroup reports whether a control group in the file /proc/PID/cgroup has the given name.
func inGroup(file []byte, name string) bool { return bytes.Contains(file, []byte("/"+name+"\n")) }

// writeCA creates the file sandbox.CAPath in the root file system of a process, given its
// folder in /proc. The folder of the file must be a tmpfs in which only root can write.
// No symbolic link is followed, and an existing file is an error.
func writeCA(process *os.File, ca []byte) error {
	root, err := openAt(process, "root", &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return err
	}
	defer root.Close()
	const inside = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	dir, err := openAt(root, path.Dir(sandbox.CAPath), &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY, Resolve: inside})
	if err != nil {
		return err
	}
	defer dir.Close()
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(int(dir.Fd()), &fs), unix.Fstat(int(dir.Fd()), &st)); err != nil {
		return err
	}
	if fs.Type != unix.TMPFS_MAGIC || st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("the folder %s of the container is not a tmpfs of root", path.Dir(sandbox.CAPath))
	}
	f, err := openAt(dir, path.Base(sandbox.CAPath), &unix.OpenHow{Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL, Mode: 0o444, Resolve: inside})
	if err != nil {
		return err
	}
	_, err = f.Write(ca)
	return errors.Join(err, f.Chmod(0o444), f.Close())
}

// openAt opens a file whose path is relative to the folder dir.
func openAt(dir *os.File, name string, how *unix.OpenHow) (*os.File, error) {
	how.Flags |= unix.O_CLOEXEC
	fd, err := unix.Openat2(int(dir.Fd()), name, how)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
