package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/snapshots"
)

// sweepEvery is the time between two sweeps.
const sweepEvery = time.Minute

// sweeps calls sweep every sweepEvery until ctx is done. Before each call, it removes the prepared
// containers of profiles that were not used for idleTime.
func (r *Runner) sweeps(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.pool.trim(time.Now().Add(-idleTime))
			if err := r.sweep(r.ctx(ctx)); err != nil {
				r.report("sweep", r.ns, err)
			}
		}
	}
}

// sweep removes every container, task, shim, bundle and temporary snapshot in the namespace for
// which keeps returns false, except the snapshots whose names begin with checkPrefix. It also
// removes the control groups that a killed shim, or the command "delete" after it, has left, with
// the processes in them. It does not touch other namespaces. It continues after an error, unless
// it cannot list the containers, and returns all errors.
func (r *Runner) sweep(ctx context.Context) error {
	list, err := r.client.Containers(ctx)
	if err != nil {
		return err
	}
	var problems []error
	ok := func(err error) {
		if err != nil && !errdefs.IsNotFound(err) {
			problems = append(problems, err)
		}
	}
	for _, c := range list {
		if r.keeps(c.ID()) {
			continue
		}
		if t, err := c.Task(ctx, nil); err == nil {
			_, err = t.Delete(ctx, containerd.WithProcessKill)
			ok(err)
		}
		ok(c.Delete(ctx))
	}
	ok(r.sweepTasks(ctx))
	sn := r.client.SnapshotService(snapshotter)
	var stale []string
	ok(sn.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted && !r.keeps(i.Name) && !strings.HasPrefix(i.Name, checkPrefix) {
			stale = append(stale, i.Name)
		}
		return nil
	}))
	for _, name := range stale {
		ok(sn.Remove(ctx, name))
	}
	if r.socket != "" { // a simulated daemon has no shims or control groups
		folders := bundleFolders(r.socket, r.ns) // read before the shims end, because it finds folders through them
		ok(sweepShims(ctx, r))
		awaitDeletes(r)
		lost, err := lostBundles(ctx, r, folders)
		if ok(err); err == nil {
			r.sweepGroups(lost)
		}
		ok(sweepBundles(ctx, r, folders))
	}
	return errors.Join(problems...)
}

// parts returns the ids of the containers, tasks and temporary snapshots in the runner's
// namespace, without the snapshots whose names begin with checkPrefix.
func parts(ctx context.Context, r *Runner) ([]string, error) {
	var ids []string
	list, err := r.client.ContainerService().List(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		ids = append(ids, c.ID)
	}
	running, err := r.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, errdefs.FromGRPC(err)
	}
	for _, t := range running.Tasks {
		ids = append(ids, t.ID)
	}
	err = r.client.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted && !strings.HasPrefix(i.Name, checkPrefix) {
			ids = append(ids, i.Name)
		}
		return nil
	})
	return ids, err
}

// keeps reports whether a sweep must not remove a container: it belongs to this process, or
// r.keep returns true for its id.
func (r *Runner) keeps(id string) bool { return r.own.has(id) || r.keep != nil && r.keep(id) }

// sweepTasks deletes the tasks that remain after sweep has deleted the containers.
// They have no container record, because a process was killed after it removed the
// record and before it deleted the task.
func (r *Runner) sweepTasks(ctx context.Context) error {
	all, err := r.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return err
	}
	var problems []error
	for _, t := range all.Tasks {
		if r.keeps(t.ID) {
			continue
		}
		_, _ = r.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: t.ID, Signal: 9, All: true})
		if _, err := r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: t.ID}); err != nil {
			problems = append(problems, errdefs.FromGRPC(err))
		}
	}
	return errors.Join(problems...)
}

// sweepLeases deletes all leases of the namespace: those of imports that an earlier process did not
// finish. It must not run while this process imports an image.
func (r *Runner) sweepLeases(ctx context.Context) error {
	service := r.client.LeasesService()
	all, err := service.List(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, l := range all {
		problems = append(problems, service.Delete(ctx, l))
	}
	return errors.Join(problems...)
}

// sweepGroups removes the remains of killed shims that no request to containerd removes: control
// groups of the namespace, after it has killed their processes, and states of runc whose
// containers have no control group any more. It kills the processes only in the groups of the
// containers in lost, since another daemon on the host can have the same namespace. It has no
// effect where this process does not see these files.
func (r *Runner) sweepGroups(lost map[string]bool) {
	alive := map[string]bool{}
	for _, pattern := range []string{"/sys/fs/cgroup/" + r.ns + "/*", "/sys/fs/cgroup/*/" + r.ns + "/*"} {
		groups, _ := filepath.Glob(pattern)
		for _, g := range groups {
			id := filepath.Base(g)
			if !isDir(g) {
				continue
			}
			if r.keeps(id) || !removeGroup(g, lost[id]) {
				alive[id] = true
			}
		}
	}
	states, _ := filepath.Glob(runcStates + "/" + r.ns + "/*")
	for _, s := range states {
		if id := filepath.Base(s); !alive[id] && !r.keeps(id) {
			_ = os.RemoveAll(s)
		}
	}
}

// removeGroup removes a control group, whose processes it kills first if kill is true. It
// reports whether the group does not exist any more.
func removeGroup(path string, kill bool) bool {
	if os.Remove(path) != nil && kill { // Remove fails if a process is in the group
		emptyGroup(path)
		_ = os.Remove(path)
	}
	return !isDir(path)
}

// runcStates is the folder in which runc stores its states for containerd, by namespace.
const runcStates = "/run/containerd/runc"

func isDir(path string) bool {
	i, err := os.Lstat(path)
	return err == nil && i.IsDir()
}
