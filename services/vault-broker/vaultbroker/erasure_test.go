package vaultbroker

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
)

// TestErasure checks that the keys of a data subject are those of one tenant and one name, that an
// erasure destroys them all and no others, may be repeated, and survives opening the stores again,
// that a query by pseudonym makes no key, that later content of the subject gets a key with a new
// id, and that the erasure of a tenant destroys the keys of all its subjects.
func TestErasure(t *testing.T) {
	s := &Service{Config: Config{Dir: t.TempDir(), KEK: make([]byte, 32)}}
	open := func() {
		t.Helper()
		if _, err := s.open("t"); err != nil {
			t.Fatal(err)
		}
	}
	open()
	keys := func(tenant string, q query.ContentKeysRequest) contentkeys.Keys {
		t.Helper()
		k, err := s.content.contentKeysFor(t.Context(), tenant, &q)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	subject := func(tenant, name string) contentkeys.Keys {
		t.Helper()
		k := keys(tenant, query.ContentKeysRequest{Subject: name})
		if len(k.Keys[k.Current]) != contentKeySize || contentkeys.PseudonymOf(k.Current) != k.Pseudonym {
			t.Fatalf("keys of %s: %+v", name, k)
		}
		return k
	}
	var facts int
	do := func(tenant, kind, args string) execute.Result {
		return s.content.eraseContent(context.Background(), &execute.Work{Event: &contract.Event{Tenant: tenant}, Call: &contract.Call{ID: "c-1", Kind: kind}, Args: []byte(args),
			Fact: func(name string, _ []byte) {
				if name == events.ContentKeysDestroyedName {
					facts++
				}
			}})
	}
	ann, bob, foreign, own := subject("t", "ann"), subject("t", "bob"), subject("u", "ann"), keys("t", query.ContentKeysRequest{})
	if ids := []string{ann.Current, bob.Current, foreign.Current, own.Current}; len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 4 || strings.Contains(strings.Join(ids, " "), "ann") {
		t.Fatal(ids)
	}
	if again := subject("t", "ann"); again.Current != ann.Current {
		t.Fatal(again.Current)
	}
	if none := keys("t", query.ContentKeysRequest{Pseudonym: strings.Repeat("0", 32)}); none.Current != "" || len(none.Keys) != 0 {
		t.Fatal(none)
	}
	for range 2 {
		if r := do("t", contentkeys.KindEraseSubject, `{"reason":"r","subject":"`+ann.Pseudonym+`"}`); r.ErrorCode != "" || !strings.Contains(string(r.Output), ann.Current) {
			t.Fatal(r.ErrorMessage, string(r.Output))
		}
		open()
	}
	if facts != 2 {
		t.Fatal(facts, "events")
	}
	if r := do("u", contentkeys.KindEraseSubject, `{"reason":"r","subject":"`+bob.Pseudonym+`"}`); r.ErrorCode != contract.CodeNotFound {
		t.Fatal("a tenant has erased the subject of another:", r)
	}
	if k := keys("t", query.ContentKeysRequest{Pseudonym: ann.Pseudonym}); len(k.Keys) != 0 || k.Current != "" {
		t.Fatal("the subject still has", k)
	}
	if next := subject("t", "ann"); next.Current == ann.Current || next.Pseudonym != ann.Pseudonym {
		t.Fatal(next)
	}
	if subject("t", "bob").Current != bob.Current || subject("u", "ann").Current != foreign.Current {
		t.Fatal("another subject has other keys")
	}
	if r := do("t", contentkeys.KindEraseTenant, `{"reason":"r","tenant":"u"}`); r.ErrorCode != contract.CodeInvalidInput {
		t.Fatal("a call has erased another tenant:", r)
	}
	if r := do("t", contentkeys.KindEraseTenant, `{"reason":"r","tenant":"t"}`); r.ErrorCode != "" || !strings.Contains(string(r.Output), bob.Current) || !strings.Contains(string(r.Output), own.Current) {
		t.Fatal(r.ErrorMessage, string(r.Output))
	}
	if k := keys("t", query.ContentKeysRequest{Pseudonym: bob.Pseudonym}); len(k.Keys) != 0 {
		t.Fatal("a subject of the tenant still has", k)
	}
	if next := subject("t", "bob"); next.Pseudonym == bob.Pseudonym {
		t.Fatal("the pseudonym is the same after the erasure of the tenant")
	}
	if k := keys("u", query.ContentKeysRequest{Pseudonym: foreign.Pseudonym}); len(k.Keys) != 1 {
		t.Fatal("another tenant lost keys")
	}
}
