package vaultbroker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/oauth"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/secrettype"
)

// loginWithin is the time within which a person must finish a login.
const loginWithin = 10 * time.Minute

// authorizeTime limits the time for the requests to an authorization server before a login.
const authorizeTime = 25 * time.Second

// pendingLogin is a login that has begun. It is stored as a token is, because its code
// verifier and the client's secret are secret.
type pendingLogin struct {
	ID       string                 `json:"id"` // of the call that began it
	Client   secrettype.OAuthClient `json:"client"`
	Iss      bool                   `json:"iss"` // the response must name the issuer (RFC 9207)
	Redirect string                 `json:"redirect_uri"`
	Until    time.Time              `json:"until"`
	Verifier string                 `json:"verifier"`
}

// loginName returns the name under which the login of a secret is stored beside the tokens. No
// secret can have it.
func loginName(name string) string { return name + "~login" }

// authorizeArgs are the arguments of vault.authorize.
type authorizeArgs struct {
	ClientID string   `json:"client_id"`
	Issuer   string   `json:"issuer"`
	Name     string   `json:"name"`
	Redirect string   `json:"redirect_uri"`
	Resource string   `json:"resource"`
	Scopes   []string `json:"scopes"`
}

// authorize executes vault.authorize. It replaces a login of the same secret that has not ended.
func (x *tokens) authorize(ctx context.Context, w *execute.Work) execute.Result {
	var a authorizeArgs
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, authorizeTime)
	defer cancel()
	former, err := x.former(ctx, w.Event.Tenant, &a)
	if err == nil {
		err = a.check()
	}
	if err != nil {
		return loginFailed(err)
	}
	via := x.via(w.Event.Tenant, w.Call.ID)
	m, err := oauth.Discover(ctx, via, a.Issuer)
	if err != nil {
		return loginFailed(err)
	}
	scope := m.Scope(a.Scopes)
	p := pendingLogin{ID: w.Call.ID, Iss: m.Iss, Redirect: a.Redirect, Until: x.env.Emit.Now().Add(loginWithin), Verifier: oauth.Verifier()}
	switch {
	case a.ClientID != "":
		p.Client = secrettype.OAuthClient{Auth: m.SecretAuth(), ClientID: a.ClientID}
	case m.Documents && x.document != "": // a public client with the redirection URI of any port (RFC 8252, section 7.3)
		p.Client = secrettype.OAuthClient{ClientID: x.document}
	case m.Registration != "":
		if p.Client, err = m.Register(ctx, via, a.Redirect); err != nil {
			return loginFailed(err)
		}
	case former.ClientID != "" && former.Issuer == a.Issuer:
		p.Client = secrettype.OAuthClient{Auth: former.Auth, ClientID: former.ClientID, ClientSecret: former.ClientSecret}
	default:
		return execute.Fail(contract.CodeInvalidInput, "client_id: the authorization server registers no clients: register one there, with the redirection URI %s, and give its id", a.Redirect)
	}
	p.Client.Issuer, p.Client.TokenEndpoint, p.Client.Resource = m.Issuer, m.Token, a.Resource
	b, err := json.Marshal(&p)
	if err != nil {
		return execute.Fail(contract.CodeInternal, "the login could not be made")
	}
	defer clear(b)
	if _, err := x.store.Put(ctx, w.Event.Tenant, loginName(a.Name), b, backend.About{}, backend.Any); err != nil {
		return loginFailed(err)
	}
	return execute.Result{EffectType: "secret.login_begun", Output: document(map[string]string{"authorization": p.ID, "client_id": p.Client.ClientID, "issuer": m.Issuer,
		"url": m.URL(&p.Client, a.Redirect, scope, p.Verifier)})}
}

// former returns the client in the newest version of the secret, or a zero one, and completes the
// arguments from it.
func (x *tokens) former(ctx context.Context, tenant string, a *authorizeArgs) (c secrettype.OAuthClient, err error) {
	if !secret.ValidName(a.Name) {
		return c, invalid("name: a secret's name is 1 to 64 of [A-Za-z0-9._-], not beginning with " + secret.ReservedNames)
	}
	v, err := x.secrets.Get(ctx, tenant, a.Name, 0)
	defer clear(v.Bytes)
	switch {
	case gone(err):
		return c, nil
	case err != nil:
		return c, err
	case v.Type != secrettype.OAuth:
		return c, &tokenError{contract.CodeConflict, "name: the secret " + a.Name + " has not the type " + secrettype.OAuth + ": log in under another name"}
	}
	if c, err = secrettype.ParseOAuth(v.Bytes); err != nil {
		return c, invalid("name: the newest version of " + a.Name + " is no client")
	}
	a.Issuer, a.Resource = cmp.Or(a.Issuer, c.Issuer), cmp.Or(a.Resource, c.Resource)
	return c, nil
}

// invalid returns the error of an invalid argument.
func invalid(reason string) error { return &tokenError{contract.CodeInvalidInput, reason} }

// check returns an error that names the invalid argument and the fix.
func (a *authorizeArgs) check() error {
	if _, err := secrettype.ParseURL(a.Issuer); err != nil {
		return invalid("issuer: it " + err.Error() + ": name the issuer of the authorization server")
	}
	if _, err := secrettype.ParseURL(a.Resource); err != nil {
		return invalid("resource: it " + err.Error() + ": name the URL of the service")
	}
	u, err := url.Parse(a.Redirect)
	if err != nil || u.Scheme != "http" || u.User != nil || u.Fragment != "" {
		return invalid("redirect_uri: want http://127.0.0.1:PORT/PATH")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err != nil || !ip.IsLoopback() {
		return invalid("redirect_uri: want a loopback address, such as http://127.0.0.1:PORT/PATH")
	}
	if slices.ContainsFunc(a.Scopes, func(s string) bool { return s == "" || strings.ContainsAny(s, " \"\\") }) {
		return invalid("scopes: a scope is not empty and has no spaces, quotes and backslashes")
	}
	return nil
}

// loginFailed returns the result of a call whose login failed with err.
func loginFailed(err error) execute.Result {
	f := failureOf(err)
	return execute.Fail(f.code, "%s", f.reason)
}

// storeOrLogin stores the value of a call, or finishes a login if the value is a response to an
// authorization request.
func (k *keeper) storeOrLogin(ctx context.Context, w *execute.Work, a arguments, value []byte) execute.Result {
	response, ok := secrettype.ParseAuthorized(value)
	if !ok || a.Type != secrettype.OAuth {
		return k.store(ctx, w.Event.Tenant, a, value)
	}
	tenant := w.Event.Tenant
	client, t, err := k.tokens.redeem(ctx, tenant, w.Call.ID, a.Name, &response)
	if err != nil {
		return loginFailed(err)
	}
	defer clear(client)
	res := k.store(ctx, tenant, a, client)
	if res.ErrorCode != "" {
		return res
	}
	var stored struct{ Version int64 }
	err = json.Unmarshal(res.Output, &stored)
	if err == nil {
		_, err = k.tokens.keep(ctx, tenant, a.Name, &events.TokenObtained{CallID: w.Call.ID, Name: a.Name, Version: stored.Version}, &t)
	}
	if err != nil { // the first use obtains one
		k.env.Log.Warn("the access token of a login was not stored", "tenant", tenant, "name", a.Name, "call", w.Call.ID, "err", err)
	}
	return res
}

// redeem exchanges the code of a login, which it ends, and returns the client to store and the
// access token.
func (x *tokens) redeem(ctx context.Context, tenant, call, name string, a *secrettype.Authorized) (client []byte, t oauth.Token, err error) {
	over := &tokenError{contract.CodeNotFound, "authorization: no login with this id waits, because it was finished, another one was begun, or 10 minutes have passed: log in again"}
	v, err := x.store.Get(ctx, tenant, loginName(name), 0)
	defer clear(v.Bytes)
	if gone(err) {
		return nil, t, over
	}
	if err != nil {
		return nil, t, err
	}
	var p pendingLogin
	if json.Unmarshal(v.Bytes, &p) != nil || p.ID == "" || p.ID != a.Authorization || !x.env.Emit.Now().Before(p.Until) {
		return nil, t, over
	}
	if (p.Iss || a.Issuer != "") && a.Issuer != p.Client.Issuer {
		return nil, t, invalid("iss: the response is not one of the authorization server at which the login began")
	}
	// A code is sent once, whatever the number of calls and instances.
	if _, err = x.store.Put(ctx, tenant, loginName(name), []byte("{}"), backend.About{}, v.Version); err != nil {
		if errors.Is(err, backend.ErrConflict) {
			err = over
		}
		return nil, t, err
	}
	c := p.Client
	c.ClientSecret = cmp.Or(a.ClientSecret, c.ClientSecret)
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	if t, err = oauth.Redeem(ctx, x.via(tenant, call), &c, a.Code, p.Redirect, p.Verifier); err != nil {
		return nil, t, err
	}
	if c.RefreshToken = t.Refresh; t.Refresh == "" {
		return nil, t, &tokenError{contract.CodeTokenRefused, "the authorization server issued no refresh token: log in with the scope for which it does, or permit the client the grant refresh_token"}
	}
	client, err = c.Value()
	return client, t, err
}

// loginAdvice returns how to replace the refresh token in the version v of a secret that the
// server has refused.
func loginAdvice(tenant, name string, v *backend.Value) string {
	c, err := secrettype.ParseOAuth(v.Bytes)
	server, upstream := strings.CutPrefix(name, "mcp.")
	if err != nil || c.Issuer == "" || !upstream {
		return "store another client or refresh token with `binnacle secret put " + name + " --type oauth`"
	}
	if tenant == contract.CellTenant {
		server += " --operator"
	}
	return "log in again with `binnacle mcp login " + server + "`"
}
