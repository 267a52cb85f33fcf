package sessionrunner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
)

// errNoEgress is wrapped by the error of pull if the call has no proxy.
var errNoEgress = errors.New("the registry cannot be reached")

// pull adds the image that a call names, through the proxy of the call. usage has the bytes of the
// connections to the proxy.
func pull(ctx context.Context, s *Service, w *execute.Work, args *imageArgs) (img containerd.Image, usage contract.Usage, err error) {
	usage.Measured = []string{contract.MeasureEgress}
	if err := s.from.Check(args.Ref, args.Unpinned); err != nil {
		return img, usage, err
	}
	proxy, err := s.egress(ctx, w)
	if err == nil && proxy == nil {
		err = errors.New("the call was decided on a tool document without registries: call again")
	}
	if err != nil {
		return img, usage, fmt.Errorf("%w: %w", errNoEgress, err)
	}
	var bytes atomic.Int64
	login, err := registryLogin(ctx, w, s.from.Secret(args.Ref))
	if err != nil {
		return img, usage, err
	}
	img, err = s.images.Pull(ctx, s.from, args.Ref, args.Unpinned, login, func(ctx context.Context) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", proxy.Socket)
		if err != nil {
			return nil, err
		}
		return &countedConn{c, &bytes}, nil
	})
	usage.EgressBytes = bytes.Load()
	return img, usage, err
}

// Errors of registryLogin: errNoSecret is wrapped together with the error of Work.Secret.
var (
	errLogin    = errors.New(`want "USER:PASSWORD", or a secret of type login`)
	errNoSecret = errors.New("the login at the registry")
)

// registryLogin fetches the secret with a login at a registry. It returns nil for the name "".
func registryLogin(ctx context.Context, w *execute.Work, name string) (*url.Userinfo, error) {
	if name == "" {
		return nil, nil
	}
	value, err := w.Secret(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoSecret, err)
	}
	user, password, ok := strings.Cut(value, ":")
	if strings.HasPrefix(value, "{") {
		var login struct{ Username, Password string }
		err = json.Unmarshal([]byte(value), &login)
		user, password, ok = login.Username, login.Password, err == nil
	}
	if !ok || user == "" || password == "" {
		return nil, fmt.Errorf("secret %s: %w", name, errLogin)
	}
	return url.UserPassword(user, strings.TrimSuffix(password, "\n")), nil
}

// countedConn is a connection that adds the number of its bytes to a counter.
type countedConn struct {
	net.Conn
	bytes *atomic.Int64
}

// Read implements net.Conn.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.bytes.Add(int64(n))
	return n, err
}

// imageToolsOf returns the documents of imageTools, of which that of image.pull has the rules for the
// registries, and the secrets with logins.
func imageToolsOf(g *containerd.Registries) []contract.Tool {
	out := slices.Clone(imageTools)
	for i := range out {
		if out[i].Kind == kindImagePull {
			out[i].EgressRules, out[i].Secrets = g.Rules(), g.Grants()
		}
	}
	return out
}
