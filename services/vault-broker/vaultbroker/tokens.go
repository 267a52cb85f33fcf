package vaultbroker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/oauth"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/secrettype"
)

// Times of the requests for access tokens.
const (
	exchangeTime = 8 * time.Second // for one request to a token endpoint
	// claimTime is the time for which an instance that has recorded token_requested is the
	// only one that may request a token for the secret and store it. It is longer than
	// exchangeTime, so that the token can be stored.
	claimTime   = 16 * time.Second
	claimPoll   = 100 * time.Millisecond // between two reads of another instance's progress
	flightTime  = 2 * claimTime          // for waiting for another instance, and then for the own request
	unknownLife = 5 * time.Minute        // of a token whose lifetime the server does not state

	// A failure is returned to other requests for this time without another request to the
	// token endpoint, unless a new version of the secret was stored.
	holdRefused = time.Minute
	holdFailed  = 5 * time.Second
	renewTime   = time.Second // as holdFailed, of a token that a server rejects
)

// tokenMargin returns how long before its end a token is replaced.
func tokenMargin(life time.Duration) time.Duration { return min(time.Minute, life/5) }

// tokens obtains the access tokens of secrets of type oauth. Instances that share a store obtain
// one token for all requests at a time: the instance that appends token_requested, with the
// expected sequence of the last event about the secret's tokens, sends the request.
//
// Tokens are stored in a backend of their own, since they are no versions of the secret. Only a
// refresh token that the server replaced is stored as a version of the secret.
type tokens struct {
	env     *run.Env
	secrets backend.Backend
	store   backend.Backend
	// via returns a transport to token endpoints, in a tenant and for a call.
	via func(tenant, call string) http.RoundTripper
	// document is the id of the client at servers that support client-id metadata documents, or "".
	document string
	flights  singleflight.Group
	// unstored holds, as unstored by tenant and name, the refresh tokens that servers have issued and
	// that the backend has not accepted.
	unstored sync.Map
	waiting  chan struct{}  // has an element for each request that waits for a flight
	running  sync.WaitGroup // counts requests that have left a flight before its end
}

// maxWaiting is the maximum number of requests that wait for access tokens at a time. It is lower
// than the number of requests that are handled at a time, so that a token endpoint that does not
// respond does not delay the requests for other secrets.
const maxWaiting = 8

// newTokens returns the tokens of the secrets of a backend.
func newTokens(env *run.Env, secrets, store backend.Backend, via func(tenant, call string) http.RoundTripper) *tokens {
	return &tokens{env: env, secrets: secrets, store: store, via: via, waiting: make(chan struct{}, maxWaiting)}
}

// storedToken is a token in the store.
type storedToken struct {
	Access  string    `json:"access_token"`
	Replace time.Time `json:"replace"` // when the token is no longer used
	Version int       `json:"version"` // of the secret to which it belongs
}

// unstored is a refresh token that replaces the one in a version of a secret.
type unstored struct {
	version int
	refresh string
}

// tokenError is the error of a token that was not obtained. It contains no credential.
type tokenError struct{ code, reason string }

// Error implements error.
func (e *tokenError) Error() string { return e.reason }

// errPending is the error of a request that did not get the token in time, although it may still be
// obtained.
var errPending = &tokenError{contract.CodeTokenUnavailable, "the token endpoint did not respond in time"}

// token returns the access token of the version v of a secret of type oauth. It obtains a new one if
// none is stored, or the stored one ends soon or was obtained before the sequence outdated. Requests
// at the same time share the result. The error is a *tokenError or one of package backend. If ctx ends
// first, or too many requests wait, the error is errPending.
func (x *tokens) token(ctx context.Context, e *contract.Event, name string, v *backend.Value, outdated uint64) (string, error) {
	if t, ok, err := x.usable(ctx, e.Tenant, name, v.Version, outdated); ok || err != nil {
		return t.Access, err
	}
	select {
	case x.waiting <- struct{}{}:
		defer func() { <-x.waiting }()
	default:
		return "", errPending
	}
	ended := x.flights.DoChan(fmt.Sprintf("%q %q", e.Tenant, name), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flightTime)
		defer cancel()
		return x.obtain(ctx, e, name, outdated)
	})
	select {
	case r := <-ended:
		text, _ := r.Val.(string)
		return text, r.Err
	case <-ctx.Done():
		x.running.Go(func() { <-ended })
		return "", errPending
	}
}

// stored returns the stored token of a version of a secret. ok is false if there is none that
// can still be used.
func (x *tokens) stored(ctx context.Context, tenant, name string, version int) (t storedToken, ok bool, err error) {
	v, err := x.store.Get(ctx, tenant, name, 0)
	if errors.Is(err, backend.ErrNotFound) {
		return t, false, nil
	}
	defer clear(v.Bytes)
	if err != nil {
		return t, false, err
	}
	if err := json.Unmarshal(v.Bytes, &t); err != nil {
		return t, false, nil // an administrator of the store wrote it
	}
	return t, t.Version == version && x.env.Emit.Now().Before(t.Replace), nil
}

// usable is stored for a request that does not accept a token that was obtained before the sequence
// outdated, unless it was obtained less than renewTime ago: so a server that rejects all tokens causes few
// requests to the authorization server.
func (x *tokens) usable(ctx context.Context, tenant, name string, version int, outdated uint64) (storedToken, bool, error) {
	t, ok, err := x.stored(ctx, tenant, name, version)
	if !ok || err != nil || outdated == 0 {
		return t, ok, err
	}
	last, seq, err := x.lastOf(ctx, tenant, name)
	if err != nil || last == nil || last.Name != events.TokenObtainedName {
		return t, false, err
	}
	at, err := contract.ParseTime(last.Time)
	return t, seq > outdated || x.env.Emit.Now().Sub(at) < renewTime, err
}

// tokenKey returns the key of the aggregate of a secret's tokens.
func tokenKey(name string) string {
	h := sha256.Sum256([]byte(name))
	return contract.IDSecretToken + hex.EncodeToString(h[:16])
}

// lastOf returns the last event about the tokens of a secret, or nil if there is none, and its
// sequence.
func (x *tokens) lastOf(ctx context.Context, tenant, name string) (*contract.Event, uint64, error) {
	filter := bus.AggregateFilter(tenant, services.VaultBroker, tokenKey(name))
	en, err := x.env.Emit.Log.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	e, err := eventlog.Open(en, filter)
	return e, en.Seq, err
}

// obtain returns a token of the newest version of a secret: one that was stored meanwhile, that
// another instance obtains, or that it obtains itself.
func (x *tokens) obtain(ctx context.Context, e *contract.Event, name string, outdated uint64) (string, error) {
	for {
		v, err := x.secrets.Get(ctx, e.Tenant, name, 0)
		if err != nil {
			return "", err
		}
		client, bad := secrettype.ParseOAuth(v.Bytes)
		clear(v.Bytes)
		if u, ok := x.unstored.Load(e.Tenant + " " + name); ok && u.(unstored).version == v.Version {
			client.RefreshToken = u.(unstored).refresh
		}
		if bad != nil || v.Type != secrettype.OAuth {
			return "", &tokenError{contract.CodeTokenRefused, "its newest version is no client of type oauth"}
		}
		if t, ok, err := x.usable(ctx, e.Tenant, name, v.Version, outdated); ok || err != nil {
			return t.Access, err
		}
		last, seq, err := x.lastOf(ctx, e.Tenant, name)
		if err != nil {
			return "", err
		}
		wait, err := x.progress(last, v.Version)
		if err != nil {
			return "", err
		}
		if !wait {
			seq, interrupted, err := x.abandoned(ctx, last, seq, name, v.Version)
			if errors.Is(err, eventlog.ErrConflict) {
				continue
			}
			if err != nil {
				return "", err
			}
			claim := x.env.Emit.New(events.TokenRequestedName, tokenKey(name), contract.Bytes(&events.TokenRequested{CallID: e.CallID, Grant: client.Grant(), Host: client.Endpoint().Host, Name: name, Version: int64(v.Version)}), e)
			claimed, err := x.append(ctx, claim, seq)
			if err == nil {
				return x.exchange(ctx, claim, claimed, name, &v, &client, interrupted)
			}
			if !errors.Is(err, eventlog.ErrConflict) {
				return "", err
			}
		}
		select {
		case <-ctx.Done():
			return "", errPending
		case <-time.After(claimPoll):
		}
	}
}

// progress reports, from the last event about a secret's tokens, whether another instance is
// obtaining a token. It returns a *tokenError while a failure for the version holds.
func (x *tokens) progress(last *contract.Event, version int) (wait bool, err error) {
	if last == nil {
		return false, nil
	}
	at, err := contract.ParseTime(last.Time)
	if err != nil {
		return false, err
	}
	age := x.env.Emit.Now().Sub(at)
	switch last.Name {
	case events.TokenRequestedName:
		return age < claimTime, nil
	case events.TokenFailedName:
		var d events.TokenFailed
		if err := contract.Decode(last.Data, &d); err != nil {
			return false, err
		}
		hold := holdFailed
		if d.Code == contract.CodeTokenRefused || d.Code == contract.CodeTokenLost {
			hold = holdRefused
		}
		if age < hold && d.Version == int64(version) {
			return false, &tokenError{d.Code, d.Reason}
		}
	}
	return false, nil
}

// abandoned records, if last is a request with a refresh token of the version that no instance has
// ended in time, that its answer is lost: the server may have replaced the refresh token. It returns
// the sequence of the last event then, and whether it has recorded that. The error is
// eventlog.ErrConflict if another instance was faster.
func (x *tokens) abandoned(ctx context.Context, last *contract.Event, seq uint64, name string, version int) (uint64, bool, error) {
	if last == nil || last.Name != events.TokenRequestedName {
		return seq, false, nil
	}
	var d events.TokenRequested
	if err := contract.Decode(last.Data, &d); err != nil {
		return seq, false, err
	}
	if d.Grant != secrettype.GrantRefresh || d.Version != int64(version) {
		return seq, false, nil
	}
	at, err := x.append(ctx, x.env.Emit.New(events.TokenFailedName, tokenKey(name), contract.Bytes(&events.TokenFailed{CallID: d.CallID, Code: contract.CodeTokenLost, Name: name,
		Reason: "the vault-broker that sent the request did not record the answer; if the server has replaced the refresh token, the new one is lost", Version: d.Version}), last), seq)
	return at, true, err
}

// append appends an event about the tokens of a secret if the last one has the sequence expect.
func (x *tokens) append(ctx context.Context, e *contract.Event, expect uint64) (uint64, error) {
	body, err := e.Encode()
	if err != nil {
		return 0, err
	}
	return x.env.Emit.Log.AppendExpect(ctx, e.Subject(), e.ID, body, bus.AggregateFilter(e.Tenant, services.VaultBroker, e.Key), expect)
}

// exchange requests a token, stores it, records the result and returns the token. claim is this
// instance's event token_requested at the sequence claimed. If interrupted is true, the answer to an
// earlier request with the same refresh token is lost, and a refusal has the code token_lost.
func (x *tokens) exchange(ctx context.Context, claim *contract.Event, claimed uint64, name string, v *backend.Value, client *secrettype.OAuthClient, interrupted bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	d := events.TokenObtained{CallID: claim.CallID, Name: name, Version: int64(v.Version)}
	t, err := x.request(ctx, claim, client)
	if err == nil && t.Refresh != "" && t.Refresh != client.RefreshToken && client.RefreshToken != "" {
		client.RefreshToken, d.Rotated = t.Refresh, true
		d.Version, err = x.rotate(ctx, claim.Tenant, name, v, client)
	}
	if err == nil {
		d.Expires, err = x.keep(ctx, claim.Tenant, name, &d, &t)
	}
	if err == nil {
		_, err = x.append(ctx, x.env.Emit.New(events.TokenObtainedName, tokenKey(name), contract.Bytes(&d), claim), claimed)
	}
	if err == nil {
		return t.Access, nil
	}
	failed := failureOf(err)
	if interrupted && failed.code == contract.CodeTokenRefused {
		failed = &tokenError{contract.CodeTokenLost, failed.reason + ": a vault-broker stopped after it had sent this refresh token and before it stored the answer, so the token that replaced it is lost"}
	}
	x.env.Log.Warn("no access token was obtained", "tenant", claim.Tenant, "name", name, "call", claim.CallID, "code", failed.code, "err", err)
	fact := x.env.Emit.New(events.TokenFailedName, tokenKey(name), contract.Bytes(&events.TokenFailed{CallID: claim.CallID, Code: failed.code, Name: name, Reason: failed.reason, Version: int64(v.Version)}), claim)
	if _, err := x.append(context.WithoutCancel(ctx), fact, claimed); err != nil {
		x.env.Log.Error("the failure to obtain an access token was not recorded", "tenant", claim.Tenant, "name", name, "err", err)
	}
	return "", failed
}

// request sends the request to the token endpoint.
func (x *tokens) request(ctx context.Context, claim *contract.Event, client *secrettype.OAuthClient) (oauth.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	t, err := oauth.Obtain(ctx, x.via(claim.Tenant, claim.CallID), client)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return t, errPending
	}
	return t, err
}

// failureOf returns the error of a token that could not be obtained because of err. Its reason
// has no text of err that may come from the server.
func failureOf(err error) *tokenError {
	var refused *oauth.Refused
	var denied *endpoint.Denied
	var failed *tokenError
	switch {
	case errors.As(err, &failed):
		return failed
	case errors.As(err, &refused):
		return &tokenError{contract.CodeTokenRefused, refused.Error()}
	case errors.As(err, &denied):
		return &tokenError{contract.CodeEgressRefused, denied.Error()}
	case errors.Is(err, oauth.ErrUnsuitable):
		return &tokenError{contract.CodeInvalidInput, "issuer: " + err.Error()}
	case errors.Is(err, oauth.ErrResponse):
		return &tokenError{contract.CodeTokenUnavailable, err.Error()}
	case errors.Is(err, backend.ErrConflict), gone(err):
		return &tokenError{contract.CodeTokenUnavailable, "the secret was changed meanwhile"}
	case errors.Is(err, backend.ErrDenied), backend.Retryable(err):
		return &tokenError{code(err), "the token could not be stored: " + cause(err)}
	case errors.Is(err, eventlog.ErrConflict):
		return &tokenError{contract.CodeTokenUnavailable, "another vault-broker has taken over"}
	}
	return &tokenError{contract.CodeTokenUnavailable, "the token endpoint cannot be reached"}
}

// rotate stores the client, whose refresh token the server has replaced, as the version after v,
// and returns the number of the version. The former refresh token may be invalid by now, so it
// repeats failed requests until ctx ends, and the next request of this instance uses the new one.
// It returns backend.ErrConflict if another value was stored meanwhile.
func (x *tokens) rotate(ctx context.Context, tenant, name string, v *backend.Value, client *secrettype.OAuthClient) (int64, error) {
	value, err := client.Value()
	if err != nil {
		return 0, err
	}
	defer clear(value)
	for {
		n, err := x.secrets.Put(ctx, tenant, name, value, backend.About{Type: v.Type, Expires: v.Expires}, v.Version)
		if errors.Is(err, backend.ErrConflict) { // perhaps the version of a former attempt
			now, read := x.secrets.Get(ctx, tenant, name, v.Version+1)
			if read == nil && bytes.Equal(now.Bytes, value) {
				n, err = now.Version, nil
			}
			clear(now.Bytes)
		}
		if !backend.Retryable(err) {
			x.unstored.Delete(tenant + " " + name)
			return int64(n), err
		}
		x.unstored.Store(tenant+" "+name, unstored{v.Version, client.RefreshToken})
		if ctx.Err() != nil {
			return int64(n), err
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// keep stores a token, and returns the time at which it is replaced. If the secret was erased
// meanwhile, it erases the token.
func (x *tokens) keep(ctx context.Context, tenant, name string, d *events.TokenObtained, t *oauth.Token) (string, error) {
	life := t.Life
	if life == 0 {
		life = unknownLife
	}
	replace := x.env.Emit.Now().Add(life - tokenMargin(life)).UTC().Truncate(time.Second)
	b, err := json.Marshal(storedToken{Access: t.Access, Replace: replace, Version: int(d.Version)})
	if err != nil {
		return "", err
	}
	defer clear(b)
	if _, err = x.store.Put(ctx, tenant, name, b, backend.About{}, backend.Any); err != nil {
		return "", err
	}
	v, err := x.secrets.Get(ctx, tenant, name, 0)
	clear(v.Bytes)
	if errors.Is(err, backend.ErrErased) {
		return "", errors.Join(err, x.erase(ctx, tenant, name))
	}
	return contract.Time(replace), err
}

// erase destroys the stored tokens of an erased secret, and its login that has not ended.
func (x *tokens) erase(ctx context.Context, tenant, name string) error {
	for _, stored := range []string{name, loginName(name)} {
		if err := x.store.Erase(ctx, tenant, stored); err != nil && !errors.Is(err, backend.ErrNotFound) {
			return err
		}
	}
	return nil
}

// toEndpoint is a transport to token endpoints through the egress-broker.
type toEndpoint struct {
	http.RoundTripper
	name string // of the endpoint at the egress-broker
}

// RoundTrip implements http.RoundTripper. A response of the egress-broker in place of the server's
// is an error.
func (t toEndpoint) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := endpoint.Refusal(t.name, resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}
