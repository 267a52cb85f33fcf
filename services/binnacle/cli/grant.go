package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
)

// grantError is an error of the token routes (RFC 6749, section 5.2).
type grantError struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`

	status int
}

// temporary reports whether the same request may succeed later: the mesh could not respond
// in time, or limits requests.
func (e *grantError) temporary() bool {
	return e.status >= http.StatusInternalServerError || e.status == http.StatusTooManyRequests || e.status == http.StatusRequestTimeout
}

// Error implements error.
func (e *grantError) Error() string { return e.Description }

// postForm sends a form to a route of the mesh that needs no credential; see sendOpen.
func postForm(ctx context.Context, c *env, path string, form url.Values, out any) error {
	return sendOpen(ctx, c, http.MethodPost, path, form, out)
}

// sendOpen sends a request to a route of the mesh that needs no credential, and decodes the
// response into out unless that is nil. A response with a status other than 2xx is
// returned as a *grantError.
func sendOpen(ctx context.Context, c *env, method, path string, form url.Values, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base()+path, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	t, err := c.transport()
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	var raw []byte
	if err == nil {
		defer resp.Body.Close()
		raw, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	} else if inner := errors.Unwrap(err); inner != nil {
		err = inner // without the method and the URL
	}
	if err != nil {
		return fail(exitNoMesh, "no mesh responds at %s (%v); `binnacle up` runs one", c.mesh().addr, err)
	}
	if resp.StatusCode/100 != 2 {
		e := &grantError{status: resp.StatusCode}
		if json.Unmarshal(raw, e) != nil || e.Description == "" {
			e.Description = resp.Status
		}
		return e
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// loginTokens logs in by the method that the options of the command login select, and
// returns the tokens.
func loginTokens(ctx context.Context, c *env, o *loginOptions) (*gateway.TokenResponse, error) {
	form := url.Values{"client_id": {"cli"}, "tenant": {o.tenant}, "scope": {strings.Join(o.scopes, " ")}}
	if o.user != "" {
		secret, err := readSecret(c, "password of "+o.user)
		if err != nil {
			return nil, err
		}
		form["grant_type"], form["username"], form["password"] = []string{"password"}, []string{o.user}, []string{secret}
		return grant(ctx, c, form)
	}
	if o.browser {
		return browserLogin(ctx, c, o.scopes)
	}
	var d gateway.DeviceResponse
	if err := postForm(ctx, c, "/oauth/device", form, &d); err != nil {
		return nil, fail(exitAuth, "%v", err)
	}
	fmt.Fprintf(c.errOut, "open %s and enter %s, or run: binnacle device approve %s\n", d.URI, d.User, d.User)
	for end := time.Now().Add(time.Duration(d.Expires) * time.Second); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(max(d.Interval, 1)) * time.Second):
		}
		t, err := grant(ctx, c, url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {d.Device}, "client_id": {"cli"}})
		var waits *grantError
		if !errors.As(err, &waits) || waits.Code != contract.OAuthPending {
			return t, err
		}
	}
	return nil, fail(exitAuth, "no person approved the code in time; run `binnacle login --device` again")
}

// grant sends a grant to the mesh and returns the tokens. A refusal has the exit code
// exitAuth, or exitFailed if it is temporary.
func grant(ctx context.Context, c *env, form url.Values) (*gateway.TokenResponse, error) {
	var t gateway.TokenResponse
	err := postForm(ctx, c, "/oauth/token", form, &t)
	var refused *grantError
	if errors.As(err, &refused) && refused.temporary() {
		return nil, fail(exitFailed, "the mesh cannot decide on the login now: %w; try again", refused)
	}
	if refused != nil {
		return nil, &exitError{code: exitAuth, err: refused}
	}
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// keep stores the tokens of a login in a context.
func keep(x *contexts.Context, t *gateway.TokenResponse) {
	x.Token, x.Refresh, x.Expires = t.Access, t.Refresh, time.Now().Add(time.Duration(t.Expires)*time.Second).UTC()
}

// refreshEarly is the time before the expiry of an access token at which it is renewed.
const refreshEarly = 30 * time.Second

// renewed returns the access token of a context. If the token expires within
// refreshEarly and the context has a refresh token, renewed first renews the
// tokens and stores them. A lock on a file serializes the renewals of several
// programs, because a refresh token that is used twice ends the login. If the mesh
// cannot renew the tokens now, renewed returns the stored one, unless that has expired.
func renewed(c *env, name string) (string, error) {
	path, err := contexts.Path()
	if err != nil {
		return "", err
	}
	s, err := contexts.Load(path)
	if err != nil {
		return "", err
	}
	x, err := s.Get(name)
	if err != nil {
		return "", err
	}
	if !expires(x) {
		return x.Token, nil
	}
	err = contexts.Change(path, func(s *contexts.Store) (err error) {
		if x, err = s.Get(name); err != nil {
			return err
		}
		if expires(x) { // no other program has renewed it meanwhile
			err = renew(c, name, x)
		}
		return errors.Join(err, s.Put(name, *x))
	})
	if err != nil {
		return "", err
	}
	return x.Token, nil
}

// expires reports whether the access token of a context must be renewed now.
func expires(x *contexts.Context) bool {
	return x.Refresh != "" && time.Until(x.Expires) <= refreshEarly
}

// renew renews the tokens in x, the context with the given name. It returns an error if the
// mesh refuses that, if the address of the context has changed, or if the access token has
// expired. Otherwise, if the mesh cannot renew the tokens now, they do not change.
func renew(c *env, name string, x *contexts.Context) error {
	if x.Addr != c.mesh().addr {
		return fail(exitUsage, "the address of context %q was changed meanwhile; run the command again", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	t, err := grant(ctx, c, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {x.Refresh}})
	var refused *exitError
	switch {
	case err == nil:
		keep(x, t)
	case errors.As(err, &refused) && refused.code == exitAuth:
		return fmt.Errorf("the login of context %q cannot be renewed: %w; log in again with `binnacle login --context %s`", name, err, name)
	case time.Now().After(x.Expires):
		return fmt.Errorf("the login of context %q cannot be renewed now: %w", name, err)
	}
	return nil
}

// newLogoutCmd returns the command logout, which ends the login of a context.
func newLogoutCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:               "logout",
		Short:             "End the login of the context in use, and remove its tokens",
		Example:           "  binnacle logout --context prod",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return runLogout(cmd.Context(), c) },
	}
}

func runLogout(ctx context.Context, c *env) error {
	name, x, err := chosenContext(c)
	if err != nil {
		return err
	}
	if x == nil || x.Token == "" {
		return fail(exitUsage, "no context with a login is in use; `binnacle context list` lists the contexts")
	}
	if x.Refresh != "" {
		if err := postForm(ctx, c, "/oauth/revoke", url.Values{"token": {x.Refresh}}, nil); err != nil {
			return fmt.Errorf("the login was not ended: %w", err)
		}
	}
	path, err := contexts.Path()
	if err != nil {
		return err
	}
	err = contexts.Change(path, func(s *contexts.Store) error {
		x.Token, x.Refresh, x.Expires = "", "", time.Time{}
		return s.Put(name, *x)
	})
	if err != nil {
		return err
	}
	return c.print(map[string]string{"context": name, "logged_out": x.Addr}, func() { fmt.Fprintf(c.out, "logged out of %s\n", x.Addr) })
}

// newDeviceCmd returns the command device, which approves the logins of programs that show
// a code.
func newDeviceCmd(c *env) *cobra.Command {
	var scopes []string
	approve := &cobra.Command{
		Use:               "approve CODE",
		Short:             "Permit the program that shows CODE to log in as you, once",
		Example:           "  binnacle device approve BCD-FGH-JKM --scope tools:call",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := c.request(cmd.Context(), http.MethodPost, "/api/v1/devices", gateway.DeviceApproval{Code: args[0], Scopes: scopes}, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			return sayCall(c, resp.Body)
		},
	}
	approve.Flags().StringArrayVar(&scopes, "scope", nil, "`SCOPE` that the login is limited to; may be repeated; none is what your roles give")
	return group(&cobra.Command{
		Use:     "device COMMAND",
		Short:   "Approve the login of a program that shows a code",
		Example: "  binnacle device approve BCD-FGH-JKM",
	}, approve)
}
