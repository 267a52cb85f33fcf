package sandbox

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward"
)

// Egress is the network of one run: a proxy, which decides on each connection.
type Egress struct {
	Socket string // path of the unix socket of the call's proxy
	CA     []byte // PEM of the certificate authority of the call; must not be empty
}

// ErrNoEgress means that a tier cannot connect a run to a proxy on this host.
var ErrNoEgress = errors.New("egress needs tier process or container")

// CAPath is the path, in a sandbox with egress, of a file that holds the certificate
// authority of the call. The program cannot change it.
const CAPath = "/run/egress-ca.pem"

// egressEnv contains the environment variables of a program with egress.
var egressEnv = func() (env []string) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"} {
		env = append(env, name+"=http://"+forward.Address)
	}
	for _, name := range []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"} {
		env = append(env, name+"="+CAPath)
	}
	return append(env, "NO_PROXY=", "no_proxy=")
}()

// Check returns an error if e is not nil and its certificate authority is missing.
func (e *Egress) Check() error {
	if e != nil && len(e.CA) == 0 {
		return errors.New("egress: no certificate authority")
	}
	return nil
}

// Environment returns env with the variables that name the proxy and the certificate
// authority. They replace those of the same names in env. If e is nil, it returns env.
func (e *Egress) Environment(env []string) []string {
	if e == nil {
		return env
	}
	out := slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.ContainsFunc(egressEnv, func(own string) bool { return strings.HasPrefix(own, name+"=") })
	})
	return append(out, egressEnv...)
}

// Fact returns the entry of the attestation for the network of the run.
func (e *Egress) Fact() string {
	if e == nil {
		return "no_network"
	}
	return "network:egress_broker"
}

// Forward starts the forwarder in the network namespace of a process, given its folder in
// /proc. It returns a function that ends the forwarder and returns the number of bytes
// that it copied; further calls return the same number. If e is nil, there is no
// forwarder, and the number is 0.
func (e *Egress) Forward(process *os.File) (stop func() int64, err error) {
	if e == nil {
		return func() int64 { return 0 }, nil
	}
	ns, err := forward.Namespace(process)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	defer ns.Close()
	f, err := forward.Start(ns, e.Socket)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	return func() int64 { f.Close(); return f.Bytes() }, nil
}

// forwardChild is Forward for a child process that was not waited for yet, so that its id
// belongs to no other process.
func (e *Egress) forwardChild(pid int) (stop func() int64, err error) {
	if e == nil {
		return e.Forward(nil)
	}
	process, err := forward.Process(pid)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	defer process.Close()
	return e.Forward(process)
}

// handed is the pair of sockets through which a session-runner that is not privileged
// obtains the listener of a run with egress, because it cannot enter the network namespace
// of a child. The child opens the listener and sends its descriptor before it becomes the
// program.
type handed struct{ inside, outside *os.File }

// listenerTime is the maximum time until the child has sent its listener.
const listenerTime = 10 * time.Second

// canEnter reports whether this process can enter the network namespaces of its children.
var canEnter = privileged

// newHanded opens the pair of sockets of a run. It returns nil if the run has no
// egress or canEnter returns true.
func newHanded(e *Egress) (*handed, error) {
	if e == nil || canEnter() {
		return nil, nil
	}
	inside, outside, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	return &handed{inside, outside}, nil
}

func (h *handed) close() {
	if h != nil {
		_, _ = h.inside.Close(), h.outside.Close()
	}
}

// forward receives the child's listener and starts the forwarder. Connections that the
// program makes earlier wait until then. If the child has ended without sending one,
// forward returns no error: the child has written the reason to its status.
func (h *handed) forward(e *Egress) (stop func() int64, err error) {
	_ = h.inside.Close() // so that the end of the child ends the read
	c, err := net.FileConn(h.outside)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(listenerTime)); err != nil {
		return nil, err
	}
	l, err := forward.Receive(c.(*net.UnixConn))
	if errors.Is(err, io.EOF) {
		return func() int64 { return 0 }, nil
	}
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	f, err := forward.Serve(l, e.Socket)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", errors.Join(err, l.Close()))
	}
	return func() int64 { f.Close(); return f.Bytes() }, nil
}
