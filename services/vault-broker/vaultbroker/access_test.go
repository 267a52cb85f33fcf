package vaultbroker

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	policyevents "github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/store"
)

// lists has two brokers over one ledger, on which the call c-1 with the secrets "own" of the
// program and "token" of requests to a.example runs at the session-runner.
type lists struct {
	t       *testing.T
	in      *session
	brokers []*broker
	allowed uint64
	runner  *emit.Emitter
	egress  *emit.Emitter
}

func newLists(t *testing.T) *lists {
	log := &memlog.Log{}
	l := &lists{t: t, in: newSession(t, log)}
	key, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	by := func(source string) *emit.Emitter {
		return &emit.Emitter{Log: log, Tenant: "t", Source: source, Now: time.Now}
	}
	l.runner, l.egress = by("session-runner/session-runner-1"), by("egress-broker/egress-broker-1")
	dir := t.TempDir()
	var shared backend.Backend
	for i := range 2 {
		k := newBroker(t, func(kek []byte) backend.Backend {
			if shared == nil {
				s, err := store.Open(dir+"/secrets.json", kek, "")
				if err != nil {
					t.Fatal(err)
				}
				shared = s.Backend()
			}
			return shared
		})
		k.env = &run.Env{Emit: by(fmt.Sprintf("vault-broker/vault-broker-%d", i+1)), Log: k.env.Log}
		k.keeper.env = k.env
		k.calls = running.New(log, func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }, everyTenant{}, time.Now, nil)
		l.brokers = append(l.brokers, k)
	}
	for _, name := range []string{"own", "token"} {
		if code := l.brokers[0].put(`{"name":"`+name+`"}`, "value of "+name); code != "" {
			t.Fatal(code)
		}
	}
	_, l.allowed = l.in.put(l.in.policy, contract.EventAllowed, "session-runner", "c-1", contract.Bytes(decided(t, key)))
	l.in.put(l.runner, contract.EventEffectStarted, "", "c-1", []byte(`{}`))
	l.in.put(l.egress, contract.EventEgressOpened, "", "c-1", []byte(`{}`))
	return l
}

// set puts a list in force.
func (l *lists) set(byDefault string, listed string, entries ...contract.SecretEntry) {
	l.t.Helper()
	for i := range entries {
		e := &entries[i]
		for _, p := range []*string{&e.Client, &e.Subject, &e.Tool, &e.Secret} {
			if *p == "" {
				*p = "*"
			}
		}
		if err := guard.CheckSecretEntry(e); err != nil {
			l.t.Fatal(err)
		}
	}
	a := contract.SecretAccess{Default: byDefault, Entries: entries}
	if listed != "" {
		a.Listed = strings.Fields(listed)
	}
	m := l.in.policy
	e := m.New(policyevents.SecretAccessSetName, contract.KeySecretAccess, contract.Bytes(&policyevents.SecretAccessSet{Access: contract.Bytes(&a), Change: "granted"}), nil)
	if _, err := m.Append(l.t.Context(), e); err != nil {
		l.t.Fatal(err)
	}
}

// request requests a secret at one of the brokers, and returns the result of the access list
// and the id of the entry that permits the use, if any.
func (l *lists) request(ctx context.Context, broker int, by *emit.Emitter, name string) string {
	e, seq := l.in.put(by, contract.EventSecretRequested, "", "c-1", []byte(`{}`))
	return l.again(ctx, broker, e, seq, name)
}

// again handles a request that is on the ledger already.
func (l *lists) again(ctx context.Context, broker int, e *contract.Event, seq uint64, name string) string {
	l.t.Helper()
	v, list, no, err := l.brokers[broker].check(ctx, e, seq, &secret.Request{CallID: "c-1", Allowed: int64(l.allowed), Names: []string{name}})
	if err != nil || len(list) != 1 || list[0].Name != name || (no.reason == "") != (list[0].Result == contract.AccessAllowed) || no.reason == "" && len(v) != 1 {
		l.t.Fatal(v, list, no, err)
	}
	return strings.TrimSuffix(list[0].Result+" "+list[0].Entry, " ")
}

// TestListed shows that the broker compares each request with the access list as it is at the
// time of the request, beside the intent: with the default intent, the intent alone decides
// about secrets that are not listed; a list never permits more than the intent; and a change
// applies to the next request at both brokers.
func TestListed(t *testing.T) {
	l := newLists(t)
	past, later := contract.Time(time.Now().Add(-time.Second)), contract.Time(time.Now().Add(time.Hour))
	for _, c := range []struct {
		what         string
		byDefault    string
		listed       string
		entry        contract.SecretEntry
		own, request string
	}{
		{"default deny", "deny", "", contract.SecretEntry{ID: "sa-1", Secret: "other"}, "no_match", "no_match"},
		{"permitted", "deny", "", contract.SecretEntry{ID: "sa-2"}, "allowed sa-2", "allowed sa-2"},
		{"another caller", "deny", "", contract.SecretEntry{ID: "sa-3", Subject: "b"}, "no_match", "no_match"},
		{"the caller by a prefix, until later", "deny", "", contract.SecretEntry{ID: "sa-4", Subject: "a*", Tool: "cmd.*", Expires: later}, "allowed sa-4", "allowed sa-4"},
		{"expired since the decision", "deny", "", contract.SecretEntry{ID: "sa-5", Expires: past}, "expired", "expired"},
		{"requests to another host", "deny", "", contract.SecretEntry{ID: "sa-6", Host: "b.example"}, "denied", "denied"},
		{"requests to the host alone", "deny", "", contract.SecretEntry{ID: "sa-7", Host: "*.example"}, "denied", "allowed sa-7"},
		{"one method of the host", "deny", "", contract.SecretEntry{ID: "sa-8", Host: "a.example", Methods: []string{"GET"}}, "denied", "denied"},
		{"without the approval", "deny", "", contract.SecretEntry{ID: "sa-9", Approval: true}, "denied", "denied"},
		{"not listed", "intent", "token", contract.SecretEntry{ID: "sa-10", Secret: "token"}, "allowed", "allowed sa-10"},
		{"withdrawn", "intent", "own token", contract.SecretEntry{ID: "sa-11", Secret: "other"}, "no_match", "no_match"},
	} {
		l.set(c.byDefault, c.listed, c.entry)
		for i := range l.brokers {
			if own, request := l.request(t.Context(), i, l.runner, "own"), l.request(t.Context(), i, l.egress, "token"); own != c.own || request != c.request {
				t.Errorf("%s: own %q, token %q", c.what, own, request)
			}
		}
		if got := l.request(t.Context(), 0, l.runner, "token"); got != "denied" {
			t.Errorf("%s: the executor receives the credential of requests: %s", c.what, got)
		}
	}
}

// TestCapped shows that the number of calls that use an entry does not exceed its maximum if
// two brokers handle requests concurrently, that repeated requests of one call and redeliveries
// count once, and that vault.access lists the number of uses.
func TestCapped(t *testing.T) {
	l := newLists(t)
	l.set("deny", "", contract.SecretEntry{ID: "sa-1", Secret: "own", MaxUses: 3}, contract.SecretEntry{ID: "sa-2", Secret: "none", MaxUses: 1})
	for range 2 {
		e, seq := l.in.put(l.runner, contract.EventSecretRequested, "", "c-1", []byte(`{}`))
		for i := range l.brokers {
			if got := l.again(t.Context(), i, e, seq, "own"); got != "allowed sa-1" {
				t.Error(got)
			}
		}
	}
	x := accessLists{l.brokers[0].env.Emit}
	if n, err := x.counted(t.Context(), "t", "sa-1"); err != nil || n.uses != 1 {
		t.Error(n, err)
	}
	entry := contract.SecretEntry{ID: "sa-1", MaxUses: 3}
	var mu sync.Mutex
	var wg sync.WaitGroup
	spent := 0
	for i := range 16 {
		wg.Go(func() {
			e, _ := l.in.put(l.runner, contract.EventSecretRequested, "", fmt.Sprintf("c-other-%d", i/2), []byte(`{}`)) // two requests of each call
			ok, err := accessLists{l.brokers[i%2].env.Emit}.spend(t.Context(), e, 1, &entry)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if ok && i%2 == 0 {
				spent++
			}
		})
	}
	wg.Wait()
	if n, err := x.counted(t.Context(), "t", "sa-1"); err != nil || n.uses != 3 || spent != 2 {
		t.Errorf("%d uses of 3, %d of other calls; %v", n.uses, spent, err)
	}
	if got := l.request(t.Context(), 1, l.runner, "own"); got != "allowed sa-1" {
		t.Errorf("the call that was counted is refused: %s", got)
	}
	e, _ := l.in.put(l.runner, contract.EventSecretRequested, "", "c-late", []byte(`{}`))
	if left, err := x.left(t.Context(), e, 1, &entry); err != nil || left {
		t.Error("a fourth call has uses left", err)
	}
	var out struct {
		Default string
		Entries []struct {
			ID   string
			Uses int64
		}
	}
	if err := json.Unmarshal(l.brokers[1].do(kindAccess, `{}`).Output, &out); err != nil || out.Default != "deny" || len(out.Entries) != 2 || out.Entries[0].Uses != 3 || out.Entries[1].Uses != 0 {
		t.Errorf("%+v %v", out, err)
	}
}

// TestForgedList shows that an event of another service, or in another tenant, is no access
// list, and that a malformed one denies.
func TestForgedList(t *testing.T) {
	l := newLists(t)
	l.set("deny", "")
	open := &policyevents.SecretAccessSet{Access: contract.Bytes(&contract.SecretAccess{Default: contract.SecretDefaultIntent}), Change: "default_set"}
	if _, err := l.runner.Append(t.Context(), l.runner.New(policyevents.SecretAccessSetName, contract.KeySecretAccess, contract.Bytes(open), nil)); err != nil {
		t.Fatal(err)
	}
	other := l.in.policy.In("u")
	if _, err := other.Append(t.Context(), other.New(policyevents.SecretAccessSetName, contract.KeySecretAccess, contract.Bytes(open), nil)); err != nil {
		t.Fatal(err)
	}
	if got := l.request(t.Context(), 0, l.runner, "own"); got != "no_match" {
		t.Errorf("a forged list is in force: %s", got)
	}
	if _, err := l.in.policy.Append(t.Context(), l.in.policy.New(policyevents.SecretAccessSetName, contract.KeySecretAccess, []byte(`{"access":1,"change":"x"}`), nil)); err != nil {
		t.Fatal(err)
	}
	e, seq := l.in.put(l.runner, contract.EventSecretRequested, "", "c-1", []byte(`{}`))
	if v, _, _, err := l.brokers[0].check(t.Context(), e, seq, &secret.Request{CallID: "c-1", Allowed: int64(l.allowed), Names: []string{"own"}}); err == nil {
		t.Error("a malformed list permits", v)
	}
}
