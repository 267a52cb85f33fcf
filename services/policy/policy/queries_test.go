package policy

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestQueries checks the responses of policy's queries, and the errors for a call that
// does not wait and for malformed requests.
func TestQueries(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m, call := waits(t, ctx)
		m.follow()
		box := handlers{}
		m.queries.serve(box, &follow.Follower{}, &follow.Follower{})
		ask := func(verb, args string) string {
			t.Helper()
			var out string
			if err := box[verb](ctx, json.RawMessage(args), func(v any) error {
				if _, ok := v.(transient.At); ok {
					return nil
				}
				b, err := json.Marshal(v)
				out = string(b)
				return err
			}); err != nil {
				return rpc.CodeOf(err) + " " + err.Error()
			}
			return out
		}
		for _, c := range []struct{ name, verb, args, want string }{
			{"an approval", "approval", `{"call_id":"` + call + `"}`, `"args":{"n":1}`},
			{"one that does not wait", "approval", `{"call_id":"c-9"}`, "not_found not found: no call c-9 waits"},
			{"all of them", "approvals", `{}`, `[{"actor":`},
			{"noise", "approval", `[]`, "invalid_input the request of approval: json: cannot unmarshal"},
			{"limits", "limits", ``, `{"accounts":[],"limits":[]}`},
			{"identities", "identities", `{}`, `"kind":"role","principal":"bob"`},
			{"none at the first lamport", "identities", `{"at":1}`, `{"break_glass":[],"frozen":"","identities":[]}`},
			{"noise", "identities", `[]`, "invalid_input"},
			{"a view", "starts_view", ``, `"name":"policy.starts","position":`},
			{"accounts", "budget_view", ``, `"name":"policy.budget"`},
			{"the state", "view", ``, `"name":"policy.state"`},
			{"virtual keys", "keys", ``, `[]`},
			{"what is in force", "policies", ``, `"layer":"p0"`},
		} {
			if got := ask(c.verb, c.args); !strings.Contains(got, c.want) {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
		l.put("policy", events.LimitsSetName, "limits", &events.LimitsSet{Limits: contract.Bytes(&guard.Limits{Limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 1, Window: "day"}}})}, nil)
		m.follow()
		if got := ask("limits", ``); !strings.Contains(got, `"id":"l"`) {
			t.Error(got)
		}
	})
}

// handlers holds the registered handlers by verb.
type handlers map[string]transient.Handler

// Serve implements rpc.Registrar. It stores the handler.
func (h handlers) Serve(verb string, f transient.Handler, _ ...string) { h[verb] = f }
