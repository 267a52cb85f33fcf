package view

import (
	"encoding/base64"
	"errors"
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

func named(name string, filters ...string) Declaration {
	return Declaration{View: services.View{Name: name}, Reader: bus.Reader{Filters: filters}}
}

// TestSelection shows that Of returns the views whose filters match an entry, also from
// its cache, and that Select rejects a filter that is not one for events or that
// restricts more than service and event.
func TestSelection(t *testing.T) {
	views := []Declaration{named("all", bus.Filter{}.String()), named("policy", bus.Filter{Service: "policy"}.String()),
		named("outcomes", bus.Filters("", contract.EventEffectRecorded)...),
		named("two", append(bus.Filters("policy", contract.EventEffectRecorded), bus.Filters("judge", contract.EventEffectStarted)...)...)}
	s, err := Select(views)
	if err != nil {
		t.Fatal(err)
	}
	subject := func(service, event string) string {
		return bus.Filter{Tenant: "t", Service: service, Origin: "gw1", Event: event, Key: "s-1"}.String()
	}
	for range 2 { // the second call uses the cache
		for at, want := range map[string][]int{
			"": {0}, // an entry that is not a valid event
			subject("policy", contract.EventEffectRecorded): {0, 1, 2, 3},
			subject("judge", contract.EventEffectRecorded):  {0, 2},
			subject("judge", contract.EventEffectStarted):   {0, 3},
			subject("policy", contract.EventEffectStarted):  {0, 1},
			subject("gateway", contract.EventCallProposed):  {0},
		} {
			if got := s.Of(at); !slices.Equal(got, want) {
				t.Errorf("%q is read by %v, want %v", at, got, want)
			}
		}
	}
	for _, f := range []string{bus.Filter{Tenant: "t"}.String(), bus.SessionFilter("t", "s-1"), bus.HandOutFilter, "tmp.>", ""} {
		if _, err := Select([]Declaration{named("x", f)}); err == nil {
			t.Errorf("a view that reads %q can be selected for", f)
		}
	}
}

func TestFold(t *testing.T) {
	refused := errors.New("refused")
	n := 0
	s := Fold(func(e *contract.Event) error {
		if e.ID == "bad" {
			return refused
		}
		n++
		return nil
	}, func() []byte { return []byte{byte('0' + n)} })
	for _, e := range []*contract.Event{{ID: "a"}, nil, {ID: "b"}} {
		if err := s.Apply(eventlog.Entry{}, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Apply(eventlog.Entry{}, &contract.Event{ID: "bad"}); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if dump, err := s.Dump(); err != nil || string(dump) != "2" {
		t.Errorf("dumped %s, %v", dump, err)
	}
}

// TestKeys shows that the view has the state of the key registry, that it ignores events
// that are not key events of provision, that a document that the registry rejects
// changes nothing and is no error, and that Key returns false for an event whose
// document cannot be decoded.
func TestKeys(t *testing.T) {
	root, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	doc := trust.Publish(root, contract.TrustKey{Algorithm: "ed25519", KID: root.KID, Owner: services.Provision,
		PublicKey: base64.StdEncoding.EncodeToString(root.Public()), Tenant: "t", Uses: []string{contract.UseRoot}})
	event := func(source, name string, k contract.TrustKey, lamport uint64) *contract.Event {
		return &contract.Event{Source: source, Name: name, Data: contract.Bytes(&k), Lamport: lamport}
	}
	good := event("provision/provision-1", contract.EventKeyPublished, doc, 1)
	forged := doc
	forged.Owner = services.Policy
	want := &trust.Registry{Root: root.KID}
	if err := want.Apply(doc, 1); err != nil {
		t.Fatal(err)
	}
	s, err := Keys(services.Policy).Empty(&Origin{RootKID: root.KID})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []*contract.Event{good, event("provision/provision-1", contract.EventKeyPublished, forged, 2), event("policy/policy-1", contract.EventKeyRevoked, doc, 3),
		event("provision/provision-1", contract.EventLogEpochOpened, doc, 4)} {
		if err := s.Apply(eventlog.Entry{}, e); err != nil {
			t.Fatal(err)
		}
	}
	if dump, err := s.Dump(); err != nil || len(dump) == 0 || string(dump) != string(want.Dump()) {
		t.Errorf("dumped %s, %v; want %s", dump, err, want.Dump())
	}
	if _, ok := Key(&contract.Event{Source: "provision/provision-1", Name: contract.EventKeyPublished, Data: []byte("{")}); ok {
		t.Error("a document that cannot be read is a key")
	}
}

// TestOf shows that a declaration has the name, path and query of the view in package
// services, and that Of panics for a view that is not there.
func TestOf(t *testing.T) {
	d := Of(services.Policy, services.ViewBudget, bus.Reader{Name: "budget"}, nil)
	if v, of, ok := services.ViewAt("policy-budget"); !ok || of != services.Policy || d.View != v || d.Reader.Name != "budget" {
		t.Errorf("%+v", d)
	}
	defer func() {
		if recover() == nil {
			t.Error("a view that the registry does not have is declared")
		}
	}()
	Of(services.Judge, services.ViewBudget, bus.Reader{}, nil)
}
