// Package hashivault stores the vault-broker's values in HashiCorp Vault, or in a server
// with the same API, such as OpenBao: in a key-value engine of version 2.
//
// Client keeps the broker logged in: it renews a token that is renewable, logs in again
// when a token must be replaced, and repeats a request once if its token was invalid. KV
// implements backend.Backend.
package hashivault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"
	"github.com/hashicorp/vault/api/auth/approle"
	"github.com/hashicorp/vault/api/auth/kubernetes"

	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// Config describes a Vault server and how the broker logs in. Exactly one of TokenFile,
// RoleID and KubernetesRole must be set. It holds no secret: tokens and secret ids are
// read from files at each login.
type Config struct {
	Address   string // URL of the server
	CA        string // PEM file of the authority that signed the server's certificate; "" = the system's authorities
	Namespace string // "" = the root namespace
	Mount     string // mount path of the key-value engine
	Prefix    string // path within the engine below which all values are stored
	TokenFile string // file that holds a token

	RoleID       string // role id of AppRole
	SecretIDFile string // file that holds the secret id of AppRole, or a wrapping token if Wrapped is set
	Wrapped      bool   // SecretIDFile holds a token for one use, with which the secret id is unwrapped

	KubernetesRole string // role of the Kubernetes auth method
	JWTFile        string // file of the service account's token; "" = where Kubernetes mounts it

	AuthMount string // mount path of the auth method; "" = approle or kubernetes

	Timeout time.Duration // of one request; 0 = 5 s
}

// Given reports whether a server is configured.
func (c *Config) Given() bool { return c.Address != "" }

// defaultTimeout is the time after which a server that does not respond counts as
// unavailable.
const defaultTimeout = 5 * time.Second

// Client sends requests to Vault. Run keeps it logged in. It is safe for concurrent use.
type Client struct {
	cfg Config
	log *slog.Logger
	api *api.Client // its token is set together with login

	entry    *api.Client // sends the requests of logins, so that the token of api is valid meanwhile
	secretID string      // unwrapped secret id, which cannot be unwrapped again

	issued atomic.Bool // a credential was issued, whose lease would end with the token

	mu     sync.Mutex
	login  int           // number of successful logins
	err    error         // why the client is not logged in; nil if it is
	change chan struct{} // closed and replaced after each attempt to log in
	again  chan int      // number of a login whose token is invalid; requests a new login
}

// New returns a client that is not logged in. It reads the CA file and checks the
// configuration. It ignores Vault's environment variables, such as VAULT_TOKEN.
func New(cfg Config, log *slog.Logger) (*Client, error) {
	ways := 0
	for _, w := range []string{cfg.TokenFile, cfg.RoleID, cfg.KubernetesRole} {
		if w != "" {
			ways++
		}
	}
	if ways != 1 {
		return nil, fmt.Errorf("vault %s: set exactly one of token_file, role_id and kubernetes_role, so that the vault-broker can log in", cfg.Address)
	}
	if cfg.RoleID != "" && cfg.SecretIDFile == "" {
		return nil, fmt.Errorf("vault %s: role_id needs secret_id_file", cfg.Address)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CA != "" {
		pem, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("vault ca: %w", err)
		}
		tlsConfig.RootCAs = x509.NewCertPool()
		if !tlsConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("vault ca: %s holds no PEM certificate", cfg.CA)
		}
	}
	h := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: cfg.Timeout},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var clients [2]*api.Client
	for i := range clients {
		c, err := api.NewClient(&api.Config{Address: cfg.Address, HttpClient: h, Timeout: cfg.Timeout, MaxRetries: 0})
		if err != nil {
			return nil, fmt.Errorf("vault %s: %w", cfg.Address, err)
		}
		c.ClearToken()
		c.SetHeaders(http.Header{})
		if cfg.Namespace != "" {
			c.SetNamespace(cfg.Namespace)
		}
		clients[i] = c
	}
	return &Client{cfg: cfg, log: log, api: clients[0], entry: clients[1], err: errNotYet, change: make(chan struct{}), again: make(chan int, 1)}, nil
}

// errNotYet is the state of a client before its first login.
var errNotYet = fmt.Errorf("%w: not logged in yet", backend.ErrUnavailable)

// Run keeps the client logged in until ctx ends, and then revokes the token, unless it
// was read from TokenFile, or Issue was called: Vault would revoke the credentials with the
// token, and other instances may hold their leases. It returns nil.
func (c *Client) Run(ctx context.Context) error {
	wait := minWait
	for ctx.Err() == nil {
		s, err := c.authenticate(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.log.Warn("vault: login failed", "address", c.cfg.Address, "err", err)
			}
			c.set("", err)
			sleep(ctx, wait)
			wait = min(2*wait, maxWait)
			continue
		}
		wait = minWait
		n := c.set(s.Auth.ClientToken, nil)
		c.log.Info("vault: logged in", "address", c.cfg.Address, "ttl", time.Duration(s.Auth.LeaseDuration)*time.Second, "renewable", s.Auth.Renewable)
		c.hold(ctx, s, n)
	}
	if c.cfg.TokenFile == "" && !c.issued.Load() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.api.Auth().Token().RevokeSelfWithContext(bye, "") // a token that is not revoked expires
	}
	return nil
}

// Bounds of the time between two attempts to log in.
const (
	minWait = 100 * time.Millisecond
	maxWait = 5 * time.Second
)

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// set sets err and, after a login, the token, which it counts. It returns the number of logins.
func (c *Client) set(token string, err error) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if token != "" {
		c.api.SetToken(token)
		c.login++
	}
	c.err = err
	close(c.change)
	c.change = make(chan struct{})
	return c.login
}

// hold returns when the token of a login must be replaced, or ctx ends. It renews a renewable token each
// third of its life, until a renewal extends it by less than that life, because it is near its maximum, or
// until two thirds have passed without a renewal. So a token that is in use, and each credential that Vault
// ends with it, is valid for another third of the token's life at least, and if Vault responds, for two
// thirds. A token of the configured file is renewed until that fails, because a login would return the same
// one. A token that is not renewable must be replaced after two thirds of its life, if its life has an end.
// Any token must be replaced once a request found it invalid.
func (c *Client) hold(ctx context.Context, s *api.Secret, login int) {
	ttl := time.Duration(s.Auth.LeaseDuration) * time.Second
	var due <-chan time.Time
	if ttl > 0 {
		tick := time.NewTicker(ttl / 3)
		defer tick.Stop()
		due = tick.C
	}
	for left := ttl; ; {
		select {
		case <-ctx.Done():
			return
		case <-due:
			left -= ttl / 3
			if s.Auth.Renewable {
				got, err := c.renewSelf(ctx)
				switch {
				case err != nil:
					c.log.Warn("vault: the token was not renewed", "address", c.cfg.Address, "err", err)
				case got < ttl && c.cfg.TokenFile == "":
					return
				default:
					left = got
				}
			}
			if left < ttl/2 {
				return
			}
		case n := <-c.again:
			if n == login {
				return
			}
		}
	}
}

// renewSelf renews the token, and returns the time to its end.
func (c *Client) renewSelf(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	s, err := c.api.Auth().Token().RenewSelfWithContext(ctx, 0)
	if err != nil {
		return 0, classify(err)
	}
	return s.TokenTTL()
}

// authenticate logs in once and returns a secret whose Auth describes the token.
func (c *Client) authenticate(ctx context.Context) (*api.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	c.entry.ClearToken()
	defer c.entry.ClearToken()
	var s *api.Secret
	var err error
	switch {
	case c.cfg.TokenFile != "":
		s, err = c.fromFile(ctx)
	case c.cfg.RoleID != "":
		s, err = c.appRole(ctx)
	default:
		s, err = c.kubernetes(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("login: %w", classify(err))
	}
	if s == nil || s.Auth == nil {
		return nil, fmt.Errorf("%w: login: the server returned no token", backend.ErrUnavailable)
	}
	return s, nil
}

// fromFile uses the token in the configured file.
func (c *Client) fromFile(ctx context.Context) (*api.Secret, error) {
	token, err := readFile(c.cfg.TokenFile)
	if err != nil {
		return nil, err
	}
	c.entry.SetToken(token)
	s, err := c.entry.Auth().Token().LookupSelfWithContext(ctx)
	if err != nil {
		return nil, err
	}
	ttl, err := s.TokenTTL()
	if err != nil {
		return nil, err
	}
	renewable, err := s.TokenIsRenewable()
	if err != nil {
		return nil, err
	}
	return &api.Secret{Auth: &api.SecretAuth{ClientToken: token, Renewable: renewable, LeaseDuration: int(ttl / time.Second)}}, nil
}

// appRole logs in with AppRole. A wrapped secret id is unwrapped at the first login and
// then kept in memory, because the wrapping token is valid once.
func (c *Client) appRole(ctx context.Context) (*api.Secret, error) {
	id := c.secretID
	if id == "" {
		var err error
		if id, err = readFile(c.cfg.SecretIDFile); err != nil {
			return nil, err
		}
	}
	if c.cfg.Wrapped && c.secretID == "" {
		s, err := c.entry.Logical().UnwrapWithContext(ctx, id)
		if err != nil {
			if status(err) == http.StatusBadRequest || status(err) == http.StatusForbidden {
				return nil, fmt.Errorf("%w: the wrapping token in %s has been used or has expired; if this vault-broker has not used it, another process has read the secret id, so revoke that; then put a new wrapping token there", backend.ErrDenied, c.cfg.SecretIDFile)
			}
			return nil, err
		}
		unwrapped, _ := s.Data["secret_id"].(string)
		if unwrapped == "" {
			return nil, fmt.Errorf("%w: the wrapping token in %s wraps no secret id", backend.ErrDenied, c.cfg.SecretIDFile)
		}
		id, c.secretID = unwrapped, unwrapped
	}
	var o []approle.LoginOption
	if c.cfg.AuthMount != "" {
		o = append(o, approle.WithMountPath(c.cfg.AuthMount))
	}
	a, err := approle.NewAppRoleAuth(c.cfg.RoleID, &approle.SecretID{FromString: id}, o...)
	if err != nil {
		return nil, err
	}
	return c.entry.Auth().Login(ctx, a)
}

// kubernetes logs in with the service account's token, which Kubernetes replaces in its
// file from time to time.
func (c *Client) kubernetes(ctx context.Context) (*api.Secret, error) {
	file := c.cfg.JWTFile
	if file == "" {
		file = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	}
	jwt, err := readFile(file)
	if err != nil {
		return nil, err
	}
	o := []kubernetes.LoginOption{kubernetes.WithServiceAccountToken(jwt)}
	if c.cfg.AuthMount != "" {
		o = append(o, kubernetes.WithMountPath(c.cfg.AuthMount))
	}
	a, err := kubernetes.NewKubernetesAuth(c.cfg.KubernetesRole, o...)
	if err != nil {
		return nil, err
	}
	return c.entry.Auth().Login(ctx, a)
}

// readFile returns the content of a file that holds a credential, without surrounding
// white space.
func readFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", backend.ErrDenied, err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" {
		return "", fmt.Errorf("%w: %s is empty", backend.ErrDenied, path)
	}
	return text, nil
}

// Err returns nil if the client is logged in, and otherwise why it is not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// loggedIn waits until the client is logged in, and returns the number of the login.
// After the timeout of the configuration, it returns the error of the last attempt. If
// ctx ends first, it returns an error that wraps that error and the error of ctx.
func (c *Client) loggedIn(ctx context.Context) (int, error) {
	late := time.NewTimer(c.cfg.Timeout)
	defer late.Stop()
	for {
		c.mu.Lock()
		n, err, change := c.login, c.err, c.change
		c.mu.Unlock()
		if err == nil {
			return n, nil
		}
		select {
		case <-change:
		case <-late.C:
			return 0, err
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// Do calls op with a client that is logged in. It limits the time of op and classifies
// its error. If op was denied because the token is invalid, or has been replaced meanwhile,
// Do calls op once more after the next login.
func (c *Client) Do(ctx context.Context, op func(ctx context.Context, a *api.Client) error) error {
	for first := true; ; first = false {
		n, err := c.loggedIn(ctx)
		if err != nil {
			return err
		}
		limited, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		err = classify(op(limited, c.api))
		cancel()
		if !errors.Is(err, backend.ErrDenied) || !first {
			return err
		}
		ended := c.ended(ctx)
		c.mu.Lock()
		if !ended && c.login == n {
			c.mu.Unlock()
			return err
		}
		if c.login == n && c.err == nil {
			c.err = fmt.Errorf("%w: the token has ended", backend.ErrUnavailable)
			select {
			case c.again <- n:
			default:
			}
		}
		c.mu.Unlock()
	}
}

// ended reports whether the token is invalid. It looks up the token, because the server
// rejects a request with an invalid token with the same status as one that lacks a
// permission.
func (c *Client) ended(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	_, err := c.api.Auth().Token().LookupSelfWithContext(ctx)
	return status(err) == http.StatusForbidden
}

// status returns the HTTP status of the server's error, or 0 if err is not a response of
// the server.
func status(err error) int {
	var r *api.ResponseError
	if errors.As(err, &r) {
		return r.StatusCode
	}
	return 0
}

// classify returns nil for nil, and otherwise an error that wraps an error of package
// backend: ErrUnavailable if no other one corresponds to err. The server's messages do
// not contain values.
func classify(err error) error {
	var r *api.ResponseError
	switch {
	case err == nil, known(err):
		return err
	case errors.Is(err, api.ErrSecretNotFound):
		return backend.ErrNotFound
	case !errors.As(err, &r):
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	said := strings.Join(r.Errors, "; ")
	switch {
	case r.StatusCode == http.StatusForbidden, r.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%w: %s", backend.ErrDenied, said)
	case r.StatusCode == http.StatusBadRequest && strings.Contains(said, "check-and-set"):
		return backend.ErrConflict
	case r.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: %s", backend.ErrNotFound, said)
	case r.StatusCode == http.StatusServiceUnavailable && strings.Contains(said, "sealed"):
		return fmt.Errorf("%w: unseal it with `vault operator unseal`", backend.ErrSealed)
	case r.StatusCode == http.StatusBadRequest:
		return fmt.Errorf("%w: %s", backend.ErrDenied, said) // for example a login with an unknown secret id
	}
	return fmt.Errorf("%w: status %d: %s", backend.ErrUnavailable, r.StatusCode, said)
}

// known reports whether err wraps an error of package backend.
func known(err error) bool {
	for _, e := range []error{backend.ErrNotFound, backend.ErrDeleted, backend.ErrErased, backend.ErrConflict, backend.ErrDenied, backend.ErrSealed, backend.ErrUnavailable} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
