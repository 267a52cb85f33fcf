package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// wrong is an invalid request body, with the value of param in the error that it causes.
type wrong struct{ body, param string }

// wrongBodies lists, for each route with a body, bodies that the gateway must reject
// before it proposes a call. The test sends them to the path as declared, with
// placeholders such as ":id".
var wrongBodies = map[string][]wrong{
	"POST /v1/chat/completions":      slices.Concat(wrongModel, []wrong{wrong{`{"model":"demo/echo","messages":[],"Stream":true}`, "/Stream"}}),
	"POST /v1/completions":           wrongModel,
	"POST /v1/embeddings":            wrongModel,
	"POST /v1/messages":              wrongModel,
	"POST /v1/messages/count_tokens": wrongModel,
	"POST /v1/responses":             wrongModel,

	"POST /api/v1/packs/:name": wrongArgs,
	"POST /api/v1/judgements":  wrongArgs,
	"POST /api/v1/calls": slices.Concat(wrongCall, []wrong{
		{`{"kind":"llm.chat","args":{"model":1}}`, "/args/model"}, {`{"kind":"llm.chat","args":{}}`, "/args/model"}}),
	"POST /api/v1/secrets": {
		{`{"name":"db","value":"hunter2`, "body"}, {`{"name":"db","value":{"hunter2":"hunter2"}}`, "/value"}, {`{"name":"hunter2 hunter2","value":"x"}`, "/name"},
		{`{"name":"db"}`, "/value"}, {`{"value":"hunter2","name":"db","value":"hunter2"}`, "/value"}, {`{"name":"db","value":"hunter2","more":"hunter2"}`, "/more"},
		{`"hunter2"`, "body"}, {`{"name":"db","value":"hunter2"}hunter2`, "body"},
	},
	"POST /api/v1/keys": {
		{`{"id":"a b"}`, "/id"}, {`{}`, "/id"}, {`{"id":"k","scopes":["llm:call",7]}`, "/scopes/1"}, {`{"id":"k","scopes":["llm:call","tools:call","root:all"]}`, "/scopes/2"},
		{`{"id":"k","scopes":["secrets:admin"]}`, "/scopes/0"}, {`{"id":"k","ttl_ms":"1h"}`, "/ttl_ms"}, {`{"id":"k","cache":1}`, "/cache"}, {`{"id":"k","Actor":"x"}`, "/Actor"},
		{`{"id":"k","models":"all"}`, "/models"}, {`{"id":"k","rate_calls":1.5}`, "/rate_calls"}, {`{"id":"k","a/b~c":1}`, "/a~1b~0c"}, {`{"id":"k"} {}`, "body"}, {`{"id":"k","tags":[["x"]]}`, "/tags/0"},
	},
	"POST /api/v1/keys/:id/consent":   {{`{"maker":1}`, "/maker"}, {`{"scopes":["llm:call",{}]}`, "/scopes/1"}, {`{"ttl_ms":"x"}`, "/ttl_ms"}, {`{"id":"k"}`, "/id"}},
	"POST /api/v1/tokens/revocations": {{`{"id":[]}`, "/id"}, {`{"principal":{"a":1},"reason":"x"}`, "/principal"}, {`{"who":"x"}`, "/who"}},
	"POST /api/v1/decide": slices.Concat(wrongCall, []wrong{{`{"kind":"tool.x","args":{}}`, "/report_within_ms"}, {`{"kind":"tool.x","report_within_ms":-1}`, "/report_within_ms"},
		{`{"kind":"tool.x","report_within_ms":"1m"}`, "/report_within_ms"}, {`{"call_id":"c-x","kind":"tool.x"}`, "/call_id"}}),
	"POST /api/v1/intents/:id/outcome": {
		{`{}`, "/status"}, {`{"status":"done"}`, "/status"}, {`{"status":"succeeded","error_message":"x"}`, "/error_message"},
		{`{"status":"succeeded","usage":{"cents":-1}}`, "/usage/cents"}, {`{"status":"succeeded","usage":{"cents":"1"}}`, "/usage/cents"},
		{`{"status":"succeeded","usage":{"dollars":1}}`, "/usage/dollars"}, {`{"status":"succeeded","usage":[]}`, "/usage"},
		{`{"status":"failed","error_code":"` + strings.Repeat("x", 129) + `"}`, "/error_code"}, {`{"status":"failed","error_message":"` + strings.Repeat("x", 1001) + `"}`, "/error_message"},
	},
	"POST /api/v1/observations":          wrongObservations,
	"POST /api/v1/calls/:id/terminal":    {{`{"n":"1"}`, "/n"}, {`{"data":"%"}`, "/data"}, {`{"key":1}`, "/key"}, {`{"x":1}`, "/x"}},
	"POST /api/v1/approvals/:call/votes": {{`{"vote":true}`, "/vote"}, {`{"vote":"grant","reason":"x","call_id":"c"}`, "/call_id"}, {`{"vote":"grant","vote":"deny"}`, "/vote"}},
	"POST /api/v1/evidence/export":       {{`{}`, "/session_id"}, {`{"session_id":1}`, "/session_id"}, {`{"session_id":"s-x","format":"zip"}`, "/format"}, {`{"session":"s-x"}`, "/session"}},
	"POST /api/v1/evidence/verify":       {{``, "body"}},
	"POST /api/v1/conformance/run":       {{`{"level":"L9"}`, "/level"}, {`{"profile":"L9"}`, "/profile"}, {`{"level":"L1","profile":"L2"}`, "/profile"}, {`{"args":[]}`, "/args"}, {`{"tools":[]}`, "/tools"}},
	"POST /log/cosignatures":             {{`{}`, "/size"}, {`{"size":-1,"line":"x"}`, "/size"}, {`{"size":1,"line":"a\nb"}`, "/line"}, {`{"size":1}`, "/line"}, {`{"size":1,"line":"x","key":"y"}`, "/key"}},
	"POST /mcp/v1/execute": {{`{}`, "/method"}, {`{"method":["x"]}`, "/method"}, {`{"method":"x","params":"y"}`, "/params"}, {`{"method":"x","arguments":{}}`, "/arguments"},
		{`{"method":"x","params":{"a":[{"b":1,"b":2}]}}`, "/params/a/0/b"}},
	"POST /api/v1/artifacts":          nil, // the body is the content
	"POST /api/v1/artifacts/:id/link": {{`{"ttl_s":"1h"}`, "/ttl_s"}, {`{"ttl":1}`, "/ttl"}, {`[1]`, "body"}},
	"POST /api/v1/pipelines/validate": wrongArgs,
	"POST /api/v1/pipelines/runs":     wrongArgs,
	"POST /mcp":                       nil, // JSON-RPC defines its own errors
	"POST /auth/login":                nil, // these respond with a page
	"POST /auth/oidc":                 nil,
	"POST /auth/passkeys":             nil,
	"POST /auth/approvals":            nil,
	"POST /auth/logout":               nil,
	"POST /auth/device":               nil,
	"POST /auth/consent":              nil,
	"POST /oauth/register":            nil,
	"POST /oauth/token":               nil, // RFC 6749 defines its own errors: package logins tests them
	"POST /oauth/device":              nil,
	"POST /oauth/revoke":              nil,
	"POST /oauth/introspect":          nil,
	"POST /api/v1/devices":            {{`{"code":1}`, "/code"}, {`[1]`, "body"}, {`{"code":"BCD-FGH-JKM","more":1}`, "/more"}},
}

// wrongObservations are bodies of observations in which a member is wrong, missing or not
// permitted.
var wrongObservations = []wrong{
	{`{}`, "/action"}, {observed(`"action":7`), "/action"}, {observed(`"journal":""`), "/journal"}, {observed(`"journal":"` + strings.Repeat("x", 129) + `"`), "/journal"},
	{observed(`"kind":""`), "/kind"}, {observed(`"kind":"policy.set_limits"`), "/kind"}, {observed(`"kind":"tool.x"`), "/kind"}, {observed(`"kind":"client.nothing"`), "/kind"},
	{observed(`"number":0`), "/number"}, {observed(`"number":1.5`), "/number"}, {observed(`"observed_at":"yesterday"`), "/observed_at"}, {observed(`"phase":"decided"`), "/phase"},
	{observed(`"status":"succeeded"`), "/status"}, {observed(`"phase":"ended","status":"denied"`), "/status"}, {observed(`"error_code":"x"`), "/error_code"},
	{observed(`"content":[]`), "/content"}, {observed(`"verdict":"ALLOW"`), "/verdict"}, {observed(`"decision_id":"d-x"`), "/decision_id"}, {observed(`"actor":"root"`), "/actor"},
}

// observed returns the body of an observation with other members.
func observed(members string) string {
	doc := map[string]json.RawMessage{}
	for _, text := range []string{`{"action":"sha256:x","content":{},"journal":"j","kind":"client.session","number":1,"observed_at":"2026-01-01T00:00:00.000Z","phase":"began"}`, "{" + members + "}"} {
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			panic(err)
		}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return string(b)
}

var (
	wrongArgs  = []wrong{{`[1]`, "body"}, {`{"text":`, "body"}, {`{"text":"a","text":"b"}`, "/text"}, {`{"a":[0,{"b":1,"b":2}]}`, "/a/1/b"}, {`{} {}`, "body"}, {strings.Repeat(`{"a":`, 200), "body"}}
	wrongModel = []wrong{{`[]`, "body"}, {`{"model":1}`, "/model"}, {`{}`, "/model"}}
	wrongCall  = []wrong{
		{`{"kind":["x"]}`, "/kind"}, {`{}`, "/kind"}, {`{"kind":"tool.x","args":[]}`, "/args"}, {`{"kind":"tool.x","arguments":{}}`, "/arguments"}, {`{"kind":"tool.x","args":{"a":{},"a":{}}}`, "/args/a"},
		{`{"kind":"tool.` + strings.Repeat("x", 128) + `"}`, "/kind"}, {`{"kind":"tool.x","tool":"` + strings.Repeat("x", 129) + `"}`, "/tool"}, {`{"kind":"tool.x","tool":{}}`, "/tool"}, {`null`, "body"},
	}
)

// resolves reports whether a JSON pointer leads to a value in doc, or to a member that
// is missing in an existing object.
func resolves(doc any, pointer string) bool {
	parts := strings.Split(pointer, "/")[1:]
	for i, part := range parts {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch v := doc.(type) {
		case map[string]any:
			next, ok := v[part]
			if !ok {
				return i == len(parts)-1
			}
			doc = next
		case []any:
			n, err := strconv.Atoi(part)
			if err != nil || n < 0 || n >= len(v) {
				return false
			}
			doc = v[n]
		default:
			return false
		}
	}
	return true
}

// TestErrorsPointIntoTheBody sends the bodies of wrongBodies. It checks that each error
// has status 400 and code invalid_input, that its param is the JSON pointer of the wrong
// member, or "body", and that the response contains neither a message of encoding/json
// about Go types nor "hunter2", the secret in some of the bodies. It fails for a route
// with a body that has no entry in wrongBodies.
func TestErrorsPointIntoTheBody(t *testing.T) {
	s, addr, mint := edge(t, body.Limits{})
	bearer := "Bearer " + mint("alice", token.All...)
	seen := 0
	for _, r := range s.table() {
		if r.method == http.MethodGet || r.method == http.MethodDelete { // these requests have no body
			continue
		}
		name := r.method + " " + r.path
		cases, ok := wrongBodies[name]
		if !ok {
			t.Errorf("%s: no wrong body is listed", name)
		}
		seen++
		for _, x := range cases {
			sendWrong(t, "http://"+addr+r.path, bearer, x)
		}
	}
	if seen != len(wrongBodies) {
		t.Errorf("%d routes have bodies, %d are listed", seen, len(wrongBodies))
	}
}

var quotesSecret = regexp.MustCompile(`hunter2`)

func sendWrong(t *testing.T, url, bearer string, x wrong) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(x.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", bearer)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var e struct {
		Error struct{ Param, Message, Code string }
	}
	if err := json.Unmarshal(raw, &e); err != nil || resp.StatusCode != 400 || e.Error.Code != "invalid_input" || e.Error.Message == "" || e.Error.Param != x.param {
		t.Errorf("%s %.100s: %s %s, want param %s", url, x.body, resp.Status, raw, x.param)
	}
	if regexp.MustCompile(`unmarshal|Go struct|Go value`).Match(raw) || quotesSecret.Match(raw) {
		t.Errorf("%s %.100s: %s", url, x.body, raw)
	}
	var doc any
	if json.NewDecoder(bytes.NewReader([]byte(x.body))).Decode(&doc) == nil && x.param != "body" && !resolves(doc, e.Error.Param) {
		t.Errorf("%s %.100s: %s does not resolve", url, x.body, e.Error.Param)
	}
}
