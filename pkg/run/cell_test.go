package run

import (
	"context"
	"encoding/base64"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
)

// cellWorld is a ledger of provision's events, and an instance that reads it.
type cellWorld struct {
	t    *testing.T
	log  memlog.Log
	env  *Env
	read uint64
}

func newCellWorld(t *testing.T, root *sign.Key) *cellWorld {
	w := &cellWorld{t: t, env: newEnv(&Config{RootKID: root.KID}, "judge", "judge-1", nil)}
	w.env.Trust.see = func(uint64) {}
	w.env.Cell.reach = func(context.Context) (uint64, error) {
		for en, err := range w.log.Scan(t.Context(), eventlog.Every, w.read+1) {
			if err != nil {
				return 0, err
			}
			if err := w.env.Trust.apply(en); err != nil {
				return 0, err
			}
			w.read = en.Seq
		}
		return w.read, nil
	}
	return w
}

// add appends an event of provision in a tenant.
func (w *cellWorld) add(tenant, name, key string, data []byte) {
	w.t.Helper()
	w.by("provision", tenant, name, key, data)
}

// by appends an event of a service in a tenant.
func (w *cellWorld) by(service, tenant, name, key string, data []byte) {
	w.t.Helper()
	m := &emit.Emitter{Log: &w.log, Tenant: tenant, Source: service + "/" + service + "-1", Now: time.Now}
	if _, err := m.Append(w.t.Context(), m.New(name, key, data, nil)); err != nil {
		w.t.Fatal(err)
	}
}

// publish appends the publication of a root key, signed by itself.
func (w *cellWorld) publish(tenant string, by *sign.Key) {
	w.t.Helper()
	doc := trust.Publish(by, contract.TrustKey{Algorithm: "ed25519", KID: by.KID, Owner: "provision",
		PublicKey: base64.StdEncoding.EncodeToString(by.Public()), Tenant: tenant, Uses: []string{contract.UseRoot}})
	w.add(tenant, contract.EventKeyPublished, "trust", contract.Bytes(&doc))
}

// open appends cell_opened, signed by a key.
func (w *cellWorld) open(tenant, original string, by *sign.Key) {
	w.t.Helper()
	doc := contract.CellOpened{Cell: contract.CellTenant, Log: tenant, SignerKID: by.KID, Tenant: original}
	doc.Sig = by.Sign(sign.DomainCell, contract.Bytes(&doc))
	w.add(tenant, contract.EventCellOpened, "cell", contract.Bytes(&doc))
}

// expect checks the state of the cell, the name of the log, and for each tenant in standing the
// results of the method standing.
func (w *cellWorld) expect(want handle.Cell, log string, standing map[string][2]bool) {
	w.t.Helper()
	if got, err := w.env.Cell.Now(w.t.Context()); err != nil || got != want {
		w.t.Errorf("cell %+v %v, want %+v", got, err, want)
	}
	if got := w.env.Cell.Log(); got != log {
		w.t.Errorf("log %q, want %q", got, log)
	}
	for tenant, s := range standing {
		if cell, member := w.env.Cell.standing(tenant); cell != s[0] || member != s[1] {
			w.t.Errorf("tenant %q: cell %v, exists %v", tenant, cell, member)
		}
	}
}

// TestCell shows that the tenant of the first valid key is the ledger's only tenant and
// that of the mesh itself until cell_opened, and that the log keeps its name afterwards.
// A key that the registry rejects, an opening that no root key signed, and a second
// opening change nothing.
func TestCell(t *testing.T) {
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	forger, err := sign.NewKey([]byte("a key that is not of the ledger."))
	if err != nil {
		t.Fatal(err)
	}
	w := newCellWorld(t, root)
	w.publish("forged", forger)
	w.expect(handle.Cell{}, "", map[string][2]bool{"forged": {true, true}, "a": {true, true}})
	w.publish("a", root)
	w.open("a", "a", forger)
	only := map[string][2]bool{"a": {true, true}, "b": {}, "forged": {}, "": {}, contract.CellTenant: {true, false}}
	w.expect(handle.Cell{Tenant: "a", Original: "a"}, "a", only)
	w.open("a", "a", root)
	opened := map[string][2]bool{"a": {false, true}, contract.CellTenant: {true, false}, "b": {}, "": {}}
	w.expect(handle.Cell{Tenant: contract.CellTenant, Original: "a", Opened: 4}, "a", opened)
	w.open(contract.CellTenant, "b", root)
	w.expect(handle.Cell{Tenant: contract.CellTenant, Original: "a", Opened: 4}, "a", opened)

	fresh := newCellWorld(t, root)
	fresh.publish(contract.CellTenant, root)
	fresh.open(contract.CellTenant, "b", root)
	fresh.expect(handle.Cell{Tenant: contract.CellTenant, Original: "b", Opened: 2}, contract.CellTenant,
		map[string][2]bool{"b": {false, true}, contract.CellTenant: {true, false}, "a": {}})
}

// TestCellNow shows that Now tries again after a request that failed, and returns the
// error of its context once that is done.
func TestCellNow(t *testing.T) {
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	w := newCellWorld(t, root)
	reach, failures := w.env.Cell.reach, 2
	w.env.Cell.reach = func(ctx context.Context) (uint64, error) {
		if failures--; failures >= 0 {
			return 0, context.DeadlineExceeded // the deadline of the request, not of ctx
		}
		return reach(ctx)
	}
	if _, err := w.env.Cell.Now(t.Context()); err != nil || failures != -1 {
		t.Error(err, failures)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failures = 1
	if _, err := w.env.Cell.Now(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestCellTenants shows that the Cell has the tenants that policy has created, with their
// state and quota, and the operators; that it ignores such events of other services and
// in other tenants; that Await finds a tenant that has just been created; and that an
// event closes the channel of Changed.
func TestCellTenants(t *testing.T) {
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	w := newCellWorld(t, root)
	cell := w.env.Cell
	check := func(what, tenant string, exists, suspended bool) {
		t.Helper()
		if e, s := cell.Check(tenant); e != exists || s != suspended {
			t.Errorf("%s: tenant %s exists %v, suspended %v", what, tenant, e, s)
		}
	}
	check("empty", "a", false, false)
	check("empty", "", false, false)
	w.publish("a", root)
	if !cell.Await(t.Context(), "a") || cell.Tenant() != "a" {
		t.Error("the original tenant does not exist:", cell.Tenant())
	}
	check("not opened", contract.CellTenant, false, false)
	w.open("a", "a", root)
	created := func(env string) []byte {
		return contract.Bytes(&contract.TenantCreated{Admin: "ann", Organization: "acme", Project: "web", Environment: env, Quota: &contract.Quota{InFlight: 7}, Tenant: "acme_web_" + env})
	}
	key := "tenant-acme_web_prod"
	w.by("judge", contract.CellTenant, contract.EventTenantCreated, key, created("prod"))
	w.by("policy", "a", contract.EventTenantCreated, key, created("prod"))
	if cell.Await(t.Context(), "acme_web_prod") {
		t.Error("an event that must be ignored has created a tenant")
	}
	check("opened", "a", true, false)
	check("opened", contract.CellTenant, true, false)
	if cell.Tenant() != contract.CellTenant {
		t.Error("the cell is not opened")
	}
	w.by("policy", contract.CellTenant, contract.EventTenantCreated, key, created("prod"))
	check("not read", "acme_web_prod", false, false)
	if !cell.Await(t.Context(), "acme_web_prod") || cell.Quota("acme_web_prod").InFlight != 7 || cell.Quota("a").InFlight != 0 {
		t.Error("the tenant does not exist, or its quota is wrong")
	}
	changed := cell.Changed()
	select {
	case <-changed:
		t.Error("the channel is closed although no event was read after the call of Changed")
	default:
	}
	w.by("policy", contract.CellTenant, contract.EventTenantSuspended, key, contract.Bytes(&contract.TenantState{Reason: "x", Tenant: "acme_web_prod"}))
	w.by("policy", contract.CellTenant, contract.EventTenantQuotaSet, key, contract.Bytes(&contract.TenantQuotaSet{Quota: contract.Quota{BodyBytes: 9}, Tenant: "acme_web_prod"}))
	w.expect(handle.Cell{Tenant: contract.CellTenant, Original: "a", Opened: 2}, "a", map[string][2]bool{"acme_web_prod": {false, true}})
	check("suspended", "acme_web_prod", true, true)
	select {
	case <-changed:
	default:
		t.Error("the suspension does not close the channel of Changed")
	}
	if cell.Quota("acme_web_prod") != (contract.Quota{BodyBytes: 9}) {
		t.Error(cell.Quota("acme_web_prod"))
	}
	w.by("policy", contract.CellTenant, contract.EventTenantResumed, key, contract.Bytes(&contract.TenantState{Reason: "x", Tenant: "acme_web_prod"}))
	operator := contract.Operator{Issued: contract.Time(time.Unix(1_700_000_000, 0)), NotAfter: contract.Time(time.Unix(1_700_000_100, 0)), Principal: "olga", SignerKID: root.KID}
	operator.Sig = root.Sign(sign.DomainOperator, contract.Bytes(&operator))
	w.add(contract.CellTenant, contract.EventOperatorDelegated, "operators", contract.Bytes(&operator))
	w.expect(handle.Cell{Tenant: contract.CellTenant, Original: "a", Opened: 2}, "a", nil)
	check("resumed", "acme_web_prod", true, false)
	for at, want := range map[int64]bool{1_700_000_050: true, 1_700_000_101: false} {
		if cell.Operator("olga", contract.Time(time.Unix(at, 0))) != want || cell.Operator("ann", contract.Time(time.Unix(at, 0))) {
			t.Errorf("operators at %d", at)
		}
	}
}

// TestTrustAwait shows that Await returns at once for a sequence that the registry has
// read; that otherwise it waits, and tries again, until the registry has read it; that it
// stores how far the registry has read; and that it returns the error of its context.
func TestTrustAwait(t *testing.T) {
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	w := newCellWorld(t, root)
	keys, calls, lag := w.env.Trust, 0, 2
	keys.position = func() uint64 { return w.read }
	keys.reach = func(ctx context.Context) (uint64, error) {
		switch calls++; {
		case calls == 1:
			return 0, context.DeadlineExceeded // the deadline of the request, not of ctx
		case calls <= lag:
			return w.read, nil // the server that responded has not stored every event yet
		}
		at, err := w.env.Cell.reach(ctx)
		return at + 10, err // the end of the ledger is after the last key event
	}
	w.publish("a", root)
	valid := func() bool {
		_, err := keys.At(root.KID, "provision", contract.UseRoot, 1)
		return err == nil
	}
	if valid() {
		t.Fatal("the key is known before it was read")
	}
	for seq, want := range map[uint64]int{1: 3, 11: 3} {
		if err := keys.Await(t.Context(), seq); err != nil || !valid() || calls != want {
			t.Errorf("sequence %d: %v, key known %v, %d requests", seq, err, valid(), calls)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	keys.reach = func(context.Context) (uint64, error) { return 0, ctx.Err() }
	if err := keys.Await(ctx, 12); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
