package simulated

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/cio"
	"github.com/containerd/containerd/containers"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/leases"
	"github.com/containerd/containerd/mount"
	"github.com/containerd/containerd/snapshots"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Streams returns the creator of the streams of a task. Standard error is not used.
func (c *Client) Streams(stdin io.Reader, stdout, _ io.Writer) cio.Creator {
	return func(id string) (cio.IO, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.streams[id] = &streams{stdin, stdout}
		return idle{}, nil
	}
}

// idle is the cio.IO of a task, whose output is complete when its process has ended.
type idle struct{}

func (idle) Config() cio.Config { return cio.Config{} }
func (idle) Cancel()            {}
func (idle) Wait()              {}
func (idle) Close() error       { return nil }

// snapshotter implements the requests for snapshots that the runner makes.
type snapshotter struct {
	snapshots.Snapshotter
	c *Client
}

// View implements snapshots.Snapshotter.
func (s snapshotter) View(_ context.Context, key, parent string, _ ...snapshots.Opt) ([]mount.Mount, error) {
	return nil, s.c.requestOf(parent, "view", func(at *space) error {
		if _, ok := at.views[key]; ok {
			return fmt.Errorf("%s: %w", key, errdefs.ErrAlreadyExists)
		}
		at.views[key] = parent
		return nil
	})
}

// Mounts implements snapshots.Snapshotter.
func (s snapshotter) Mounts(_ context.Context, key string) ([]mount.Mount, error) {
	return nil, s.c.request("mounts", key, func(at *space) error { return has(at.views, key) })
}

// Remove implements snapshots.Snapshotter.
func (s snapshotter) Remove(_ context.Context, key string) error {
	return s.c.request("remove", key, func(at *space) error {
		err := has(at.views, key)
		delete(at.views, key)
		return err
	})
}

// Walk implements snapshots.Snapshotter.
func (s snapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, _ ...string) error {
	var found []string
	err := s.c.request("walk", "", func(at *space) error { found = slices.Sorted(maps.Keys(at.views)); return nil })
	for _, key := range found {
		if err == nil {
			err = fn(ctx, snapshots.Info{Kind: snapshots.KindView, Name: key})
		}
	}
	return err
}

// has returns an error if a map does not have a key.
func has[V any](m map[string]V, key string) error {
	if _, ok := m[key]; !ok {
		return notFound(key)
	}
	return nil
}

// store implements the requests for containers that the runner makes.
type store struct {
	containers.Store
	c *Client
}

// Get implements containers.Store.
func (s store) Get(_ context.Context, id string) (out containers.Container, err error) {
	err = s.c.request("get", id, func(at *space) error { out = at.containers[id]; return has(at.containers, id) })
	return out, err
}

// List implements containers.Store.
func (s store) List(context.Context, ...string) (out []containers.Container, err error) {
	err = s.c.request("containers", "", func(at *space) error {
		for _, id := range slices.Sorted(maps.Keys(at.containers)) {
			out = append(out, at.containers[id])
		}
		return nil
	})
	return out, err
}

// Create implements containers.Store.
func (s store) Create(_ context.Context, made containers.Container) (containers.Container, error) {
	return made, s.c.request("container", made.ID, func(at *space) error {
		if has(at.containers, made.ID) == nil {
			return fmt.Errorf("%s: %w", made.ID, errdefs.ErrAlreadyExists)
		}
		at.containers[made.ID] = made
		return nil
	})
}

// Delete implements containers.Store.
func (s store) Delete(_ context.Context, id string) error {
	return s.c.request("delete", id, func(at *space) error {
		err := has(at.containers, id)
		delete(at.containers, id)
		return err
	})
}

// leaseService implements the requests for leases that the runner makes.
type leaseService struct {
	leases.Manager
	c *Client
}

// Create implements leases.Manager.
func (s leaseService) Create(_ context.Context, opts ...leases.Opt) (l leases.Lease, err error) {
	for _, o := range opts {
		if err := o(&l); err != nil {
			return l, err
		}
	}
	return l, s.c.request("lease", "", func(at *space) error { at.leases[l.ID] = true; return nil })
}

// Delete implements leases.Manager.
func (s leaseService) Delete(_ context.Context, l leases.Lease, _ ...leases.DeleteOpt) error {
	return s.c.request("unlease", "", func(at *space) error { delete(at.leases, l.ID); return nil })
}

// List implements leases.Manager.
func (s leaseService) List(context.Context, ...string) (out []leases.Lease, err error) {
	err = s.c.request("leases", "", func(at *space) error {
		for _, id := range slices.Sorted(maps.Keys(at.leases)) {
			out = append(out, leases.Lease{ID: id})
		}
		return nil
	})
	return out, err
}

// task is the first process of a container.
type task struct {
	streams *streams
	status  tasktypes.Status
	exit    uint32
	ended   chan struct{} // closed at the end of the process
	cancel  context.CancelFunc
}

// end ends the process, unless it has ended. The daemon's lock must be held.
func (t *task) end(exit uint32) {
	if t.status == tasktypes.Status_STOPPED {
		return
	}
	t.status, t.exit = tasktypes.Status_STOPPED, exit
	close(t.ended)
	if t.cancel != nil {
		t.cancel()
	}
}

// taskService implements the requests for tasks that the runner makes.
type taskService struct {
	tasks.TasksClient
	c *Client
}

// request executes a request for a task, whose error the client expects as a status of gRPC.
func (s taskService) request(op, id string, do func(*space, *task) error) error {
	return errdefs.ToGRPC(s.c.request(op, id, func(at *space) error {
		t := at.tasks[id]
		if t == nil {
			return notFound(id)
		}
		return do(at, t)
	}))
}

// pid is a process id that no process of a host has.
const pid = 1 << 30

// Create implements tasks.TasksClient.
func (s taskService) Create(_ context.Context, in *tasks.CreateTaskRequest, _ ...grpc.CallOption) (*tasks.CreateTaskResponse, error) {
	s.c.mu.Lock()
	streams := s.c.streams[in.ContainerID]
	delete(s.c.streams, in.ContainerID)
	s.c.mu.Unlock()
	err := s.c.request("task", in.ContainerID, func(at *space) error {
		if err := has(at.containers, in.ContainerID); err != nil {
			return err
		}
		if has(at.tasks, in.ContainerID) == nil {
			return fmt.Errorf("%s: %w", in.ContainerID, errdefs.ErrAlreadyExists)
		}
		at.tasks[in.ContainerID] = &task{streams: streams, status: tasktypes.Status_CREATED, ended: make(chan struct{})}
		return nil
	})
	return &tasks.CreateTaskResponse{ContainerID: in.ContainerID, Pid: pid}, errdefs.ToGRPC(err)
}

// Start implements tasks.TasksClient.
func (s taskService) Start(_ context.Context, in *tasks.StartRequest, _ ...grpc.CallOption) (*tasks.StartResponse, error) {
	err := s.request("start", in.ContainerID, func(at *space, t *task) error {
		if t.status != tasktypes.Status_CREATED {
			return fmt.Errorf("%s: %w", in.ContainerID, errdefs.ErrFailedPrecondition)
		}
		t.status = tasktypes.Status_RUNNING
		image := at.views[in.ContainerID]
		var ctx context.Context
		ctx, t.cancel = context.WithCancel(context.Background())
		go s.c.d.process(ctx, s.c.ns, image, t)
		return nil
	})
	return &tasks.StartResponse{Pid: pid}, err
}

// launcherFailed is the exit code of a launcher that receives no start message.
const launcherFailed = 125

// process runs the first process of a container: the launcher, which becomes the program of
// the image when it has read the start message.
func (d *Daemon) process(ctx context.Context, ns, image string, t *task) {
	var head [8]byte
	exit := launcherFailed
	if _, err := io.ReadFull(t.streams.stdin, head[:]); err == nil {
		if _, err = io.CopyN(io.Discard, t.streams.stdin, int64(binary.LittleEndian.Uint64(head[:]))-int64(len(head))); err == nil {
			input, _ := io.ReadAll(t.streams.stdin)
			d.mu.Lock()
			run, runs := d.space(ns).programs[image], t.status == tasktypes.Status_RUNNING
			d.mu.Unlock()
			if runs && run != nil {
				var out []byte
				out, exit = run(ctx, input)
				if ctx.Err() == nil {
					_, _ = t.streams.stdout.Write(out)
				}
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t.end(uint32(exit))
}

// Kill implements tasks.TasksClient.
func (s taskService) Kill(_ context.Context, in *tasks.KillRequest, _ ...grpc.CallOption) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.request("kill", in.ContainerID, func(_ *space, t *task) error {
		if t.status == tasktypes.Status_STOPPED {
			return notFound(in.ContainerID)
		}
		t.end(killed)
		return nil
	})
}

// Delete implements tasks.TasksClient.
func (s taskService) Delete(_ context.Context, in *tasks.DeleteTaskRequest, _ ...grpc.CallOption) (*tasks.DeleteResponse, error) {
	out := &tasks.DeleteResponse{ID: in.ContainerID, Pid: pid}
	return out, s.request("untask", in.ContainerID, func(at *space, t *task) error {
		if t.status == tasktypes.Status_RUNNING {
			return fmt.Errorf("%s: %w", in.ContainerID, errdefs.ErrFailedPrecondition)
		}
		out.ExitStatus = t.exit
		delete(at.tasks, in.ContainerID)
		return nil
	})
}

// Get implements tasks.TasksClient.
func (s taskService) Get(_ context.Context, in *tasks.GetRequest, _ ...grpc.CallOption) (*tasks.GetResponse, error) {
	out := &tasks.GetResponse{}
	return out, s.request("status", in.ContainerID, func(_ *space, t *task) error {
		out.Process = &tasktypes.Process{ContainerID: in.ContainerID, ID: in.ContainerID, Pid: pid, Status: t.status, ExitStatus: t.exit}
		return nil
	})
}

// List implements tasks.TasksClient.
func (s taskService) List(context.Context, *tasks.ListTasksRequest, ...grpc.CallOption) (*tasks.ListTasksResponse, error) {
	out := &tasks.ListTasksResponse{}
	err := s.c.request("tasks", "", func(at *space) error {
		for _, id := range slices.Sorted(maps.Keys(at.tasks)) {
			out.Tasks = append(out.Tasks, &tasktypes.Process{ContainerID: id, ID: id, Pid: pid, Status: at.tasks[id].status})
		}
		return nil
	})
	return out, errdefs.ToGRPC(err)
}

// Wait implements tasks.TasksClient. It also returns when the daemon stops or the process of
// the client is killed.
func (s taskService) Wait(ctx context.Context, in *tasks.WaitRequest, _ ...grpc.CallOption) (*tasks.WaitResponse, error) {
	var waits *task
	if err := s.request("wait", in.ContainerID, func(_ *space, t *task) error { waits = t; return nil }); err != nil {
		return nil, err
	}
	s.c.d.mu.Lock()
	stopping := s.c.d.stopping
	s.c.d.mu.Unlock()
	select {
	case <-waits.ended:
	case <-stopping:
	case <-s.c.dead:
	case <-ctx.Done():
	}
	switch {
	case s.c.gone():
		return nil, errdefs.ToGRPC(notFound(in.ContainerID)) // the runner of a killed process must not wait for longer
	case ctx.Err() != nil:
		return nil, errdefs.ToGRPC(ctx.Err())
	}
	select {
	case <-waits.ended:
		return &tasks.WaitResponse{ExitStatus: waits.exit}, nil
	default:
		return nil, errdefs.ToGRPC(unavailable("wait"))
	}
}

// CloseIO implements tasks.TasksClient. The end of the input needs no request.
func (s taskService) CloseIO(context.Context, *tasks.CloseIORequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// Metrics implements tasks.TasksClient. Nothing is measured.
func (taskService) Metrics(context.Context, *tasks.MetricsRequest, ...grpc.CallOption) (*tasks.MetricsResponse, error) {
	return nil, errdefs.ToGRPC(notFound("metrics"))
}
