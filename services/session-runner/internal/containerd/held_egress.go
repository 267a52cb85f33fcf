package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/cio"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// A held sandbox has no network device but loopback. While a command with egress runs, this
// process has a listener at forward.Address in the network namespace of the sandbox, and copies
// its connections to the proxy of the call. The listener program, another process of the
// container, opens the listener, sends it to this process, and ends.

// Errors of Exec for a command with egress.
var (
	ErrHeldNoEgress = errors.New("the sandbox was created without egress")
	ErrHeldBusy     = errors.New("another command of the sandbox has egress")
)

// egress starts the forwarder of a command, and returns a function that ends it and returns
// the number of bytes that it copied. template is the process of the container, whose user
// and restrictions the listener gets. Without egress, there is no forwarder.
func (h *Held) egress(rpc context.Context, template *specs.Process, e *sandbox.Egress) (stop func() int64, err error) {
	if e == nil {
		return e.Forward(nil)
	}
	if err := checkEgress(e); err != nil {
		return nil, err
	}
	if h.way == "" {
		return nil, ErrHeldNoEgress
	}
	if !h.network.TryLock() {
		return nil, ErrHeldBusy
	}
	defer func() {
		if err != nil {
			h.network.Unlock()
		}
	}()
	if err := os.WriteFile(h.way.authority(), e.CA, 0o644); err != nil {
		return nil, fmt.Errorf("egress: certificate authority: %w", err)
	}
	l, err := h.listener(rpc, template)
	if err != nil {
		return nil, fmt.Errorf("egress: %w; a process of the sandbox may use %s", err, forward.Address)
	}
	f, err := forward.Serve(l, e.Socket)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", errors.Join(err, l.Close()))
	}
	return func() int64 {
		f.Close()
		h.network.Unlock()
		return f.Bytes()
	}, nil
}

// listener runs the listener program in the container, and returns the listener that this
// program opens.
func (h *Held) listener(rpc context.Context, template *specs.Process) (net.Listener, error) {
	p := *template
	p.Args, p.Terminal, p.Cwd, p.Env = []string{heldListenerPath}, false, "/", nil
	proc, err := h.task.Exec(rpc, "listener-"+rand.Text(), &p, cio.NullIO)
	if err != nil {
		return nil, err
	}
	defer func() {
		_, err := proc.Delete(rpc, containerd.WithProcessKill)
		h.r.report("listener", h.id, err)
	}()
	ended, err := watch(rpc, proc)
	if err != nil {
		return nil, err
	}
	l, err := h.way.receive(ended, func() error { return proc.Start(rpc) })
	select {
	case <-ended.done: // it sends the descriptor, and then finds no launcher to execute
	case <-time.After(listenerTime):
	}
	return l, err
}
