package calls_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestAsync checks that an asynchronous request is answered after a second, that its call goes
// on after the response, and that its state has the outcome. A call that ends within the second
// is answered with its outcome.
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

// indexed returns an answer to audit's query search that reads the ledger of m: the newest events
// of the tenant with the actor, service and event of the query, within its bounds.
func indexed(m *edgetest.Mesh, tenant string) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) {
		var q audit.SearchRequest
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		out := []audit.Found{}
		for en, err := range m.Ledger.Log.Scan(m.Context(), bus.Filter{Tenant: tenant, Service: q.Terms["service"], Event: q.Terms["event"]}.String(), 1) {
			if err != nil {
				return nil, err
			}
			e, err := eventlog.Open(en, eventlog.Every)
			if err != nil {
				return nil, err
			}
			if e.Actor == q.Terms["actor"] && (q.Before == 0 || en.Seq < q.Before) {
				out = append([]audit.Found{{Event: en.Data, Seq: en.Seq}}, out...)
			}
		}
		return out[:min(int64(len(out)), q.Limit)], nil
	}
}

// TestList checks that a caller's asynchronous calls that were answered before their outcome
// are listed, newest first and in pages, with their states, and that no others are: not those
// that ended within the second, not synchronous ones, and not those of another actor or of
// another tenant's principal of the same name. A repeated call is one job.
func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := edgetest.New(t, gateway.Config{}, "tool.echo")
		m.Ledger.Window, m.Ledger.Now = 5*time.Minute, time.Now
		m.Answers["audit search"], m.Answers["audit search of u"] = indexed(m, edgetest.Tenant), indexed(m, edgetest.Other)
		alice, async := m.Token("alice", token.Tools), "Prefer: respond-async"
		m.Do("POST", path, alice, echo, async) // ends at once
		made := map[string]*edgetest.Call{}
		propose := func(name, who string, execute func(*edgetest.Call), header ...string) {
			m.Execute = func(x *edgetest.Call) {
				made[name] = x
				execute(x)
			}
			m.Do("POST", path, who, echo, header...)
			synctest.Wait()
			time.Sleep(time.Millisecond) // events have times in milliseconds
		}
		runs := func(*edgetest.Call) {}
		propose("sync", alice, runs, "X-Binnacle-Timeout: 1")
		propose("ended", alice, runs, async, "Idempotency-Key: k")
		for range 2 { // audit's index is read again, and after the deduplication window, too
			m.Do("POST", path, alice, echo, async, "Idempotency-Key: k")
			time.Sleep(10 * time.Minute)
		}
		propose("waits", alice, (*edgetest.Call).Escalate, async)
		propose("runs", alice, runs, async)
		propose("eve", m.Token("eve", token.All...), runs, async)
		propose("other", m.TokenIn(edgetest.Other, "alice", token.All...), runs, async)
		made["ended"].Fail(contract.TimedOut, contract.CodeTimeout, "too slow")

		list := func(who, query string) (out []calls.Job) {
			t.Helper()
			r := m.Do("GET", path+query, who, "")
			if err := json.Unmarshal(r.Body.Bytes(), &out); r.Code != http.StatusOK || err != nil {
				t.Fatal(r.Code, r.Body, err)
			}
			return out
		}
		all := list(alice, "")
		if len(all) != 3 {
			t.Fatalf("%d jobs: %+v", len(all), all)
		}
		for i, want := range []struct{ name, status string }{{"runs", "proposed"}, {"waits", "pending_approval"}, {"ended", contract.TimedOut}} {
			j, c := all[i], made[want.name]
			if j.CallID != c.ID || j.Status != want.status || j.Kind != "tool.echo" || j.Tool != "echo" || j.Session != c.Proposal.Session || j.Begin != c.Proposal.Time || j.Poll != path+"/"+c.ID {
				t.Errorf("%s: %+v", want.name, j)
			}
			if ended := want.name == "ended"; (j.End > j.Begin) != ended || (j.ErrorCode == contract.CodeTimeout) != ended || (j.ReceiptID != "") != ended {
				t.Errorf("%s: %+v", want.name, j)
			}
		}
		first := list(alice, "?limit=2")
		rest := list(alice, "?limit=2&before="+strconv.FormatUint(first[1].Seq, 10))
		if !slices.Equal(append(first, rest...), all) {
			t.Errorf("in pages: %+v %+v", first, rest)
		}
		if got := list(m.Token("eve", token.All...), ""); len(got) != 1 || got[0].CallID != made["eve"].ID {
			t.Errorf("of eve: %+v", got)
		}
		if got := list(m.TokenIn(edgetest.Other, "alice", token.Audit), ""); len(got) != 1 || got[0].CallID != made["other"].ID {
			t.Errorf("of the other tenant: %+v", got)
		}
		if got := list(m.Token("nobody", token.All...), ""); got == nil || len(got) != 0 {
			t.Errorf("of nobody: %+v", got)
		}
		for _, query := range []string{"?limit=0", "?limit=101", "?limit=x", "?before=0", "?before=-1"} {
			if r := m.Do("GET", path+query, alice, ""); r.Code != http.StatusBadRequest {
				t.Errorf("%s: %d %s", query, r.Code, r.Body)
			}
		}
	})
}
