package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
	"github.com/binnacle-mesh/binnacle/services/judge/judge"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/work/work"
)

// instance is one simulated process of the mesh: one service, started by run.Serve, or
// the provisioner. It runs until kill, or until it ends by itself.
type instance struct {
	w      *world
	kind   string
	n, gen int
	name   string // <kind>/<n>.<gen>
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when serve has returned
	dead   atomic.Bool
	ended  atomic.Bool // whether serve returned without kill, for example after the instance lost its slot; err is its error
	err    error
	read   bool // whether the service's signing key has been read
	slot   string
	ready  atomic.Bool
	env    atomic.Pointer[run.Env] // nil before the service runs
	back   time.Time               // time of its restart after its death
	dir    string                  // folder of its files; "" if its kind has none
	edge   *listener               // listener of a gateway; nil for other services
	halted map[string]bool         // tenants that were suspended according to the instance when all goroutines were last blocked; guarded by the world's lock

	mu    sync.Mutex
	links []*link
}

// start starts an instance. was is the instance that it replaces, or nil. The new
// instance has the files of was as they were at the death of was, or else a copy of the
// base's files for its kind, if there are any.
func (w *world) start(kind string, n, gen int, was *instance) *instance {
	in := &instance{w: w, kind: kind, n: n, gen: gen, name: fmt.Sprintf("%s/%d.%d", kind, n, gen), done: make(chan struct{}), halted: map[string]bool{}}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	if was != nil {
		in.dir = was.dir
	} else if in.dir = w.base.dirs[kind]; in.dir != "" {
		in.dir = w.copied(in.dir)
	}
	if kind == "gateway" {
		in.edge = newListener()
	}
	go func() {
		defer close(in.done)
		if err := in.serve(); !in.dead.Load() {
			w.say("ENDED %s: %s", in.name, strings.ReplaceAll(fmt.Sprint(err), fmt.Sprint("process ", os.Getpid()), "process *")) // the error names the holder of a slot
			in.ended.Store(true)
			in.err = err
		}
	}()
	return in
}

// copied copies a folder in its current state, as a crash would leave it, and returns
// the path of the copy.
func (w *world) copied(dir string) string {
	to := w.base.folder()
	if err := copyDir(to, dir); err != nil {
		panic(err)
	}
	return to
}

// copyDir copies the content of the folder from to the folder to, with the modes that
// services require of their folders and files.
func copyDir(to, from string) error {
	entries, err := os.ReadDir(from)
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		var raw []byte
		switch {
		case err != nil:
		case e.IsDir():
			if err = os.Mkdir(dst, 0o700); err == nil {
				err = copyDir(dst, src)
			}
		default:
			if raw, err = os.ReadFile(src); err == nil {
				err = os.WriteFile(dst, raw, 0o600)
			}
		}
	}
	return err
}

// private sets the modes that services require of their folders and files.
func private(dir string) error {
	return filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(p, 0o700)
		}
		return os.Chmod(p, 0o600)
	})
}

func (in *instance) serve() error {
	up := func() { in.ready.Store(true) }
	d := bus.Dialer{Server: in}
	b := in.w.base
	starting := run.NewStarting()
	starting.Follow("", "", unending{})
	if in.kind == "provision" {
		return (&mesh.Provisioner{Dialer: d, Ring: in.w.ring(), Starting: starting}).Run(in.ctx, up)
	}
	rc := run.Config{Dialer: d, RootKID: b.ring.RootKID, NKeySeed: b.nkeys[in.kind], SignSeed: in.seed, NoSnapshots: in.w.odds.plain, Starting: starting}
	if b.seeds[in.kind] == nil {
		rc.SignSeed = nil
	}
	return run.Serve(in.ctx, rc, &observed{in.service(), in}, up)
}

// unending is a view that never catches up. A run.Starting with such a view does not return
// free memory to the operating system at the end of a start. That would take longer than
// the rest of a simulated start.
type unending struct{}

// Position implements run.View.
func (unending) Position() uint64 { return 0 }

// Pending implements run.View.
func (unending) Pending() uint64 { return 0 }

// Ready implements run.View.
func (unending) Ready() <-chan struct{} { return nil }

// observed is the service of an instance. It takes snapshots more often than in
// production, and makes the Env of the instance accessible.
type observed struct {
	run.Service
	in *instance
}

// snapshotEvery is the number of entries after which an instance takes a snapshot.
const snapshotEvery = 20

// Run implements run.Service.
func (s *observed) Run(ctx context.Context, env *run.Env, ready func()) error {
	if env.Snapshots != nil {
		env.Snapshots.Every = snapshotEvery
	}
	s.in.env.Store(env)
	return s.Service.Run(ctx, env, ready)
}

// seed returns the seed of the signing key on the first call only, because each check
// for a new key would compute a key pair. Later calls return an error.
func (in *instance) seed() ([]byte, error) {
	if in.read {
		return nil, errors.New("sim: keys do not rotate")
	}
	in.read = true
	return in.w.base.seeds[in.kind], nil
}

func (in *instance) service() run.Service {
	b := in.w.base
	switch in.kind {
	case "audit":
		return &audit.Service{Config: audit.Config{Dir: in.dir, Durability: "process"}}
	case "policy":
		return &policy.Service{Config: policy.Config{P0File: b.ring.Path("p0.json")}}
	case "gateway":
		return &gateway.Service{Config: gateway.Config{TokenKeys: token.Fixed(b.tokenKey), Durability: "process", Version: "sim", Listener: in.edge}}
	case "vault-broker":
		return &vaultbroker.Service{Config: vaultbroker.Config{Dir: in.dir, KEK: b.kek, SealSeeds: func() ([][]byte, error) { return [][]byte{b.sealSeed}, nil }}}
	case "egress-broker":
		return &egressbroker.Service{Config: egressbroker.Config{Dir: in.dir, Hosts: []string{"*"}, Listen: in.w.socket}}
	case "llm-router":
		return &llmrouter.Service{}
	case "judge":
		return &judge.Service{}
	case "work":
		return &work.Service{}
	case "mcp-router":
		return &mcprouter.Service{}
	case "session-runner":
		return &runner{in: in}
	}
	panic("sim: no service " + in.kind)
}

// InProcessConn implements nats.InProcessConnProvider.
func (in *instance) InProcessConn() (net.Conn, error) {
	if in.dead.Load() {
		l := newLink(in.w.bus, in.name)
		l.cut(lastWords)
		return l, nil
	}
	l := in.w.bus.connect(in.name)
	in.mu.Lock()
	in.links = append(in.links, l)
	in.mu.Unlock()
	return l, nil
}

// kill simulates the death of the process. The instance can open no connection, its
// listener is closed, its context ends, and its files are copied in their current state.
// The caller ends its existing connections to the NATS server.
func (in *instance) kill() {
	if in.dead.Swap(true) {
		return
	}
	if in.dir != "" {
		in.dir = in.w.copied(in.dir)
	}
	if in.edge != nil {
		in.edge.kill()
	}
	in.cancel()
}

// listener is the in-memory net.Listener of a gateway.
type listener struct {
	queue chan net.Conn
	ended chan struct{}

	mu    sync.Mutex
	conns []net.Conn
	down  bool
}

func newListener() *listener {
	return &listener{queue: make(chan net.Conn), ended: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error { l.kill(); return nil }

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return addr("127.0.0.1:1") }

// kill closes the listener and all its connections.
func (l *listener) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return
	}
	l.down = true
	close(l.ended)
	for _, c := range l.conns {
		c.Close()
	}
}

var errRefused = errors.New("sim: connection refused")

// dial returns a client's connection to the gateway, or errRefused if the
// listener is closed.
func (l *listener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	l.mu.Lock()
	if l.down {
		l.mu.Unlock()
		return nil, errRefused
	}
	l.conns = append(l.conns, server)
	l.mu.Unlock()
	select {
	case l.queue <- server:
		return client, nil
	case <-l.ended:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var _ io.Closer = (*listener)(nil)
