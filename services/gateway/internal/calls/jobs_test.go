package calls_test

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
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
