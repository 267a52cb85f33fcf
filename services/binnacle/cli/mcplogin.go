package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// oauthOptions are the flags of commands that log in at an authorization server.
type oauthOptions struct {
	clientID, issuer, resource string
	secret                     bool
	scopes                     []string
	port                       int
}

// declare adds the flags to a command.
func (o *oauthOptions) declare(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.clientID, "client-id", "", "`ID` of the client at the authorization server (default one is registered)")
	f.BoolVar(&o.secret, "client-secret", false, "read the secret of the client from standard input")
	f.StringVar(&o.issuer, "issuer", "", "`URL` of the authorization server (default the one that is known)")
	f.StringVar(&o.resource, "resource", "", "`URL` for which tokens are requested (default the one that is known)")
	f.StringArrayVar(&o.scopes, "scope", nil, "request this `SCOPE`; may be repeated (default those that the server names)")
	f.IntVar(&o.port, "port", 0, "`PORT` on this machine at which the browser returns (default any)")
	for _, name := range []string{"client-id", "issuer", "resource", "scope", "port"} {
		complete(cmd, name, cobra.NoFileCompletions)
	}
}

// newMCPLoginCmd returns the command mcp login.
func newMCPLoginCmd(c *env) *cobra.Command {
	var o oauthOptions
	var operator bool
	cmd := &cobra.Command{
		Use:   "login NAME",
		Short: "Log in at the authorization server of an MCP server",
		Long: `Log in, for your tenant, at the authorization server of an MCP server that was added with
--oauth. The vault-broker stores the refresh token, and obtains access tokens with it. The
first login of a tenant names --issuer and --resource; later ones use those of the last login.`,
		Example:           "  binnacle mcp login tracker\n  binnacle mcp login tracker --issuer https://login.example --resource https://mcp.example/mcp",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			doc, err := logIn(cmd.Context(), c, &o, pos[0], []bool{operator})
			if err != nil {
				return err
			}
			return c.print(doc, func() { fmt.Fprintf(c.out, "stored %v, fingerprint %v\n", doc["name"], doc["fingerprint"]) })
		},
	}
	o.declare(cmd)
	cmd.Flags().BoolVar(&operator, "operator", false, "log in for the operator's tenant, whose access token is used to list what the server offers")
	return cmd
}

// upstreamSecret returns the name of the secret with the client for an MCP server.
func upstreamSecret(server string) string { return "mcp." + server }

// logInFor logs in at the authorization server that an MCP server names: for the operator's
// tenant, and for that of the caller if the caller has another token.
func logInFor(ctx context.Context, c *env, o *serverOptions, name, address string) error {
	args := map[string]any{"url": address}
	if o.sse {
		args["transport"] = "sse"
	}
	raw, err := c.governed(ctx, "mcp.discover", args)
	if err != nil {
		return err
	}
	var doc struct {
		Resource string
		Issuers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return err
	}
	login := o.login
	login.resource = cmp.Or(login.resource, doc.Resource)
	if login.issuer == "" && len(doc.Issuers) > 0 {
		login.issuer = doc.Issuers[0]
	}
	if len(login.scopes) == 0 {
		login.scopes = doc.Scopes
	}
	c.operator = true
	first, err := c.bearer()
	if err != nil {
		return err
	}
	c.operator = false
	tenants := []bool{true}
	if own, err := c.bearer(); err == nil && own != first {
		tenants = append(tenants, false)
	}
	_, err = logIn(ctx, c, &login, name, tenants)
	return err
}

// logIn logs in once for each element of operators, which states whether the token of the
// operator is used, in one browser. It returns the description of the version that was stored
// last.
func logIn(ctx context.Context, c *env, o *oauthOptions, name string, operators []bool) (doc map[string]any, err error) {
	secret := ""
	if o.secret {
		b, err := io.ReadAll(io.LimitReader(c.in, 4<<10))
		if err != nil {
			return nil, err
		}
		secret = strings.TrimSuffix(string(b), "\n")
	}
	back, err := newLoopback(o.port)
	if err != nil {
		return nil, err
	}
	defer func() { back.close(err) }()
	args := map[string]any{"name": upstreamSecret(name), "redirect_uri": back.address}
	for member, v := range map[string]string{"client_id": o.clientID, "issuer": o.issuer, "resource": o.resource} {
		if v != "" {
			args[member] = v
		}
	}
	if len(o.scopes) > 0 {
		args["scopes"] = o.scopes
	}
	for _, c.operator = range operators {
		raw, err := c.governed(ctx, "vault.authorize", args)
		if err != nil {
			return nil, err
		}
		var begun struct{ Authorization, URL string }
		if err := json.Unmarshal(raw, &begun); err != nil {
			return nil, err
		}
		code, iss, err := back.visit(ctx, c.errOut, begun.URL)
		if err != nil {
			return nil, err
		}
		value := map[string]string{"authorization": begun.Authorization, "code": code}
		if secret != "" {
			value["client_secret"] = secret
		}
		if iss != "" {
			value["iss"] = iss
		}
		if doc, err = storeLogin(ctx, c, name, value); err != nil {
			return nil, err
		}
	}
	return doc, nil
}

// storeLogin stores the response of the authorization server, which the vault-broker redeems.
func storeLogin(ctx context.Context, c *env, name string, value map[string]string) (doc map[string]any, err error) {
	b, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	resp, err := c.request(ctx, http.MethodPost, "/api/v1/secrets", map[string]any{"name": upstreamSecret(name), "type": "oauth", "value": string(b)}, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusAccepted {
		_, err := outputOf(resp.Body)
		return nil, err
	}
	err = json.NewDecoder(resp.Body).Decode(&doc)
	return doc, err
}

// loopback receives the redirects of a browser on this machine (RFC 8252, section 7.3).
type loopback struct {
	address string // redirection URI
	server  *http.Server
	back    chan url.Values
	next    chan string // URL to which the waiting browser is sent, or ""
	waits   bool        // a browser waits
	done    chan struct{}
	text    string // for the browser that waits when done is closed
}

// loginWithin is the time within which the browser must return. It is that of the vault-broker.
const loginWithin = 10 * time.Minute

// newLoopback listens on a port of the loopback address, or on any if port is 0.
func newLoopback(port int) (*loopback, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fail(exitUsage, "--port: %v", err)
	}
	b := &loopback{address: "http://" + l.Addr().String() + "/callback", back: make(chan url.Values), next: make(chan string), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /callback", b.callback)
	b.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = b.server.Serve(l) }()
	return b, nil
}

// callback passes the parameters of a redirect to visit, and sends the browser to the next URL.
func (b *loopback) callback(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	text := "The login cannot be continued. Begin it again."
	select {
	case b.back <- r.URL.Query():
		select {
		case next := <-b.next:
			if next != "" {
				http.Redirect(w, r, next, http.StatusSeeOther)
				return
			}
			text = "The response is not one of this login."
		case <-b.done:
			text = b.text
		case <-r.Context().Done():
		}
	case <-b.done:
	case <-r.Context().Done():
	}
	fmt.Fprintf(w, "<!DOCTYPE html><title>Binnacle</title><p>%s", html.EscapeString(text))
}

// visit prints a URL, or sends the browser that waits there, and returns the parameters code and
// iss of the redirect that has the state of this visit.
func (b *loopback) visit(ctx context.Context, out io.Writer, address string) (code, iss string, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", "", err
	}
	state, q := rand.Text(), u.Query()
	q.Set("state", state)
	u.RawQuery = q.Encode()
	ctx, cancel := context.WithTimeout(ctx, loginWithin)
	defer cancel()
	if !b.send(u.String()) {
		fmt.Fprintf(out, "Open this URL in a browser on this machine, and log in:\n%s\n", u)
	}
	for {
		select {
		case <-ctx.Done():
			return "", "", fail(exitFailed, "no browser has returned to %s: log in again", b.address)
		case got := <-b.back:
			b.waits = true
			if subtle.ConstantTimeCompare([]byte(got.Get("state")), []byte(state)) != 1 {
				b.send("")
				continue
			}
			if e := got.Get("error"); e != "" {
				return "", "", fail(exitFailed, "the authorization server refused the login: %.64q", e)
			}
			if got.Get("code") == "" {
				return "", "", fail(exitFailed, "the authorization server returned no code")
			}
			return got.Get("code"), got.Get("iss"), nil
		}
	}
}

// send sends the browser that waits to a URL, or shows it a refusal if the URL is "". It returns
// false if none waits.
func (b *loopback) send(address string) bool {
	if !b.waits {
		return false
	}
	b.waits = false
	select {
	case b.next <- address:
		return true
	case <-time.After(time.Second): // the browser has gone
		return false
	}
}

// close shows the result to the browser that waits, and ends the listener.
func (b *loopback) close(err error) {
	b.text = "You are logged in. You can close this page."
	if err != nil {
		b.text = "The login failed; the command shows why. You can close this page."
	}
	close(b.done)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = b.server.Shutdown(ctx)
}
