package observe_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	events "github.com/binnacle-mesh/binnacle/schemas/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// entry returns the body of an observation of a journal.
func entry(journal string, number int, more string) string {
	return fmt.Sprintf(`{"action":"sha256:a%d","content":{"text":"x"},"journal":%q,"kind":"client.shell","number":%d,"observed_at":"2026-01-01T00:00:00.000Z"%s}`, number, journal, number, more)
}

const began = `,"phase":"began"`

// recorded returns the events on the ledger that are not of the catalog, and the data of
// the observations among them.
func recorded(t *testing.T, m *edgetest.Mesh) (names []string, out []events.ActionObserved) {
	t.Helper()
	for en, err := range m.Ledger.Scan(t.Context(), bus.EveryEvent, 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := eventlog.Open(en, bus.EveryEvent)
		if err != nil {
			t.Fatal(err)
		}
		if e.Name == contract.EventToolRegistered {
			continue
		}
		names = append(names, e.Name)
		var x events.ActionObserved
		if e.Name == contract.EventActionObserved {
			if err := contract.Decode(e.Data, &x); err != nil {
				t.Fatal(err)
			}
			if !contract.OwnsSession(e.Tenant, e.Actor, e.Key) || e.Session != "" || e.CallID != "" {
				t.Errorf("%+v", e)
			}
			out = append(out, x)
		}
	}
	return names, out
}

// TestRecord checks that each entry of a journal is recorded once, also if it is sent again
// after later ones and if two journals share a session, and that nothing but observations
// is recorded. Another entry with the number of a recorded one, also if only its content or
// error code differs, and an entry with a lower number than a recorded one, are conflicts.
// The journals of two principals are different ones even if they have the same id.
func TestRecord(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "client.shell")
	send := func(actor, body string) *edgetest.Response {
		return m.Do("POST", "/api/v1/observations", m.Token(actor, token.Decide), body, "X-Binnacle-Session: s-one")
	}
	ended := func(status string) string { return `,"phase":"ended","status":"` + status + `"` }
	for i, c := range []struct {
		actor, body string
		status      int
		repeated    bool
	}{
		{"alice", entry("j", 1, began), 200, false},
		{"alice", entry("j", 1, began), 200, true},
		{"alice", entry("j", 2, ended("succeeded")), 200, false},
		{"alice", entry("other", 1, began), 200, false},
		{"alice", entry("j", 3, ended("failed")+`,"error_code":"agent_tool_failed"`), 200, false},
		{"alice", entry("j", 1, began), 200, true},
		{"alice", entry("j", 2, ended("succeeded")), 200, true},
		{"alice", entry("other", 1, began), 200, true},
		{"alice", entry("j", 2, ended("failed")), 409, false},
		{"alice", strings.Replace(entry("j", 2, ended("succeeded")), `"x"`, `"y"`, 1), 409, false},
		{"alice", entry("j", 3, ended("failed")+`,"error_code":"timeout"`), 409, false},
		{"alice", entry("j", 3, ended("failed")), 409, false},
		{"alice", entry("j", 5, began), 200, false},
		{"alice", entry("j", 4, began), 409, false},
		{"bob", entry("j", 1, began), 200, false},
		{"alice", strings.Replace(entry("j", 6, began), "client.shell", "client.web.fetch", 1), 400, false},
		{"alice", strings.Replace(entry("j", 6, began), `"text"`, `"other"`, 1), 400, false},
	} {
		r := send(c.actor, c.body)
		if r.Code != c.status || c.status == 200 && r.Doc["repeated"] != c.repeated {
			t.Errorf("%d: %d %s", i, r.Code, r.Body)
		}
	}
	names, got := recorded(t, m)
	if len(got) != 6 || len(names) != 6 {
		t.Fatalf("%v %+v", names, got)
	}
	for i, want := range []struct {
		journal string
		number  int64
		status  string
	}{{"j", 1, ""}, {"j", 2, "succeeded"}, {"other", 1, ""}, {"j", 3, "failed"}, {"j", 5, ""}, {"j", 1, ""}} {
		if x := got[i]; x.Journal != want.journal || x.Number != want.number || x.Status != want.status || x.AttestedBy != contract.Caller {
			t.Errorf("%d: %+v", i, x)
		}
	}
}

// TestRecordAtOnce checks that an entry that is sent by several requests at once is
// recorded once.
func TestRecordAtOnce(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "client.shell")
	who := m.Token("alice", token.Decide)
	done := make(chan *edgetest.Response)
	const senders = 8
	for range senders {
		go func() {
			done <- m.Do("POST", "/api/v1/observations", who, entry("j", 1, began), "X-Binnacle-Session: s-one")
		}()
	}
	first := 0
	for range senders {
		r := <-done
		if r.Code != 200 {
			t.Error(r.Code, r.Body)
		}
		if r.Doc["repeated"] == false {
			first++
		}
	}
	if _, got := recorded(t, m); len(got) != 1 || first != 1 {
		t.Errorf("%d events, %d first responses", len(got), first)
	}
}
