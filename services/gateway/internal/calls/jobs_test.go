package calls_test

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestAsync checks that an asynchronous request is answered after a second, that its call
// goes on when the client has disconnected, and that its state has the outcome. A call that
// ends within the second is answered with its outcome.
func TestAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		var c *edgetest.Call
		m.Execute = func(x *edgetest.Call) { c = x }
		alice, began := m.Token("alice", token.Tools), time.Now()
		r := m.Do("POST", path, alice, echo, "Prefer: respond-async", "Idempotency-Key: k")
		synctest.Wait()
		if r.Code != http.StatusAccepted || time.Since(began) != time.Second || r.Doc["status"] != "proposed" || r.Header().Get("Location") != path+"/"+c.ID || r.Header().Get("Preference-Applied") != "respond-async" {
			t.Fatal(r.Code, r.Body, time.Since(began))
		}
		synctest.Wait()
		if got := m.Events(c.ID); slices.Contains(got, contract.EventCancelRequested) {
			t.Error(got)
		}
		if again := m.Do("POST", path, alice, echo, "Prefer: respond-async", "Idempotency-Key: k"); again.Code != http.StatusAccepted || again.Doc["call_id"] != c.ID {
			t.Error(again.Code, again.Body)
		}
		c.Succeed([]byte(`{"text":"hi"}`))
		if r := m.Do("GET", path+"/"+c.ID, alice, ""); r.Doc["status"] != contract.Succeeded {
			t.Error(r.Body)
		}
		m.Execute = nil
		if r := m.Do("POST", path, alice, echo, "Prefer: respond-async"); r.Code != http.StatusOK {
			t.Error(r.Code, r.Body)
		}
	})
}

// TestCancel checks that the actor of a call can cancel it, once or several times, and that
// others do not find it.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		var c *edgetest.Call
		m.Execute = func(x *edgetest.Call) { c = x }
		alice := m.Token("alice", token.Tools)
		m.Do("POST", path, alice, echo, "Prefer: respond-async")
		synctest.Wait()
		for _, who := range []string{m.Token("eve", token.All...), m.TokenIn(edgetest.Other, "alice", token.Tools)} {
			if r := m.Do("DELETE", path+"/"+c.ID, who, ""); r.Code != http.StatusNotFound || slices.Contains(m.Events(c.ID), contract.EventCancelRequested) {
				t.Error(r.Code, r.Body)
			}
		}
		for range 2 {
			if r := m.Do("DELETE", path+"/"+c.ID, alice, ""); r.Code != http.StatusOK || r.Doc["call_id"] != c.ID {
				t.Error(r.Code, r.Body)
			}
		}
		if n := len(slices.DeleteFunc(m.Events(c.ID), func(e string) bool { return e != contract.EventCancelRequested })); n != 1 {
			t.Errorf("%d cancellations", n)
		}
		c.Fail(contract.Cancelled, contract.CodeCancelled, "cancelled by the caller")
		if r := m.Do("GET", path+"/"+c.ID, alice, ""); r.Doc["status"] != contract.Cancelled {
			t.Error(r.Body)
		}
		if r := m.Do("DELETE", path+"/c-none", alice, ""); r.Code != http.StatusNotFound {
			t.Error(r.Code)
		}
	})
}

// TestCancelCredential checks that a cancellation needs a credential that may make calls,
// that a virtual key cancels only the calls that it made, and that a call which its caller
// executes is not cancelled.
func TestCancelCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		var c *edgetest.Call
		m.Execute = func(x *edgetest.Call) { c = x }
		key := func(id string) string {
			raw := auth.KeyPrefix + id
			m.Record("policy", contract.EventVirtualKeyCreated, id, contract.Bytes(&policy.VirtualKeyCreated{ID: id, Actor: "alice", Maker: "alice", Digest: auth.DigestOf(raw), Scopes: []string{token.Tools}}), nil)
			return raw
		}
		one, two, alice := key("k1"), key("k2"), m.Token("alice", token.Tools)
		remove := func(who, call string) int { return m.Do("DELETE", path+"/"+call, who, "").Code }

		m.Do("POST", path, alice, echo, "Prefer: respond-async")
		synctest.Wait()
		for who, want := range map[string]int{m.Token("alice", token.Audit, token.Health): http.StatusForbidden, one: http.StatusNotFound} {
			if code := remove(who, c.ID); code != want || slices.Contains(m.Events(c.ID), contract.EventCancelRequested) {
				t.Errorf("%d, want %d", code, want)
			}
		}
		m.Do("POST", path, one, echo, "Prefer: respond-async")
		synctest.Wait()
		byKey := c.ID
		if code := remove(two, byKey); code != http.StatusNotFound {
			t.Errorf("by another key: %d", code)
		}
		if code := remove(one, byKey); code != http.StatusOK {
			t.Errorf("by the key that made it: %d", code)
		}
		m.Do("POST", path, one, echo, "Prefer: respond-async")
		synctest.Wait()
		if code := remove(alice, c.ID); code != http.StatusOK {
			t.Errorf("by the actor: %d", code)
		}

		own, e := c.Call, *c.Proposal
		own.ID, own.ReportWithin = "c-own", 1000
		e.CallID = own.ID
		m.Record("gateway", contract.EventCallProposed, e.Key, contract.Bytes(&own), &e)
		if code := remove(alice, own.ID); code != http.StatusConflict || slices.Contains(m.Events(own.ID), contract.EventCancelRequested) {
			t.Errorf("executed by the caller: %d", code)
		}
	})
}
