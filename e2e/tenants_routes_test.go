package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas"
)

// neverWas holds, for each kind of id in routes and queries, a well-formed id that does not
// exist in any tenant.
var neverWas = map[string]string{
	"call": "c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "waiting": "c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "decided": "c-AAAAAAAAAAAAAAAAAAAAAAAAAA",
	"session": contract.SessionID("default", "no-such-actor", "s-none"), "intent": "i-c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "response": "resp_AAAAAAAAAAAAAAAAAAAAAAAAAA",
	"receipt": "sha256:" + strings.Repeat("0", 64), "content": "sha256:" + strings.Repeat("0", 64), "mcp": "AAAAAAAAAAAAAAAAAAAAAAAAAA", "seq": "999999", "key": "no-such-key", "report": "cr-" + strings.Repeat("0", 64) + "-100", "tenant": "acme_shop_none",
}

// request is one request of a tenant. In every part of it, ID is replaced by an id and SIZE
// by the size of the content object.
type request struct {
	kind   string // kind of the id; empty: the request names none
	method string
	path   string
	body   string
	header string // one field, "Name: value"
	status int    // expected status of the response to another tenant
}

// routes lists, for each operation of the OpenAPI document, requests with ids of another
// tenant or, for an operation that takes no id, a request whose response depends on the
// tenant. An operation without such a request has the value nil: its response is the same
// for every caller, or it creates something for its caller.
var routes = map[string][]request{
	"addCosignature":       {{"", "POST", "/log/cosignatures", `{"size":1,"line":"x"}`, "", 403}},
	"consentKey":           {{"key", "POST", "/api/v1/keys/ID/consent", `{"maker":"ann","scopes":["llm:call"],"ttl_ms":60000}`, "", 200}},
	"countTokens":          {{"session", "POST", "/v1/messages/count_tokens", `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}]}`, "X-Binnacle-Session: ID", 0}},
	"createCall":           {{"session", "POST", "/api/v1/calls", `{"kind":"tool.noop","args":{}}`, "X-Binnacle-Session: ID", 404}, {"waiting", "POST", "/api/v1/calls", `{"kind":"policy.vote","args":{"call_id":"ID","vote":"grant","reason":"x"}}`, "", 404}, {"response", "POST", "/api/v1/calls", `{"kind":"llm.delete_response","args":{"id":"ID"}}`, "", 0}, {"call", "POST", "/api/v1/calls", `{"kind":"tool.cmd.upper","args":{"text":"see ID"}}`, "", 200}},
	"createChatCompletion": {{"session", "POST", "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}]}`, "X-Binnacle-Session: ID", 404}, {"call", "POST", "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"what came of ID?"}]}`, "", 200}},
	"createCompletion":     {{"session", "POST", "/v1/completions", `{"model":"demo/echo","prompt":"hi"}`, "X-Binnacle-Session: ID", 404}},
	"createEmbeddings":     {{"session", "POST", "/v1/embeddings", `{"model":"demo/echo","input":["a"]}`, "X-Binnacle-Session: ID", 404}},
	"createJudgement":      {{"session", "POST", "/api/v1/judgements", `{"session":"ID","rubric":"name: r\nmodel: demo/echo\nmin: 0\nmax: 10\ncriteria:\n  - id: a\n    description: b\n"}`, "", 0}},
	"createKey":            nil,
	"createMessage":        {{"session", "POST", "/v1/messages", `{"model":"demo/echo","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`, "X-Binnacle-Session: ID", 404}},
	"createResponse":       {{"response", "POST", "/v1/responses", `{"model":"demo/echo","input":"hi","previous_response_id":"ID"}`, "", 0}},
	"decideCall":           {{"decided", "POST", "/api/v1/decide", `{"call_id":"ID"}`, "", 404}, {"session", "POST", "/api/v1/decide", `{"kind":"tool.noop","args":{},"report_within_ms":1000}`, "X-Binnacle-Session: ID", 404}},
	"deleteResponse":       {{"response", "DELETE", "/v1/responses/ID", "", "", 404}},
	"endMCP":               {{"mcp", "DELETE", "/mcp", "", "Mcp-Session-Id: ID", 404}},
	"executeTool":          {{"session", "POST", "/mcp/v1/execute", `{"method":"noop","params":{}}`, "X-Binnacle-Session: ID", 404}},
	"exportEvidence":       {{"session", "POST", "/api/v1/evidence/export", `{"session_id":"ID"}`, "", 404}},
	"getApproval":          {{"waiting", "GET", "/api/v1/approvals/ID", "", "", 404}},
	"getCall":              {{"call", "GET", "/api/v1/calls/ID", "", "", 404}, {"waiting", "GET", "/api/v1/calls/ID", "", "", 404}, {"decided", "GET", "/api/v1/calls/ID", "", "", 404}},
	"getCheckpoint":        nil,
	"getConformanceReport": {{"report", "GET", "/api/v1/conformance/reports/ID", "", "", 404}},
	"getConsistencyProof":  nil,
	"getContent":           {{"content", "GET", "/api/v1/contents/ID?size=SIZE", "", "", 404}, {"content", "GET", "/api/v1/contents/ID?size=SIZE&tenant=acme_shop_prod", "", "", 403}},
	"getEvidence":          {{"session", "GET", "/api/v1/sessions/ID/evidence", "", "", 404}, {"session", "GET", "/api/v1/sessions/ID/evidence?owner=ann", "", "", 404}},
	"getHealth":            nil,
	"getIdentities":        {{"", "GET", "/api/v1/identities", "", "", 200}, {"", "GET", "/api/v1/identities?at=1", "", "", 200}},
	"getInclusionProof":    {{"seq", "GET", "/api/v1/ledger/ID/proof", "", "", 404}},
	"getLimits":            {{"", "GET", "/api/v1/limits", "", "", 200}},
	"getMetrics":           {{"", "GET", "/metrics", "", "", 0}},
	"getModel":             nil,
	"getOpenAPI":           nil,
	"getPack":              nil,
	"getProofGraph":        {{"session", "GET", "/helm/proofgraph?session=ID", "", "", 404}, {"session", "GET", "/helm/proofgraph?session=ID&owner=ann", "", "", 404}},
	"getReadiness":         nil,
	"getReceipt":           {{"receipt", "GET", "/api/v1/proofgraph/receipts/ID", "", "", 404}},
	"getResponse":          {{"response", "GET", "/v1/responses/ID", "", "", 404}},
	"getTenant":            {{"tenant", "GET", "/api/v1/tenants/ID", "", "", 403}},
	"exportTenant":         {{"tenant", "GET", "/api/v1/tenants/ID/evidence", "", "", 404}},
	"getTile":              {{"", "GET", "/log/tile/0/000", "", "", 403}},
	"getTileOf":            {{"", "GET", "/log/tile/0/000.p/12", "", "", 403}},
	"getToolManifest":      nil,
	"getVersion":           nil,
	"getView":              {{"", "GET", "/api/v1/views/audit", "", "", 403}, {"", "GET", "/api/v1/views/policy", "", "", 403}},
	"listApprovals":        {{"", "GET", "/api/v1/approvals", "", "", 200}},
	"listEvents":           {{"session", "GET", "/api/v1/events?session=ID", "", "", 0}, {"session", "GET", "/api/v1/events?session=ID&owner=ann", "", "", 0}, {"", "GET", "/api/v1/events?from=1", "", "", 200}},
	"listInputItems":       {{"response", "GET", "/v1/responses/ID/input_items", "", "", 404}},
	"listKeys":             {{"", "GET", "/api/v1/keys", "", "", 200}},
	"listLedger":           {{"", "GET", "/api/v1/ledger", "", "", 403}},
	"listModelStats":       {{"", "GET", "/api/v1/llm/stats", "", "", 200}},
	"listModels":           nil,
	"listPacks":            {{"", "GET", "/api/v1/packs", "", "", 200}},
	"listPolicies":         {{"", "GET", "/api/v1/policies", "", "", 200}},
	"listReceipts":         {{"session", "GET", "/helm/receipts?session=ID", "", "", 0}, {"", "GET", "/helm/receipts?limit=1000", "", "", 200}},
	"listSessionReceipts":  {{"session", "GET", "/api/v1/proofgraph/sessions/ID/receipts", "", "", 404}, {"session", "GET", "/api/v1/proofgraph/sessions/ID/receipts?owner=ann", "", "", 404}},
	"listSessions":         {{"", "GET", "/api/v1/proofgraph/sessions?limit=1000", "", "", 200}},
	"listSpend":            {{"", "GET", "/api/v1/llm/spend?by=model,day", "", "", 200}},
	"listTenants":          {{"", "GET", "/api/v1/tenants", "", "", 403}},
	"listTrustKeys":        nil,
	"putSecret":            nil,
	"reportOutcome":        {{"intent", "POST", "/api/v1/intents/ID/outcome", `{"args_digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","status":"succeeded"}`, "", 404}},
	"revokeTokens":         nil,
	"runConformance":       nil,
	"runPack":              {{"session", "POST", "/api/v1/packs/noop", `{}`, "X-Binnacle-Session: ID", 404}},
	"searchEvents":         {{"session", "GET", "/api/v1/search?session=ID", "", "", 0}, {"", "GET", "/api/v1/search?tool=cmd.upper&limit=1000", "", "", 200}, {"", "GET", "/api/v1/search?actor=ann&limit=1000", "", "", 200}},
	"sendMCP":              {{"mcp", "POST", "/mcp", `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`, "Mcp-Session-Id: ID", 404}},
	"streamMCP":            {{"mcp", "GET", "/mcp", "", "Mcp-Session-Id: ID", 404}},
	"verifyEvidence":       nil,
	"vote":                 {{"waiting", "POST", "/api/v1/approvals/ID/votes", `{"vote":"grant","reason":"x"}`, "", 404}},
	"withdrawKeyConsent":   {{"key", "DELETE", "/api/v1/keys/ID/consent", "", "", 0}},
}

// mine matches the parts that differ between two responses to equal requests: ids,
// digests, signatures and times.
var mine = regexp.MustCompile(`\b(c|r|d|e|s|i|x|req)-[A-Za-z0-9]{20,}|sha256:[0-9a-f]+|"(created|created_at|wall_ms|expires|instance|lamport|seq|position|lag|time|at|sig|system_fingerprint|id)": ?("[^"]*"|[0-9]+)|chatcmpl-\w+|resp_\w+|msg_\w+`)

// send sends the request with id and size in place of ID and SIZE, and with the token of m.
func (q request) send(t *testing.T, m *harness.Mesh, id, size string) *harness.Response {
	t.Helper()
	put := func(s string) string { return strings.NewReplacer("ID", id, "SIZE", size).Replace(s) }
	path, body := strings.ReplaceAll(strings.ReplaceAll(q.path, "ID", url.PathEscape(id)), "SIZE", size), put(q.body)
	h := map[string]string{"Content-Type": "application/json"}
	if strings.HasPrefix(q.path, "/mcp") {
		h["Accept"] = "application/json, text/event-stream"
	}
	if name, value, ok := strings.Cut(put(q.header), ": "); ok {
		h[name] = value
	}
	r, err := m.DoHeader(t.Context(), q.method, path, body, h)
	if err != nil {
		t.Fatal(q.method, path, err)
	}
	return r
}

// foreignRoutes sends the requests in routes as principals of tenants other than a's, with
// every scope that a token of a tenant may have. It checks that the response for an id of
// a is equal to the response for an id that never existed, and that no response contains
// the mark of a's content or an id of a that the request does not. It fails if routes
// lacks an operation of the OpenAPI document, or has one that the document lacks.
func foreignRoutes(t *testing.T, m *harness.Mesh, a *settlement, others map[string]*harness.Mesh) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	r, err := m.Do(t.Context(), "GET", "/openapi.json", "", "")
	if err != nil {
		t.Fatal(err)
	}
	r.JSON(t, &doc)
	known := map[string]bool{}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			known[op.OperationID] = true
			if _, ok := routes[op.OperationID]; !ok {
				t.Errorf("%s %s (%s): routes has no request that names ids of another tenant", method, path, op.OperationID)
			}
		}
	}
	for id := range routes {
		if !known[id] {
			t.Errorf("the document has no operation %s", id)
		}
	}
	// Requests that name ids record these ids in their own tenant. The other requests read
	// that tenant's events, so they are sent first.
	for _, named := range []bool{false, true} {
		for _, requests := range routes {
			for _, q := range requests {
				for who, other := range others {
					if named == (q.kind != "") {
						a.foreign(t, who, q, other)
					}
				}
			}
		}
	}
}

// foreign sends one request as another tenant; see foreignRoutes.
func (s *settlement) foreign(t *testing.T, who string, q request, other *harness.Mesh) {
	t.Helper()
	what := fmt.Sprintf("%s: %s %s %s %s with the id %s", who, q.method, q.path, q.body, q.header, q.kind)
	if q.kind != "" && (s.ids[q.kind] == "" || neverWas[q.kind] == "") {
		t.Errorf("%s: there is no such id", what)
		return
	}
	r := q.send(t, other, s.ids[q.kind], s.ids["size"])
	body := string(r.Body)
	if q.kind != "" {
		body = strings.ReplaceAll(body, s.ids[q.kind], "ID")
	}
	if q.status != 0 && r.Status != q.status {
		t.Errorf("%s: %d, want %d: %.600s", what, r.Status, q.status, body)
	}
	if leak := s.leaks(body, s.ids[q.kind]); leak != "" {
		t.Errorf("%s: the response contains %s of the other tenant: %.2000s", what, leak, body)
	}
	if q.kind == "" {
		return
	}
	none := q.send(t, other, neverWas[q.kind], s.ids["size"])
	same := func(r *harness.Response, id string) string {
		b := strings.NewReplacer(id, "ID", url.PathEscape(id), "ID", strings.ToUpper(id), "ID").Replace(string(r.Body))
		return mine.ReplaceAllString(b, "…")
	}
	if x, y := same(r, s.ids[q.kind]), same(none, neverWas[q.kind]); r.Status != none.Status || x != y {
		t.Errorf("%s: %d %.600s\nfor an id that never existed: %d %.600s", what, r.Status, x, none.Status, y)
	}
}

// leaks returns the mark of the tenant or an id of it that text contains, other than
// except; "" means none.
func (s *settlement) leaks(text, except string) string {
	if strings.Contains(text, s.mark) {
		return s.mark
	}
	for kind, id := range s.ids {
		if len(id) > 12 && id != except && !strings.HasSuffix(except, id) && strings.Contains(text, id) {
			return kind + " " + id
		}
	}
	return ""
}

// args is a query as its schema describes it. It names an id of the given kind, in place of
// ID in the args, or none if kind is empty.
type args struct {
	kind, args string
	as         string // service that sends the query; empty: gateway
}

// queries lists, for each query of schemas/queries that a tenant may cause, args with ids
// of another tenant. Queries of scope "cell" are sent with an empty document: they must
// fail for every tenant.
var queries = map[string]args{
	"audit.acted":                {"", `{"actor":"ann"}`, "policy"},
	"audit.call":                 {"call", `{"call_id":"ID"}`, ""},
	"audit.checkpoint":           {"", `{}`, ""},
	"audit.consistency":          {"", `{"from":1,"to":2}`, ""},
	"audit.decision":             {"call", `{"call_id":"ID"}`, ""},
	"audit.evidence":             {"session", `{"session":"ID"}`, ""},
	"audit.late_report":          {"call", `{"call_id":"ID"}`, ""},
	"audit.makers":               {"call", `{"ids":["ID"]}`, ""},
	"audit.proof":                {"seq", `{"seq":ID}`, ""},
	"audit.proofgraph":           {"session", `{"session":"ID"}`, ""},
	"audit.proposal":             {"call", `{"call_id":"ID"}`, ""},
	"audit.receipt_by_digest":    {"receipt", `{"digest":"ID"}`, ""},
	"audit.receipts":             {"session", `{"session":"ID","limit":10}`, ""},
	"audit.search":               {"session", `{"terms":{"session":"ID"},"limit":10}`, ""},
	"audit.session_receipts":     {"session", `{"session":"ID","limit":10}`, ""},
	"audit.sessions":             {"", `{"limit":100}`, ""},
	"audit.tenant_export":        {"", `{}`, ""},
	"audit.transcript":           {"session", `{"session":"ID"}`, "judge"},
	"llm-router.models":          {"", `{}`, ""},
	"llm-router.spend":           {"", `{"by":["model"],"from":"2026-01-01T00:00:00Z"}`, ""},
	"llm-router.stats":           {"", `{}`, ""},
	"llm-router.stored_response": {"response", `{"id":"ID"}`, ""},
	"mesh.body":                  {"call", `{"call_id":"ID"}`, "judge"},
	"mesh.content_keys":          {"", `{"recipient":"KEY"}`, ""},
	"mesh.sealed_value":          {"call", `{"call_id":"ID"}`, "vault-broker"},
	"policy.approval":            {"waiting", `{"call_id":"ID"}`, ""},
	"policy.approvals":           {"", `{}`, ""},
	"policy.identities":          {"", `{}`, ""},
	"policy.keys":                {"", `{}`, ""},
	"policy.limits":              {"", `{}`, ""},
	"policy.policies":            {"", `{}`, ""},
}

// answering maps each query that several services implement to the service that is
// queried.
var answering = map[string]string{"mesh.body": "gateway", "mesh.sealed_value": "gateway", "mesh.content_keys": "vault-broker", "mesh.health": "policy", "mesh.keys_view": "policy", "mesh.view": "policy"}

// foreignQueries sends every query of schemas/queries for tenants other than a's with
// ids of a. It makes the checks of foreignRoutes, and checks that a query about the mesh
// as a whole fails with not_found. It fails if queries lacks a query that is not about the
// mesh as a whole.
func foreignQueries(t *testing.T, m *harness.Mesh, a *settlement, others []string) {
	t.Helper()
	querier := &querier{mesh: m, conns: map[string]*bus.Conn{}, box: service(t, m, "policy", querierSlot)}
	files, err := fs.Glob(schemas.Queries, "queries/*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := schemas.Queries.ReadFile(f)
		var doc struct {
			ID    string `json:"$id"`
			Scope string `json:"x-scope"`
		}
		if err != nil || json.Unmarshal(b, &doc) != nil {
			t.Fatal(f, err)
		}
		name, ok := strings.CutPrefix(doc.ID, "urn:binnacle:query:")
		if !ok {
			continue
		}
		to, verb, _ := strings.Cut(name, ":")
		name = to + "." + verb
		if s := answering[name]; s != "" {
			to = s
		}
		q, known := queries[name]
		if !known && doc.Scope != "cell" {
			t.Errorf("%s: queries has no entry for it", name)
			continue
		}
		for _, tenant := range others {
			send := func(id string) (string, string) {
				text := strings.NewReplacer("ID", id, "KEY", "c2VhbGVkIHRvIHRoaXMga2V5IG9mIDMyIGJ5dGVzISE=").Replace(q.args)
				if !known {
					text = "{}"
				}
				return querier.send(t, cmp.Or(q.as, "gateway"), tenant, to, verb, json.RawMessage(text))
			}
			got, code := send(a.ids[q.kind])
			if doc.Scope == "cell" {
				if code != contract.CodeNotFound {
					t.Errorf("%s, about the mesh as a whole, for tenant %s: %q %.300s", name, tenant, code, got)
				}
				continue
			}
			if leak := a.leaks(got, a.ids[q.kind]); leak != "" {
				t.Errorf("%s for tenant %s: the response contains %s of the other tenant: %.2000s", name, tenant, leak, got)
			}
			if q.kind == "" {
				if code != "" {
					t.Errorf("%s for tenant %s: %s %.300s", name, tenant, code, got)
				}
				continue
			}
			never := neverWas[q.kind]
			none, noCode := send(never)
			x, y := mine.ReplaceAllString(strings.ReplaceAll(got, a.ids[q.kind], "ID"), "…"), mine.ReplaceAllString(strings.ReplaceAll(none, never, "ID"), "…")
			if code != noCode || x != y {
				t.Errorf("%s for tenant %s with the id %s: %q %.400s\nfor an id that never existed: %q %.400s", name, tenant, q.kind, code, x, noCode, y)
			}
		}
	}
}

// querier sends queries with the identities of services. Every response goes to an inbox
// of policy that no instance uses, because some services have no inbox that is unused.
type querier struct {
	mesh  *harness.Mesh
	conns map[string]*bus.Conn // by service
	box   *rpc.Client
	n     int
}

const querierSlot = 8

// send sends a query as a service, for a tenant, and returns the frames of its response
// as text, and the code of its error.
func (q *querier) send(t *testing.T, as, tenant, to, verb string, args json.RawMessage) (text, code string) {
	t.Helper()
	if q.conns[as] == nil {
		q.conns[as] = q.mesh.Connect(t, as)
	}
	instance, err := q.box.Live(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	q.n++
	id := fmt.Sprintf("q_%s_tenants-%d", as, q.n)
	s := q.box.Box.Open(id, to)
	defer s.Close()
	doc, err := json.Marshal(transient.Question{ID: id, From: fmt.Sprintf("policy-%d", querierSlot), Verb: verb, Args: args, Deadline: time.Now().Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{"kind": "ask", "data": json.RawMessage(doc)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.conns[as].JS.Publish(t.Context(), bus.TransientSubject(tenant, as, instance, id), body); err != nil {
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
