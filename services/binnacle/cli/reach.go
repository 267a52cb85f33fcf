package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/suggest"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// defaultAddr is the address of the mesh if no flag, variable or context names one.
const defaultAddr = "127.0.0.1:8080"

// target is the mesh that a command uses, with the credentials for it.
type target struct {
	addr      string
	ca        string // PEM file of the authorities for the mesh's certificate; empty: the system's
	cert, key string // PEM files of the certificate that the command presents to the mesh, and of its key; empty: none
	refreshes bool   // the token of the context is renewed when it expires
	token     string // token of the context; empty if no context is used or it has no token
	context   string // name of the context that has the address addr; empty if none is used
	err       error  // error of finding the context; nil if the command needs no context
}

// mesh returns the address of the mesh and the credentials for requests. Flags take
// precedence over BINNACLE_* variables, and variables over the current context. A
// context named on the command line takes precedence over variables. A context's token
// is only sent to the context's address.
func (c *env) mesh() *target {
	if c.target == nil {
		c.target = findMesh(c)
	}
	return c.target
}

// targetOf returns the target of a context, without a token. The certificate to present is that of
// the variables, if the context has none.
func targetOf(x *contexts.Context) *target {
	t := &target{addr: x.Addr, ca: x.CA, cert: x.ClientCert, key: x.ClientKey}
	if t.cert == "" && t.key == "" {
		t.cert, t.key = os.Getenv("BINNACLE_CLIENT_CERT"), os.Getenv("BINNACLE_CLIENT_KEY")
	}
	return t
}

// findMesh determines the target from the flags, the variables and the contexts.
// Unreadable contexts are an error only if the command needs one; see target.err.
func findMesh(c *env) *target {
	t := &target{addr: c.addr, ca: os.Getenv("BINNACLE_CA"), cert: os.Getenv("BINNACLE_CLIENT_CERT"), key: os.Getenv("BINNACLE_CLIENT_KEY")}
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
		t.refreshes = x.Refresh != ""
		if x.CA != "" && (t.ca == "" || c.context != "") {
			t.ca = x.CA
		}
		if x.ClientCert != "" && (t.cert == "" || c.context != "") {
			t.cert, t.key = x.ClientCert, x.ClientKey
		}
	}
	if t.addr == "" {
		t.addr = defaultAddr
	}
	return t
}

// chosenContext returns the name and content of the context that --context or
// BINNACLE_CONTEXT names, or else of the current context. The context is nil if there is
// none. A name that does not exist is an error with exit code 2.
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
		return "", nil, fail(exitUsage, "%v%s; 'binnacle context list' lists them", err, didYouMean(suggest.Near(name, s.Names())))
	}
	return name, x, nil
}

// base returns the mesh's URL without a final slash. An address without a scheme means
// plain HTTP.
func (c *env) base() string { return addresses(c.mesh().addr)[0] }

// addresses returns the URLs in a list of addresses that are separated by commas, without a final
// slash. The list has at least one.
func addresses(list string) (urls []string) {
	for addr := range strings.SplitSeq(list, ",") {
		if addr = strings.TrimSpace(addr); !strings.Contains(addr, "://") {
			addr = "http://" + addr
		}
		urls = append(urls, strings.TrimSuffix(addr, "/"))
	}
	return urls
}

// bearer returns the token for the command's requests: that of --token, BINNACLE_TOKEN,
// the context in use or, if none is in use, DATA/admin.token, in this order; but the
// token of a context that --context names takes precedence over BINNACLE_TOKEN. If the
// requests are an operator's, BINNACLE_OPERATOR_TOKEN takes precedence over
// BINNACLE_TOKEN, and DATA/operator.token over DATA/admin.token. It is an error if
// --token or BINNACLE_TOKEN is set but empty, unless another token takes precedence over
// it.
func (c *env) bearer() (string, error) {
	if c.token != "" {
		return c.token, nil
	}
	t := c.mesh()
	if t.err != nil {
		return "", t.err
	}
	if c.given("token") {
		return "", fail(exitAuth, "--token is empty: give a token, or leave the flag out")
	}
	if c.context == "" || t.token == "" {
		if v, err := variableToken(c); v != "" || err != nil {
			return v, err
		}
	}
	switch {
	case t.refreshes:
		return renewed(c, t.context)
	case t.token != "":
		return t.token, nil
	case t.context != "":
		return "", fail(exitAuth, "context %q has no token: 'binnacle login --context %s' stores one", t.context, t.context)
	}
	return fileToken(c)
}

// variableToken returns the token in the environment, or "" if there is none. It returns
// an error if BINNACLE_TOKEN is set but empty, unless BINNACLE_OPERATOR_TOKEN is used
// instead.
func variableToken(c *env) (string, error) {
	if c.operator {
		if v := strings.TrimSpace(os.Getenv("BINNACLE_OPERATOR_TOKEN")); v != "" {
			return v, nil
		}
	}
	v, set := os.LookupEnv("BINNACLE_TOKEN")
	v = strings.TrimSpace(v)
	if set && v == "" {
		return "", fail(exitAuth, "BINNACLE_TOKEN is empty: set it to a token, or unset it to use the administrator's")
	}
	return v, nil
}

// fileToken returns a token of the mesh whose folder is DATA: the operator's if the
// requests are an operator's and the file of that token exists, and otherwise the
// administrator's. A mesh of an earlier release whose cell is not open has no operator's
// token; its administrator is its operator.
func fileToken(c *env) (string, error) {
	if c.operator {
		b, err := os.ReadFile(filepath.Join(c.data, mesh.OperatorTokenFile))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return strings.TrimSpace(string(b)), err
		}
	}
	path := filepath.Join(c.data, mesh.AdminTokenFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fail(exitAuth, "no token: give --token, set BINNACLE_TOKEN, log in with 'binnacle login', or run beside %s", path)
	}
	return strings.TrimSpace(string(b)), nil
}

// transport returns a transport that verifies the mesh's certificate against the
// authorities in the target's PEM file, or against the system's authorities if it has
// none. If the mesh requests a certificate, the transport presents that of the target.
// With several addresses, it connects to the next one if a gateway accepts no connection; see failover.
func (c *env) transport() (*http.Transport, error) {
	to := c.mesh()
	if to.ca == "" && to.cert == "" && to.key == "" {
		t := &http.Transport{}
		return t, failover(t, to.addr)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if to.ca != "" {
		pem, err := os.ReadFile(to.ca)
		if err != nil {
			return nil, fail(exitUsage, "certificate authority of the mesh: %v", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fail(exitUsage, "certificate authority of the mesh: %s contains no certificate", to.ca)
		}
	}
	if (to.cert == "") != (to.key == "") {
		return nil, fail(exitUsage, "certificate for the mesh: name both a certificate (BINNACLE_CLIENT_CERT, --client-cert) and its key (BINNACLE_CLIENT_KEY, --client-key)")
	}
	if to.cert != "" {
		if _, err := tls.LoadX509KeyPair(to.cert, to.key); err != nil {
			return nil, fail(exitUsage, "certificate for the mesh: %v", err)
		}
		// The files are read for each connection, because long commands outlive short certificates.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(to.cert, to.key)
			return &pair, err
		}
	}
	t := &http.Transport{TLSClientConfig: conf}
	return t, failover(t, to.addr)
}
