package cli

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
)

// browserTime is the time within which a person must log in and consent in the browser.
const browserTime = 10 * time.Minute

// browserLogin logs in by an authorization code with PKCE: the person logs in and consents in a
// browser, which returns the code to a loopback address (RFC 8252, section 7.3). The URL to open is
// also written to the error output.
func browserLogin(ctx context.Context, c *env, scopes []string) (*gateway.TokenResponse, error) {
	var m gateway.LoginMetadata
	if err := sendOpen(ctx, c, http.MethodGet, "/.well-known/oauth-authorization-server", nil, &m); err != nil {
		return nil, err
	}
	if m.Authorization == "" {
		return nil, fail(exitFailed, "the mesh has no login by browser; use --device")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	back := "http://" + l.Addr().String() + "/callback"
	state, verifier := rand.Text(), rand.Text()+rand.Text()
	challenge := sha256.Sum256([]byte(verifier))
	q := url.Values{"response_type": {"code"}, "client_id": {gateway.CommandLine}, "redirect_uri": {back}, "state": {state}, "code_challenge": {base64.RawURLEncoding.EncodeToString(challenge[:])}, "code_challenge_method": {"S256"}}
	if len(scopes) > 0 {
		q.Set("scope", strings.Join(scopes, " "))
	}
	ctx, cancel := context.WithTimeout(ctx, browserTime)
	defer cancel()
	answers := make(chan url.Values, 1)
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: callback(state, m.Issuer, answers)}
	go func() { _ = s.Serve(l) }()
	defer func() { _ = s.Shutdown(ctx) }()
	at := m.Authorization + "?" + q.Encode()
	fmt.Fprintf(c.errOut, "log in in the browser, at %s\n", at)
	openBrowser(at)
	select {
	case <-ctx.Done():
		return nil, fail(exitAuth, "no person logged in within %s; run `binnacle login --browser` again", browserTime)
	case a := <-answers:
		if a.Get("code") == "" {
			return nil, fail(exitAuth, "the mesh did not permit the login: %q", a.Get("error"))
		}
		return grant(ctx, c, url.Values{"grant_type": {"authorization_code"}, "code": a["code"], "redirect_uri": {back}, "code_verifier": {verifier}, "client_id": {gateway.CommandLine}})
	}
}

// callback returns the handler of the loopback address. It sends the parameters of the first
// response with the state and the issuer (RFC 9207) to answers, and refuses others.
func callback(state, issuer string, answers chan<- url.Values) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/callback" || q.Get("state") != state || q.Get("iss") != issuer {
			http.Error(w, "This is not the response to the login that was begun.", http.StatusBadRequest)
			return
		}
		select {
		case answers <- q:
		default:
		}
		w.Header().Set("Cache-Control", "no-store")
		_, _ = io.WriteString(w, "Return to the command line. You can close this page.\n")
	})
}

// openBrowser opens a URL in the person's browser, if there is one.
func openBrowser(at string) {
	name, args := "xdg-open", []string{at}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", at}
	}
	cmd := exec.Command(name, args...)
	if cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
}
