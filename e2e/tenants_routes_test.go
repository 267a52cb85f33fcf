package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas"
)

// extra lists requests with ids that the OpenAPI document does not describe, because a
// protocol or a provider's API defines them, or because they are arguments of a call, and
// requests without ids whose response must not show another tenant.
var extra = []request{
	{"session", "POST", "/mcp", `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`, "Mcp-Session-Id: ID", 404},
	{"mcp", "POST", "/mcp", `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`, "Mcp-Session-Id: ID", 404},
	{"mcp", "GET", "/mcp", "", "Mcp-Session-Id: ID", 404},
	{"mcp", "POST", "/mcp?sessionid=ID", `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`, "", 404}, // of an older version
	{"mcp", "DELETE", "/mcp", "", "Mcp-Session-Id: ID", 404},
	{"response", "POST", "/v1/responses", `{"model":"demo/echo","input":"hi","previous_response_id":"ID"}`, "", 0}, // the provider's API responds with 400
	{"waiting", "POST", "/api/v1/calls", `{"kind":"policy.vote","args":{"call_id":"ID","vote":"grant","reason":"x"}}`, "", 404},
	{"response", "POST", "/api/v1/calls", `{"kind":"llm.delete_response","args":{"id":"ID"}}`, "", 0}, // the error is in the outcome of the call
	{"call", "POST", "/api/v1/calls", `{"kind":"tool.cmd.upper","args":{"text":"see ID"}}`, "", 200},  // text that happens to be an id
	{"call", "POST", "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"what came of ID?"}]}`, "", 200},
	{"", "GET", "/api/v1/events?from=1", "", "", 200},
	{"", "GET", "/api/v1/search?tool=cmd.upper&limit=1000", "", "", 200},
	{"", "GET", "/helm/receipts?limit=1000", "", "", 200},
	{"", "GET", "/api/v1/proofgraph/sessions?limit=1000", "", "", 200},
	{"", "GET", "/api/v1/llm/spend?by=model,day", "", "", 200},
	{"", "GET", "/api/v1/identities?at=1", "", "", 200},
}

// mine matches the parts that differ between two responses to equal requests: ids,
// digests, signatures and times.
var mine = regexp.MustCompile(`\b(c|r|d|e|s|i|x|req)-[A-Za-z0-9]{20,}|sha256:[0-9a-f]+|"(created|created_at|wall_ms|expires|instance|lamport|seq|position|lag|time|at|sig|system_fingerprint|id|before)": ?("[^"]*"|[0-9]+)|bk-\w+|chatcmpl-\w+|resp_\w+|msg_\w+`)

// fresh counts the names that replace FRESH.
var fresh atomic.Int64

// send sends the request with id and size in place of ID and SIZE, and with the token of m. Unless
// id is empty, id and the name in place of FRESH are replaced by ID and FRESH in the body of the
// response.
func (q request) send(t *testing.T, m *harness.Mesh, id, size string) *harness.Response {
	t.Helper()
	name := fmt.Sprintf("fresh-%d-name", fresh.Add(1))
	put := func(s string) string { return strings.NewReplacer("ID", id, "SIZE", size, "FRESH", name).Replace(s) }
	path, body := strings.NewReplacer("ID", url.PathEscape(id), "SIZE", size, "FRESH", name).Replace(q.path), put(q.body)
	h := map[string]string{"Content-Type": "application/json"}
	if strings.HasPrefix(q.path, "/mcp") {
		h["Accept"] = "application/json, text/event-stream"
		h["MCP-Protocol-Version"] = "2025-11-25" // a GET without it opens a stream of an older version, which has no end
	}
	for line := range strings.Lines(q.header) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		h[field] = put(value)
	}
	r, err := m.DoHeader(t.Context(), q.method, path, body, h)
	if err != nil {
		t.Fatal(q.method, path, err)
	}
	if id != "" {
		r.Body = []byte(strings.NewReplacer(id, "ID", url.PathEscape(id), "ID", strings.ToUpper(id), "ID", name, "FRESH").Replace(string(r.Body)))
	}
	return r
}

// openDocument returns the OpenAPI document that the gateway serves.
func openDocument(t *testing.T, m *harness.Mesh) *document {
	t.Helper()
	var doc document
	r, err := m.Do(t.Context(), "GET", "/openapi.json", "", "")
	if err != nil {
		t.Fatal(err)
	}
	r.JSON(t, &doc)
	return &doc
}

// foreignRoutes sends the requests that are generated from the OpenAPI document, and the
// extra ones, as principals of tenants other than a's, with every scope that a token of a
// tenant may have. For an id of a, the status must be 404 or the one that the tables state
// as an exception, and the response must be equal to that for an id that never existed. No
// response may contain the mark of a's content or an id of a that the request does not.
// foreignRoutes fails if the document has an input that the tables lack.
func foreignRoutes(t *testing.T, m *harness.Mesh, g *inputGenerator, a *settlement, others map[string]*harness.Mesh) {
	t.Helper()
	all := g.requests(openDocument(t, m))
	for _, r := range extra {
		all = append(all, foreignRequest{r, "extra", r.kind})
	}
	// Requests that name ids record these ids in their own tenant. The other requests read
	// that tenant's events, so they are sent first.
	for _, named := range []bool{false, true} {
		for _, r := range all {
			for who, other := range others {
				if named == (r.kind != "") {
					a.foreign(t, who, r, other)
				}
			}
		}
	}
	t.Logf("%d requests, %d of them with an id of another tenant, by %d tenants", len(all), len(slices.DeleteFunc(all, func(r foreignRequest) bool { return r.kind == "" })), len(others))
}

// foreign sends one request as another tenant; see foreignRoutes.
func (s *settlement) foreign(t *testing.T, who string, q foreignRequest, other *harness.Mesh) {
	t.Helper()
	what := fmt.Sprintf("%s: %s.%s: %s %s %s %q with the id %s", who, q.op, q.input, q.method, q.path, q.body, q.header, q.kind)
	if q.kind != "" && (s.ids[q.kind] == "" || neverWas[q.kind] == "") {
		t.Errorf("%s: there is no such id", what)
		return
	}
	r := q.send(t, other, s.ids[q.kind], s.ids["size"])
	body := string(r.Body)
	if q.status != 0 && r.Status != q.status {
		t.Errorf("%s: %d, want %d: %.600s", what, r.Status, q.status, body)
	}
	if leak := s.leaks(body, s.ids[q.kind]+q.path+q.body); leak != "" {
		t.Errorf("%s: the response contains %s of the other tenant: %.2000s", what, leak, body)
	}
	if q.kind == "" {
		return
	}
	none := q.send(t, other, neverWas[q.kind], s.ids["size"])
	same := func(r *harness.Response) string {
		if r.Header.Get("Content-Type") == "application/x-tar" { // the members of a pack have other times and signatures each time
			return "tar"
		}
		return mine.ReplaceAllString(string(r.Body), "…")
	}
	if x, y := same(r), same(none); r.Status != none.Status || x != y {
		t.Errorf("%s: %d %.600s\nfor an id that never existed: %d %.600s", what, r.Status, x, none.Status, y)
	}
}

// leaks returns the mark of the tenant or an id of it that text contains, other than those in
// except and ids of at most 12 characters; "" means none.
func (s *settlement) leaks(text, except string) string {
	if strings.Contains(text, s.mark) {
		return s.mark
	}
	for kind, id := range s.ids {
		if len(id) > 12 && !strings.Contains(except, id) && strings.Contains(text, id) {
			return kind + " " + id
		}
	}
	return ""
}

// sentBy has, for each query that the gateway does not send, a service that sends it.
var sentBy = map[string]string{"audit.acted": "policy", "audit.transcript": "judge", "mesh.applied": "policy", "mesh.body": "judge", "mesh.sealed_value": "vault-broker",
	"session-runner.server_start": "mcp-router", "session-runner.server_write": "mcp-router", "work.artifact_part": "session-runner"}

// answering maps each query that several services implement to the service that is
// queried.
var answering = map[string]string{"mesh.applied": "gateway", "mesh.body": "gateway", "mesh.sealed_value": "gateway", "mesh.content_keys": "vault-broker", "mesh.health": "policy", "mesh.keys_view": "policy", "mesh.view": "policy"}

// found lists the queries whose response for an id of another tenant is not the error
// not_found, with the reason. The response must be that for an id that never existed.
var found = map[string]string{
	"audit.acted":                  "the response is whether the principal has acted in the tenant",
	"audit.makers":                 "the response is a map of those ids that the tenant has",
	"audit.receipts":               "the response is a list, which is empty",
	"audit.search":                 "the response is a list, which is empty",
	"work.pipeline_runs":           "the response is a list, which is empty",
	"work.pipeline_schedules":      "the response is a list, which is empty",
	"work.artifact_list":           "the response is a list, which is empty",
	"llm-router.stored_response":   "the response names no principal; the gateway responds with 404",
	"session-runner.call_progress": "the response is that nothing was reported; the gateway responds with 404",
}

// unserved lists the queries that no service answers in the test, with the reason.
var unserved = map[string]string{
	"session-runner.sandbox_call": "the session-runners offer no held sandboxes; TestHeldSandboxes shows the 404s of others",
}

// unavailable lists the queries for which the mesh of the test lacks something, with the reason.
var unavailable = map[string]string{
	"session-runner.server_start": "the session-runners offer no held sandboxes; TestMCPCommands starts servers",
}

// rejected lists the queries whose generated requests are invalid, with the reason.
var rejected = map[string]string{
	"policy.explain":         "the request contains events, which are not those of a call",
	"vault-broker.value_mac": "the value is not sealed to the vault-broker for the call, which is not looked up",
}

// absent lists the queries whose generated requests name nothing that exists, with the reason.
var absent = map[string]string{
	"egress-broker.connect":          "the mesh has no endpoint of this name; TestEndpoints shows connections to those that it has",
	"egress-broker.connection_write": "the connection was not opened",
	"session-runner.server_write":    "the connection was not opened",
}

// querySchema holds the members of a schema in schemas/queries that foreignQueries reads.
type querySchema struct {
	ID         string `json:"$id"`
	Scope      string `json:"x-scope"`
	Properties struct{ Request objectSchema }
	Defs       map[string]objectSchema `json:"$defs"`
}

// requestSchemas returns the schemas of the queries by the query's name, such as
// "audit.call". A reference to the schema of a request is resolved.
func requestSchemas(t *testing.T) map[string]querySchema {
	t.Helper()
	files, err := fs.Glob(schemas.Queries, "queries/*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	out, defs := map[string]querySchema{}, map[string]objectSchema{}
	for _, f := range files {
		b, err := schemas.Queries.ReadFile(f)
		var doc querySchema
		if err != nil || json.Unmarshal(b, &doc) != nil {
			t.Fatal(f, err)
		}
		for name, d := range doc.Defs {
			defs[doc.ID+"#/$defs/"+name] = d
		}
		if name, ok := strings.CutPrefix(doc.ID, "urn:binnacle:query:"); ok {
			out[strings.ReplaceAll(name, ":", ".")] = doc
		}
	}
	for name, doc := range out {
		if ref := doc.Properties.Request.Ref; ref != "" {
			d, ok := defs[ref]
			if !ok {
				t.Fatalf("%s: no schema %s", name, ref)
			}
			doc.Properties.Request = d
			out[name] = doc
		}
	}
	return out
}

// foreignQueries sends every query of schemas/queries for tenants other than a's with ids
// of a, generated from the schemas of the requests. It makes the checks of foreignRoutes,
// and checks that a query about the mesh as a whole fails with not_found.
func foreignQueries(t *testing.T, m *harness.Mesh, g *inputGenerator, a *settlement, others []string) {
	t.Helper()
	querier := &querier{mesh: m, conns: map[string]*bus.Conn{}, transport: service(t, m, "policy", querierSlot)}
	all, n := requestSchemas(t), 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		to, verb, _ := strings.Cut(name, ".")
		q := foreignQuery{name, cmp.Or(sentBy[name], "gateway"), cmp.Or(answering[name], to), verb, all[name].Scope == "cell"}
		for _, args := range g.queries(name, all[name].Properties.Request) {
			n++
			for _, tenant := range others {
				q.send(t, querier, a, tenant, args)
			}
		}
	}
	t.Logf("%d queries with %d documents of arguments, for %d tenants", len(all), n, len(others))
}

// foreignQuery is a query that is sent for a tenant with ids of another one.
type foreignQuery struct {
	name, from, to, verb string
	ofCell               bool // whether it is about the mesh as a whole
}

// send sends the query for a tenant with an id of a and checks the response. If the query
// has an id and is not about the mesh as a whole, send compares the response with that for
// an id that never existed; see foreignQueries.
func (q foreignQuery) send(t *testing.T, querier *querier, a *settlement, tenant string, args queryArgs) {
	t.Helper()
	what := fmt.Sprintf("%s %s for tenant %s with the id %s", q.name, args.args, tenant, args.kind)
	send := func(id string) (string, string) {
		return querier.send(t, q.from, tenant, q.to, q.verb, json.RawMessage(strings.ReplaceAll(args.args, "ID", id)))
	}
	id, never := a.ids[args.kind], neverWas[args.kind]
	if args.kind != "" && (id == "" || never == "") {
		t.Errorf("%s: there is no such id", what)
		return
	}
	got, code := send(id)
	want := ""
	if _, listed := found[q.name]; q.ofCell || args.kind != "" && !listed {
		want = contract.CodeNotFound
	}
	if unserved[q.name] != "" {
		want = contract.CodeQueryUnknown
	}
	if unavailable[q.name] != "" {
		want = contract.CodeSandboxUnavailable
	}
	if rejected[q.name] != "" {
		want = contract.CodeInvalidInput
	}
	if absent[q.name] != "" {
		want = contract.CodeNotFound
	}
	if code != want {
		t.Errorf("%s: %q, want %q: %.300s", what, code, want, got)
	}
	if leak := a.leaks(got, id); leak != "" {
		t.Errorf("%s: the response contains %s of the other tenant: %.2000s", what, leak, got)
	}
	if args.kind == "" || q.ofCell {
		return
	}
	none, noCode := send(never)
	x, y := mine.ReplaceAllString(strings.ReplaceAll(got, id, "ID"), "…"), mine.ReplaceAllString(strings.ReplaceAll(none, never, "ID"), "…")
	if code != noCode || x != y {
		t.Errorf("%s: %q %.400s\nfor an id that never existed: %q %.400s", what, code, x, noCode, y)
	}
}

// querier sends queries with the identities of services. Every response goes to an inbox
// of policy that no instance uses, because some services have no inbox that is unused.
type querier struct {
	mesh      *harness.Mesh
	conns     map[string]*bus.Conn // by service
	transport *rpc.Client
	n         int
}

const querierSlot = 8

// send sends a query as a service, for a tenant, and returns the frames of its response
// as text, and the code of its error.
func (q *querier) send(t *testing.T, as, tenant, to, verb string, args json.RawMessage) (text, code string) {
	t.Helper()
	if q.conns[as] == nil {
		q.conns[as] = q.mesh.Connect(t, as)
	}
	instance, err := q.transport.Live(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	q.n++
	id := fmt.Sprintf("q_%s_tenants-%d", as, q.n)
	s := q.transport.Transport.Open(id, to)
	defer s.Close()
	doc, err := json.Marshal(transient.Request{ID: id, From: fmt.Sprintf("policy-%d", querierSlot), Verb: verb, Args: args, Deadline: time.Now().Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"kind": "ask", "data": json.RawMessage(doc)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.conns[as].JS.Publish(t.Context(), bus.TransientSubject(tenant, as, instance.Name, id), body); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out strings.Builder
	for {
		f, err := s.Next(ctx)
		if errors.Is(err, transient.ErrEnd) {
			return out.String(), ""
		}
		if err != nil {
			return out.String() + err.Error(), rpc.CodeOf(err)
		}
		out.Write(f.Data)
		out.WriteByte('\n')
	}
}
