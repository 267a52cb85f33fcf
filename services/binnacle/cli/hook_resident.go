package cli

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/resident"
)

// hookIdle is how long a helper waits for hooks before it ends.
const hookIdle = 10 * time.Minute

// serveHooks answers the hooks of a client until none was run for hookIdle. For each
// hook it determines the address, the credentials and the authorities again, as
// 'hook run' does.
func serveHooks(ctx context.Context, c *env, o *hookOptions, client, socket string) error {
	l, err := resident.Listener()
	if err != nil {
		return err
	}
	var open hookConnections
	return resident.Serve(ctx, l, socket, hookIdle, func(ctx context.Context, doc []byte) resident.Answer {
		own, options := *c, *o
		own.in, own.target = bytes.NewReader(doc), nil
		a := runHook(ctx, &own, &options, client, &open)
		return resident.Answer{Stdout: a.Stdout, Stderr: a.Stderr, Exit: a.Exit}
	})
}

// hookConnections keeps connections to a mesh open between hooks. Its zero value is ready
// for use; a nil pointer keeps none.
type hookConnections struct {
	mu     sync.Mutex
	key    string // addresses and authorities of the mesh
	client *http.Client
}

// use gives a runner the open connections, if they lead to the same addresses and were verified
// with the same authorities. Otherwise it replaces them with those of the runner. If h is nil
// or the file of the authorities cannot be read, it does neither.
func (h *hookConnections) use(c *env, r *hook.Runner) {
	if h == nil {
		return
	}
	key := c.mesh().addr
	if file := c.mesh().ca; file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return
		}
		key += "\x00" + string(pem)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client == nil || h.key != key {
		if h.client != nil {
			h.client.CloseIdleConnections()
		}
		h.key, h.client = key, r.Mesh.Client
	}
	r.Mesh.Client = h.client
}
