package vaultbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/oauthtest"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/output"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/secrettype"
)

// oauthBrokers are instances over one ledger and one store, whose clock a test moves, and an
// authorization server.
type oauthBrokers struct {
	t      *testing.T
	server *oauthtest.Server
	log    *memlog.Log
	logged *output.Buffer
	of     []*broker

	mu    sync.Mutex
	later time.Duration
}

func newOAuthBrokers(t *testing.T, n int) *oauthBrokers {
	o := &oauthBrokers{t: t, server: oauthtest.New(true), log: &memlog.Log{}, logged: new(output.Buffer)}
	t.Cleanup(o.server.Close)
	kek := make([]byte, 32)
	secrets, tokens := fileStore(t, kek), fileStore(t, kek)
	for i := range n {
		env := &run.Env{Log: slog.New(slog.NewTextHandler(o.logged, nil)), Emit: &emit.Emitter{Log: o.log, Tenant: "t", Source: fmt.Sprintf("vault-broker/vault-broker-%d", i+1), Now: o.now}}
		k := &broker{t: t, Service: &Service{Config: Config{KEK: kek}, env: env}}
		k.keeper = newKeeper(env, newTokens(env, secrets, tokens, func(string, string) http.RoundTripper { return o.server.Client().Transport }), kek)
		o.of = append(o.of, k)
	}
	return o
}

func (o *oauthBrokers) now() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Now().Add(o.later)
}

// pass moves the clock.
func (o *oauthBrokers) pass(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.later += d
}

// store stores a client of the server under the name "api".
func (o *oauthBrokers) store(members map[string]string) {
	o.t.Helper()
	doc := map[string]string{"client_id": oauthtest.ClientID, "client_secret": oauthtest.ClientSecret, "token_endpoint": o.server.TokenEndpoint(), "scope": "read"}
	for name, v := range members {
		doc[name] = v
	}
	b, err := json.Marshal(doc)
	if err != nil {
		o.t.Fatal(err)
	}
	if code := o.of[0].put(`{"name":"api","type":"oauth"}`, string(b)); code != "" {
		o.t.Fatal(code)
	}
}

// use requests the secret at an instance until it is released or refused. It returns the token, or
// "refused:", the code and the reason.
func (o *oauthBrokers) use(broker int) string { return o.useBy(broker, new(grant)) }

// useBy is use for a call with a grant.
func (o *oauthBrokers) useBy(broker int, g *grant) string {
	k := o.of[broker]
	e := k.env.Emit.New(contract.EventSecretRequested, "s-1", []byte(`{}`), nil)
	e.CallID = "c-1"
	for {
		ctx, cancel := context.WithTimeout(context.Background(), readTime)
		v, no, err := k.value(ctx, e, g, "api")
		cancel()
		switch {
		case err != nil && !errors.Is(err, errPending):
			return "error: " + err.Error()
		case err != nil:
			time.Sleep(20 * time.Millisecond)
		case no.reason != "":
			return "refused:" + no.code + " " + no.reason
		default:
			return string(v.value)
		}
	}
}

// all requests the secret n times at the same time, in turn at each instance, and returns the
// results.
func (o *oauthBrokers) all(n int) map[string]int { return o.allBy(n, new(grant)) }

// allBy is all for calls with a grant.
func (o *oauthBrokers) allBy(n int, g *grant) map[string]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]int{}
	for i := range n {
		wg.Go(func() {
			r := o.useBy(i%len(o.of), g)
			mu.Lock()
			defer mu.Unlock()
			out[r]++
		})
	}
	wg.Wait()
	return out
}

// valid checks that a result is a token of the server.
func (o *oauthBrokers) valid(result string) {
	o.t.Helper()
	if scope, ok := o.server.Valid(result); !ok || scope != "read" {
		o.t.Errorf("not a token: %q", result)
	}
}

// facts returns the names of the events about tokens, separated by spaces.
func (o *oauthBrokers) facts() string {
	var out []string
	for en, err := range o.log.Scan(o.t.Context(), "evt.>", 1) {
		if err != nil {
			o.t.Fatal(err)
		}
		if e, err := eventlog.Open(en, eventlog.Every); err == nil && strings.HasPrefix(e.Name, "token_") {
			out = append(out, strings.TrimPrefix(e.Name, "token_"))
		}
	}
	return strings.Join(out, " ")
}

// nowhere checks that no event and no line of the log contains one of the texts.
func (o *oauthBrokers) nowhere(texts ...string) {
	o.t.Helper()
	all := []byte(o.logged.String())
	for en, err := range o.log.Scan(o.t.Context(), "evt.>", 1) {
		if err != nil {
			o.t.Fatal(err)
		}
		all = append(all, en.Data...)
	}
	if !bytes.Contains(all, []byte("token_requested")) {
		o.t.Error("the search finds nothing at all")
	}
	for _, hidden := range append(texts, oauthtest.ClientSecret, "access-", "refresh-", "the request was") {
		if bytes.Contains(all, []byte(hidden)) {
			o.t.Errorf("%q is in an event or in the log", hidden)
		}
	}
}

// TestTokenOnce shows that concurrent requests at several instances obtain one token with one
// request, that it is used until shortly before its end, that another is obtained then, again
// with one request, and that neither is a version of the secret.
func TestTokenOnce(t *testing.T) {
	o := newOAuthBrokers(t, 3)
	o.server.Life = 10 * time.Minute
	o.store(nil)
	first := o.all(24)
	for token := range first {
		o.valid(token)
	}
	if n := len(o.server.Requests()); len(first) != 1 || n != 1 {
		t.Fatalf("%d requests, %d results", n, len(first))
	}
	o.pass(8*time.Minute + 50*time.Second)
	if again := o.all(6); len(again) != 1 || again[keyOf(first)] != 6 || len(o.server.Requests()) != 1 {
		t.Error("the token was not used until a minute before its end")
	}
	o.pass(15 * time.Second)
	second := o.all(24)
	if n := len(o.server.Requests()); len(second) != 1 || second[keyOf(first)] != 0 || n != 2 {
		t.Errorf("%d requests, %d results", n, len(second))
	}
	o.valid(keyOf(second))
	if got := o.facts(); got != "requested obtained requested obtained" {
		t.Error(got)
	}
	if s := o.of[0].show1("api"); len(s.Versions) != 1 || s.Versions[0].Type != "oauth" {
		t.Errorf("%+v", s)
	}
	o.nowhere()
}

// keyOf returns the only key of a map.
func keyOf(m map[string]int) string {
	for k := range m {
		return k
	}
	return ""
}

// TestTokenRejected shows that calls whose server rejects a token cause one request for another one, at
// several instances, that calls which were allowed after it was obtained get it, that another
// rejection replaces it in turn, but not within a second, and that a refusal is returned.
func TestTokenRejected(t *testing.T) {
	o := newOAuthBrokers(t, 3)
	o.store(nil)
	first := o.use(0)
	last := func() uint64 {
		_, seq, err := o.of[0].keeper.tokens.lastOf(t.Context(), "t", "api")
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	rejected := &grant{from: last() + 1, rejected: true}
	if got := o.useBy(1, rejected); got != first {
		t.Error("a token that was just obtained is replaced")
	}
	o.pass(2 * time.Second)
	if got := o.useBy(1, &grant{from: last() + 1}); got != first {
		t.Error("a token that was not rejected is replaced")
	}
	second := o.allBy(24, rejected)
	if n := len(o.server.Requests()); len(second) != 1 || second[first] != 0 || n != 2 {
		t.Fatalf("%d requests, %d results", n, len(second))
	}
	o.valid(keyOf(second))
	o.pass(2 * time.Second)
	if again := o.allBy(6, rejected); again[keyOf(second)] != 6 || o.use(2) != keyOf(second) {
		t.Error("a token that was obtained after the call was allowed is replaced")
	}
	third := o.allBy(6, &grant{from: last() + 1, rejected: true})
	if n := len(o.server.Requests()); len(third) != 1 || third[keyOf(second)] != 0 || n != 3 {
		t.Errorf("%d requests, %d results", n, len(third))
	}
	o.nowhere()
}

// TestTokenRotated shows that a refresh token that the server replaces is stored as the next
// version and used for the next refresh, and that a server which does not replace it adds no version.
func TestTokenRotated(t *testing.T) {
	o := newOAuthBrokers(t, 2)
	o.server.Rotate = true
	o.store(map[string]string{"refresh_token": o.server.Grant("read")})
	for i := range 3 {
		for token := range o.all(8) {
			o.valid(token)
		}
		o.pass(time.Hour)
		if s := o.of[0].show1("api"); len(s.Versions) != i+2 || len(o.server.Requests()) != i+1 {
			t.Errorf("%d versions after %d requests", len(s.Versions), len(o.server.Requests()))
		}
	}
	o.server.Rotate = false
	o.valid(o.use(0))
	if s := o.of[1].show1("api"); len(s.Versions) != 4 {
		t.Errorf("%d versions", len(s.Versions))
	}
	if got := o.use(1); strings.HasPrefix(got, "refused") {
		t.Error(got)
	}
	o.nowhere()
}

// TestTokenReplaced shows that a token of a former version of the secret is not released, that
// neither is one of a deleted or erased secret, that an expired secret has none, that the
// refresh token itself is never released, and that the erasure destroys the stored token.
func TestTokenReplaced(t *testing.T) {
	o := newOAuthBrokers(t, 2)
	o.store(nil)
	first := o.use(0)
	o.store(map[string]string{"auth": "post"})
	second := o.use(1)
	o.valid(second)
	if first == second {
		t.Error("a token of the former version")
	}
	k := o.of[0]
	e := k.env.Emit.New(contract.EventSecretRequested, "s-1", []byte(`{}`), nil)
	if _, no, err := k.value(t.Context(), e, new(grant), "api.previous"); err != nil || !strings.Contains(no.reason, "does not exist") {
		t.Error(no, err)
	}
	k.do(kindDelete, `{"name":"api"}`)
	if got := o.use(0); !strings.Contains(got, "is deleted") {
		t.Error(got)
	}
	k.do(kindRestore, `{"name":"api"}`)
	if got := o.use(0); got != second {
		t.Error(got)
	}
	for range 2 {
		if r := k.do(kindErase, `{"name":"api"}`); r.ErrorCode != "" {
			t.Error(r)
		}
	}
	if _, err := k.keeper.tokens.store.Get(t.Context(), "t", "api", 0); !errors.Is(err, backend.ErrErased) {
		t.Error("the token of an erased secret:", err)
	}
}

// TestTokenFailures shows the codes of refusals, that they are recorded, that they hold for
// concurrent requests with one request to the server, and that a new version of the secret or the
// end of the time ends them.
func TestTokenFailures(t *testing.T) {
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	o := newOAuthBrokers(t, 2)
	o.server.Rotate = true
	o.store(nil)
	for _, c := range []struct {
		what, code, reason string
		fail               http.HandlerFunc
		hold               time.Duration
	}{
		{"fails", contract.CodeTokenUnavailable, "status 500", respond(500, "hunter2"), holdFailed},
		{"is malformed", contract.CodeTokenUnavailable, "no JSON object", respond(200, "hunter2"), holdFailed},
		{"is cut off", contract.CodeTokenUnavailable, "cannot be reached", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, holdFailed},
		{"refuses", contract.CodeTokenRefused, "invalid_grant; store another client", respond(400, `{"error":"invalid_grant","error_description":"hunter2"}`), holdRefused},
	} {
		o.server.Fail(c.fail)
		before := len(o.server.Requests())
		got := o.all(12)
		if n := len(o.server.Requests()) - before; len(got) != 1 || n != 1 {
			t.Errorf("a server that %s: %d requests, %v", c.what, n, got)
		}
		if r := keyOf(got); !strings.HasPrefix(r, "refused:"+c.code+" secret api: ") || !strings.Contains(r, c.reason) {
			t.Errorf("a server that %s: %s", c.what, r)
		}
		o.server.Fail(nil)
		o.pass(c.hold - time.Second)
		if r := o.use(1); r != keyOf(got) {
			t.Errorf("before the end of the time: %s", r)
		}
		o.pass(2 * time.Second)
		o.valid(o.use(1))
		o.pass(time.Hour)
	}
	o.server.Fail(respond(400, `{"error":"invalid_client"}`))
	if got := o.use(0); !strings.Contains(got, contract.CodeTokenRefused) {
		t.Error(got)
	}
	o.server.Fail(nil)
	o.store(map[string]string{"auth": "post"})
	o.valid(o.use(1))
	o.nowhere("hunter2")
}

// TestTokenHangs shows that requests for a token of a server that does not respond are refused
// within patience and a delivery, and that another secret can be used meanwhile.
func TestTokenHangs(t *testing.T) {
	o := newOAuthBrokers(t, 2)
	o.store(nil)
	if code := o.of[0].put(`{"name":"plain"}`, "v"); code != "" {
		t.Fatal(code)
	}
	o.server.Fail(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	began := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		got := o.all(20)
		if r := keyOf(got); len(got) != 1 || !strings.HasPrefix(r, "refused:"+contract.CodeTokenUnavailable) {
			t.Errorf("%v", got)
		}
	})
	time.Sleep(200 * time.Millisecond)
	if v := o.of[0].use("plain"); v != "v" {
		t.Error(v)
	}
	sent := time.Now() // while maxWaiting requests of the instance wait
	e := o.of[0].env.Emit.New(contract.EventSecretRequested, "s-1", []byte(`{}`), nil)
	ctx, cancel := context.WithTimeout(t.Context(), readTime)
	defer cancel()
	if _, _, err := o.of[0].value(ctx, e, new(grant), "api"); !errors.Is(err, errPending) || time.Since(sent) > readTime/2 {
		t.Error("one request more than may wait:", err, time.Since(sent))
	}
	wg.Wait()
	if took := time.Since(began); took < exchangeTime || took > patience+readTime || len(o.server.Requests()) != 1 {
		t.Errorf("%d requests, %v", len(o.server.Requests()), took)
	}
	if got := o.facts(); got != "requested failed" {
		t.Error(got)
	}
}

// TestTokenTakenOver shows that the claim of an instance that has ended is taken over when its
// time has passed, and not before.
func TestTokenTakenOver(t *testing.T) {
	o := newOAuthBrokers(t, 2)
	o.store(nil)
	m := o.of[0].env.Emit
	claim := m.New(events.TokenRequestedName, tokenKey("api"), contract.Bytes(&events.TokenRequested{CallID: "c-0", Grant: "client_credentials", Host: "x", Name: "api", Version: 1}), nil)
	if _, err := m.Append(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	e := o.of[1].env.Emit.New(contract.EventSecretRequested, "s-1", []byte(`{}`), nil)
	if _, _, err := o.of[1].value(ctx, e, new(grant), "api"); !errors.Is(err, errPending) || len(o.server.Requests()) != 0 {
		t.Error(err, len(o.server.Requests()))
	}
	o.pass(claimTime)
	o.valid(o.use(1))
	if got := o.facts(); got != "requested requested obtained" {
		t.Error(got)
	}
}

// TestTokenLost shows that the answer to a request with a refresh token that an instance did not
// record is recorded as lost, that the refresh token is tried again, that a refusal then says so and
// how to mend it, and that a refresh token that the store did not accept in time is not lost.
func TestTokenLost(t *testing.T) {
	o := newOAuthBrokers(t, 2)
	o.server.Rotate = true
	o.store(map[string]string{"refresh_token": o.server.Grant("read")})
	abandon := func(version int64) {
		t.Helper()
		m := o.of[0].env.Emit
		claim := m.New(events.TokenRequestedName, tokenKey("api"), contract.Bytes(&events.TokenRequested{CallID: "c-0", Grant: "refresh_token", Host: "x", Name: "api", Version: version}), nil)
		if _, err := m.Append(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		o.pass(time.Hour)
	}
	abandon(1) // the instance stopped before the request arrived
	o.valid(o.use(1))
	if got := o.facts(); got != "requested failed requested obtained" {
		t.Error(got)
	}
	abandon(2)
	o.server.Fail(func(w http.ResponseWriter, _ *http.Request) { // the server has replaced the refresh token
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_grant"}`))
	})
	if got := o.use(1); !strings.HasPrefix(got, "refused:"+contract.CodeTokenLost) || !strings.Contains(got, "store another client or refresh token") {
		t.Error(got)
	}
	if n := len(o.server.Requests()); o.use(0) == "" || len(o.server.Requests()) != n {
		t.Error("the refusal does not hold")
	}
	o.server.Fail(nil)
	o.store(map[string]string{"refresh_token": o.server.Grant("read")})
	o.pass(time.Hour)
	x := o.of[1].keeper.tokens
	d := &unwritable{x.secrets, backend.ErrUnavailable}
	x.secrets = d
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	v, err := x.secrets.Get(ctx, "t", "api", 0)
	if err != nil {
		t.Fatal(err)
	}
	client, bad := secrettype.ParseOAuth(v.Bytes)
	if bad != nil {
		t.Fatal(bad)
	}
	last, seq, err := x.lastOf(ctx, "t", "api")
	if err != nil || last == nil {
		t.Fatal(err)
	}
	claim := x.env.Emit.New(events.TokenRequestedName, tokenKey("api"), contract.Bytes(&events.TokenRequested{CallID: "c-1", Grant: "refresh_token", Host: "x", Name: "api", Version: int64(v.Version)}), nil)
	claimed, err := x.append(ctx, claim, seq)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.exchange(ctx, claim, claimed, "api", &v, &client, false); err == nil {
		t.Fatal("the token was released although its refresh token is not stored")
	}
	d.err = nil
	o.pass(holdFailed)
	o.valid(o.use(1)) // with the refresh token in memory, since the stored one was replaced
	o.nowhere()
}

// unwritable is a backend whose writes fail with err.
type unwritable struct {
	backend.Backend
	err error
}

func (d *unwritable) Put(ctx context.Context, owner, name string, value []byte, about backend.About, expect int) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	return d.Backend.Put(ctx, owner, name, value, about, expect)
}

// TestTokenNotStored shows that a token that cannot be stored is not released, with the code of the
// store's error, and that a denial of the egress-broker names the setting.
func TestTokenNotStored(t *testing.T) {
	o := newOAuthBrokers(t, 1)
	o.store(nil)
	x := o.of[0].keeper.tokens
	d := &unwritable{x.store, backend.ErrDenied}
	x.store = d
	if got := o.use(0); !strings.HasPrefix(got, "refused:"+contract.CodeVaultDenied) {
		t.Error(got)
	}
	d.err = nil
	o.pass(holdFailed)
	via := x.via
	x.via = func(string, string) http.RoundTripper {
		return roundTrip(func(*http.Request) (*http.Response, error) {
			return nil, &endpoint.Denied{Endpoint: egress.EndpointOAuth, Reason: "host_denied"}
		})
	}
	if got := o.use(0); !strings.HasPrefix(got, "refused:"+contract.CodeEgressRefused) || !strings.Contains(got, "vault-broker.token_endpoints") {
		t.Error(got)
	}
	o.pass(holdFailed)
	x.via = via
	o.valid(o.use(0))
	denied := &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{"Proxy-Status": {`egress-broker; details="host_denied"`}}, Body: http.NoBody}
	_, err := toEndpoint{roundTrip(func(*http.Request) (*http.Response, error) { return denied, nil }), egress.EndpointOAuth}.RoundTrip(new(http.Request))
	if is := (*endpoint.Denied)(nil); !errors.As(err, &is) {
		t.Error("a response of the egress-broker:", err)
	}
}

// roundTrip is a function as an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
