package mesh

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// again returns a new Provisioner of a ring.
func again(ring *keyring.Ring) *Provisioner {
	p := &Provisioner{Ring: ring}
	p.read.ready = make(chan struct{})
	return p
}

// subjects returns the number of events on the ledger by the subject's tenant and event
// name.
func subjects(t *testing.T, c *bus.Conn) map[string]int {
	t.Helper()
	n := map[string]int{}
	for en, err := range (eventlog.JetStream{Conn: c}).Scan(t.Context(), eventlog.Every, 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			t.Fatal(err)
		}
		n[e.Tenant+" "+e.Name]++
	}
	return n
}

// TestPublishByTenant shows that the documents of a ring are recorded once, in their own
// tenants, and that a document for a tenant that does not exist is recorded when policy
// has created the tenant. A revocation is recorded once, too.
func TestPublishByTenant(t *testing.T) {
	b := meshtest.Start(t, Declarations())
	c := b.Connect(t, "provision")
	ring, err := keyring.Init(t.TempDir(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	p := again(ring)
	for _, tenant := range []string{"", "b_p_e"} {
		if _, err := p.Ring.AddKey(contract.UseApproval, "bob", tenant, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Ring.OpenEpoch([]byte("a checkpoint"), "lost"); err != nil {
		t.Fatal(err)
	}
	docs, err := p.Ring.Trust()
	if err != nil {
		t.Fatal(err)
	}
	publish := func(p *Provisioner, want map[string]int) {
		t.Helper()
		if err := p.record(t.Context(), c, p.emitter(c)); err != nil {
			t.Fatal(err)
		}
		if got := subjects(t, c); !maps.Equal(got, want) {
			t.Fatalf("events %v, want %v", got, want)
		}
	}
	want := map[string]int{"_cell key_published": len(docs) - 2, "_cell log_epoch_opened": 1, "_cell cell_opened": 1, "_cell operator_delegated": 1, "acme key_published": 1}
	for range 2 {
		publish(p, want)
	}
	publish(again(p.Ring), want)

	m := &emit.Emitter{Log: eventlog.JetStream{Conn: b.Connect(t, "policy")}, Tenant: contract.CellTenant, Source: "policy/policy-1", Now: time.Now}
	for _, tenant := range []string{"c_p_e", "b_p_e"} {
		publish(p, want)
		if _, err := m.Append(t.Context(), m.New(contract.EventPrincipalRegistered, contract.TenantKey(tenant), []byte("{}"), nil)); err != nil {
			t.Fatal(err)
		}
		want["_cell principal_registered"]++
	}
	want["b_p_e key_published"] = 1
	publish(p, want)

	if err := p.Ring.Revoke(docs[len(docs)-1].KID); err != nil {
		t.Fatal(err)
	}
	want["b_p_e key_revoked"] = 1
	for range 2 {
		publish(p, want)
	}
	publish(again(p.Ring), want)
}

// TestPublishKeyOnce shows that a key is published once although the ring has documents
// of it for two tenants, that the key of a person is revoked only by a document for its
// owner and tenant, and a key of the mesh's own by one for another tenant too, and that a
// revocation of a key that the ledger does not have is not published.
func TestPublishKeyOnce(t *testing.T) {
	log := &memlog.Log{}
	m := &emit.Emitter{Log: log, Source: "provision/provision-1", Now: time.Now}
	doc := func(kid, owner, tenant string, revoked bool) *contract.TrustKey {
		return &contract.TrustKey{Algorithm: "ed25519", KID: kid, Owner: owner, PublicKey: "x", Revoked: revoked, SignerKID: "k-root", Sig: "x", Tenant: tenant, Uses: []string{contract.UseApproval}}
	}
	names := func() (all []string) {
		for en, err := range log.Scan(t.Context(), eventlog.Every, 1) {
			if err != nil {
				t.Fatal(err)
			}
			e, err := eventlog.Open(en, eventlog.Every)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e.Tenant+" "+e.Name)
		}
		return all
	}
	for _, c := range []struct {
		k     *contract.TrustKey
		added bool
	}{
		{doc("k-1", "approver:ann", "a", true), false},
		{doc("k-1", "approver:ann", "a", false), true},
		{doc("k-1", "approver:ann", "a", false), false},
		{doc("k-1", "approver:ann", "b", false), false},
		{doc("k-1", "approver:bob", "a", false), false},
		{doc("k-1", "approver:ann", "b", true), false},
		{doc("k-1", "approver:bob", "a", true), false},
		{doc("k-1", "approver:ann", "a", true), true},
		{doc("k-1", "approver:ann", "a", true), false},
		{doc("k-2", "judge", "t", false), true},
		{doc("k-2", "judge", contract.CellTenant, false), false},
		{doc("k-2", "judge", contract.CellTenant, true), true},
		{doc("k-2", "judge", "t", true), false},
	} {
		before := len(names())
		have, err := keysOn(t.Context(), log)
		for range 2 { // the second time, the result is known without the ledger
			if err == nil {
				err = have.publish(t.Context(), m, c.k, false)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if added := len(names()) - before; added > 1 || (added == 1) != c.added {
			t.Errorf("%s of %s in %s, revoked %v: %d events added, want %v", c.k.KID, c.k.Owner, c.k.Tenant, c.k.Revoked, added, c.added)
		}
	}
	if want := []string{"a key_published", "a key_revoked", "t key_published", contract.CellTenant + " key_revoked"}; !slices.Equal(names(), want) {
		t.Errorf("%v, want %v", names(), want)
	}
}
