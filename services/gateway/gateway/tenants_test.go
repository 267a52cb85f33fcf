package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handout"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// claimer implements decide.Lender. It records the claim of a call on the ledger of a
// mesh, and signs nothing.
type claimer struct{ m *edgetest.Mesh }

func (l *claimer) HandOut(_ context.Context, e *contract.Event, _ *contract.Allowed) error {
	l.m.Record("gateway", contract.EventEffectStarted, e.Session, []byte("{}"), e)
	return nil
}

func (*claimer) Withholds() error { return nil }

func (*claimer) Close(_ context.Context, _ *contract.Event, a *contract.Allowed, r *handout.Report) (contract.Effect, bool, error) {
	return contract.Effect{CallID: a.Call.ID, AttestedBy: contract.Caller, Status: r.Status}, false, nil
}

// canary occurs in contents, labels and query results of the tenant edgetest.Tenant. A
// response to another tenant must not contain it.
const canary = "canary-t"

// tools are the kinds in the catalog of the mesh that twoTenants returns.
var tools = []string{"tool.a", "tool.pipeline.run", "llm.responses", "llm.chat", "policy.vote", "judge.score"}

// twoTenants returns a mesh in which alice of the tenant edgetest.Tenant has made calls,
// and the ids of these calls and of their session, intent and stored response, by kind.
// Most queries to other services on behalf of edgetest.Other fail with not_found and a
// message that contains the query's args.
func twoTenants(t *testing.T) (*edgetest.Mesh, map[string]string) {
	l := &claimer{}
	m := edgetest.NewWith(t, gateway.Config{}, l, tools...)
	l.m = m
	ids := map[string]string{}
	alice := m.Token("alice", token.All...)
	keep := func(kind, header string, r *edgetest.Response) {
		t.Helper()
		if ids[kind] = r.Header().Get(header); ids[kind] == "" {
			t.Fatal(kind, r.Code, r.Body)
		}
	}
	done := m.Do("POST", "/api/v1/calls", alice, `{"kind":"tool.a","args":{"text":"`+canary+`"}}`, "X-Binnacle-Session: s-work", "Idempotency-Key: key")
	keep("call", "X-Binnacle-Call-Id", done)
	keep("session", "X-Binnacle-Session-Id", done)
	m.Record("policy", contract.EventSessionLabelled, ids["session"], contract.Bytes(&policy.SessionLabelled{Labels: []string{canary}}), nil)

	m.Execute = func(c *edgetest.Call) { c.Escalate() }
	keep("waiting", "X-Binnacle-Call-Id", m.Do("POST", "/api/v1/calls", alice, `{"kind":"tool.a"}`, "Prefer: respond-async"))

	m.Execute = func(c *edgetest.Call) { c.Allow() }
	decided := m.Do("POST", "/api/v1/decide", alice, `{"kind":"tool.a","args":{"text":"`+canary+`"},"report_within_ms":60000}`)
	keep("decided", "X-Binnacle-Call-Id", decided)
	ids["intent"], _ = decided.Doc["intent_id"].(string)

	m.Execute = func(c *edgetest.Call) { c.Succeed([]byte(`{"id":"resp_canary-t"}`)) }
	keep("llm", "X-Binnacle-Call-Id", m.Do("POST", "/api/v1/calls", alice, `{"kind":"llm.responses","args":{"model":"demo/echo","input":"`+canary+`"}}`))
	ids["response"] = "resp_" + canary
	m.Execute = nil

	m.Answers["llm-router stored_response"] = llmrouter.StoredResponse{Call: ids["llm"], Actor: "alice", Tokens: 7}
	m.Answers["llm-router stored_response of u"] = llmrouter.StoredResponse{}
	for _, name := range []string{"policy approval", "policy approvals", "policy policies", "policy limits", "policy identities", "policy keys", "audit proofgraph", "audit receipts",
		"audit session_receipts", "audit sessions", "audit search", "audit evidence", "audit receipt_by_digest", "audit proof", "audit tenant_export"} {
		m.Answers[name] = []string{canary}
		m.Answers[name+" of u"] = func(args json.RawMessage) (any, error) {
			return nil, rpc.Errorf(contract.CodeNotFound, "no %s", args)
		}
	}
	m.Answers["policy approval"] = map[string]string{"call_id": ids["waiting"]}
	m.Answers["audit makers"] = func(raw json.RawMessage) (any, error) { return map[string]string{ids["call"]: ids["session"]}, nil }
	m.Answers["audit makers of u"] = map[string]string{}
	m.Queried()
	return m, ids
}

// neverWas holds, for each kind of id that twoTenants returns, except that of a call of a
// model, a well-formed id that does not exist.
var neverWas = map[string]string{"call": "c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "waiting": "c-BBBBBBBBBBBBBBBBBBBBBBBBBB", "decided": "c-CCCCCCCCCCCCCCCCCCCCCCCCCC",
	"session": contract.SessionID(edgetest.Tenant, "no-such-actor", "s-none"), "intent": "i-c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "response": "resp_nothing8"}

// naming lists requests with an id of the given kind, which replaces ID in path, body
// and header.
var naming = []struct {
	kind, method, path, body, header string
	status                           int // expected status
}{
	{"call", "GET", "/api/v1/calls/ID", "", "", 404},
	{"waiting", "GET", "/api/v1/calls/ID", "", "", 404},
	{"waiting", "GET", "/api/v1/approvals/ID", "", "", 404},
	{"waiting", "POST", "/api/v1/approvals/ID/votes", `{"vote":"grant","reason":"x"}`, "", 200}, // in a mesh with a policy, 403: the call is denied
	{"decided", "POST", "/api/v1/decide", `{"call_id":"ID"}`, "", 404},
	{"intent", "POST", "/api/v1/intents/ID/outcome", `{"args_digest":"sha256:x","status":"succeeded"}`, "", 404},
	{"response", "GET", "/v1/responses/ID", "", "", 404},
	{"response", "GET", "/v1/responses/ID/input_items", "", "", 404},
	{"response", "DELETE", "/v1/responses/ID", "", "", 404},
	{"session", "GET", "/api/v1/sessions/ID/evidence", "", "", 404},
	{"session", "GET", "/api/v1/proofgraph/sessions/ID/receipts", "", "", 404},
	{"session", "GET", "/helm/proofgraph?session=ID", "", "", 404},
	{"session", "GET", "/helm/receipts?session=ID", "", "", 404},
	{"session", "GET", "/api/v1/search?session=ID", "", "", 404},
	{"session", "GET", "/api/v1/events?session=ID", "", "", 200}, // an empty list
	{"session", "POST", "/api/v1/evidence/export", `{"session_id":"ID"}`, "", 404},
	{"session", "POST", "/api/v1/calls", `{"kind":"tool.a"}`, "X-Binnacle-Session: ID", 200}, // in a mesh with a policy, 403: the call is denied
	{"session", "POST", "/api/v1/judgements", `{"session":"ID","rubric":"x"}`, "", 200},
	{"call", "POST", "/api/v1/calls", `{"kind":"tool.a","args":{"text":"see ID"}}`, "", 200},
	{"session", "POST", "/api/v1/calls", `{"kind":"tool.a","args":{"text":"see ID"}}`, "", 200},
	{"response", "POST", "/api/v1/calls", `{"kind":"llm.responses","args":{"model":"demo/echo","input":"x","previous_response_id":"ID"}}`, "", 200},
}

// TestIDsOfAnotherTenant sends the requests in naming as principals of another tenant
// who have all scopes. It checks that the response for an id of the first tenant is
// equal to the response for an id that never existed, apart from the id itself, and does
// not contain canary.
func TestIDsOfAnotherTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ids := twoTenants(t)
		for _, actor := range []string{"admin", "alice"} { // alice is also the name of the principal in the first tenant
			who := m.TokenIn(edgetest.Other, actor, token.All...)
			for _, q := range naming {
				var got [2]string
				for i, id := range []string{ids[q.kind], neverWas[q.kind]} {
					var labels []string
					m.Execute = func(c *edgetest.Call) {
						if labels = c.Labels; c.Proposal.Tenant != edgetest.Other {
							t.Errorf("%s %s proposes a call of tenant %s", q.method, q.path, c.Proposal.Tenant)
						}
						c.Succeed(c.Args)
					}
					header := strings.ReplaceAll(q.header, "ID", id)
					if header == "" {
						header = "X-Binnacle-Session: s-mine"
					}
					r := m.Do(q.method, strings.ReplaceAll(q.path, "ID", id), who, strings.ReplaceAll(q.body, "ID", id), header)
					if r.Code != q.status {
						t.Errorf("%s %s with %s: %d %s", q.method, q.path, id, r.Code, r.Body)
					}
					got[i] = plain(r, id, labels)
				}
				if got[0] != got[1] {
					t.Errorf("%s %s %s by %s:\n%s\nfor an id that never existed:\n%s", q.method, q.path, q.body, actor, got[0], got[1])
				}
				if strings.Contains(got[0], canary) {
					t.Errorf("%s %s holds something of the other tenant: %s", q.method, q.path, got[0])
				}
			}
		}
		// The tenant that owns the ids can read these things.
		m.Execute = nil
		for kind, path := range map[string]string{"call": "/api/v1/calls/", "waiting": "/api/v1/approvals/", "response": "/v1/responses/"} {
			if r := m.Do("GET", path+ids[kind], m.Token("alice", token.All...), ""); r.Code != 200 {
				t.Errorf("%s%s by its own tenant: %d %s", path, ids[kind], r.Code, r.Body)
			}
		}
	})
}

// commitment matches the digests in a response. Commitments have a random salt, so they
// differ between equal responses.
var commitment = regexp.MustCompile(`sha256:[0-9a-f]{64}`)

// plain returns a response and labels as text in which the given id is replaced by ID,
// digests by COMMITMENT, and the id of the call that the request proposed by CALL.
func plain(r *edgetest.Response, id string, labels []string) string {
	var lines []string
	for name, values := range r.Header() {
		lines = append(lines, fmt.Sprint(name, values))
	}
	slices.Sort(lines)
	s := commitment.ReplaceAllString(fmt.Sprint(r.Code, lines, r.Body.String(), labels), "COMMITMENT")
	for _, p := range [][2]string{{id, "ID"}, {strings.TrimPrefix(id, "i-"), "ID"}, {r.Header().Get("X-Binnacle-Call-Id"), "CALL"}} {
		if p[0] != "" {
			s = strings.ReplaceAll(s, p[0], p[1])
		}
	}
	return s
}

// place is a parameter or a member of the body that the OpenAPI document describes and
// that can be an id. Its field in is path, query, header or body.
type place struct{ in, name string }

// places returns the places of each operation of the OpenAPI document, by "METHOD path" in
// the form of the table of routes.
func places(t *testing.T, raw []byte) map[string][]place {
	t.Helper()
	type schema struct {
		Ref        string `json:"$ref"`
		Type       any
		Enum       []string
		Properties map[string]json.RawMessage
	}
	type param struct {
		Ref      string `json:"$ref"`
		In, Name string
		Schema   schema
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters  []param
			RequestBody struct {
				Content map[string]struct{ Schema schema }
			}
		}
		Components struct {
			Schemas    map[string]schema
			Parameters map[string]param
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	text := func(s *schema) bool { return s.Type == "string" && s.Enum == nil }
	out := map[string][]place{}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			route := strings.ToUpper(method) + " " + regexp.MustCompile(`\{([a-z]+)\}`).ReplaceAllString(path, ":$1")
			out[route] = nil
			for _, p := range op.Parameters {
				if p.Ref != "" {
					p = doc.Components.Parameters[p.Ref[strings.LastIndex(p.Ref, "/")+1:]]
				}
				if text(&p.Schema) {
					out[route] = append(out[route], place{p.In, p.Name})
				}
			}
			body := op.RequestBody.Content["application/json"].Schema
			if body.Ref != "" {
				body = doc.Components.Schemas[body.Ref[strings.LastIndex(body.Ref, "/")+1:]]
			}
			for _, name := range slices.Sorted(maps.Keys(body.Properties)) {
				var member schema
				if err := json.Unmarshal(body.Properties[name], &member); err == nil && text(&member) {
					out[route] = append(out[route], place{"body", name})
				}
			}
		}
	}
	return out
}

// request returns the path, the body and a header of a request to a route of the table,
// with id in the given place. The rest of the body is that in proposing; the other
// placeholders of the path are replaced by fixed values. header is empty unless p is a
// header.
func (p place) request(route, id string) (path, body, header string) {
	_, path, _ = strings.Cut(route, " ")
	q := proposing[route]
	body = q[1]
	switch p.in {
	case "path":
		path = strings.ReplaceAll(path, ":"+p.name, id)
	case "query":
		path += "?" + p.name + "=" + id
	case "header":
		header = p.name + ": " + id
	case "body":
		doc := map[string]any{}
		_ = json.Unmarshal([]byte(q[1]), &doc) // without a body in proposing, the only member is the id
		doc[p.name] = id
		b, _ := json.Marshal(doc)
		body = string(b)
	}
	path = strings.NewReplacer(":id", "x", ":call", "c-x", ":name", "a", ":hash", "x", ":seq", "1", ":service", "x", ":tenant", "x_y_z", ":level", "0", ":tile", "000", ":model", "m").Replace(path)
	return path, body, header
}

// ownID matches the ids of calls and events in a response. Those of the second tenant are
// random, or depend on the Idempotency-Key.
var ownID = regexp.MustCompile(`\b[ce]-[A-Z2-7]{26}`)

// TestPlacesOfAnotherTenant sends, for each operation of the OpenAPI document that
// requires a credential, except those in unheard, and for each parameter and member of its
// body that can be an id, requests with ids of the first tenant as a principal of the
// second one. Of GET /api/v1/events, it sends the parameter session only. It checks that
// each response is equal to that for an id that never existed, apart from the id itself,
// that it contains neither canary nor another id of the first tenant, and that calls are
// proposed in the second tenant only.
func TestPlacesOfAnotherTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ids := twoTenants(t)
		admitted := m.Service.Admitted()
		statuses := map[int]int{}
		for route, all := range places(t, m.Do("GET", "/openapi.json", "", "").Body.Bytes()) {
			if _, needs := admitted[route]; !needs && !slices.Contains([]string{"GET /v1/models/:model", "GET /log/tile/:level/:tile/:rest"}, route) || slices.Contains(unheard, route) {
				continue
			}
			method, _, _ := strings.Cut(route, " ")
			for _, at := range all {
				if route == "GET /api/v1/events" && at.name != "session" {
					continue // the response contains the tenant's own events, which contain the ids that this test has sent
				}
				for kind, never := range neverWas {
					var got [2]string
					for i, id := range []string{ids[kind], never} {
						var labels []string
						m.Execute = func(c *edgetest.Call) {
							if labels = c.Labels; c.Proposal.Tenant != edgetest.Other {
								t.Errorf("%s proposes a call of tenant %s", route, c.Proposal.Tenant)
							}
							switch {
							case c.ReportWithin > 0:
								c.Allow()
							case slices.Contains(tools, c.Kind):
								c.Succeed(c.Args)
							default:
								c.Deny(contract.ReasonUnknownTool)
							}
						}
						path, body, header := at.request(route, id)
						headers := []string{"X-Binnacle-Session: s-mine"}
						if header != "" {
							headers = append(headers, header) // may replace the first one
						}
						r := m.Do(method, path, m.TokenIn(edgetest.Other, "alice", token.All...), body, headers...) // a new token for each request, because older tokens expire while the test runs
						got[i] = ownID.ReplaceAllString(plain(r, id, labels), "OWN")
						statuses[r.Code]++
						for _, theirs := range ids {
							if strings.Contains(r.Body.String(), theirs) && !strings.Contains(id, theirs) {
								t.Errorf("%s with %s in %s %s names %s: %s", route, id, at.in, at.name, theirs, r.Body)
							}
						}
					}
					if got[0] != got[1] {
						t.Errorf("%s with a %s id in %s %s:\n%s\nfor an id that never existed:\n%s", route, kind, at.in, at.name, got[0], got[1])
					}
					if strings.Contains(got[0], canary) {
						t.Errorf("%s with a %s id in %s %s: %s", route, kind, at.in, at.name, got[0])
					}
				}
			}
		}
		if statuses[200] < 300 || statuses[404] < 300 || statuses[401] > 0 {
			t.Error("unexpected numbers of responses by status:", statuses)
		}
	})
}

// ofLog lists the routes of the transparency log that callers of every tenant may use,
// because all tenants share one log.
var ofLog = []string{"GET /log/checkpoint", "GET /log/consistency"}

// TestRoutesOfAnotherTenant requests the routes that require a credential, except the
// routes in unheard, as a principal of a second tenant. It checks that the recorded
// events and, except for the routes in ofLog, the queries to other services are of that
// tenant, that the response does not contain canary, and that the error is scope_missing
// (403) for exactly the routes that cover all tenants.
func TestRoutesOfAnotherTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ids := twoTenants(t)
		m.Execute = func(c *edgetest.Call) { c.Succeed(c.Args) }
		who := m.TokenIn(edgetest.Other, "alice", token.All...)
		whole := []string{"GET /api/v1/ledger", "GET /api/v1/views/:service", "GET /api/v1/tenants", "GET /api/v1/tenants/:tenant", "GET /log/tile/:level/:tile", "GET /log/tile/:level/:tile/*", "POST /log/cosignatures"}
		size := m.Ledger.Size()
		for route := range m.Service.Admitted() {
			if slices.Contains(unheard, route) {
				continue
			}
			method, path, _ := strings.Cut(route, " ")
			q := proposing[route]
			if q[0] != "" {
				path = q[0]
			}
			path = strings.NewReplacer(":id", ids["call"], ":call", ids["call"], ":seq", "1", ":hash", strings.Repeat("a", 64), ":name", "a", ":tenant", edgetest.Tenant, "/*", "").Replace(path)
			m.Queried()
			r := m.Do(method, path, who, q[1])
			for _, name := range m.Queried() {
				if !strings.HasSuffix(name, " of u") && !slices.Contains(ofLog, route) {
					t.Errorf("%s sends the query %s", route, name)
				}
			}
			if refused := r.Code == 403 && r.Error() == contract.CodeScopeMissing; refused != slices.Contains(whole, route) {
				t.Errorf("%s: %d %s", route, r.Code, r.Body)
			}
			if strings.Contains(r.Body.String(), canary) {
				t.Errorf("%s: %s", route, r.Body)
			}
		}
		for en, err := range m.Ledger.Scan(t.Context(), bus.Filter{}.String(), size+1) {
			if err != nil {
				t.Fatal(err)
			}
			if e, err := eventlog.Open(en, eventlog.Every); err != nil || e.Tenant != edgetest.Other {
				t.Error("an event of the first tenant:", e, err)
			}
		}
	})
}

// unheard lists the routes that TestPlacesOfAnotherTenant and TestRoutesOfAnotherTenant
// omit: routes that read objects, for which edgetest has no store, the run of the
// conformance checks, and MCP.
var unheard = []string{"GET /api/v1/contents/:commitment", "GET /api/v1/conformance/reports/:id", "POST /api/v1/conformance/run", "GET /mcp", "POST /mcp", "DELETE /mcp"}
