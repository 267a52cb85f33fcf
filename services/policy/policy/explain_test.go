package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestExplain shows that a decision is explained with the overlay and the tool document that
// it names, also after they have been replaced and retired, that the ledger is read only
// then, and what events and documents are rejected.
func TestExplain(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l := founded(t, nil)
		m := l.join("policy-1")
		m.keepUp(ctx)
		govern := func(kind, args string) {
			t.Helper()
			if r := m.governor.handle(ctx, work("admin", kind, args)); r.ErrorCode != "" {
				t.Fatalf("%+v", r)
			}
			m.follow()
		}
		activate := func(reason string) {
			t.Helper()
			doc := contract.Bytes(&guard.Overlay{ID: "o", Scope: "tenant", Subject: "t", Rules: []guard.OverlayRule{{Kinds: []string{"tool.echo"}, Reason: reason, Verdict: contract.Deny}}})
			govern(kindActivate, fmt.Sprintf(`{"layer":"p2","name":"o","document":%q}`, doc))
		}
		activate("DENY_FIRST")
		d := l.propose("echo", nil)
		if err := m.decider.take(ctx, d); err != nil {
			t.Fatal(err)
		}
		stored := func(e *contract.Event) json.RawMessage {
			b, err := e.Encode()
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		proposal, outcome := stored(d.event), stored(l.of(contract.EventEffectRecorded)[0])
		transport := handlers{}
		m.queries.serve(transport, &follow.Follower{}, &follow.Follower{})
		explain := func(proposal, decision json.RawMessage) string {
			t.Helper()
			args, err := json.Marshal(events.ExplainRequest{Proposal: proposal, Decision: decision})
			if err != nil {
				t.Fatal(err)
			}
			var out []string
			if err := transport["explain"](transient.InTenant(ctx, "t"), args, func(v any) error {
				if steps, ok := v.([]events.Step); ok {
					for _, s := range steps {
						out = append(out, strings.Join([]string{s.Layer, s.Name, s.Verdict, s.ReasonCode}, " "))
					}
				}
				return nil
			}); err != nil {
				return rpc.CodeOf(err) + " " + err.Error()
			}
			return strings.Join(out, "\n")
		}

		m.faults.failRead(errDown)
		first := explain(proposal, outcome)
		if !strings.Contains(first, "o DENY DENY_FIRST") || !strings.HasSuffix(first, "decision  DENY DENY_FIRST") {
			t.Error("with the documents in force:", first)
		}
		m.faults.failRead(nil)

		activate("DENY_SECOND")
		govern(kindRetire, `{"layer":"p2","name":"o"}`)
		l.tool("echo", func(t *contract.Tool) { t.Description = "another" })
		m.follow()
		m.faults.failRead(errDown)
		if got := explain(proposal, outcome); !strings.HasPrefix(got, contract.CodeUnavailable) {
			t.Error("replaced, while the ledger cannot be read:", got)
		}
		m.faults.failRead(nil)
		if again := explain(proposal, outcome); again != first {
			t.Errorf("after they are replaced:\n%s\nbefore:\n%s", again, first)
		}

		other := l.propose("echo", nil)
		for name, c := range map[string]struct {
			proposal, decision json.RawMessage
			want               string
		}{
			"no events":               {json.RawMessage(`{}`), json.RawMessage(`{}`), "invalid_input proposal: "},
			"an outcome as proposal":  {outcome, outcome, "invalid_input proposal: "},
			"a proposal as decision":  {proposal, proposal, "invalid_input decision: event p-"},
			"decision of another one": {stored(other.event), outcome, "invalid_input decision: want an event of call"},
		} {
			if got := explain(c.proposal, c.decision); !strings.HasPrefix(got, c.want) {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
		}
		l.shelf.down = contract.ErrErased
		if got := explain(proposal, outcome); !strings.HasPrefix(got, "not_found policy sha256:") {
			t.Error("an erased overlay:", got)
		}
	})
}
