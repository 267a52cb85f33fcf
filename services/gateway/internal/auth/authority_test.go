package auth

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth/authtest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

const rawKey = contract.IDVirtualKey + "secret"

// apply applies an event of the service policy in the tenant t, with the given name and
// data.
func apply(t *testing.T, a *Authority, name string, doc canon.Document) {
	t.Helper()
	applyIn(t, a, "t", name, doc)
}

// applyIn applies an event like apply, in the given tenant.
func applyIn(t *testing.T, a *Authority, tenant, name string, doc canon.Document) {
	t.Helper()
	e := &contract.Event{Tenant: tenant, Source: "policy/p1", Name: name, Time: contract.Time(time.Now()), Data: contract.Bytes(doc)}
	if err := a.Apply(e); err != nil {
		t.Fatal(name, err)
	}
}

func aKey(expires string) *events.VirtualKeyCreated {
	return &events.VirtualKeyCreated{ID: "k1", Actor: "alice", Maker: "root", Digest: DigestOf(rawKey), Scopes: []string{token.LLM}, Expires: expires}
}

// TestVirtualKeys checks the conditions under which a virtual key is valid, and events that
// invalidate it.
func TestVirtualKeys(t *testing.T) {
	hour := contract.Time(time.Now().Add(time.Hour))
	for name, c := range map[string]struct {
		expires string
		name    string
		doc     canon.Document
		err     error
	}{
		"made":                      {"", "", nil, nil},
		"made for an hour":          {hour, "", nil, nil},
		"expired":                   {contract.Time(time.Now().Add(-time.Hour)), "", nil, errKeyUnknown},
		"revoked":                   {"", contract.EventVirtualKeyRevoked, &events.VirtualKeyRevoked{ID: "k1"}, errKeyUnknown},
		"another revoked":           {"", contract.EventVirtualKeyRevoked, &events.VirtualKeyRevoked{ID: "k2"}, nil},
		"consent withdrawn":         {"", contract.EventVirtualKeyConsentWithdrawn, &events.VirtualKeyConsentWithdrawn{ID: "k1", Principal: "alice"}, errKeyUnknown},
		"consent of another":        {"", contract.EventVirtualKeyConsentWithdrawn, &events.VirtualKeyConsentWithdrawn{ID: "k1", Principal: "bob"}, nil},
		"maker suspended":           {"", contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "root"}, errMaker},
		"actor suspended":           {"", contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "alice"}, nil}, // a suspended actor is rejected by barred
		"actor's credentials ended": {"", contract.EventTokenRevoked, &events.TokenRevoked{Principal: "alice", Before: hour}, errKeyUnknown},
		"maker's credentials ended": {"", contract.EventTokenRevoked, &events.TokenRevoked{Principal: "root", Before: hour}, errKeyUnknown},
		"another's ended":           {"", contract.EventTokenRevoked, &events.TokenRevoked{Principal: "bob", Before: hour}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Authority{}
			apply(t, a, contract.EventVirtualKeyCreated, aKey(c.expires))
			if c.doc != nil {
				apply(t, a, c.name, c.doc)
			}
			who, err := a.byKey(rawKey)
			if !errors.Is(err, c.err) {
				t.Error(err, "want", c.err)
			}
			if err == nil && (who.Actor != "alice" || who.Client != contract.KeyClient+"k1" || len(who.Scopes) != 1) {
				t.Errorf("%+v", who)
			}
		})
	}
	if _, err := (&Authority{}).byKey("bk-other"); !errors.Is(err, errKeyUnknown) {
		t.Error("an unknown key:", err)
	}
}

// TestForeignEvents checks that an Authority ignores events of services other than
// policy and events of other names, and returns an error for malformed data.
func TestForeignEvents(t *testing.T) {
	a := &Authority{}
	for _, e := range []*contract.Event{{Tenant: "t", Source: "audit/a1", Name: contract.EventPrincipalSuspended, Data: []byte(`{"principal":"alice","reason":""}`)},
		{Tenant: "t", Source: "policy/p1", Name: contract.EventEscalated, Data: []byte("{}")}} {
		if err := a.Apply(e); err != nil {
			t.Error(err)
		}
	}
	if a.barred("t", "alice") {
		t.Error("audit suspended a principal")
	}
	if err := a.Apply(&contract.Event{Source: "policy/p1", Name: contract.EventPrincipalSuspended, Data: []byte("[")}); err == nil {
		t.Error("a broken event was passed over")
	}
}

// TestSuspended checks that a principal is suspended until the suspension is lifted or
// the principal is registered again.
func TestSuspended(t *testing.T) {
	a := &Authority{}
	for _, lift := range []struct {
		name string
		doc  canon.Document
	}{{contract.EventPrincipalResumed, &events.PrincipalResumed{Principal: "alice"}}, {contract.EventPrincipalRegistered, &events.PrincipalRegistered{Principal: "alice"}}} {
		apply(t, a, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "alice"})
		if !a.barred("t", "alice") || a.barred("t", "bob") {
			t.Error("suspended: alice", a.barred("t", "alice"), "bob", a.barred("t", "bob"))
		}
		if apply(t, a, lift.name, lift.doc); a.barred("t", "alice") {
			t.Error("still suspended after", lift.name)
		}
	}
}

// TestGrants checks that a session grant is valid until it expires, is revoked, or its
// owner is suspended or loses its credentials. A grant is valid only if the owner of the
// session gave it, and only for the principal that it names.
func TestGrants(t *testing.T) {
	now := time.Now()
	session := contract.SessionID("t", "alice", "s-x")
	hour := contract.Time(now.Add(time.Hour))
	for name, c := range map[string]struct {
		owner, expires string
		name           string
		doc            canon.Document
		want           bool
	}{
		"granted":         {"alice", hour, "", nil, true},
		"expired":         {"alice", contract.Time(now.Add(-time.Second)), "", nil, false},
		"by no owner":     {"mallory", hour, "", nil, false},
		"taken back":      {"alice", hour, contract.EventSessionGrantRevoked, &events.SessionGrantRevoked{Session: session, Principal: "bob"}, false},
		"owner suspended": {"alice", hour, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "alice"}, false},
		"owner ended":     {"alice", hour, contract.EventTokenRevoked, &events.TokenRevoked{Principal: "alice", Before: hour}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Authority{}
			apply(t, a, contract.EventSessionGranted, &events.SessionGranted{Session: session, Principal: "bob", Owner: c.owner, Expires: c.expires})
			if c.doc != nil {
				apply(t, a, c.name, c.doc)
			}
			if got := a.Lent("t", session, "bob", now); got != c.want {
				t.Error(got)
			}
			if a.Lent("t", session, "carol", now) {
				t.Error("carol is let in")
			}
		})
	}
}

// TestWatch checks that the context of a watched caller is cancelled, with the reason,
// when the caller's token is revoked, or the caller or its tenant is suspended. The
// suspension of another principal or tenant does not cancel it. The expiry of the token
// cancels it only if expiry is set.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issued := time.Now()
		time.Sleep(time.Second)
		who := func() *Caller {
			return &Caller{Tenant: "t", Actor: "alice", Token: "j1", issued: issued, Until: issued.Add(time.Hour)}
		}
		for name, c := range map[string]struct {
			expiry bool
			after  time.Duration
			name   string
			doc    canon.Document
			code   string
			reason string
		}{
			"another's suspension": {true, time.Second, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "bob"}, "", ""},
			"revoked":              {false, time.Second, contract.EventTokenRevoked, &events.TokenRevoked{ID: "j1"}, "token_invalid", contract.ReasonCredentialRevoked},
		} {
			a := &Authority{}
			ctx, done := a.watch(t.Context(), who(), authtest.New("t"), c.expiry, nil)
			time.Sleep(c.after)
			apply(t, a, c.name, c.doc)
			synctest.Wait()
			var e *apierr.Error
			if ended := errors.As(context.Cause(ctx), &e); ended != (c.code != "") || ended && (e.Code != c.code || e.ReasonCode != c.reason) {
				t.Error(name, context.Cause(ctx))
			}
			done()
		}
		a := &Authority{}
		ctx, done := a.watch(t.Context(), who(), authtest.New("t"), true, nil)
		defer done()
		forever, stop := a.watch(t.Context(), who(), authtest.New("t"), false, nil)
		defer stop()
		time.Sleep(2 * time.Hour)
		if ctx.Err() == nil || forever.Err() != nil {
			t.Error("after its end:", ctx.Err(), forever.Err())
		}
		tenants := authtest.New("t", "u")
		ofTenant, stop3 := a.watch(t.Context(), who(), tenants, false, nil)
		defer stop3()
		tenants.Suspend("u", true)
		synctest.Wait()
		if ofTenant.Err() != nil {
			t.Error("another tenant's suspension:", context.Cause(ofTenant))
		}
		tenants.Suspend("t", true)
		synctest.Wait()
		var of *apierr.Error
		if !errors.As(context.Cause(ofTenant), &of) || of.Status != 403 || of.Code != contract.CodeTenantSuspended || of.ReasonCode != contract.ReasonTenantSuspended {
			t.Error(context.Cause(ofTenant))
		}
		suspended, stop2 := a.watch(t.Context(), &Caller{Tenant: "t", Actor: "alice", Token: "j2", issued: issued}, authtest.New("t"), false, nil)
		defer stop2()
		apply(t, a, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "alice"})
		synctest.Wait()
		var e *apierr.Error
		if !errors.As(context.Cause(suspended), &e) || e.Code != contract.EventPrincipalSuspended {
			t.Error(context.Cause(suspended))
		}
	})
}

// TestWatchExpired checks the context of a caller that is watched without expiry, for a
// token and for a virtual key. After the credential has expired, a change of another
// credential does not cancel the context, but the revocation of the credential does.
func TestWatchExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issued := time.Now()
		time.Sleep(time.Second)
		a := &Authority{}
		apply(t, a, contract.EventVirtualKeyCreated, aKey(contract.Time(issued.Add(time.Hour))))
		key, err := a.byKey(rawKey)
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			who  *Caller
			name string
			doc  canon.Document
		}{
			"token":       {&Caller{Tenant: "t", Actor: "alice", Token: "j1", issued: issued, Until: issued.Add(time.Hour)}, contract.EventTokenRevoked, &events.TokenRevoked{ID: "j1"}},
			"virtual key": {key, contract.EventVirtualKeyRevoked, &events.VirtualKeyRevoked{ID: "k1"}},
		} {
			ctx, done := a.watch(t.Context(), c.who, authtest.New("t"), false, nil)
			time.Sleep(2 * time.Hour)
			apply(t, a, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "bob"})
			synctest.Wait()
			if ctx.Err() != nil {
				t.Errorf("%s: ended by a change of another credential: %v", name, context.Cause(ctx))
			}
			apply(t, a, c.name, c.doc)
			synctest.Wait()
			if ctx.Err() == nil {
				t.Errorf("%s: continues after its revocation", name)
			}
			done()
		}
	})
}

// TestAwaitKey checks that AwaitKey returns when the key is in the view or the context
// is done, and not before.
func TestAwaitKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Authority{}
		go func() {
			time.Sleep(time.Second)
			apply(t, a, contract.EventPrincipalResumed, &events.PrincipalResumed{Principal: "x"})
			time.Sleep(time.Second)
			apply(t, a, contract.EventVirtualKeyCreated, aKey(""))
		}()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if a.AwaitKey(ctx, "t", rawKey); time.Since(began) != 2*time.Second {
			t.Error("after", time.Since(began))
		}
		short, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		if a.AwaitKey(short, "t", "bk-never"); short.Err() == nil {
			t.Error("a key that was never created is in force")
		}
	})
}

// TestDump checks that the dump is sorted and contains virtual keys, revocations, overlays,
// session grants and suspensions.
func TestDump(t *testing.T) {
	a := &Authority{}
	hour := contract.Time(time.Now().Add(time.Hour))
	apply(t, a, contract.EventVirtualKeyCreated, aKey(hour))
	apply(t, a, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "bob"})
	apply(t, a, contract.EventTokenRevoked, &events.TokenRevoked{ID: "j1"})
	apply(t, a, contract.EventTokenRevoked, &events.TokenRevoked{Principal: "carol", Before: hour})
	apply(t, a, contract.EventSessionGranted, &events.SessionGranted{Session: "s-1", Principal: "bob", Owner: "alice", Expires: hour})
	for _, d := range []contract.Activated{{Layer: "p1", Name: "rules"}, {Layer: "p2", Name: "gone"}, {Layer: "p2", Name: "quiet", Bundle: contract.Content{Commitment: "sha256:aa"}}, {Layer: "p2", Name: "gone", Retired: true}} {
		apply(t, a, contract.EventPolicyActivated, &d)
	}
	if got := a.Overlays("t"); len(got) != 1 || got[0].Commitment != "sha256:aa" || a.Policies() != 3 || len(a.Overlays("u")) != 0 {
		t.Errorf("overlays %v after %d changes", got, a.Policies())
	}
	lines := strings.Split(strings.TrimSuffix(string(a.Dump()), "\n"), "\n")
	if len(lines) != 6 {
		t.Fatal(lines)
	}
	for i, want := range []string{`"actor":"alice"`, `"revoked_principal":"carol"`, `"commitment":"sha256:aa"`, `"session":"s-1"`, `"revoked_token":"j1"`, `"suspended":"bob"`} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d: %s, want %s", i, lines[i], want)
		}
	}
}

// gate returns a Gate without a ledger, in whose registry t is the only tenant, and a
// function that mints tokens of t.
func gate(t *testing.T) (*Gate, func(actor, client string, scopes ...string) string) {
	return gateOf(t, "t")
}

// gateOf returns the Gate of function gate, and a function that mints tokens of the
// given tenant.
func gateOf(t *testing.T, tenant string) (*Gate, func(actor, client string, scopes ...string) string) {
	seed := make([]byte, ed25519.SeedSize)
	key, _ := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	return &Gate{TokenKeys: token.Fixed(key), Tenants: authtest.New("t"), Authority: &Authority{}}, func(actor, client string, scopes ...string) string {
		raw, err := token.Mint(seed, tenant, actor, client, scopes, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
}

// TestVerify checks that valid tokens are accepted, also from the cache, until they are
// revoked, and that other tokens are rejected. Until the ledger has been read to its
// end, Verify returns an error with status 503.
func TestVerify(t *testing.T) {
	g, mint := gate(t)
	raw := mint("alice", "cli", token.Audit)
	for range 2 {
		who, err := g.Verify(t.Context(), raw)
		if err != nil || who.Actor != "alice" || who.Client != "cli" || who.Token == "" {
			t.Fatal(who, err)
		}
	}
	if _, err := g.Verify(t.Context(), mint("alice", contract.KeyClient+"k1", token.Audit)); err == nil {
		t.Error("a token passes for a virtual key")
	}
	for _, bad := range []string{"", "x", raw + "x", rawKey} {
		if _, err := g.Verify(t.Context(), bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	apply(t, g.Authority, contract.EventTokenRevoked, &events.TokenRevoked{Principal: "alice", Before: contract.Time(time.Now().Add(time.Minute))})
	if _, err := g.Verify(t.Context(), raw); !errors.Is(err, errRevoked) {
		t.Error("a revoked token in the cache:", err)
	}
	known := make(chan struct{})
	g.Known = known
	var e *apierr.Error
	if _, err := g.Verify(t.Context(), mint("bob", "-", token.Audit)); !errors.As(err, &e) || e.Status != http.StatusServiceUnavailable {
		t.Error("before the ledger is read to its end:", err)
	}
	close(known)
	if _, err := g.Verify(t.Context(), mint("bob", "-", token.Audit)); err != nil {
		t.Error(err)
	}
}

// TestCacheIsBounded checks that the cache of verified tokens is cleared when it is
// full, and that the token verified at that time is accepted.
func TestCacheIsBounded(t *testing.T) {
	g, mint := gate(t)
	g.verifiedCount.Store(maxKnown)
	if _, err := g.Verify(t.Context(), mint("alice", "-", token.Audit)); err != nil || g.verifiedCount.Load() != 0 {
		t.Error(err, g.verifiedCount.Load())
	}
}

// TestEnter checks which requests Enter passes to the handler, by credential, scopes and
// suspension.
func TestEnter(t *testing.T) {
	g, mint := gate(t)
	apply(t, g.Authority, contract.EventPrincipalSuspended, &events.PrincipalSuspended{Principal: "mallory"})
	for name, c := range map[string]struct {
		need         Need
		method, path string
		header       string
		code         string // expected error code; "": the handler runs
	}{
		"open":                       {Open, "GET", "/healthz", "", ""},
		"no credential":              {Known, "GET", "/x", "", "token_missing"},
		"another scheme":             {Known, "GET", "/x", "Basic YTpi", "token_missing"},
		"a bad token":                {Known, "GET", "/x", "Bearer x", "token_invalid"},
		"any token":                  {Known, "GET", "/x", "bearer " + mint("alice", "-", token.Health), ""},
		"calls need one that allows": {Calling, "POST", "/x", "Bearer " + mint("alice", "-", token.Health, token.Audit, token.Cosign), "scope_missing"},
		"calls":                      {Calling, "POST", "/x", "Bearer " + mint("alice", "-", token.Tools), ""},
		"a scope":                    {Holds(token.Audit), "GET", "/x", "Bearer " + mint("alice", "-", token.Audit), ""},
		"another scope":              {Holds(token.Audit), "GET", "/x", "Bearer " + mint("alice", "-", token.Tools), "scope_missing"},
		"suspended, a query":         {Known, "GET", "/x", "Bearer " + mint("mallory", "-", token.Tools), contract.EventPrincipalSuspended},
		"suspended, a call":          {Calling.WithRecord(), "POST", "/x", "Bearer " + mint("mallory", "-", token.Tools), ""}, // the call is proposed, so that policy's denial is recorded
		"suspended, an export":       {Calling, "POST", "/x", "Bearer " + mint("mallory", "-", token.Tools), contract.EventPrincipalSuspended},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(c.method, c.path, nil)
			if c.header != "" {
				req.Header.Set("Authorization", c.header)
			}
			ctx := echo.New().NewContext(req, httptest.NewRecorder())
			ctx.SetPath(c.path)
			ran := false
			err := g.Enter(c.need, func(echo.Context) error { ran = true; return nil })(ctx)
			var e *apierr.Error
			if errors.As(err, &e); ran != (c.code == "") || e != nil && e.Code != c.code {
				t.Errorf("ran: %t, %v; want %s", ran, err, c.code)
			}
		})
	}
}

// TestCredential checks the headers from which credentials are read.
func TestCredential(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"Authorization", "Bearer abc", "abc"}, {"Authorization", "bEARER  abc ", "abc"}, {"X-Api-Key", "abc", "abc"}, {"Authorization", "abc", ""}, {"Authorization", "Digest abc", ""},
	} {
		if got, ok := Credential(http.Header{http.CanonicalHeaderKey(c.name): {c.value}}); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %s gives %q", c.name, c.value, got)
		}
	}
}

// TestWatchReads checks that the context of an operator's reads is cancelled, with the
// reason, when the operator is withdrawn, and when its delegation expires, although the
// registry then reports no change. The context of a tenant's own reads is not cancelled;
// that of a tenant's reads of the whole mesh is cancelled at once.
func TestWatchReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issued := time.Now()
		time.Sleep(time.Second)
		tenants := authtest.New("t")
		tenants.Open("op", "temp")
		tenants.DelegateUntil("temp", time.Now().Add(time.Hour))
		g := &Gate{Tenants: tenants, Authority: &Authority{}}
		watch := func(tenant, actor string, mesh bool) context.Context {
			ctx, done := g.WatchReads(t.Context(), &Caller{Tenant: tenant, Actor: actor, Token: actor, issued: issued}, mesh)
			t.Cleanup(done)
			return ctx
		}
		withdrawn, temp, own := watch(contract.CellTenant, "op", false), watch(contract.CellTenant, "temp", true), watch("t", "op", false)
		foreign := watch("t", "op", true)
		synctest.Wait()
		if withdrawn.Err() != nil || temp.Err() != nil || own.Err() != nil {
			t.Fatal(context.Cause(withdrawn), context.Cause(temp), context.Cause(own))
		}
		ended := func(what string, ctx context.Context) {
			t.Helper()
			var e *apierr.Error
			if !errors.As(context.Cause(ctx), &e) || e.Status != 403 || e.ReasonCode != contract.ReasonOperatorRequired {
				t.Errorf("%s: %v", what, context.Cause(ctx))
			}
		}
		ended("a tenant that reads the mesh", foreign)
		tenants.Withdraw("op")
		synctest.Wait()
		ended("withdrawn", withdrawn)
		time.Sleep(59 * time.Minute)
		if temp.Err() != nil {
			t.Error("before the delegation ends:", context.Cause(temp))
		}
		time.Sleep(time.Minute + operatorCheck)
		synctest.Wait()
		ended("after the end of the delegation", temp)
		if own.Err() != nil {
			t.Error(context.Cause(own))
		}
	})
}
