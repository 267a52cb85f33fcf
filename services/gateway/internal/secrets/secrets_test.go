package secrets

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
)

// TestHeldValues checks that a value is held until it expires, that a second value of a
// call is ignored, and that the number of values is limited.
func TestHeldValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heldValues
		if err := h.hold("c-1", heldValue{tenant: "t", session: "s-1", sealed: []byte("first")}); err != nil {
			t.Fatal(err)
		}
		if err := h.hold("c-1", heldValue{tenant: "t", session: "s-1", sealed: []byte("second")}); err != nil {
			t.Fatal(err)
		}
		if v, ok := h.get("c-1"); !ok || string(v.sealed) != "first" {
			t.Error("the first value counts:", string(v.sealed), ok)
		}
		h.until("c-1", time.Now().Add(time.Hour)) // as if the call was escalated
		time.Sleep(30 * time.Minute)
		if _, ok := h.get("c-1"); !ok {
			t.Error("dropped before people have decided")
		}
		time.Sleep(time.Hour)
		if _, ok := h.get("c-1"); ok {
			t.Error("held after its time")
		}
		for i := range maxHeldValues {
			if err := h.hold(fmt.Sprint("d-", i), heldValue{tenant: "t", session: "s", sealed: nil}); err != nil {
				t.Fatal(i, err)
			}
		}
		if err := h.hold("c-2", heldValue{tenant: "t", session: "s", sealed: nil}); err == nil {
			t.Error("more are held than the bound")
		}
		h.drop("d-0")
		if err := h.hold("c-2", heldValue{tenant: "t", session: "s", sealed: nil}); err != nil {
			t.Error(err)
		}
		time.Sleep(holdValue + time.Second)
		if err := h.hold("c-3", heldValue{tenant: "t", session: "s", sealed: nil}); err != nil || len(h.by) != 1 {
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
		return h.hold(fmt.Sprint("c-", n), heldValue{tenant: tenant})
	}
	if err := hold("quiet"); err != nil {
		t.Fatal(err)
	}
	h.leave("c-1")
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
			if err := h.hold("c-1", heldValue{tenant: "t", session: "s-1", sealed: []byte("first")}); err != nil {
				t.Fatal(err)
			}
		}
		hold()
		if escalated {
			h.until("c-1", time.Now().Add(time.Hour))
			h.leave("c-1")
		}
		hold() // a second request for the same call
		h.leave("c-1")
		if v, ok := h.get("c-1"); !ok || string(v.sealed) != "first" {
			t.Errorf("%s: the first request's value is dropped", name)
		}
		h.leave("c-1")
		if _, ok := h.get("c-1"); ok != escalated {
			t.Errorf("%s: held after the last request: %t", name, ok)
		}
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
			e := m.New(contract.EventAllowed, c.session, []byte(`{}`), nil)
			e.Session, e.CallID, e.Target = c.session, c.call, c.executor
			if _, _, err := eventlog.AppendEvent(t.Context(), log, e); err != nil {
				t.Fatal(err)
			}
			s := &API{Ledger: log}
			if got, err := s.allowed(t.Context(), "c-1", &heldValue{tenant: "t", session: "s-1"}); err != nil || got != c.want {
				t.Error(got, err, e.Subject())
			}
		})
	}
}
