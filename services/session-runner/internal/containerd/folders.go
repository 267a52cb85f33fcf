package containerd

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// writable lists the folders of a container that its processes can write to. Each is a tmpfs
// mount of the profile's size.
var writable = []string{"/tmp", "/work", "/dev/shm"}

// openFolders opens the writable folders of a container through the folder of its first
// process in /proc. It omits a folder that it cannot open. If this process does not see
// the container's processes, pid may be another process; openFolders then returns nil or
// omits the folders, because it compares the control group with id and the sizes with
// sizeMiB.
func openFolders(pid uint32, id string, sizeMiB int64) (out sandbox.Folders) {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !bytes.Contains(groups, []byte(id)) {
		return nil
	}
	for _, name := range writable {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/root%s", pid, name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
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
