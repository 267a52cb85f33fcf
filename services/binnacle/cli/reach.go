package cli

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
)

// How a command reaches the mesh: its address, its certificate and its token.

const defaultAddr = "127.0.0.1:8080"

// target is a mesh.
type target struct {
	addr    string
	ca      string // PEM file of the certificate's authority, empty for the system's
	token   string // from a context; empty where none gives one
	context string // name of the context that gave the address; empty where none did
	err     error  // why the contexts cannot be read
}

// mesh returns the address and credentials for requests. Flags take precedence over
// BINNACLE_* variables, and those over the context in use; a context that the command
// line names takes precedence over variables. A context's token is sent to the context's
// address only.
func (c *env) mesh() *target {
	if c.target == nil {
		c.target = findMesh(c)
	}
	return c.target
}

func findMesh(c *env) *target {
	t := &target{addr: c.addr, ca: os.Getenv("BINNACLE_CA")}
	if t.addr == "" && c.context == "" {
		t.addr = os.Getenv("BINNACLE_ADDR")
	}
	name, x, err := chosenContext(c)
	switch {
	case err != nil && (t.addr == "" || c.context != ""):
		t.err = err
	case x == nil || err != nil:
	case t.addr == "" || t.addr == x.Addr:
		t.addr, t.token, t.context = x.Addr, x.Token, name
		if t.ca == "" {
			t.ca = x.CA
		}
	}
	if t.addr == "" {
		t.addr = defaultAddr
	}
	return t
}

// chosenContext returns the context that --context or BINNACLE_CONTEXT names, or else
// the current context. It returns nil if there is none.
func chosenContext(c *env) (string, *contexts.Context, error) {
	name := c.context
	if name == "" {
		name = os.Getenv("BINNACLE_CONTEXT")
	}
	path, err := contexts.Path()
	if err != nil {
		if name == "" {
			err = nil // a user without a configuration folder has no contexts
		}
		return "", nil, err
	}
	s, err := contexts.Load(path)
	if err != nil {
		return "", nil, err
	}
	if name == "" {
		name = s.Current
	}
	x, err := s.Get(name)
	if err != nil {
		return "", nil, fail(exitUsage, "%v%s; 'binnacle context list' lists them", err, didYouMean(near(name, s.Names())))
	}
	return name, x, nil
}

// base is the mesh's URL without a path. An address without a scheme is plain
// HTTP.
func (c *env) base() string {
	addr := c.mesh().addr
	if strings.Contains(addr, "://") {
		return strings.TrimSuffix(addr, "/")
	}
	return "http://" + addr
}

// bearer is the token of the command's requests.
func (c *env) bearer() (string, error) {
	if c.token != "" {
		return c.token, nil
	}
	t := c.mesh()
	if t.err != nil {
		return "", t.err
	}
	v, set := os.LookupEnv("BINNACLE_TOKEN")
	v = strings.TrimSpace(v)
	named := c.context != "" && t.token != ""
	switch {
	case c.given("token"):
		return "", fail(exitAuth, "--token is empty: give a token, or leave the flag out")
	case v != "" && !named:
		return v, nil
	case set && !named:
		return "", fail(exitAuth, "BINNACLE_TOKEN is empty: set it to a token, or unset it to use the administrator's")
	case t.token != "":
		return t.token, nil
	case t.context != "":
		return "", fail(exitAuth, "context %q has no token: 'binnacle login --context %s' stores one", t.context, t.context)
	}
	path := filepath.Join(c.data, "admin.token")
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fail(exitAuth, "no token: give --token, set BINNACLE_TOKEN, log in with 'binnacle login', or run beside %s", path)
	}
	return strings.TrimSpace(string(b)), nil
}

// transport trusts the authority of the mesh's certificate, a PEM file, or the
// system's.
func (c *env) transport() (*http.Transport, error) {
	t := &http.Transport{}
	file := c.mesh().ca
	if file == "" {
		return t, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fail(exitUsage, "BINNACLE_CA: %v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fail(exitUsage, "BINNACLE_CA: %s holds no certificate", file)
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	return t, nil
}
