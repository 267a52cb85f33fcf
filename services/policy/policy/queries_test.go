package policy

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestQueries compares the results of policy's queries with its views.
func TestQueries(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m, call := waits(t, ctx)
		m.follow()
		ask := func(handler transient.Handler, args string) string {
			t.Helper()
			var out string
			if err := handler(ctx, json.RawMessage(args), func(v any) error {
				b, err := json.Marshal(v)
				out = string(b)
				return err
			}); err != nil {
				return err.Error()
			}
			return out
		}
		for _, c := range []struct {
			name, args string
			handler    transient.Handler
			want       string
		}{
			{"an approval", `{"call_id":"` + call + `"}`, m.queries.approval, `"args":{"n":1}`},
			{"one that does not wait", `{"call_id":"c-9"}`, m.queries.approval, "not found: no call c-9 waits"},
			{"noise", `[]`, m.queries.approval, "cannot unmarshal"},
			{"limits", ``, m.queries.limits, `{"accounts":[],"limits":[]}`},
			{"identities", `{}`, m.queries.identities, `"kind":"role","principal":"bob"`},
			{"none at the first lamport", `{"at":1}`, m.queries.identities, `{"break_glass":[],"frozen":"","identities":[]}`},
			{"noise", `[]`, m.queries.identities, "cannot unmarshal"},
			{"a dump", ``, plain(func() any { return dumped("policy.starts", 7, []byte("x")) }), `{"dump":"x","name":"policy.starts","position":7}`},
			{"what is in force", ``, plain(func() any { return m.state.InForce() }), `"layer":"p0"`},
		} {
			if got := ask(c.handler, c.args); !strings.Contains(got, c.want) {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
		l.put("policy", events.LimitsSetName, "limits", &events.LimitsSet{Limits: contract.Bytes(&guard.Limits{Limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 1, Window: "day"}}})}, nil)
		m.follow()
		if got := ask(m.queries.limits, ``); !strings.Contains(got, `"id":"l"`) {
			t.Error(got)
		}
	})
}
