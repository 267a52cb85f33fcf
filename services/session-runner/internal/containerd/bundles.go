package containerd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/mount"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// containerd has a folder for each task, the bundle, in which the root of the container is
// mounted. After a shim was killed, containerd executes the shim's command "delete", and
// removes the bundle if that succeeds. If the command is killed too, as containerd does after
// five seconds, the bundle, the mount and the processes of the container remain until
// containerd starts again. sweepBundles and sweepGroups remove them.

// bundlesName is the name of the folder of bundles in containerd's state folder.
const bundlesName = "io.containerd.runtime.v2.task"

// deleteTime is the longest time that a sweep waits until commands "delete" have ended.
const deleteTime = 6 * time.Second

// bundleFolders returns the folders of the bundles of a namespace that this process sees: in
// the folder of the daemon's socket, which is containerd's default, and in each folder that a
// shim of the daemon has as its working folder.
func bundleFolders(socket, ns string) []string {
	roots := map[string]bool{filepath.Join(filepath.Dir(socket), bundlesName): true}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		c := shimCommand(path)
		if c.address != socket {
			continue
		}
		dir, err := os.Readlink(filepath.Join(filepath.Dir(path), "cwd"))
		if root := filepath.Dir(filepath.Dir(dir)); err == nil && filepath.Base(root) == bundlesName {
			roots[root] = true
		}
	}
	var out []string
	for root := range roots {
		if dir := filepath.Join(root, ns); isDir(dir) {
			out = append(out, dir)
		}
	}
	return out
}

// bundles returns the paths of the bundles in the folders.
func bundles(folders []string) (paths []string) {
	for _, dir := range folders {
		list, _ := os.ReadDir(dir)
		for _, e := range list {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths
}

// bundleID returns the id of the container of a bundle. containerd renames a bundle to a hidden
// folder before it removes it.
func bundleID(path string) string { return strings.TrimPrefix(filepath.Base(path), ".") }

// lostBundles returns the set of the ids of the containers that have a bundle in the folders
// and that no run has, and of which containerd has no task.
func lostBundles(ctx context.Context, r *Runner, folders []string) (map[string]bool, error) {
	lost := map[string]bool{}
	for _, path := range bundles(folders) {
		lost[bundleID(path)] = true
	}
	if len(lost) == 0 {
		return lost, nil
	}
	known, err := knownTasks(ctx, r) // read after the bundles, so that it has the task of every bundle found
	for id := range lost {
		if known[id] || r.keeps(id) {
			delete(lost, id)
		}
	}
	return lost, err
}

// sweepBundles removes the bundles in the folders whose containers no run has, and of which
// containerd has no task. It logs the errors of removals: a session-runner that may not unmount
// the root still starts.
func sweepBundles(ctx context.Context, r *Runner, folders []string) error {
	lost, err := lostBundles(ctx, r, folders)
	if err != nil {
		return err
	}
	for _, path := range bundles(folders) {
		if id := bundleID(path); lost[id] {
			r.report("bundle", id, removeBundle(path))
		}
	}
	return nil
}

// knownTasks returns the set of the ids of containerd's tasks in the runner's namespace that have a
// container record. The daemon refuses to delete a task without one, which is left if a process and
// the daemon were killed in the middle of a removal, so such a task ends with its shim.
func knownTasks(ctx context.Context, r *Runner) (map[string]bool, error) {
	running, err := r.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, errdefs.FromGRPC(err)
	}
	list, err := r.client.ContainerService().List(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, t := range running.Tasks {
		known[t.ID] = slices.ContainsFunc(list, func(c containersContainer) bool { return c.ID == t.ID })
	}
	return known, nil
}

// removeBundle unmounts the root in a bundle, and removes the bundle and the folder that its
// link "work" names. It does not remove files of a root that is still mounted, and returns no
// error if the bundle does not exist.
func removeBundle(path string) error {
	root := filepath.Join(path, "rootfs")
	if err := mount.UnmountAll(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// runc creates mount points in the root. A runc that runs on after its shim was killed can
	// do so after the root was unmounted, in the bundle itself.
	if err := os.Remove(root); err != nil && !errors.Is(err, fs.ErrNotExist) {
		mounts, unknown := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
		if len(mounts) > 0 || unknown != nil {
			return errors.Join(err, unknown)
		}
	}
	var problem error
	if work, err := os.Readlink(filepath.Join(path, "work")); err == nil && workOf(path, work) {
		problem = os.RemoveAll(work)
	}
	return errors.Join(problem, os.RemoveAll(path))
}

// workOf reports whether a folder is containerd's folder for the permanent files of a bundle. Its
// path is absolute and ends, like that of the bundle, with bundlesName, the namespace and the id
// of the container.
func workOf(bundle, work string) bool {
	folder := filepath.Dir(bundle)
	want := string(filepath.Separator) + filepath.Join(bundlesName, filepath.Base(folder), bundleID(bundle))
	return filepath.IsAbs(work) && strings.HasSuffix(filepath.Clean(work), want)
}

// awaitDeletes waits until no command "delete" of a shim runs for containers of the runner's
// namespace that no run has, or deleteTime has passed.
func awaitDeletes(r *Runner) {
	for end := time.Now().Add(deleteTime); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		running := false
		commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range commands {
			c := shimCommand(path)
			running = running || c.delete && c.namespace == r.ns && c.address == r.socket && !r.keeps(c.id)
		}
		if !running {
			return
		}
	}
}
