package containerd

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// folders are descriptors of the writable folders of a container, which remain readable
// after its processes have ended.
type folders []int

// openFolders opens the writable folders of a container through the folder of its first
// process in /proc. It omits a folder that it cannot open. If this process does not see
// the container's processes, pid may be another process; openFolders then returns nil or
// omits the folders, because it compares the control group with id and the sizes with
// sizeMiB.
func openFolders(pid uint32, id string, sizeMiB int64) (out folders) {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !bytes.Contains(groups, []byte(id)) {
		return nil
	}
	for _, name := range []string{"tmp", "work"} {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/root/%s", pid, name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Statfs_t
		if unix.Fstatfs(fd, &st) != nil || st.Type != unix.TMPFS_MAGIC || int64(st.Blocks)*st.Bsize != sizeMiB<<20 {
			_ = unix.Close(fd)
			continue
		}
		out = append(out, fd)
	}
	return out
}

// full reports whether one of the folders has no free space.
func (f folders) full() bool {
	for _, fd := range f {
		var st unix.Statfs_t
		if unix.Fstatfs(fd, &st) == nil && st.Bavail == 0 {
			return true
		}
	}
	return false
}

// close closes the descriptors.
func (f folders) close() {
	for _, fd := range f {
		_ = unix.Close(fd)
	}
}
