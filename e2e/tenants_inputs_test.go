package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// neverWas holds, for each kind of id in a request or a query, a well-formed id that does
// not exist in any tenant.
var neverWas = map[string]string{
	"call": "c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "waiting": "c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "decided": "c-AAAAAAAAAAAAAAAAAAAAAAAAAA",
	"session": contract.SessionID("default", "no-such-actor", "s-none"), "intent": "i-c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "response": "resp_AAAAAAAAAAAAAAAAAAAAAAAAAA",
	"receipt": "sha256:" + strings.Repeat("0", 64), "content": "sha256:" + strings.Repeat("0", 64), "mcp": "AAAAAAAAAAAAAAAAAAAAAAAAAA", "seq": "999999", "key": "no-such-key",
	"report": "cr-" + strings.Repeat("0", 64) + "-100", "tenant": "acme_shop_none", "delegation": "g-c-AAAAAAAAAAAAAAAAAAAAAAAAAA", "token": "AAAAAAAAAAAAAAAAAAAAAAAAAA",
	"principal": "no-such-actor", "idempotency key": "no-such-idempotency-key", "secret": "no-such-secret",
	"artifact": contract.IDArtifact + strings.Repeat("0", 64),
	"run":      contract.IDCall + "RRRRRRRRRRRRRRRRRRRRRRRRRR",
	"schedule": contract.IDCall + "SSSSSSSSSSSSSSSSSSSSSSSSSS",
}

// naming lists the inputs that name an id, with the kinds of ids. An input is a parameter
// or a member of the body of an operation of the OpenAPI document, or a member of a query's
// request. It is named "operation.input", or "input" for all operations that have no entry
// of their own.
var naming = map[string][]string{
	"X-Binnacle-Session": {"session"}, "session": {"session"}, "session_id": {"session"}, "terms": {"session"},
	"X-Binnacle-On-Behalf-Of": {"principal"}, "owner": {"principal"}, "actor": {"principal"}, "maker": {"principal"}, "principal": {"principal"},
	"X-Binnacle-Delegation": {"delegation"},
	"Idempotency-Key":       {"idempotency key"},
	"call":                  {"call", "waiting", "decided"}, "call_id": {"call", "waiting", "decided"}, "ids": {"call"}, "disclose": {"call"},
	"commitment": {"content"}, "hash": {"receipt"}, "digest": {"receipt"}, "seq": {"seq"}, "tenant": {"tenant"},
	"getCall.id":                      {"call", "waiting", "decided"},
	"explainCall.id":                  {"call", "waiting", "decided"},
	"cancelCall.id":                   {"call", "waiting", "decided"},
	"useTerminal.id":                  {"call", "waiting", "decided"},
	"getConformanceReport.id":         {"report"},
	"reportOutcome.id":                {"intent"},
	"createKey.id":                    {"key"},
	"consentKey.id":                   {"key"},
	"withdrawKeyConsent.id":           {"key"},
	"listSessionReceipts.id":          {"session"},
	"getEvidence.id":                  {"session"},
	"getResponse.id":                  {"response"},
	"deleteResponse.id":               {"response"},
	"listInputItems.id":               {"response"},
	"llm-router.stored_response.id":   {"response"},
	"revokeTokens.id":                 {"token"},
	"putSecret.name":                  {"secret"},
	"getArtifact.id":                  {"artifact"},
	"getArtifactContent.id":           {"artifact"},
	"linkArtifact.id":                 {"artifact"},
	"artifact":                        {"artifact"},
	"getPipelineRun.id":               {"run", "call"},
	"getPipelineGraph.id":             {"run", "call"},
	"cancelPipelineRun.id":            {"run", "call"},
	"work.pipeline_run.run":           {"run", "call"},
	"getPipelineSchedule.id":          {"schedule", "run", "call"},
	"work.pipeline_schedule.schedule": {"schedule", "run", "call"},
}

// plain lists the inputs that name no id, named as in naming, with the value that is sent
// if the input is required. SIZE is the size of the other tenant's content object, and
// FRESH a name that occurs once.
var plain = map[string]any{
	"session-runner.sandbox_call.cancel": false, "session-runner.sandbox_call.wall_ms": 1000,
	"session-runner.sandbox_call.egress_authority": nil, "session-runner.sandbox_call.egress_socket": nil, "session-runner.sandbox_call.key_id": nil, "vault-broker.value_mac.name": "k", "vault-broker.value_mac.sealed": "c2VhbGVk",
	// a connection of the sender, whose tenant and service are its own
	"egress-broker.connect.connection_id": "FRESH", "egress-broker.connect.endpoint": "none", "egress-broker.connect.reference": nil,
	"egress-broker.connection_write.close": nil, "egress-broker.connection_write.connection_id": "FRESH", "egress-broker.connection_write.data": nil, "egress-broker.connection_write.n": 1,
	// the connection to a command, as above; TestMCPCommands has those of others
	"session-runner.server_start.connection_id": "FRESH", "session-runner.server_start.server": "none", "session-runner.server_start.settings": "",
	"session-runner.server_start.egress_authority": nil, "session-runner.server_start.egress_socket": nil,
	"session-runner.server_write.close": nil, "session-runner.server_write.connection_id": "FRESH", "session-runner.server_write.data": nil, "session-runner.server_write.n": 1,
	// a terminal, which only meshes with containers have: TestTerminal has those of others
	"session-runner.terminal.close": nil, "session-runner.terminal.columns": nil, "session-runner.terminal.cursor": 0, "session-runner.terminal.data": nil, "session-runner.terminal.key": "k", "session-runner.terminal.limit": nil, "session-runner.terminal.n": nil, "session-runner.terminal.rows": nil, "session-runner.terminal.sandbox": "sb-AAAAAAAAAAAAAAAAAAAAAAAAAA", "session-runner.terminal.signal": nil, "session-runner.terminal.wait_ms": nil,
	"useTerminal.close": nil, "useTerminal.columns": nil, "useTerminal.cursor": 0, "useTerminal.data": nil, "useTerminal.key": "k", "useTerminal.limit": nil, "useTerminal.n": nil, "useTerminal.rows": nil, "useTerminal.sandbox": "sb-AAAAAAAAAAAAAAAAAAAAAAAAAA", "useTerminal.signal": nil, "useTerminal.wait_ms": nil,
	// the sequence of the event that allows a call, for the keys of its contents: TestContentKeys has
	// those of others
	"mesh.content_keys.allowed": nil, "session-runner.sandbox_call.allowed": nil, "work.artifact_part.allowed": nil,
	// the name of a data subject, which each tenant has its own keys for
	"X-Binnacle-Subject": nil, "mesh.content_keys.pseudonym": nil, "mesh.content_keys.subject": nil,
	"putSecret.expires": nil, "putSecret.overlap_seconds": nil,
	// how a call is made
	"X-Binnacle-Timeout": nil, "Prefer": nil, "Anthropic-Version": nil, "kind": "tool.noop", "tool": nil, "args": map[string]any{}, "method": "noop", "params": map[string]any{},
	"getPack.name": "noop", "runPack.name": "noop", "model": "demo/echo", "report_within_ms": nil, "unapproved": nil, "profile": nil, "runConformance.level": nil,
	// the name of a virtual server, which is a tool document of the whole mesh
	"sendMCP.server": nil, "streamMCP.server": nil, "endMCP.server": nil,
	// the id of a sandbox, which only tools with containers take: TestPinned, boxed/images.txtar
	"X-Binnacle-Sandbox": nil,
	// inputs that browsers send to the pages of logins, which are for the holder of a cookie:
	// TestBrowserCookie
	"showLogin.code": nil, "showDevice.code": nil, "showApprovals.call": nil, "showConsent.request": nil, "finishProviderLogin.code": nil, "finishProviderLogin.error": nil, "finishProviderLogin.iss": nil, "finishProviderLogin.state": nil,
	// requests and registrations of programs, which name no object of a tenant: TestAuthorizationCodeEverywhere
	"authorize.client_id": "cli", "authorize.code_challenge": "x", "authorize.code_challenge_method": "S256", "authorize.redirect_uri": "http://127.0.0.1/callback", "authorize.resource": nil, "authorize.response_type": "code", "authorize.scope": nil, "authorize.state": nil,
	"registerClient.client_id": nil, "registerClient.client_id_issued_at": nil, "registerClient.client_name": nil, "registerClient.grant_types": nil, "registerClient.redirect_uris": []any{"https://ide.example/"}, "registerClient.response_types": nil, "registerClient.token_endpoint_auth_method": nil,
	// filters and pages within the caller's tenant
	"type": nil, "since": nil, "until": nil, "from": 1, "to": 2, "follow": nil, "at": nil, "by": nil, "limit": 10, "offset": nil, "order": nil, "before": nil, "label": "a=1", "labels": "a=1",
	"after": nil, "client": nil, "event": nil, "reason": "x", "service": "policy", "searchEvents.service": nil, "status": "succeeded", "verdict": nil,
	// the log, which is one for all tenants
	"level": 0, "tile": "000", "rest": "p", "line": "x", "size": 1, "index": 0, "width": 1, "getContent.size": "SIZE", "witness": nil, "witnessed": nil, "epoch": nil, "root": nil, "next": nil,
	"recordObservation.action": "sha256:x", "recordObservation.content": map[string]any{"agent": "a", "event": "SessionStart", "workspace": "/"}, "recordObservation.journal": "FRESH",
	"recordObservation.kind": "client.session", "recordObservation.number": 1, "recordObservation.observed_at": "2026-01-01T00:00:00.000Z", "recordObservation.phase": "began", "recordObservation.status": nil,
	// a document, which names packs of every tenant and no ids
	"validatePipeline.description": nil, "validatePipeline.name": "x", "validatePipeline.required": nil, "validatePipeline.timeout_s": nil,
	"validatePipeline.steps":  []any{map[string]any{"id": "s", "pack": "noop"}},
	"policy.explain.decision": map[string]any{}, "policy.explain.proposal": map[string]any{}, // events, not ids
	// the content of objects that are created or recorded
	"all": nil, "document": map[string]any{"name": "x", "steps": []any{map[string]any{"id": "s", "pack": "noop"}}}, "inputs": nil, "pipeline": nil, "Range": nil, "name": nil, "retain_s": nil, "ttl_s": nil, "link": "x", "work.artifact_list.before": "", "work.artifact_info.upload": "", "work.artifact_part.upload": "", "work.artifact_part.offset": 0,
	"vote": "grant", "passkey": nil, "kid": nil, "sig": nil, "args_digest": "sha256:" + strings.Repeat("0", 64), "error_code": nil, "error_message": nil, "output": nil, "usage": nil,
	"rubric": rubric, "value": "x", "approveDevice.code": "BCD-FGH-JKM", "scopes": []string{"llm:call"}, "ttl_ms": 60000, "budget_usd_micros": nil, "budget_window": nil, "cache": nil, "concurrent": nil,
	"models": nil, "createKey.kinds": nil, "rate_calls": nil, "rate_window": nil, "tags": nil, "format": nil, "redact": nil, "recipient": "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s=",
}

const rubric = "name: r\nmodel: demo/echo\nmin: 0\nmax: 10\ncriteria:\n  - id: a\n    description: b\n"

// given lists values of inputs that name an id, for requests in which another input names
// the id of the other tenant. Without an entry, such an input has an id of the other
// tenant, too, if it is required.
var given = map[string]any{
	"session": "s-work", "getEvidence.id": "s-work", "listSessionReceipts.id": "s-work", // the caller's own session
	"createKey.id": "FRESH", "consentKey.id": "FRESH",
}

// bodies lists members of bodies in addition to the required ones, by operation, or by
// "operation.input" for the requests in which this input names the id.
var bodies = map[string]string{
	"createChatCompletion": `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}]}`,
	"createMessage":        `{"model":"demo/echo","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`,
	"countTokens":          `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}]}`,
	"createCompletion":     `{"model":"demo/echo","prompt":"hi"}`,
	"createEmbeddings":     `{"model":"demo/echo","input":["a"]}`,
	"createResponse":       `{"model":"demo/echo","input":"hi"}`,
	"decideCall":           `{"kind":"tool.noop","args":{},"report_within_ms":1000}`,
	"decideCall.call_id":   `{}`,
	"revokeTokens":         `{"id":"FRESH"}`,
	"revokeTokens.id":      `{}`, "revokeTokens.principal": `{}`,
	"sendMCP": `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`,
}

// wrapped lists the inputs whose value is not the id itself, with the value.
var wrapped = map[string]string{"ids": `["ID"]`, "audit.evidence.disclose": `["ID"]`, "terms": `{"session":"ID"}`, "audit.proof.seq": `ID`}

// together maps an input that has an effect only with another input to that other one: a line
// of the header, or a parameter after "?".
var together = map[string]string{
	"X-Binnacle-Delegation": "X-Binnacle-On-Behalf-Of: ann",
	"Idempotency-Key":       "X-Binnacle-Session: s-FRESH",
	"listEvents.owner":      "?session=s-work", "listReceipts.owner": "?session=s-work", "searchEvents.owner": "?session=s-work",
	"getEvidence.disclose": "?redact=all",
}

// exception is the status, other than 404, that a request with an id of another tenant must
// have, and the reason. The status 0 permits any status that equals the status for an id that
// never existed.
type exception struct {
	status int
	why    string
}

var (
	ofCell  = exception{403, "the operation, or the parameter, is for operators of the mesh"}
	ownName = exception{200, "the name is one of the caller's tenant: a name of another tenant is free"}
	filters = exception{200, "the input selects from a list, which is empty"}
)

// exceptions lists the inputs, named as in naming, with which an id of another tenant gets
// another status than 404. The exceptions of queries are in found.
var exceptions = map[string]exception{
	"Idempotency-Key":         {0, "the key is one of the caller's session: the request is a new call, or fails as one does"},
	"X-Binnacle-On-Behalf-Of": {0, "policy denies a call on behalf of another without a delegation, whether the principal exists or not"},
	"X-Binnacle-Delegation":   {0, "policy denies a call under a delegation that the tenant lacks"},
	"listEvents.session":      filters, "listReceipts.session": filters, "searchEvents.session": filters,
	"listEvents.owner": filters, "listReceipts.owner": filters, "searchEvents.owner": filters, "searchEvents.actor": filters,
	"createKey.id": ownName, "consentKey.id": ownName, "withdrawKeyConsent.id": ownName, "putSecret.name": ownName,
	"consentKey.maker":       {200, "the caller agrees to a key of a principal, whether or not the principal exists"},
	"createKey.actor":        {400, "a principal that has not agreed to the key is refused, whether or not the principal exists"},
	"revokeTokens.id":        {200, "the revocation is of a token of the caller's tenant; no token of it has the id"},
	"revokeTokens.principal": {200, "the revocation is of the tokens of the caller's tenant"},
	"getContent.tenant":      ofCell,
	"runPipeline.digest":     {0, "the digest is that of the document, which the request lacks"},
	"getEvidence.disclose":   {200, "the input selects calls of the session, which is the caller's own; the pack has none of another tenant"},
}

// request is one request of a tenant. In every part of it, ID is replaced by an id, SIZE
// by the size of the content object, and FRESH by a name that occurs once.
type request struct {
	kind   string // kind of the id; empty: the request names none
	method string
	path   string
	body   string
	header string // lines "Name: value"
	status int    // expected status of the response to another tenant; 0: any
}

// foreignRequest is a request that inputGenerator has made, or one of extra.
type foreignRequest struct {
	request
	op, input string // id of the operation, and its input that names the id
}

// param is a parameter of an operation, a reference to one, or a member of a body.
type param struct {
	Ref      string `json:"$ref"`
	In, Name string
	Required bool
}

// operation holds the members of an operation of the OpenAPI document that inputGenerator
// reads.
type operation struct {
	OperationID string
	Scope       string `json:"x-binnacle-scope"`
	Parameters  []param
	RequestBody struct {
		Content map[string]struct{ Schema objectSchema }
	}
}

// objectSchema is a JSON schema: a reference, or an object with members.
type objectSchema struct {
	Ref        string `json:"$ref"`
	Properties map[string]json.RawMessage
	Required   []string
}

// document holds the members of the OpenAPI document that inputGenerator reads.
type document struct {
	Paths      map[string]map[string]operation
	Components struct {
		Schemas    map[string]objectSchema
		Parameters map[string]param
	}
}

// inputGenerator makes requests from the OpenAPI document, and queries from their schemas.
type inputGenerator struct {
	ids    map[string]string // ids of the other tenant, by kind
	used   map[string]bool   // entries of the tables that an input has used
	faults []string          // inputs without an entry, and others that cannot be sent
}

// lookup returns the entry of a table for an input of an operation, and whether there is one.
func lookup[V any](g *inputGenerator, table map[string]V, op, input string) (V, bool) {
	for _, name := range []string{op + "." + input, input} {
		if v, ok := table[name]; ok {
			g.used[name] = true
			return v, true
		}
	}
	var none V
	return none, false
}

// requests returns the requests for a document in the order of the operations' ids: for each
// operation, one request for each input that names an id and each kind of id, or, for an
// operation without such an input, one request.
func (g *inputGenerator) requests(doc *document) (out []foreignRequest) {
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for method, op := range doc.Paths[path] {
			ps, body := op.inputs(doc)
			n := len(out)
			for _, p := range ps {
				kinds, ok := g.kinds(op.OperationID, p)
				if !ok {
					continue
				}
				for _, kind := range kinds {
					out = append(out, g.request(path, method, op, ps, body, p, kind))
				}
			}
			if n == len(out) {
				out = append(out, g.request(path, method, op, ps, body, param{}, ""))
			}
		}
	}
	slices.SortStableFunc(out, func(a, b foreignRequest) int { return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.input, b.input)) })
	return out
}

// inputs returns the parameters of an operation and the members of its JSON body. body
// reports whether it has such a body.
func (op *operation) inputs(doc *document) (ps []param, body bool) {
	for _, p := range op.Parameters {
		if p.Ref != "" {
			p = doc.Components.Parameters[strings.TrimPrefix(p.Ref, "#/components/parameters/")]
		}
		ps = append(ps, p)
	}
	media, body := op.RequestBody.Content["application/json"]
	s := media.Schema
	if s.Ref != "" {
		s = doc.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		ps = append(ps, param{"", "body", name, slices.Contains(s.Required, name)})
	}
	return ps, body
}

// kinds returns the kinds of ids that an input names. It records a fault if no table has
// the input.
func (g *inputGenerator) kinds(op string, p param) (kinds []string, ok bool) {
	for _, name := range []string{op + "." + p.Name, p.Name} {
		if kinds, ok = naming[name]; ok {
			g.used[name] = true
			return kinds, true
		}
		if _, known := plain[name]; known {
			g.used[name] = true
			return nil, false
		}
	}
	g.faults = append(g.faults, fmt.Sprintf("%s: the input %s is neither in naming nor in plain", op, p.Name))
	return nil, false
}

// value returns the value of a required input that is not the one under test.
func (g *inputGenerator) value(op string, p param) any {
	if v, ok := lookup(g, given, op, p.Name); ok {
		return v
	}
	if kinds, ok := g.kinds(op, p); ok {
		return g.ids[kinds[0]]
	}
	v, _ := lookup(g, plain, op, p.Name)
	if v == nil {
		g.faults = append(g.faults, fmt.Sprintf("%s: the required input %s has no value in plain", op, p.Name))
	}
	return v
}

// request returns a request in which one input names an id of a kind. Without an input, the
// request names none.
func (g *inputGenerator) request(path, method string, op operation, ps []param, body bool, under param, kind string) foreignRequest {
	r := foreignRequest{request{kind: kind, method: strings.ToUpper(method), path: path}, op.OperationID, under.Name}
	query, members := url.Values{}, map[string]any{}
	more := cmp.Or(bodies[op.OperationID+"."+under.Name], bodies[op.OperationID])
	if more != "" {
		if err := json.Unmarshal([]byte(more), &members); err != nil {
			g.faults = append(g.faults, err.Error())
		}
	}
	for _, p := range ps {
		var v any = "ID"
		if p != under {
			if _, ok := members[p.Name]; !p.Required || ok && p.In == "body" {
				continue
			}
			v = g.value(op.OperationID, p)
		}
		switch p.In {
		case "path":
			s := fmt.Sprint(v)
			if s != "ID" {
				s = url.PathEscape(s)
			}
			r.path = strings.ReplaceAll(r.path, "{"+p.Name+"}", s)
		case "query":
			query.Set(p.Name, fmt.Sprint(v))
		case "header":
			r.header = p.Name + ": ID"
		case "body":
			members[p.Name] = v
		}
	}
	if with, _ := lookup(g, together, op.OperationID, under.Name); strings.HasPrefix(with, "?") {
		name, value, _ := strings.Cut(with[1:], "=")
		query.Set(name, value)
	} else if with != "" {
		r.header += "\n" + with
	}
	if len(query) > 0 {
		r.path += "?" + query.Encode()
	}
	if body {
		b, err := json.Marshal(members)
		if err != nil {
			g.faults = append(g.faults, err.Error())
		}
		r.body = string(b)
	}
	switch e, ok := lookup(g, exceptions, op.OperationID, under.Name); {
	case ok:
		r.status = e.status
	case strings.Contains(op.Scope, "as an operator of the mesh"):
		r.status = ofCell.status
	case kind != "":
		r.status = 404
	}
	return r
}

// queryArgs holds the arguments of a query that inputGenerator has made; see request.
type queryArgs struct{ kind, args, input string }

// queries returns the arguments of a query with the given request schema: one document for
// each input that names an id and each kind of id, or, without such an input, one document.
func (g *inputGenerator) queries(name string, s objectSchema) (out []queryArgs) {
	var ps []param
	for _, m := range slices.Sorted(maps.Keys(s.Properties)) {
		ps = append(ps, param{"", "body", m, slices.Contains(s.Required, m)})
	}
	doc := func(under param) string {
		members := map[string]any{}
		for _, p := range ps {
			if p == under {
				text, ok := lookup(g, wrapped, name, p.Name)
				if !ok {
					text = `"ID"`
				}
				members[p.Name] = raw(text)
			} else if p.Required {
				members[p.Name] = g.value(name, p)
			}
		}
		b := &strings.Builder{}
		b.WriteString("{")
		for i, m := range slices.Sorted(maps.Keys(members)) {
			text, isRaw := members[m].(raw)
			if !isRaw {
				v, err := json.Marshal(members[m])
				if err != nil {
					g.faults = append(g.faults, err.Error())
				}
				text = raw(v)
			}
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(b, "%q:%s", m, text)
		}
		return b.String() + "}"
	}
	for _, p := range ps {
		kinds, _ := g.kinds(name, p)
		for _, kind := range kinds {
			out = append(out, queryArgs{kind, doc(p), p.Name})
		}
	}
	if len(out) == 0 {
		out = append(out, queryArgs{"", doc(param{}), ""})
	}
	return out
}

// raw is JSON in which ID is replaced.
type raw string

// unused returns the entries of the tables that no input has used.
func (g *inputGenerator) unused() (out []string) {
	for _, table := range [][]string{slices.Collect(maps.Keys(naming)), slices.Collect(maps.Keys(plain)), slices.Collect(maps.Keys(given)), slices.Collect(maps.Keys(wrapped)), slices.Collect(maps.Keys(together)), slices.Collect(maps.Keys(exceptions))} {
		for _, name := range table {
			if !g.used[name] {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestInputGenerator shows that the generator reports an input that no table has, by its
// operation, and that it makes a request, or the arguments of a query, for each input that
// names an id.
func TestInputGenerator(t *testing.T) {
	var doc document
	err := json.Unmarshal([]byte(`{"paths":{"/api/v1/calls/{id}":{"get":{"operationId":"getCall","parameters":[{"in":"path","name":"id","required":true},{"in":"query","name":"session"}]}},
		"/a/{odd}":{"put":{"operationId":"putOdd","parameters":[{"in":"path","name":"odd","required":true}],"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/Odd"}}}}}}},
		"components":{"schemas":{"Odd":{"properties":{"member":{},"call_id":{},"vote":{}},"required":["vote","call_id"]}}}}`), &doc)
	if err != nil {
		t.Fatal(err)
	}
	g := &inputGenerator{ids: map[string]string{"call": "c-x"}, used: map[string]bool{}}
	var got []string
	for _, r := range g.requests(&doc) {
		got = append(got, fmt.Sprintln(r.op, r.input, r.kind, r.method, r.path, r.body, r.status))
	}
	want := []string{"getCall id call GET /api/v1/calls/ID  404\n", "getCall id waiting GET /api/v1/calls/ID  404\n", "getCall id decided GET /api/v1/calls/ID  404\n",
		"getCall session session GET /api/v1/calls/c-x?session=ID  404\n"}
	for _, kind := range []string{"call", "waiting", "decided"} {
		want = append(want, "putOdd call_id "+kind+` PUT /a/%3Cnil%3E {"call_id":"ID","vote":"grant"} 404`+"\n")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	for _, part := range []string{"putOdd: the input odd is neither in naming nor in plain", "putOdd: the input member is neither", "putOdd: the required input odd has no value"} {
		if !strings.Contains(strings.Join(g.faults, "\n"), part) {
			t.Errorf("no fault %q in %q", part, g.faults)
		}
	}
	if got := g.queries("audit.call", objectSchema{Properties: map[string]json.RawMessage{"ids": nil, "limit": nil}, Required: []string{"limit"}}); len(got) != 1 || got[0] != (queryArgs{"call", `{"ids":["ID"],"limit":10}`, "ids"}) {
		t.Errorf("got %q", got)
	}
}
