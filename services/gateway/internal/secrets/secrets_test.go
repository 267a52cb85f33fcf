package secrets

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

// TestHeldValues checks that a value is held until it expires, that a second value under the same
// key is ignored, and that the number of values is limited.
func TestHeldValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heldValues
		if err := h.hold(heldKey{call: "c-1"}, heldValue{tenant: "t", sessions: []string{"s-1"}, sealed: []byte("first")}); err != nil {
			t.Fatal(err)
		}
		if err := h.hold(heldKey{call: "c-1"}, heldValue{tenant: "t", sessions: []string{"s-1"}, sealed: []byte("second")}); err != nil {
			t.Fatal(err)
		}
		if err := h.hold(heldKey{"c-1", "x"}, heldValue{tenant: "t", sessions: []string{"s-1"}, sealed: []byte("third")}); err != nil {
			t.Fatal(err)
		}
		if v, ok := h.get(heldKey{"c-1", "x"}); !ok || string(v.sealed) != "third" {
			t.Error("another value of the call:", string(v.sealed), ok)
		}
		h.drop(heldKey{"c-1", "x"})
		if v, ok := h.get(heldKey{call: "c-1"}); !ok || string(v.sealed) != "first" {
			t.Error("the first value counts:", string(v.sealed), ok)
		}
		h.until(heldKey{call: "c-1"}, time.Now().Add(time.Hour)) // as if the call was escalated
		time.Sleep(30 * time.Minute)
		if _, ok := h.get(heldKey{call: "c-1"}); !ok {
			t.Error("dropped before people have decided")
		}
		time.Sleep(time.Hour)
		if _, ok := h.get(heldKey{call: "c-1"}); ok {
			t.Error("held after its time")
		}
		for i := range maxHeldValues {
			if err := h.hold(heldKey{call: fmt.Sprint("d-", i)}, heldValue{tenant: "t", sessions: []string{"s"}, sealed: nil}); err != nil {
				t.Fatal(i, err)
			}
		}
		if err := h.hold(heldKey{call: "c-2"}, heldValue{tenant: "t", sessions: []string{"s"}, sealed: nil}); err == nil {
			t.Error("more are held than the bound")
		}
		h.drop(heldKey{call: "d-0"})
		if err := h.hold(heldKey{call: "c-2"}, heldValue{tenant: "t", sessions: []string{"s"}, sealed: nil}); err != nil {
			t.Error(err)
		}
		time.Sleep(holdValue + time.Second)
		if err := h.hold(heldKey{call: "c-3"}, heldValue{tenant: "t", sessions: []string{"s"}, sealed: nil}); err != nil || len(h.by) != 1 {
			t.Error("what is over counts:", len(h.by), err)
		}
	})
}

// TestHeldByTenants checks that the values of one tenant leave room for those of another
// one, and that values which are no longer held do not count.
func TestHeldByTenants(t *testing.T) {
	var h heldValues
	n := 0
	hold := func(tenant string) error {
		n++
		return h.hold(heldKey{call: fmt.Sprint("c-", n)}, heldValue{tenant: tenant, sessions: []string{"s"}})
	}
	if err := hold("quiet"); err != nil {
		t.Fatal(err)
	}
	h.leave(heldKey{call: "c-1"})
	for hold("noisy") == nil {
	}
	if held := len(h.by); held != maxHeldValues/2 {
		t.Error("one tenant holds", held)
	}
	for range 20 {
		if err := hold("quiet"); err != nil {
			t.Fatal("no room for the other tenant:", err)
		}
	}
	for call := range h.by {
		h.drop(call)
		h.drop(call)
	}
	if h.room.All() != 0 {
		t.Error("values are counted after all were removed:", h.room.All())
	}
}

// TestRepeatLeaves checks that a request that ends early does not drop the value of its
// call if another request under the same call id waits, or if the call was escalated.
// Without an escalation, the last request drops the value.
func TestRepeatLeaves(t *testing.T) {
	for name, escalated := range map[string]bool{"another waits": false, "escalated": true} {
		var h heldValues
		hold := func() {
			if err := h.hold(heldKey{call: "c-1"}, heldValue{tenant: "t", sessions: []string{"s-1"}, sealed: []byte("first")}); err != nil {
				t.Fatal(err)
			}
		}
		hold()
		if escalated {
			h.until(heldKey{call: "c-1"}, time.Now().Add(time.Hour))
			h.leave(heldKey{call: "c-1"})
		}
		hold() // a second request for the same call
		h.leave(heldKey{call: "c-1"})
		if v, ok := h.get(heldKey{call: "c-1"}); !ok || string(v.sealed) != "first" {
			t.Errorf("%s: the first request's value is dropped", name)
		}
		h.leave(heldKey{call: "c-1"})
		if _, ok := h.get(heldKey{call: "c-1"}); ok != escalated {
			t.Errorf("%s: held after the last request: %t", name, ok)
		}
	}
}

// allowedCall returns the data of the event that allows a call with a body.
func allowedCall(call string, body *contract.Content) []byte {
	a := contract.Allowed{Call: contract.Call{ID: call, Kind: "vault.put", Scopes: []string{}, Body: body}}
	a.Decision.Facts = []byte("{}")
	return contract.Bytes(&a)
}

// TestWhichValue shows that, of two values that are held under one call's id for requests in
// different sessions, allowed returns the MAC of the one whose call was allowed, and that
// sessions returns the sessions of all these requests.
func TestWhichValue(t *testing.T) {
	log := &memlog.Log{}
	s := &API{Ledger: log, Calls: &calls.API{Runner: &calls.Runner{Blobs: (&blob.Store{}).In("t")}}}
	for i, mac := range []string{"one", "two", "two", "two"} {
		if err := s.values.hold(heldKey{"c-1", mac}, heldValue{tenant: "t", sessions: []string{fmt.Sprint("s-", i%3)}, sealed: []byte(mac)}); err != nil {
			t.Fatal(err)
		}
	}
	sessions := s.values.sessions("t", "c-1")
	if !slices.Equal(sessions, []string{"s-0", "s-1", "s-2"}) || s.values.sessions("u", "c-1") != nil || s.values.sessions("t", "c-2") != nil {
		t.Errorf("%v", sessions)
	}
	body, err := s.Calls.Blobs.Commit(t.Context(), []byte(`{"value_mac":"two"}`), "application/json")
	if err != nil {
		t.Fatal(err)
	}
	m := &emit.Emitter{Log: log, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
	e := m.New(contract.EventAllowed, "s-2", allowedCall("c-1", &body), nil)
	e.Session, e.CallID, e.Target = "s-2", "c-1", "vault-broker"
	if _, _, err := eventlog.AppendEvent(t.Context(), log, e); err != nil {
		t.Fatal(err)
	}
	if mac, err := s.allowed(t.Context(), "t", "c-1", sessions); mac != "two" || err != nil {
		t.Errorf("%q %v", mac, err)
	}
}

// TestAllowed checks that a call counts as allowed only if policy allowed that call, in
// its session and for the vault-broker, according to the ledger.
func TestAllowed(t *testing.T) {
	for name, c := range map[string]struct {
		service, executor, session, call, tenant string
		want                                     bool
	}{
		"allowed":          {"policy", "vault-broker", "s-1", "c-1", "t", true},
		"another executor": {"policy", "session-runner", "s-1", "c-1", "t", false},
		"another call":     {"policy", "vault-broker", "s-1", "c-2", "t", false},
		"another session":  {"policy", "vault-broker", "s-2", "c-1", "t", false},
		"another tenant":   {"policy", "vault-broker", "s-1", "c-1", "u", false},
		"by somebody else": {"audit", "vault-broker", "s-1", "c-1", "t", false},
	} {
		t.Run(name, func(t *testing.T) {
			log := &memlog.Log{}
			m := &emit.Emitter{Log: log, Tenant: c.tenant, Source: c.service + "/x1", Now: time.Now}
			e := m.New(contract.EventAllowed, c.session, allowedCall(c.call, nil), nil)
			e.Session, e.CallID, e.Target = c.session, c.call, c.executor
			if _, _, err := eventlog.AppendEvent(t.Context(), log, e); err != nil {
				t.Fatal(err)
			}
			s := &API{Ledger: log}
			if mac, err := s.allowed(t.Context(), "t", "c-1", []string{"s-0", "s-1"}); mac != "" || (err == nil) != c.want || err != nil && !errors.Is(err, eventlog.ErrNotFound) {
				t.Error(mac, err, e.Subject())
			}
		})
	}
}
