package mesh

import (
	"maps"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
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
// tenants, whatever tenant the Provisioner has, and that a document for a tenant that
// does not exist is recorded when policy has created the tenant.
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
		if _, err := m.Append(t.Context(), m.New(contract.EventPrincipalRegistered, "tenant-"+tenant, []byte("{}"), nil)); err != nil {
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
