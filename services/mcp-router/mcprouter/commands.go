package mcprouter

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/tunnel"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	"github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/server"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/upstream"
)

// A server that is a command runs in a sandbox of the session-runner, which starts it for a
// running call. Its standard input and output are a tunnel.

const (
	commandStart   = 50 * time.Second // maximum time until a command has started
	commandSilence = 10 * time.Second // time without a frame of the session-runner after which it has ended
	commandWrite   = 4 * time.Second  // maximum time between two queries that write
	maxAttestation = 64 << 10         // bytes
)

// workKey is the context key of the starter of the call that a request to a server belongs to.
type workKey struct{}

// starter starts servers for a call.
type starter struct {
	*execute.Work
	secrets map[string]string // by name, those of the server's files at least
}

// withWork returns a context for the requests of a call to a server. secrets are those that this
// service sends to the server.
func withWork(ctx context.Context, w *execute.Work, secrets map[string]string) context.Context {
	return context.WithValue(ctx, workKey{}, &starter{w, secrets})
}

// command is the standard input and output of a server.
type command struct {
	net.Conn
	out         *bufio.Reader
	attestation *contract.Attestation
}

// Read implements io.Reader.
func (c *command) Read(b []byte) (int, error) { return c.out.Read(b) }

// start returns the function that starts the server in a sandbox, for the call in its context, or
// nil if the server has a URL.
func (s *Service) start(cfg *events.ServerAdded) func(context.Context) (io.ReadWriteCloser, error) {
	if cfg.Transport != server.Stdio {
		return nil
	}
	return func(ctx context.Context) (io.ReadWriteCloser, error) {
		w, ok := ctx.Value(workKey{}).(*starter)
		if !ok {
			return nil, errors.New("no call needs the server")
		}
		way, err := w.network(ctx, s.env, cfg)
		if err != nil {
			return nil, err
		}
		c, err := launch(ctx, s.env.Queries.In(w.Event.Tenant), w, cfg, way)
		var own *rpc.Error
		if errors.As(err, &own) {
			err = &upstream.Error{Code: own.Code, Message: "the server was not started: " + own.Message, Cause: err}
		}
		if err != nil {
			return nil, err
		}
		return c, nil
	}
}

// network returns the proxy of a call, or the zero value if the server or the call permits no host.
func (w *starter) network(ctx context.Context, env *run.Env, cfg *events.ServerAdded) (way egress.Opened, err error) {
	if len(cfg.Hosts) == 0 || len(netrule.OfIntent(w.Intent)) == 0 {
		return way, nil
	}
	if way, err = egress.Open(ctx, env.Emit, env.Transport, env.Instance, w.Event); err != nil {
		return way, &upstream.Error{Code: contract.CodeEgressRefused, Message: "the server was not started, because the call has no proxy: " + err.Error(), Cause: err}
	}
	return way, nil
}

// elsewhere are the codes of errors after which another instance of the session-runner may start a
// server: that instance may have another host, or not end.
var elsewhere = []string{contract.CodeImageMissing, contract.CodeSandboxUnavailable, contract.CodeTooManySandboxes, contract.CodeUnavailable}

// launch starts a server in a sandbox, by the first instance of the session-runner that can.
// Errors of the queries are *rpc.Error. queries sends for the tenant of the call.
func launch(ctx context.Context, queries *rpc.Client, w *starter, cfg *events.ServerAdded, way egress.Opened) (c *command, err error) {
	all, err := queries.Running(ctx, services.SessionRunner)
	if err != nil {
		return nil, err
	}
	for _, i := range rand.Perm(len(all)) {
		if c, err = launchAt(ctx, queries, all[i], w, cfg, way); err == nil || !slices.Contains(elsewhere, rpc.CodeOf(err)) {
			break
		}
	}
	return c, err
}

// launchAt is launch by one instance.
func launchAt(ctx context.Context, queries *rpc.Client, at rpc.Instance, w *starter, cfg *events.ServerAdded, way egress.Opened) (*command, error) {
	q := sessionrunner.ServerStartRequest{CallID: w.Call.ID, ConnectionID: emit.NewID(contract.IDConnection), Server: cfg.Name, Session: w.Event.Session, Settings: cfg.CallID, EgressSocket: way.Socket, EgressAuthority: way.Authority}
	writes := queries.To(at.Name)
	conn, err := tunnel.Dial(ctx, &tunnel.Dialer{
		Queries: queries.At(at), Limit: commandStart, Silence: commandSilence, Every: commandWrite,
		Write: func(ctx context.Context, n int64, data []byte, last bool) error {
			_, err := rpc.Do(ctx, writes, sessionrunner.ServerWriteQuery, sessionrunner.ServerWriteRequest{ConnectionID: q.ConnectionID, N: n, Data: data, Close: last})
			return err
		},
		Broken: func(err error) error { return fmt.Errorf("%s: %w", at.Name, err) },
	}, sessionrunner.ServerStartQuery, q)
	if err != nil {
		return nil, err
	}
	c := &command{Conn: conn, out: bufio.NewReaderSize(conn, maxAttestation), attestation: &contract.Attestation{}}
	line, err := c.out.ReadSlice('\n')
	if err == nil {
		err = contract.Decode(line[:len(line)-1], c.attestation)
	}
	if err == nil {
		err = w.deliver(c, cfg, q.ConnectionID)
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("the start of the sandbox: %w", err)
	}
	return c, nil
}

// deliver sends the secrets of a server's files, sealed to the key that the session-runner sends.
func (w *starter) deliver(c *command, cfg *events.ServerAdded, connection string) error {
	if len(cfg.Files) == 0 {
		return nil
	}
	key, err := c.out.ReadSlice('\n')
	if err != nil {
		return err
	}
	values := map[string]string{}
	for _, f := range cfg.Files {
		v, ok := w.secrets[f.Secret]
		if !ok {
			return fmt.Errorf("the decision does not permit the secret %s of a file: call again", f.Secret)
		}
		values[f.Secret] = v
	}
	plain, err := json.Marshal(values)
	if err != nil {
		return err
	}
	defer clear(plain)
	sealed, err := seal.To(string(key[:len(key)-1]), secret.FilesInfo(w.Event.Tenant, connection), plain)
	if err != nil {
		return err
	}
	_, err = c.Write([]byte(base64.StdEncoding.EncodeToString(sealed) + "\n"))
	return err
}

// attestation returns the attestation of the sandbox in which the server of a session runs, or
// nil if the server has a URL.
func attestation(x upstream.Session) *contract.Attestation {
	if c, ok := x.Command().(*command); ok {
		return c.attestation
	}
	return nil
}

// sessionKey returns the key of the sessions with a server that a call may use. A process of a
// command is used by calls of one tenant with the same limits only.
func sessionKey(w *execute.Work, cfg *events.ServerAdded) string {
	key := ""
	if cfg.Sessions == server.PerSession {
		key = w.Event.Tenant + " " + w.Event.Session
	}
	if cfg.Transport == server.Stdio && w.Intent.Sandbox != nil {
		key = w.Event.Tenant + " " + key + " " + string(contract.Bytes(w.Intent.Sandbox))
	}
	return key
}
