package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// defaultContext is the name of the context that login creates if no context is named or
// current.
const defaultContext = "default"

// newLoginCmd returns the command login, which stores a mesh's address and a token in a
// context.
func newLoginCmd(c *env) *cobra.Command {
	var o loginOptions
	cmd := &cobra.Command{
		Use:   "login [--browser | --device | --user WHO]",
		Short: "Log in, and store the tokens with the mesh's address in a context",
		Long: `With --browser, log in on a page of the mesh in a browser on this machine, which returns
to the command by a loopback address (RFC 8252). With --device, log in by a code that you enter in a browser, or approve with
"binnacle device approve". With --user, log in with the password that is read from
standard input. The tokens are renewed when they expire. Without these, store a token, with the mesh's address, in the context that --context names, the one in
use, or "default", and use that context from now on. The token is read from standard
input, on a terminal without showing it, so that no other user of this machine sees it.
The mesh must accept it.`,
		Example: `  binnacle login --browser
  binnacle login --device
  binnacle login --user alice
  binnacle login < alice.token
  binnacle login --context prod --addr https://mesh.example --ca ca.pem`,
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runLogin(cmd.Context(), c, &o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.browser, "browser", false, "log in on a page in a browser on this machine")
	f.BoolVar(&o.device, "device", false, "log in by a code")
	f.StringVar(&o.user, "user", "", "`WHO` logs in with a password")
	f.StringVar(&o.tenant, "tenant", "", "id of the `TENANT` to log in to (default the mesh's original tenant)")
	f.StringArrayVar(&o.scopes, "scope", nil, "`SCOPE` that the login is limited to; may be repeated; none is what the roles give")
	cmd.MarkFlagsMutuallyExclusive("browser", "device", "user")
	cmd.MarkFlagsMutuallyExclusive("browser", "tenant")
	flagWords(cmd, "scope", token.All...)
	f.StringVar(&o.ca, "ca", "", "PEM `FILE` of the authority of the mesh's certificate (default the context's, BINNACLE_CA)")
	return cmd
}

// loginOptions holds the flags of the command login.
type loginOptions struct {
	ca, user, tenant string
	browser, device  bool
	scopes           []string
}

// runLogin obtains tokens by a login, or reads a token. It then checks that the mesh accepts the
// access token, stores the tokens in a context and makes that context current. Nothing is stored if
// the mesh does not accept the token.
func runLogin(ctx context.Context, c *env, o *loginOptions) error {
	if c.given("token") {
		return fail(exitUsage, "login reads the token from standard input: other users of this machine can see an argument")
	}
	path, err := contexts.Path()
	if err != nil {
		return err
	}
	s, err := contexts.Load(path)
	if err != nil {
		return err
	}
	name, x, err := loginContext(c, s, o.ca)
	if err != nil {
		return err
	}
	if err := obtain(ctx, c, x, o); err != nil {
		return err
	}
	if err := tryToken(ctx, c, x); err != nil {
		return err
	}
	err = contexts.Change(path, func(s *contexts.Store) error {
		if err := s.Put(name, *x); err != nil {
			return fail(exitUsage, "%v", err)
		}
		return s.Use(name)
	})
	if err != nil {
		return err
	}
	return c.print(map[string]string{"context": name, "addr": x.Addr, "file": path}, func() {
		fmt.Fprintf(c.out, "logged in to %s; context %s is in use (%s)\n", x.Addr, name, path)
	})
}

// obtain sets the tokens of a context: those of a login or, without one, a token that it
// reads.
func obtain(ctx context.Context, c *env, x *contexts.Context, o *loginOptions) (err error) {
	if !o.browser && !o.device && o.user == "" {
		x.Token, err = readToken(c, x.Addr)
		x.Refresh, x.Expires = "", time.Time{}
		return err
	}
	c.target = targetOf(x)
	t, err := loginTokens(ctx, c, o)
	if err == nil {
		keep(x, t)
	}
	return err
}

// loginContext returns the name and content of the context that login stores, except for
// the token, which the caller sets.
func loginContext(c *env, s *contexts.Store, ca string) (string, *contexts.Context, error) {
	name := c.context
	if name == "" {
		name = envOr("BINNACLE_CONTEXT", s.Current)
	}
	if name == "" {
		name = defaultContext
	}
	x := s.Contexts[name]
	switch {
	case c.addr != "":
		x.Addr = c.addr
	case c.context == "" && os.Getenv("BINNACLE_ADDR") != "":
		x.Addr = os.Getenv("BINNACLE_ADDR")
	case x.Addr == "":
		x.Addr = envOr("BINNACLE_ADDR", defaultAddr)
	}
	if ca == "" && x.CA == "" {
		ca = os.Getenv("BINNACLE_CA")
	}
	if ca != "" {
		full, err := filepath.Abs(ca)
		if err != nil {
			return "", nil, err
		}
		x.CA = full
	}
	return name, &x, nil
}

// readToken reads a token from standard input: one line, without echo on a terminal.
func readToken(c *env, addr string) (string, error) {
	b, err := readHidden(c, "token for "+addr)
	if err != nil {
		return "", err
	}
	raw := strings.TrimSpace(string(b))
	if raw == "" || strings.ContainsAny(raw, " \t\r\n") {
		return "", fail(exitAuth, "standard input contains no token: want one line")
	}
	return raw, nil
}

// tryToken returns an error unless the mesh accepts the token of x. The token also counts as
// accepted if the response states that the request is denied or that the token lacks a scope.
// Later requests of the command use the mesh and the token of x.
func tryToken(ctx context.Context, c *env, x *contexts.Context) error {
	c.token, c.target = x.Token, targetOf(x)
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/packs", nil, nil)
	var refused *exitError
	if errors.As(err, &refused) && refused.code == exitDenied {
		return nil
	}
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
