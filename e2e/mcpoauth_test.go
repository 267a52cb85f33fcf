package e2e

import (
	"bufio"
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// protectedServer is an MCP server that accepts access tokens of one authorization server: its
// signature, issuer, audience, scope and end are checked.
type protectedServer struct {
	t        *testing.T
	url      string
	host     string
	issuer   string // set before the first request
	rejects  atomic.Bool
	accepted sync.Map // access tokens
	revoked  sync.Map // those of accepted that are rejected now
	executed atomic.Int64
}

func newProtectedServer(t *testing.T) *protectedServer {
	p := &protectedServer{t: t}
	srv := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1"}, nil)
	srv.AddTool(&mcp.Tool{Name: "whoami", Description: "Returns whose notes these are.", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		p.executed.Add(1)
		return textResult("the notes of " + r.Extra.TokenInfo.UserID), nil
	})
	mux := http.NewServeMux()
	h := httptest.NewServer(mux)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	p.url, p.host = h.URL+"/mcp", h.Listener.Addr().String()
	metadata := "/.well-known/oauth-protected-resource/mcp"
	mux.HandleFunc("GET "+metadata, func(w http.ResponseWriter, r *http.Request) {
		auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{Resource: p.url, AuthorizationServers: []string{p.issuer}, ScopesSupported: []string{"notes:read"}}).ServeHTTP(w, r)
	})
	mux.Handle("/mcp", auth.RequireBearerToken(p.verify, &auth.RequireBearerTokenOptions{ResourceMetadataURL: h.URL + metadata, Scopes: []string{"notes:read"}})(
		mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})))
	return p
}

// verify checks an access token (RFC 9068).
func (p *protectedServer) verify(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	bad := func(reason string) (*auth.TokenInfo, error) {
		return nil, fmt.Errorf("%w: %s", auth.ErrInvalidToken, reason)
	}
	if p.rejects.Load() {
		return bad("revoked")
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return bad("no JWT")
	}
	var head struct{ Kid, Alg string }
	var claims struct {
		Iss, Sub, Scope string
		Aud             string
		Exp             int64
	}
	for i, v := range []any{&head, &claims} {
		b, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil || json.Unmarshal(b, v) != nil {
			return bad("malformed")
		}
	}
	key, err := p.key(ctx, head.Kid)
	if err != nil || head.Alg != "RS256" {
		return bad(fmt.Sprint("no key ", err))
	}
	sig, _ := base64.RawURLEncoding.DecodeString(parts[2])
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	switch {
	case rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], sig) != nil:
		return bad("signature")
	case claims.Iss != p.issuer || claims.Aud != p.url:
		return bad("issuer or audience")
	}
	if _, bad := p.revoked.Load(token); bad {
		return nil, fmt.Errorf("%w: revoked", auth.ErrInvalidToken)
	}
	p.accepted.Store(token, true)
	return &auth.TokenInfo{Scopes: strings.Fields(claims.Scope), Expiration: time.Unix(claims.Exp, 0), UserID: claims.Sub}, nil
}

// key returns a key of the authorization server.
func (p *protectedServer) key(ctx context.Context, kid string) (*rsa.PublicKey, error) {
	var set struct{ Keys []struct{ Kid, N, E string } }
	if err := readJSON(ctx, p.issuer+"/jwks", &set); err != nil {
		return nil, err
	}
	for _, k := range set.Keys {
		n, err := base64.RawURLEncoding.DecodeString(k.N)
		e, bad := base64.RawURLEncoding.DecodeString(k.E)
		if k.Kid == kid && err == nil && bad == nil {
			return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}, nil
		}
	}
	return nil, fmt.Errorf("no key %q", kid)
}

// readJSON reads a JSON document.
func readJSON(ctx context.Context, address string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(v)
}

// issuedTokens is what the provider has issued.
type issuedTokens struct {
	Counts  map[string]int
	Secrets []string
}

func (p *identityProvider) issued() (out issuedTokens) {
	p.t.Helper()
	if err := readJSON(p.t.Context(), p.issuer+"/issued", &out); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// signIn opens a URL in a new browser, and logs in and consents at the provider until it is sent to
// a page elsewhere, which it returns.
func (p *identityProvider) signIn(at string) string {
	jar, err := cookiejar.New(nil)
	if err != nil {
		p.t.Error(err)
		return ""
	}
	client := &http.Client{Jar: jar, Timeout: 2 * time.Minute}
	resp, err := client.Get(at)
	for range 6 {
		if err != nil {
			p.t.Error(err)
			return ""
		}
		page, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		resp.Body.Close()
		at := resp.Request.URL.String()
		if !strings.HasPrefix(at, p.issuer) {
			return string(page)
		}
		prompt := "consent"
		if strings.Contains(string(page), `value="login"`) {
			prompt = "login"
		}
		resp, err = client.PostForm(at, url.Values{"prompt": {prompt}, "login": {"ann"}, "password": {"any"}})
	}
	p.t.Error("the provider did not send the browser back")
	return ""
}

// byBrowser runs a command that prints a URL on its standard error output, which a person opens, and
// returns the standard output.
func byBrowser(t *testing.T, m *harness.Mesh, p *identityProvider, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), harness.Bin(t, "binnacle"), args...)
	cmd.Env, cmd.Stdin = append(os.Environ(), m.Env()...), strings.NewReader(stdin)
	printed, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	page := ""
	for s := bufio.NewScanner(printed); s.Scan(); {
		if lines = append(lines, s.Text()); strings.HasPrefix(s.Text(), p.issuer) {
			page = p.signIn(s.Text())
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(page, "You are logged in") {
		t.Fatalf("binnacle %v: %v\n%s\n%q", args, err, strings.Join(lines, "\n"), page)
	}
	return out.String()
}

// whoami calls the tool of the protected server, and returns the body of the response.
func whoami(t *testing.T, m *harness.Mesh, tool string) string {
	t.Helper()
	r, err := m.Do(t.Context(), "POST", "/api/v1/calls", "", `{"kind":"tool.`+tool+`","args":{}}`)
	if err != nil {
		t.Error(err)
		return ""
	}
	return string(r.Body)
}

// TestServerOAuth adds an MCP server that accepts access tokens of an authorization server alone. A
// person logs in once, in one browser, for the operator's tenant and the own one; concurrent calls
// after the end of the access token cause one refresh; a revoked access token
// is replaced by one refresh, and the calls run once; a server that rejects each token and an ended refresh
// token give typed errors that name the command by which the person logs in again; and nothing
// secret is on the ledger or in the log.
func TestServerOAuth(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newProtectedServer(t)
			p := startProvider(t, "RESOURCE="+up.url)
			up.issuer = p.issuer
			m := start(t, harness.Options{Env: []string{"BINNACLE_TOKEN_ENDPOINTS=" + p.issuer}})
			permit(t, m, up.host)

			if out, err := m.CLI("mcp", "add", "notes", up.url, "--oauth", "--issuer", "http://127.0.0.1:9"); err == nil || !strings.Contains(err.Error(), "vault-broker.token_endpoints") {
				t.Errorf("an authorization server that is not configured: %s %v", out, err)
			}
			if out := byBrowser(t, m, p, "", "mcp", "add", "notes", up.url, "--oauth"); !strings.Contains(out, "tool.notes.whoami") {
				t.Fatal(out)
			}
			if got := p.issued().Counts; got["authorization_code"] != 2 {
				t.Errorf("grants %v", got)
			}
			if body := whoami(t, m, "notes.whoami"); !strings.Contains(body, "the notes of ann") {
				t.Fatal(body)
			}
			obtained := time.Now() // at the latest

			time.Sleep(time.Until(obtained.Add(8500 * time.Millisecond))) // the token is valid for ten seconds, and is replaced two seconds before its end
			before := p.issued().Counts["refresh_token"]
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					if body := whoami(t, m, "notes.whoami"); !strings.Contains(body, "the notes of ann") {
						t.Error(body)
					}
				})
			}
			wg.Wait()
			if n := p.issued().Counts["refresh_token"] - before; n != 1 {
				t.Errorf("%d refreshes", n)
			}

			// The server revokes the token before its end: calls that it rejects are executed once, with
			// a new token.
			time.Sleep(1100 * time.Millisecond) // a token that was just obtained is not replaced
			up.accepted.Range(func(token, _ any) bool { up.revoked.Store(token, true); return true })
			before = p.issued().Counts["refresh_token"]
			executed := up.executed.Load()
			for range 6 {
				wg.Go(func() {
					if body := whoami(t, m, "notes.whoami"); !strings.Contains(body, "the notes of ann") {
						t.Error("after a revocation:", body)
					}
				})
			}
			wg.Wait()
			if n, ran := p.issued().Counts["refresh_token"]-before, up.executed.Load()-executed; n != 1 || ran != 6 {
				t.Errorf("after a revocation: %d refreshes, %d executions", n, ran)
			}

			up.rejects.Store(true)
			if body := whoami(t, m, "notes.whoami"); !strings.Contains(body, "upstream_refused") || !strings.Contains(body, "binnacle mcp login notes") {
				t.Error("a rejected access token:", body)
			}
			up.rejects.Store(false)
			obtained = time.Now()

			req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, p.issuer+"/grants", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil || resp.StatusCode != http.StatusNoContent {
				t.Fatal(resp, err)
			}
			resp.Body.Close()
			time.Sleep(time.Until(obtained.Add(8500 * time.Millisecond)))
			if body := whoami(t, m, "notes.whoami"); !strings.Contains(body, "token_refused") || !strings.Contains(body, "invalid_grant") || !strings.Contains(body, "binnacle mcp login notes`") {
				t.Error("a refresh token that has ended:", body)
			}
			// A client that the operator has registered, with its secret.
			byBrowser(t, m, p, "s3cret-of-the-client\n", "mcp", "login", "notes", "--client-id", "registered", "--client-secret", "--scope", "notes:read")
			if body := whoami(t, m, "notes.whoami"); !strings.Contains(body, "the notes of ann") {
				t.Error("after another login:", body)
			}

			secrets := append(p.issued().Secrets, "s3cret-of-the-client")
			up.accepted.Range(func(token, _ any) bool {
				if !slices.Contains(secrets, token.(string)) {
					t.Error("the server accepted a token that the provider did not issue")
				}
				return true
			})
			hidden := func(where, text string) {
				for _, s := range secrets {
					if strings.Contains(text, s) {
						t.Errorf("%s contains %.12s…", where, s)
					}
				}
			}
			for _, e := range ledger(t, m) {
				hidden(e.Name, string(e.Data))
			}
			hidden("the log", m.Log())
			proves(t, m)
		})
	}
}
