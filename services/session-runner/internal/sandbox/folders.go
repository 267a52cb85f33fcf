package sandbox

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// FolderOptions returns the options (tmpfs(5)) of a writable folder of mib MiB: its size, and
// the number of its files, one for 2 KiB. Without the second limit, empty files and folders
// would use memory of the kernel without end.
func FolderOptions(mib int64) []string {
	return []string{fmt.Sprintf("size=%dm", mib), fmt.Sprintf("nr_inodes=%d", mib*512), "mode=1777"}
}

// DiskFact returns the entry of the attestation for the size of the writable folders.
func DiskFact(mib int64) string { return fmt.Sprintf("disk:%d_mib", mib) }

// Folders are descriptors of the writable folders of a sandbox, which remain readable after
// its processes have ended.
type Folders []int

// Full reports whether one of the folders has no free space, or no room for another file.
func (f Folders) Full() bool {
	for _, fd := range f {
		var st unix.Statfs_t
		if unix.Fstatfs(fd, &st) == nil && (st.Bavail == 0 || st.Ffree == 0) {
			return true
		}
	}
	return false
}

// Close closes the descriptors.
func (f Folders) Close() {
	for _, fd := range f {
		_ = unix.Close(fd)
	}
}

// socketPair returns two connected sockets (unix(7)). Both are closed at exec.
func socketPair() (inside, outside *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "inside"), os.NewFile(uintptr(fds[1]), "outside"), nil
}

// sendFolders sends the descriptors of the writable folders through the socket statusFD.
func sendFolders() error {
	var fds []int
	for _, name := range writable {
		fd, err := unix.Open("/"+name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	return unix.Sendmsg(statusFD, []byte{0}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
}

// maxStatus is the maximum number of bytes of a child's error that are read.
const maxStatus = 4096

// reportOf returns what a child that has ended has sent through the other end of status: the
// descriptors of its writable folders, which the caller must close, and the error if its
// sandbox could not be made. The program cannot reach that end.
func reportOf(status *os.File) (f Folders, failed error) {
	c, err := net.FileConn(status)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var text []byte
	for data, control := make([]byte, maxStatus), make([]byte, unix.CmsgSpace(4*len(writable))); len(text) < maxStatus; {
		n, rights, _, _, err := c.(*net.UnixConn).ReadMsgUnix(data, control)
		text = append(text, data[:n]...)
		f = append(f, received(control[:rights])...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return f, err
		}
	}
	if len(f) > 0 {
		text = text[1:] // the byte of sendFolders
	}
	if len(text) > 0 {
		return f, errors.New(string(text))
	}
	return f, nil
}

// received returns the descriptors in control messages.
func received(control []byte) (f Folders) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err == nil {
			f = append(f, fds...)
		}
	}
	return f
}
