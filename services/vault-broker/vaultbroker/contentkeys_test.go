package vaultbroker

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/store"
)

// TestContentKeys checks that content keys are released only to permitted services and for permitted
// calls, that
// a destroyed key is still missing after the stores are opened again, that its id is not
// used again, and that the keys of two tenants are independent.
func TestContentKeys(t *testing.T) {
	var services []bus.Declaration
	for _, name := range []string{"vault-broker", "gateway", "policy", "audit", "session-runner", "llm-router", "work", "egress-broker"} {
		services = append(services, bus.Declaration{Service: name, Slots: 1})
	}
	m := meshtest.Start(t, services)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	transport := func(s string) *transient.Transport {
		b := transient.NewTransport(m.Connect(t, s), "t", s, s+"-1")
		go b.Run(ctx)
		<-b.Ready()
		return b
	}
	dir := t.TempDir()
	log := &memlog.Log{}
	in := newSession(t, log)
	key, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{env: &run.Env{Transport: transport("vault-broker"), Log: slog.New(slog.DiscardHandler)}}
	s.calls = running.New(log, func(string, string, string, uint64) ([]byte, error) { return key.Public(), nil }, everyTenant{}, time.Now, nil)
	s.Dir, s.KEK = dir, make([]byte, 32)
	open := func() {
		t.Helper()
		if _, err := s.open("t"); err != nil {
			t.Fatal(err)
		}
	}
	open()
	s.serveContentKeys()
	ask := func(b *transient.Transport, more map[string]any) error {
		k, err := seal.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		q := map[string]any{"recipient": k.Public(), "from": "gateway"}
		maps.Copy(q, more)
		return meshtest.AskOne(ctx, b, "vault-broker", "vault-broker-1", contentkeys.Query.Verb, q, new(query.SealedKeys))
	}
	// An executor has the keys only for a call that it may run and that has no outcome, and those of
	// a subject only for a call about it; see decided, whose call is the session-runner's.
	const ofAnn, ofBob = "0000000000000000000000000000000a", "0000000000000000000000000000000b"
	about := decided(t, key)
	about.Call.Args.Encryption = &contract.Encryption{KeyID: contract.IDContentKey + ofAnn + "-000001"}
	_, at := in.put(in.policy, contract.EventAllowed, "session-runner", "c-1", contract.Bytes(about))
	gateway, policy, auditor, runner, router, work := transport("gateway"), transport("policy"), transport("audit"), transport("session-runner"), transport("llm-router"), transport("work")
	may := func(what string, b *transient.Transport, more map[string]any, want bool) {
		t.Helper()
		if err := ask(b, more); (err == nil) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	call := func(more map[string]any) map[string]any {
		q := map[string]any{"allowed": at}
		maps.Copy(q, more)
		return q
	}
	ann, bob := map[string]any{"pseudonym": ofAnn}, map[string]any{"pseudonym": ofBob}
	may("gateway, a subject by its name", gateway, map[string]any{"subject": "ann"}, true)
	may("policy", policy, bob, true)
	may("audit, of the tenant", auditor, nil, true)
	may("audit, of a subject", auditor, ann, false)
	may("executor without a call", runner, nil, false)
	may("executor, of the tenant of its call", runner, call(nil), true)
	may("executor, of the subject of its call", runner, call(ann), true)
	may("executor, of another subject", runner, call(bob), false)
	may("executor, a subject by its name", runner, call(map[string]any{"subject": "ann"}), false)
	may("executor, of another executor's call", router, call(ann), false)
	may("work, for a call of the session-runner", work, call(ann), true)
	may("executor, with another event", runner, map[string]any{"allowed": at + 1}, false)
	in.put(in.policy, contract.EventEffectRecorded, "", "c-1", []byte(`{}`))
	may("executor after the outcome", runner, call(ann), false)
	if err := ask(transport("egress-broker"), nil); err == nil || !strings.Contains(err.Error(), "not for egress-broker") {
		t.Fatal(err)
	}
	tenant := "t"
	do := func(kind, args string) execute.Result {
		return s.content.changeContentKey(ctx, &execute.Work{Event: &contract.Event{Tenant: tenant}, Call: &contract.Call{Kind: kind}, Args: []byte(args), Fact: func(string, []byte) {}})
	}
	if r := do(kindRotate, `{}`); string(r.Output) != `{"id":"tk-000002"}` {
		t.Fatal(r)
	}
	if r := do(contentkeys.KindDestroy, `{"id":"tk-000002"}`); r.ErrorCode != "" {
		t.Fatal(r)
	}
	if r := do(contentkeys.KindDestroy, `{"id":"tk-000002"}`); r.ErrorCode != "not_found" {
		t.Fatal(r)
	}
	open()
	k, err := s.content.contentKeys(t.Context(), "t", true)
	if err != nil || len(k.Keys) != 1 || k.Current != "tk-000001" {
		t.Fatal(k.Current, len(k.Keys), err)
	}
	// Another tenant's keys have the same ids but other values, and destroying one of
	// them leaves this tenant's key unchanged.
	other, err := s.content.contentKeys(t.Context(), "u", true)
	if err != nil || other.Current != "tk-000001" || len(other.Keys) != 1 || bytes.Equal(other.Keys["tk-000001"], k.Keys["tk-000001"]) {
		t.Fatal(other.Current, len(other.Keys), err)
	}
	tenant = "u"
	if r := do(contentkeys.KindDestroy, `{"id":"tk-000003"}`); r.ErrorCode != "not_found" {
		t.Fatal(r)
	}
	if r := do(contentkeys.KindDestroy, `{"id":"tk-000001"}`); r.ErrorCode != "" {
		t.Fatal(r)
	}
	tenant = "t"
	if again, err := s.content.contentKeys(t.Context(), "t", true); err != nil || !bytes.Equal(again.Keys["tk-000001"], k.Keys["tk-000001"]) {
		t.Fatal("destroyed by another tenant:", again.Current, err)
	}
	if r := do(kindRotate, `{}`); string(r.Output) != `{"id":"tk-000003"}` {
		t.Fatal(r)
	}
}

// TestOldStore checks that content keys that release 0.4 stored among the secrets are
// found, that a destroyed key remains destroyed, and that a secret stored under the name
// of a content key does not change that key. It also checks that a call cannot store a
// secret under such a name.
func TestOldStore(t *testing.T) {
	dir, kek := t.TempDir(), make([]byte, 32)
	old, err := store.Open(filepath.Join(dir, "secrets.json"), kek, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string][]byte{"content-key/tk-000001": {}, "content-key/tk-000002": []byte("0123456789abcdef0123456789abcdef"), "llm.openai": []byte("sk")} {
		if err := old.Put(name, v); err != nil {
			t.Fatal(err)
		}
	}
	s := &Service{}
	for range 2 {
		secrets, content, err := openStores(dir, kek, "t")
		if err != nil {
			t.Fatal(err)
		}
		s.content = &contentKeeper{store: content.Backend()}
		k, err := s.content.contentKeys(t.Context(), "t", true)
		if err != nil || k.Current != "tk-000002" || len(k.Keys) != 1 || string(k.Keys["tk-000002"]) != "0123456789abcdef0123456789abcdef" {
			t.Fatal(k, err)
		}
		if names := secrets.Names(""); len(names) != 1 || names[0] != "t/llm.openai" {
			t.Fatal(names)
		}
		// A broker of an earlier release, or a restored file, may have stored the name
		// again.
		if err := secrets.Put("content-key/tk-000002", []byte("ffffffffffffffffffffffffffffffff")); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"content-key/tk-000002", "content-key", "content-keys.json", "Content-Key.x", "../x", ""} {
		if secret.ValidName(name) {
			t.Errorf("a secret may be named %q", name)
		}
		if r := s.put(t.Context(), &execute.Work{Call: &contract.Call{ID: "c-x"}, Args: []byte(`{"name":` + strconv.Quote(name) + `}`)}); r.ErrorCode != "invalid_input" {
			t.Errorf("%q: %+v", name, r)
		}
	}
}

// TestSecretsOfTenants checks that two tenants have secrets of their own under one name,
// that equal values have different fingerprints, and that a tenant without the secret is
// refused as if no tenant had it. It also checks that a path is not accepted as a name,
// and that a tenant cannot have the name of the domain of content keys.
func TestSecretsOfTenants(t *testing.T) {
	secrets, _, err := openStores(t.TempDir(), make([]byte, 32), "t")
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{keeper: newKeeper(nil, newTokens(nil, secrets.Backend(), fileStore(t, make([]byte, 32)), nil), nil)}
	for name, v := range map[string]string{"t/llm.a": "t's", "u/llm.a": "u's", "t/same": "x", "u/same": "x"} {
		if err := secrets.Put(name, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	value := func(tenant, name string) (released, string) {
		v, no, err := s.value(t.Context(), &contract.Event{Tenant: tenant}, new(grant), name)
		if err != nil {
			t.Fatal(err)
		}
		return v, no.reason
	}
	for tenant, want := range map[string]string{"t": "t's", "u": "u's"} {
		if v, refusal := value(tenant, "llm.a"); string(v.value) != want || refusal != "" {
			t.Errorf("%s: %q %s", tenant, v.value, refusal)
		}
	}
	one, _ := value("t", "same")
	two, _ := value("u", "same")
	if one.print == two.print || one.print == "" {
		t.Errorf("equal secrets of two tenants show: %s %s", one.print, two.print)
	}
	_, other := value("w", "llm.a")
	if _, none := value("w", "llm.b"); strings.ReplaceAll(other, "llm.a", "llm.b") != none || !strings.Contains(none, "does not exist") {
		t.Errorf("%q and %q", other, none)
	}
	if _, refusal := value("w", "../t/llm.a"); refusal == "" {
		t.Error("a path to another tenant's secret is a name")
	}
	if _, _, err := openStores(t.TempDir(), make([]byte, 32), "content-key"); err == nil {
		t.Error("a tenant may have the name of the domain of content keys")
	}
}
