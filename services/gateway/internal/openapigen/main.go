// Command openapigen writes the gateway's OpenAPI 3.1 document and its page in
// docs/reference from one table. A test compares the table with the routes.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/approvals"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/conformance"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/decide"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/health"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/keys"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/ledgerapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/mcpapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/policyapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/secrets"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/tlog"
)

// operation describes one route.
type operation struct {
	method, path, summary string
	scope                 string // scope that the gateway requires; "call" if policy decides; "" if the route is open
	query                 []string
	body, answer          any // Go value whose type defines the schema, or a string that names a media type
}

const (
	auth  = "any valid token"
	audit = "audit:read"
)

var table = []operation{
	{"GET", "/healthz", "The process is alive.", "", nil, nil, map[string]string{}},
	{"GET", "/readyz", "503 until every service is ready; cached for a second. With health:read, or from a peer on the gateway's own host, each service and view with its lag, and the durability mode.", "", nil, nil, health.Readiness{}},
	{"GET", "/metrics", "Prometheus metrics, brought up to date once a second; open to peers on the gateway's own host. What a proxy forwards is not from that host.", "health:read", nil, nil, "text/plain"},
	{"GET", "/openapi.json", "This document.", "", nil, nil, map[string]any{}},
	{"GET", "/version", "What this gateway was built from.", "", nil, nil, run.Build{}},
	{"POST", "/v1/chat/completions", "OpenAI chat completion, plain or streamed. model is provider/model, an alias or a virtual model.", "llm:call, and call llm.chat", nil, map[string]any{}, map[string]any{}},
	{"POST", "/v1/responses", "OpenAI response, plain or streamed.", "llm:call, and call llm.responses", nil, map[string]any{}, map[string]any{}},
	{"GET", "/v1/responses/{id}", "A stored response of the caller's.", auth, nil, nil, map[string]any{}},
	{"DELETE", "/v1/responses/{id}", "Lets a stored response of the caller's go: it is served and continued no more. What the ledger holds of it stays.", "llm:call, and call llm.delete_response", nil, nil, map[string]any{}},
	{"GET", "/v1/responses/{id}/input_items", "What went into a stored response of the caller's, newest first.", auth, []string{"limit", "order", "after"}, nil, map[string]any{}},
	{"POST", "/v1/messages", "Anthropic message, plain or streamed. The token may stand in X-Api-Key.", "llm:call, and call llm.messages", nil, map[string]any{}, map[string]any{}},
	{"POST", "/v1/messages/count_tokens", "Counts the tokens of an Anthropic message.", "llm:call, and call llm.count_tokens", nil, map[string]any{}, map[string]any{}},
	{"POST", "/v1/embeddings", "OpenAI embeddings.", "llm:call, and call llm.embeddings", nil, map[string]any{}, map[string]any{}},
	{"POST", "/v1/completions", "OpenAI text completion, plain or streamed.", "llm:call, and call llm.completions", nil, map[string]any{}, map[string]any{}},
	{"GET", "/v1/models", "OpenAI model list.", auth, nil, nil, map[string]any{}},
	{"GET", "/v1/models/*", "One model of the list; its name may hold slashes.", auth, nil, nil, map[string]any{}},
	{"GET", "/api/v1/packs", "The packs there are.", auth, nil, nil, []packs.Pack{}},
	{"GET", "/api/v1/packs/{name}", "One pack with its schemas.", auth, nil, nil, packs.Pack{}},
	{"POST", "/api/v1/packs/{name}", "Runs a pack; the body is its input.", "call tool.<name>", nil, map[string]any{}, calls.CallResponse{}},
	{"POST", "/api/v1/calls", "Proposes any call.", "call <kind>", nil, calls.CallRequest{}, calls.CallResponse{}},
	{"GET", "/api/v1/llm/stats", "How models did in a window: success rates, percentiles of latency.", audit, []string{"from", "to"}, nil, []llmrouter.ModelStats{}},
	{"GET", "/api/v1/llm/spend", "Tokens and money in a window, by key, model, tag, day, actor or provider.", audit, []string{"from", "to", "by"}, nil, []llmrouter.Spend{}},
	{"POST", "/api/v1/keys", "Makes a virtual key and shows it, this once. The ledger has its digest.", "policy:admin, and call policy.create_key", nil, keys.KeyRequest{}, keys.KeyResponse{}},
	{"GET", "/api/v1/keys", "Virtual keys: what they may be used for, and what became of them.", "policy:admin", nil, nil, []map[string]any{}},
	{"POST", "/api/v1/keys/{id}/consent", "Agrees, with a token of one's own, that another principal makes a virtual key that calls as the caller.", "call policy.consent_key", nil, keys.ConsentRequest{}, calls.CallResponse{}},
	{"DELETE", "/api/v1/keys/{id}/consent", "Takes the consent back, and ends the key made under it.", "call policy.withdraw_consent", nil, nil, calls.CallResponse{}},
	{"POST", "/api/v1/tokens/revocations", "Ends a bearer token by its id (jti), or all that a principal's credentials gave until now. In force within a second on every gateway.", "policy:admin, and call policy.revoke_token", nil, keys.RevocationRequest{}, calls.CallResponse{}},
	{"POST", "/api/v1/secrets", "Stores a secret. The value travels sealed to the vault-broker and never reaches the ledger.", "vault:write, and call vault.put", nil, secrets.SecretRequest{}, map[string]string{}},
	{"POST", "/api/v1/judgements", "Scores a recorded session against a YAML rubric.", "call judge.score", nil, map[string]string{}, calls.CallResponse{}},
	{"GET", "/api/v1/calls/{id}", "How a call stands; for who made it, and for readers of the ledger. Retry-After while it has not ended.", auth, nil, nil, calls.CallState{}},
	{"POST", "/api/v1/decide", "Decides a call that the caller executes itself: the signed decision with its intent, and no effect. Handing the intent out records effect_started; its outcome is due within report_within_ms. With call_id alone: takes up a call that has been approved since.", "calls:decide, and call <kind>", nil, decide.DecideRequest{}, decide.DecideResponse{}},
	{"POST", "/api/v1/intents/{id}/outcome", "Reports the outcome of a call that the caller executed itself, once. After the deadline the outcome stays unknown, and the report is a fact of its own.", "calls:decide", nil, decide.OutcomeRequest{}, decide.OutcomeResponse{}},
	{"GET", "/api/v1/approvals", "The calls that wait for approval.", "approvals:vote", nil, nil, []map[string]any{}},
	{"GET", "/api/v1/approvals/{call}", "One of them, with its arguments and the digest that a ballot signs.", "approvals:vote", nil, nil, map[string]any{}},
	{"POST", "/api/v1/approvals/{call}/votes", "Votes on it, as the caller or with a signed ballot.", "call policy.vote", nil, approvals.VoteRequest{}, calls.CallResponse{}},
	{"GET", "/api/v1/policies", "The policy documents in force, by layer and precedence.", audit, nil, nil, []map[string]any{}},
	{"GET", "/api/v1/limits", "The limits in force, and what stands on their accounts.", audit, nil, nil, map[string]any{}},
	{"GET", "/api/v1/identities", "Principals, roles, delegations and break-glass grants, also ended ones, by lamport, or as they stood at one; and the freeze.", audit, []string{"at"}, nil, map[string]any{}},
	{"GET", "/api/v1/trust/keys", "The trust registry; at=LAMPORT answers for a point in the past.", auth, []string{"at"}, nil, []policyapi.KeyInfo{}},
	{"GET", "/helm/receipts", "Receipts as JSON lines, in ledger order.", audit, []string{"session", "owner", "limit", "offset"}, nil, "application/x-ndjson"},
	{"GET", "/helm/proofgraph", "A session's proof graph.", audit, []string{"session", "owner"}, nil, map[string]any{}},
	{"GET", "/api/v1/proofgraph/sessions", "Sessions with their chain tips.", audit, []string{"limit", "offset"}, nil, []map[string]any{}},
	{"GET", "/api/v1/proofgraph/sessions/{id}/receipts", "A session's receipts.", audit, []string{"owner"}, nil, []map[string]any{}},
	{"GET", "/api/v1/proofgraph/receipts/{hash}", "The receipt of a digest, sha256:… or its hex digits.", audit, nil, nil, contract.Receipt{}},
	{"GET", "/api/v1/sessions/{id}/evidence", "A session's evidence pack; witnessed=K seals it under a checkpoint that K witnesses cosigned; redact=args|output|all withholds payloads, but not those of the calls in disclose=ID,…; from=SIZE proves that the log grew from the checkpoint of that size.", audit, []string{"witnessed", "from", "redact", "disclose", "owner"}, nil, "application/x-tar"},
	{"POST", "/api/v1/evidence/export", "A session's evidence pack, as a tar or compressed.", audit, nil, ledgerapi.ExportRequest{}, "application/x-tar"},
	{"POST", "/api/v1/evidence/verify", "Verifies an evidence pack of at most 16 MiB: the body, or the file bundle of a form. root=KID: under that root instead of the mesh's.", audit, []string{"root"}, "application/x-tar", ledgerapi.Verification{}},
	{"POST", "/api/v1/conformance/run", "Drives this gateway through the conformance gates with the caller's credential; answers when all are done.", audit, nil, conformance.ConformanceRequest{}, conformance.ConformanceReport{}},
	{"GET", "/api/v1/conformance/reports/{id}", "The stored report of a conformance run.", audit, nil, nil, conformance.ConformanceReport{}},
	{"GET", "/api/v1/events", "Events as JSON lines {event, seq}; follow=true goes on for ever.", audit, []string{"session", "owner", "type", "since", "from", "to", "follow"}, nil, "application/x-ndjson"},
	{"GET", "/api/v1/search", "Events that have all of these, newest first, as JSON lines {event, seq}; before=SEQ of the last line goes on.", audit, []string{"actor", "client", "event", "reason", "service", "session", "owner", "status", "tool", "verdict", "since", "until", "before", "limit"}, nil, "application/x-ndjson"},
	{"GET", "/api/v1/ledger", "Stored bytes, one event a line.", audit, []string{"from", "to"}, nil, "application/x-ndjson"},
	{"GET", "/api/v1/ledger/{seq}/proof", "Leaf hash, inclusion proof and the checkpoint it leads to.", audit, nil, nil, map[string]any{}},
	{"GET", "/api/v1/contents/{commitment}", "A content object: 16 bytes of salt, then the content.", audit, []string{"size"}, nil, "application/octet-stream"},
	{"GET", "/log/checkpoint", "The newest checkpoint: a C2SP signed note; witness=true: the one that all witnesses are to cosign now; witnessed=N: the newest that N witnesses have cosigned, with their lines; epoch=N: the last one of a closed epoch of the log.", audit, []string{"witness", "witnessed", "epoch"}, nil, "text/plain"},
	{"GET", "/log/consistency", "Proof that the tree of `to` leaves begins with that of `from` (RFC 6962); epoch=N: in a closed epoch of the log.", audit, []string{"from", "to", "epoch"}, nil, map[string]any{}},
	{"GET", "/log/tile/{level}/{tile}", "Hashes of one tile in the C2SP tlog-tiles layout: level, then x001/x234/067, with .p/W for a partial one.", audit, nil, nil, "application/octet-stream"},
	{"GET", "/log/tile/{level}/{tile}/*", "The same, for an index of more groups, or a partial tile.", audit, nil, nil, "application/octet-stream"},
	{"POST", "/log/cosignatures", "A witness's cosignature over a checkpoint of ours.", "log:cosign", nil, tlog.Cosignature{}, map[string]string{}},
	{"GET", "/api/v1/views/{service}", "A live view in canonical form, with its position.", audit, nil, nil, map[string]any{}},
	{"GET", "/mcp/v1/capabilities", "Tool manifest of the HELM surface.", "tools:call", nil, nil, map[string]any{}},
	{"POST", "/mcp/v1/execute", "Runs a tool by the HELM surface: {method, params}.", "call tool.<method>", nil, mcpapi.ExecuteRequest{}, map[string]any{}},
	{"GET", "/mcp", "MCP streamable HTTP: the session's event stream.", auth, nil, nil, "text/event-stream"},
	{"POST", "/mcp", "MCP streamable HTTP: initialize, tools/list, tools/call, notifications.", "call tool.<name>", nil, map[string]any{}, "text/event-stream"},
	{"DELETE", "/mcp", "Ends an MCP session.", auth, nil, nil, nil},
}

func main() {
	log.SetFlags(0)
	paths := map[string]map[string]any{}
	for _, op := range table {
		if paths[op.path] == nil {
			paths[op.path] = map[string]any{}
		}
		paths[op.path][strings.ToLower(op.method)] = op.render()
	}
	doc := map[string]any{
		"openapi": "3.1.0",
		"info":    map[string]any{"title": "Binnacle edge", "version": "1", "license": map[string]string{"name": "Apache-2.0", "identifier": "Apache-2.0"}},
		"paths":   paths,
		"components": map[string]any{
			"securitySchemes": map[string]any{"bearer": map[string]string{"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
			"schemas":         map[string]any{"Error": errorSchema},
		},
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		log.Fatal(err)
	}
	write("gateway/openapi.json", append(b, '\n'))
	write("../../docs/reference/http.md", page())
}

func write(path string, b []byte) {
	if err := os.WriteFile(path, b, 0o644); err != nil {
		log.Fatal(err)
	}
}

var errorSchema = map[string]any{"type": "object", "required": []string{"error"}, "properties": map[string]any{"error": map[string]any{
	"type": "object", "required": []string{"message", "type", "code"}, "properties": map[string]any{
		"message": text("what is wrong and how to mend it"), "type": text("OpenAI's error class"), "code": text("typed code"), "param": text("what is wrong: for a member of a JSON body its JSON pointer in the body (RFC 6901), for the body as a whole \"body\", for a header, path or query parameter its name"),
		"pointer":     text("JSON pointer, in the call (/args/…), of the argument that breaks the tool's schema"),
		"reason_code": text("policy's reason, on a denial"), "call_id": text(""), "decision_id": text(""), "receipt_id": text("")}}}}

func text(description string) map[string]any {
	m := map[string]any{"type": "string"}
	if description != "" {
		m["description"] = description
	}
	return m
}

func (op *operation) render() map[string]any {
	out := map[string]any{"summary": op.summary, "operationId": operationID(op)}
	if op.scope != "" {
		out["security"] = []any{map[string]any{"bearer": []string{}}}
		out["x-binnacle-scope"] = op.scope
	}
	var params []any
	for part := range strings.SplitSeq(op.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			params = append(params, map[string]any{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": map[string]string{"type": "string"}})
		}
	}
	for _, q := range op.query {
		params = append(params, map[string]any{"name": q, "in": "query", "schema": map[string]string{"type": "string"}})
	}
	calls := strings.Contains(op.scope, "call ")
	if calls {
		params = append(params, map[string]any{"name": "X-Binnacle-Session", "in": "header", "description": "session the call belongs to (s-…); a new one without it", "schema": map[string]string{"type": "string", "pattern": "^s-[A-Za-z0-9_-]{1,98}$"}})
	}
	if calls {
		params = append(params, map[string]any{"name": "X-Binnacle-Timeout", "in": "header", "description": "seconds the caller waits, 1 to 600; the call must start within them", "schema": map[string]string{"type": "integer"}})
	}
	if params != nil {
		out["parameters"] = params
	}
	if op.body != nil {
		out["requestBody"] = map[string]any{"content": content(op.body)}
	}
	ok := map[string]any{"description": "done"}
	if op.answer != nil {
		ok["content"] = content(op.answer)
	}
	if calls {
		h := map[string]any{}
		for _, n := range []string{"X-Binnacle-Session", "X-Binnacle-Call-Id", "X-Binnacle-Decision-Id", "X-Binnacle-Receipt-Id", "X-Binnacle-Verdict"} {
			h[n] = map[string]any{"schema": map[string]string{"type": "string"}}
		}
		ok["headers"] = h
	}
	fail := func(d string) map[string]any {
		return map[string]any{"description": d, "content": map[string]any{"application/json": map[string]any{"schema": map[string]string{"$ref": "#/components/schemas/Error"}}}}
	}
	responses := map[string]any{"200": ok}
	if op.scope != "" {
		responses["401"] = fail("no valid token")
		responses["403"] = fail("the scope is missing, or policy denied the call: reason_code and receipt_id say more")
		responses["503"] = fail("not now; Retry-After says when")
	}
	if op.body != nil || params != nil {
		responses["400"] = fail("bad input; param names what is wrong, in a JSON body by its JSON pointer")
	}
	out["responses"] = responses
	return out
}

func operationID(op *operation) string {
	id := strings.ToLower(op.method)
	for part := range strings.FieldsFuncSeq(op.path, func(r rune) bool { return strings.ContainsRune("/{}.-", r) }) {
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

func content(v any) map[string]any {
	if media, ok := v.(string); ok {
		return map[string]any{media: map[string]any{}}
	}
	return map[string]any{"application/json": map[string]any{"schema": schemaOf(reflect.TypeOf(v))}}
}

// schemaOf returns the JSON schema of a Go type as encoding/json encodes it.
func schemaOf(t reflect.Type) map[string]any {
	if t == reflect.TypeFor[json.RawMessage]() || t.Name() == "Raw" {
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		props, required := map[string]any{}, []string{}
		for i := range t.NumField() {
			f := t.Field(i)
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			props[name] = schemaOf(f.Type)
			if opts != "omitempty" {
				required = append(required, name)
			}
		}
		slices.Sort(required)
		return map[string]any{"type": "object", "properties": props, "required": required}
	}
	return map[string]any{}
}

// page returns the HTTP reference as Markdown.
func page() []byte {
	var b bytes.Buffer
	b.WriteString("# HTTP reference\n\nGenerated by `make gen` from the gateway's table of routes; the same table is\nserved as OpenAPI 3.1 at `/openapi.json`.\n\n\"call\" means that the request becomes a call: policy decides it, an executor\ndoes it, and the response names call, decision, receipt and verdict in\n`X-Binnacle-*` headers. Errors are `{\"error\": {message, type, code, …}}`.\nWhere the request is wrong, `param` names what: a member of a JSON body by its JSON\npointer in the body (RFC 6901, such as `/scopes/2`), a body that is wrong as a whole\nby `body`, a header, a path or a query parameter by its name. Where an argument\nbreaks the tool's schema, `pointer` is its place in the call, `/args/…`.\n\nCredential and scope are checked before the body is read: a scope named here\nmust be held, and a call needs at least one scope other than `audit:read`,\n`health:read` and `log:cosign`. A body has at most 16 MiB and nests at most 128\ndeep, has no content encoding, comes at 1 KiB a second or more and within two\nminutes; a caller has at most 32 MiB of bodies in flight at one gateway, all\ncallers 64 MiB. Header lines have at most 64 KiB.\n\n| method | path | needs | what it does |\n|---|---|---|---|\n")
	for _, op := range table {
		scope := op.scope
		if scope == "" {
			scope = "–"
		}
		q := ""
		if len(op.query) > 0 {
			q = " Query: `" + strings.Join(op.query, "`, `") + "`."
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s%s |\n", op.method, op.path, strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(scope), op.summary, q)
	}
	return b.Bytes()
}
