package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Instance is an instance of a service that receives queries.
type Instance struct {
	Name  string
	Lease Lease // lease of the instance's process; nil if it is not known
}

// Lease is the lease of an instance's process. It is safe for concurrent use. *bus.Lease
// implements it.
type Lease interface {
	// Left returns the time after which the lease, as it was last read, has expired if it
	// was not renewed meanwhile. It is more than 0 and at most bus.SlotTTL.
	Left() time.Duration
	// Read reads the lease again. ended reports whether it has ended, and renewed whether
	// it was renewed since it was last read.
	Read(ctx context.Context) (renewed, ended bool, err error)
}

// Patience is the maximum time by which a query may exceed its deadline, because the
// process of an instance may have ended: the lease of the process ends within bus.SlotTTL.
const Patience = bus.SlotTTL + 2*time.Second

// errEnded is the cause of an attempt that ended because the lease of the instance ended.
var errEnded = errors.New("the lease of the instance has ended")

// response is a response whose first frame, or the error instead of it, has arrived.
type response struct {
	frames Frames
	ctx    context.Context // that of the caller; ends at the latest Patience after the deadline of the query
	cancel func()          // ends ctx
	first  transient.Frame
	err    error // the error instead of first
	taken  bool  // next has returned first

	silence time.Duration // maximum time without a frame after the first one; 0: no maximum
}

// errSilent is the error of a response of which no frame has arrived for response.silence.
var errSilent = errors.New("the response was interrupted")

// waits is the number of parts into which the time of response.silence is divided, so that a pause
// of this process, in which frames are not read either, does not count as silence.
const waits = 5

// next returns the next frame; see transient.Stream.Next.
func (r *response) next() (transient.Frame, error) {
	if !r.taken {
		r.taken = true
		return r.first, r.err
	}
	if r.silence == 0 {
		return r.frames.Next(r.ctx)
	}
	for range waits {
		ctx, cancel := context.WithTimeout(r.ctx, r.silence/waits)
		f, err := r.frames.Next(ctx)
		late := ctx.Err() != nil
		cancel()
		if !late || r.ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return f, err
		}
	}
	return transient.Frame{}, errSilent
}

// close stops receiving.
func (r *response) close() {
	r.frames.Close()
	r.cancel()
}

// open sends a query to a running instance and waits for the first frame of the response,
// or the error instead of it. If the instance's lease ends before, it selects an instance
// again. Its errors are or wrap *Error values. The caller must close the response.
func open(ctx context.Context, c *Client, q query.Info, req any) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Deadline+Patience)
	var lost error // of the last attempt
	for {
		to, err := c.Live(ctx, q.Service)
		if err != nil {
			cancel()
			return nil, wrap(q, after(lost, err))
		}
		r, err := c.attempt(ctx, &to, q, req)
		if err == nil {
			r.cancel = cancel
			return r, nil
		}
		if !errors.Is(err, errEnded) {
			cancel()
			return nil, wrap(q, after(lost, err))
		}
		lost = err
	}
}

// after returns err, together with the error lost of an earlier attempt if lost is not nil.
func after(lost, err error) error {
	if lost == nil {
		return err
	}
	return fmt.Errorf("%w (before: %w)", err, lost)
}

// attempt sends a query to an instance and waits for the first frame of the response, or
// the error of the service. Its error wraps errEnded if the instance's lease ended before.
// The response is read under ctx: its first frame may arrive after the query's deadline.
func (c *Client) attempt(ctx context.Context, to *Instance, q query.Info, req any) (*response, error) {
	life, cancel := context.WithTimeout(ctx, q.Deadline)
	st, err := c.send(life, to.Name, q, req)
	if err != nil {
		cancel()
		return nil, err
	}
	r := &response{frames: st, ctx: ctx}
	r.first, r.err = first(ctx, life, st, to.Lease)
	if errors.Is(r.err, errEnded) || errors.Is(r.err, context.DeadlineExceeded) || errors.Is(r.err, context.Canceled) {
		st.Close()
		cancel()
		return nil, fmt.Errorf("%w; the query was sent to %s", r.err, to.Name)
	}
	context.AfterFunc(ctx, cancel)
	return r, nil
}

// send sends a query to an instance.
func (c *Client) send(ctx context.Context, to string, q query.Info, req any) (Frames, error) {
	if c.Send != nil {
		return c.Send(transient.InTenant(ctx, c.tenant), q.Service, to, q.Verb, req)
	}
	return c.Transport.Query(ctx, q.Service, to, q.Verb, req)
}

// first waits for the first frame. Without a lease, it waits until life ends, and otherwise
// until guard returns an error, which it then returns.
func first(ctx, life context.Context, st Frames, lease Lease) (transient.Frame, error) {
	if lease == nil {
		return st.Next(life)
	}
	wait, stop := context.WithCancelCause(ctx)
	var g sync.WaitGroup
	g.Go(func() { stop(guard(wait, life, lease)) })
	defer g.Wait()
	defer stop(nil)
	f, err := st.Next(wait)
	if err != nil && errors.Is(err, wait.Err()) {
		err = context.Cause(wait)
	}
	return f, err
}

// guard waits until no response of the instance with a lease is to be expected. It returns
// errEnded once the lease has ended, the error of life if life has ended and the lease was
// renewed after it was last read or cannot be read, or else the error of ctx. It reads the
// lease when life ends, and whenever the lease has expired unless it was renewed.
func guard(ctx, life context.Context, lease Lease) error {
	late := life.Done()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late:
			late = nil
		case <-time.After(lease.Left()):
		}
		renewed, ended, err := lease.Read(ctx)
		switch {
		case ended:
			return errEnded
		case ctx.Err() == nil && life.Err() != nil && (renewed || err != nil):
			return life.Err()
		}
	}
}
