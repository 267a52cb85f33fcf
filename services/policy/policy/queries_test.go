package policy

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestQueries checks the responses of policy's queries, and the errors for a call that
// does not wait, for malformed requests and for a tenant that does not exist.
func TestQueries(t *testing.T) {
	bubble(t, func(t *testing.T, ctx context.Context) {
		l, m, call := waits(t, ctx)
		l.put("provision", contract.EventKeyPublished, "trust", &contract.TrustKey{KID: "k"}, nil)
		m.follow()
		transport := handlers{}
		m.queries.serve(transport, &follow.Follower{}, &follow.Follower{})
		tenant := "t"
		ask := func(verb, args string) string {
			t.Helper()
			var out string
			if err := transport[verb](transient.InTenant(ctx, tenant), json.RawMessage(args), func(v any) error {
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
			{"one that does not wait", "approval", `{"call_id":"c-9"}`, "not_found no call c-9 waits"},
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
			{"tenants", "tenants", ``, `[{"original":true,"quota":{},"suspended":false,"tenant":"t"}]`},
			{"what is in force", "policies", ``, `"layer":"p0"`},
		} {
			if got := ask(c.verb, c.args); !strings.Contains(got, c.want) {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
		tenant = "u"
		for _, verb := range []string{"approval", "approvals", "keys", "identities", "policies", "limits"} {
			if got := ask(verb, `{"call_id":"`+call+`"}`); !strings.HasPrefix(got, "not_found") {
				t.Errorf("%s of a tenant that does not exist: %s", verb, got)
			}
		}
		m.reach = func(context.Context) error { return errors.New("down") }
		if got := ask("approvals", `{}`); !strings.Contains(got, "unavailable") {
			t.Errorf("approvals of a tenant whose creation cannot be read: %s", got)
		}
		tenant = "t"
		l.put("policy", events.LimitsSetName, "limits", &events.LimitsSet{Limits: contract.Bytes(&guard.Limits{Limits: []guard.Limit{{ID: "l", Level: "agent", Measure: "calls", Max: 1, Window: "day"}}})}, nil)
		m.follow()
		if got := ask("limits", ``); !strings.Contains(got, `"id":"l"`) {
			t.Error(got)
		}
	})
}

// TestTenantRow checks that the row of a tenant has its state, and the names of its
// organization, project and environment if its id has the form that a created tenant's has.
func TestTenantRow(t *testing.T) {
	quota := contract.Quota{InFlight: 3}
	for id, want := range map[string]events.Tenant{
		"acme_web_prod": {Tenant: "acme_web_prod", Organization: "acme", Project: "web", Environment: "prod", Since: "now", Suspended: true, Quota: quota},
		"default":       {Tenant: "default", Original: true, Since: "now", Suspended: true, Quota: quota},
		"a_b":           {Tenant: "a_b", Since: "now", Suspended: true, Quota: quota},
		"A_b_c":         {Tenant: "A_b_c", Since: "now", Suspended: true, Quota: quota},
	} {
		if got := tenantRow(&trust.Tenant{ID: id, Quota: quota, Since: "now", Suspended: true}, "default"); got != want {
			t.Errorf("%+v", got)
		}
	}
}

// handlers holds the registered handlers by verb.
type handlers map[string]transient.Handler

// Serve implements rpc.Registrar. It stores the handler.
func (h handlers) Serve(verb string, f transient.Handler, _ ...string) { h[verb] = f }
