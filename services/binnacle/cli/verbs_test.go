package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestRequests checks for a table of command lines that the command sends the request
// that its flags and arguments specify.
func TestRequests(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"limits.json": `{"limits":[]}`, "overlay.json": `{"id":"o","rules":[{"kinds":["tool.rm*"],"reason_code":"DENY_X","verdict":"DENY"}],"scope":"agent","subject":"a"}`, "rubric.yaml": "name: r\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const calls = "POST /api/v1/calls"
	governed := func(kind, args string) string {
		return `{"kind":"` + kind + `","tool":"` + kind + `","args":` + args + `}`
	}
	for _, x := range []struct{ line, in, request, body string }{
		{"call noop", "", calls, `{"kind":"tool.noop","tool":"noop","args":{}}`},
		{`call cmd.upper {"text":"a"}`, "", calls, `{"kind":"tool.cmd.upper","tool":"cmd.upper","args":{"text":"a"}}`},
		{"call policy.freeze {}", "", calls, `{"kind":"policy.freeze","args":{}}`},
		{`decide tool.noop {"n":1} --report-within 30s`, "", "POST /api/v1/decide", `{"kind":"tool.noop","args":{"n":1},"report_within_ms":30000}`},
		{"decide --call c-1", "", "POST /api/v1/decide", `{"call_id":"c-1"}`},
		{`report i-1 --args-digest d --status failed --error-code e --error words --output 1 --usage {"cents":1}`, "", "POST /api/v1/intents/i-1/outcome",
			`{"args_digest":"d","status":"failed","error_code":"e","error_message":"words","output":1,"usage":{"cents":1}}`},
		{"chat one two --model acme/large", "", "POST /v1/chat/completions", `{"model":"acme/large","stream":false,"messages":[{"role":"user","content":"one two"}]}`},
		{"secret put key", "value\n", "POST /api/v1/secrets", `{"name":"key","value":"value"}`},
		{"secret put key --type login --overlap 1h", "value\n", "POST /api/v1/secrets", `{"name":"key","overlap_seconds":3600,"type":"login","value":"value"}`},
		{"secret rotate key --overlap 2s --bytes 64", "", calls, governed("vault.rotate", `{"bytes":64,"name":"key","overlap_seconds":2}`)},
		{"secret list", "", calls, governed("vault.list", `{}`)},
		{"secret show key", "", calls, governed("vault.show", `{"name":"key"}`)},
		{"secret delete key", "", calls, governed("vault.delete", `{"name":"key"}`)},
		{"secret restore key", "", calls, governed("vault.restore", `{"name":"key"}`)},
		{"secret erase key", "", calls, governed("vault.erase", `{"name":"key"}`)},
		{"secret access list", "", calls, governed("vault.access", `{}`)},
		{"secret access grant key ann --tool cmd.x --client cli --host *.example --method GET --path /v1/** --ttl 1s --max-uses 2 --approval", "", calls, governed("policy.grant_secret", `{"approval":true,"client":"cli","host":"*.example","max_uses":2,"methods":["GET"],"paths":["/v1/**"],"secret":"key","subject":"ann","tool":"cmd.x","ttl_ms":1000}`)},
		{"secret access withdraw sa-1", "", calls, governed("policy.withdraw_secret", `{"id":"sa-1"}`)},
		{"secret access default deny", "", calls, governed("policy.set_secret_default", `{"default":"deny"}`)},
		{"secret rotate-content-key", "", calls, governed("vault.rotate_content_key", `{}`)},
		{"secret destroy-content-key 1", "", calls, governed("vault.destroy_content_key", `{"id":"1"}`)},
		{"erase --subject ann --reason request", "", calls, governed("vault.erase_subject", `{"reason":"request"}`)},
		{"tenant erase acme_shop_prod --reason end", "", calls, governed("vault.erase_tenant", `{"reason":"end","tenant":"acme_shop_prod"}`)},
		{"judge --session s-1 --rubric DIR/rubric.yaml", "", "POST /api/v1/judgements", `{"session":"s-1","rubric":"name: r\n"}`},
		{"token revoke t-1 --reason lost", "", calls, governed("policy.revoke_token", `{"id":"t-1","reason":"lost"}`)},
		{"token revoke --principal bob --reason left", "", calls, governed("policy.revoke_token", `{"principal":"bob","reason":"left"}`)},
		{"key create k --actor a --scope llm:call --model m/* --tag x --tag y --budget 1.5 --rate 3 --rate-window hour --concurrent 2 --cache --ttl 1h", "", "POST /api/v1/keys",
			`{"id":"k","actor":"a","scopes":["llm:call"],"models":["m/*"],"tags":["x","y"],"budget_usd_micros":1500000,"budget_window":"total","rate_calls":3,"rate_window":"hour","concurrent":2,"cache":true,"ttl_ms":3600000}`},
		{"key revoke k --reason old", "", calls, governed("policy.revoke_key", `{"id":"k","reason":"old"}`)},
		{"key consent k --maker admin --scope llm:call", "", "POST /api/v1/keys/k/consent", `{"maker":"admin","scopes":["llm:call"],"ttl_ms":86400000}`},
		{"key withdraw a/b", "", "DELETE /api/v1/keys/a%2Fb/consent", ``},
		{"session grant s-1 robot --ttl 1m", "", calls, governed("policy.grant_session", `{"session":"s-1","principal":"robot","ttl_ms":60000}`)},
		{"session revoke s-1 robot", "", calls, governed("policy.revoke_session", `{"session":"s-1","principal":"robot"}`)},
		{"llm spend --by key,day --since 1h", "", "GET /api/v1/llm/spend?by=key%2Cday&from=…", ``},
		{"policy activate DIR/overlay.json --name n", "", calls, governed("policy.activate", `{"layer":"p2","name":"n","precedence":500,"document":"{\"id\":\"o\",\"rules\":[{\"kinds\":[\"tool.rm*\"],\"reason_code\":\"DENY_X\",\"verdict\":\"DENY\"}],\"scope\":\"agent\",\"subject\":\"a\"}"}`)},
		{"policy activate --url http://b/x.tar.gz --precedence 9", "", calls, governed("policy.activate", `{"layer":"p1","name":"x","precedence":9,"url":"http://b/x.tar.gz"}`)},
		{"policy activate --object c --size 7 --layer p1 --name n", "", calls, governed("policy.activate", `{"layer":"p1","name":"n","precedence":500,"object":{"commitment":"c","size":7}}`)},
		{"policy rollback p1", "", calls, governed("policy.rollback", `{"layer":"p1"}`)},
		{"policy rollback p1 x", "", calls, governed("policy.rollback", `{"layer":"p1","name":"x"}`)},
		{"policy retire p2 x", "", calls, governed("policy.retire", `{"layer":"p2","name":"x"}`)},
		{"policy approve-tool cmd.upper d", "", calls, governed("policy.approve_tool", `{"kind":"tool.cmd.upper","digest":"d"}`)},
		{"policy approve-tool llm.chat d", "", calls, governed("policy.approve_tool", `{"kind":"llm.chat","digest":"d"}`)},
		{"policy set-limits DIR/limits.json", "", calls, governed("policy.set_limits", `{"limits":[]}`)},
		{"approvals grant c-1 --reason seen", "", "POST /api/v1/approvals/c-1/votes", `{"vote":"grant","reason":"seen"}`},
		{"approvals deny c-1 --reason no", "", "POST /api/v1/approvals/c-1/votes", `{"vote":"deny","reason":"no"}`},
		{"freeze --reason drill", "", calls, governed("policy.freeze", `{"reason":"drill"}`)},
		{"unfreeze --reason over", "", calls, governed("policy.unfreeze", `{"reason":"over"}`)},
		{"tenant create acme/shop/prod --admin alice", "", calls, governed("tenant.create", `{"organization":"acme","project":"shop","environment":"prod","admin":"alice"}`)},
		{"tenant create acme/shop/prod --admin alice --quota-in-flight 3 --quota-body-bytes 9", "", calls,
			governed("tenant.create", `{"organization":"acme","project":"shop","environment":"prod","admin":"alice","quota":{"body_bytes":9,"in_flight":3}}`)},
		{"tenant suspend acme_shop_prod --reason late", "", calls, governed("tenant.suspend", `{"tenant":"acme_shop_prod","reason":"late"}`)},
		{"tenant resume acme_shop_prod --reason paid", "", calls, governed("tenant.resume", `{"tenant":"acme_shop_prod","reason":"paid"}`)},
		{"tenant quota acme_shop_prod --quota-calls-per-second 5", "", calls, governed("tenant.set_quota", `{"tenant":"acme_shop_prod","quota":{"calls_per_second":5}}`)},
		{"tenant quota acme_shop_prod --quota-in-flight 0", "", calls, governed("tenant.set_quota", `{"tenant":"acme_shop_prod","quota":{}}`)},
		{"tenant export acme_shop_prod --out DIR/t.tar", "", "GET /api/v1/tenants/acme_shop_prod/evidence", ``},
		{"principals register robot agent", "", calls, governed("policy.register_principal", `{"principal":"robot","type":"agent"}`)},
		{"principals suspend robot --reason odd", "", calls, governed("policy.suspend_principal", `{"principal":"robot","reason":"odd"}`)},
		{"principals resume robot --reason fine", "", calls, governed("policy.resume_principal", `{"principal":"robot","reason":"fine"}`)},
		{"principals list --at 7", "", "GET /api/v1/identities?at=7", ``},
		{"roles grant bob approver", "", calls, governed("policy.grant_role", `{"principal":"bob","role":"approver"}`)},
		{"roles grant bob approver --ttl 1s", "", calls, governed("policy.grant_role", `{"principal":"bob","role":"approver","ttl_ms":1000}`)},
		{"members map eng developer", "", calls, governed("policy.map_group", `{"group":"eng","role":"developer"}`)},
		{"members unmap eng developer", "", calls, governed("policy.unmap_group", `{"group":"eng","role":"developer"}`)},
		{"members withdraw iv-x --reason r", "", calls, governed("policy.withdraw_invitation", `{"id":"iv-x","reason":"r"}`)},
		{"members unlink bob --reason r", "", calls, governed("policy.unlink_identity", `{"principal":"bob","reason":"r"}`)},
		{"roles revoke bob approver", "", calls, governed("policy.revoke_role", `{"principal":"bob","role":"approver"}`)},
		{"delegations grant robot tool.a tool.b", "", calls, governed("policy.delegate", `{"delegate":"robot","kinds":["tool.a","tool.b"],"ttl_ms":86400000}`)},
		{"delegations revoke g-1", "", calls, governed("policy.revoke_delegation", `{"id":"g-1"}`)},
		{"break-glass open --reason pager --ttl 1m", "", calls, governed("policy.break_glass", `{"reason":"pager","ttl_ms":60000}`)},
		{"break-glass review b-1 --reason looked --verdict misused", "", calls, governed("policy.review", `{"id":"b-1","reason":"looked","verdict":"misused"}`)},
		{"trust list --at 9", "", "GET /api/v1/trust/keys?at=9", ``},
		{"events list --session s --owner o --type t --since 5m", "", "GET /api/v1/events?owner=o&session=s&since=5m&type=t", ``},
		{"events tail", "", "GET /api/v1/events?follow=true", ``},
		{"search tool=x tool=y --limit 2 --since a --until b --before 4", "", "GET /api/v1/search?before=4&limit=2&since=a&tool=x&tool=y&until=b", ``},
		{"why c-1", "", "GET /api/v1/calls/c-1/explanation", ``},
		{"export --session s --redact all --disclose c-1 --disclose c-2 --owner o --witnessed 2 --out DIR/x", "", "GET /api/v1/sessions/s/evidence?disclose=c-1%2Cc-2&owner=o&redact=all&witnessed=2", ``},
	} {
		request, body := sent(t, strings.NewReplacer("DIR", dir).Replace(x.line), x.in)
		want, rest, open := strings.Cut(x.request, "…")
		if request != x.request && (!open || rest != "" || !strings.HasPrefix(request, want)) {
			t.Errorf("%s sends %s, want %s", x.line, request, x.request)
		}
		var a, b any
		if x.body != "" && (json.Unmarshal([]byte(body), &a) != nil || json.Unmarshal([]byte(x.body), &b) != nil || !reflect.DeepEqual(a, b)) || x.body == "" && body != "" {
			t.Errorf("%s sends\n%s, want\n%s", x.line, body, x.body)
		}
	}
}

// sent runs a command against a server that responds with an empty document, and returns
// the first request.
func sent(t *testing.T, line, in string) (request, body string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if request == "" {
			request, body = r.Method+" "+r.URL.RequestURI(), string(b)
		}
		_, _ = io.WriteString(w, `{}`)
	}))
	defer s.Close()
	invokeWith(t, in, append(strings.Fields(line), "--addr", strings.TrimPrefix(s.URL, "http://"), "--token", "good")...)
	return request, body
}

// TestHeaders checks that options which are not part of the request body are sent as
// headers.
func TestHeaders(t *testing.T) {
	alone(t)
	for line, want := range map[string]map[string]string{
		"call noop --session s-1 --async":                   {"X-Binnacle-Session": "s-1", "Prefer": "respond-async"},
		"call noop --on-behalf-of dana --delegation g-1":    {"X-Binnacle-On-Behalf-Of": "dana", "X-Binnacle-Delegation": "g-1"},
		"decide tool.noop --idempotency-key k --session s-": {"Idempotency-Key": "k", "X-Binnacle-Session": "s-"},
		"decide tool.noop --async":                          {"Prefer": "respond-async"},
		"chat hi --session s-2":                             {"X-Binnacle-Session": "s-2", "Content-Type": "application/json"},
	} {
		var got http.Header
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r.Header
			_, _ = io.WriteString(w, `{}`)
		}))
		invoke(t, append(strings.Fields(line), "--addr", strings.TrimPrefix(s.URL, "http://"), "--token", "good")...)
		s.Close()
		for k, v := range want {
			if got.Get(k) != v || got.Get("Authorization") != "Bearer good" {
				t.Errorf("%s: %s is %q, want %q", line, k, got.Get(k), v)
			}
		}
	}
}

// TestResponses checks for a table of responses of a mesh that the command produces the
// expected text and exit code.
func TestResponses(t *testing.T) {
	alone(t)
	for _, x := range []struct {
		line, path, doc string
		code            int
		out, errOut     string
	}{
		{"call noop", "POST /api/v1/calls", `{"output":{"n":1},"session_id":"s-x1","session":"s-mine","receipt_id":"r-1"}`, exitOK, "{\n  \"n\": 1\n}\n", "receipt r-1  session s-mine\n"},
		{"call noop --json", "POST /api/v1/calls", `{"output":{"h":"<"}}` + "\n", exitOK, `{"output":{"h":"<"}}` + "\n", ""},
		{"call noop -o yaml", "POST /api/v1/calls", `{"output":{"n":1}}`, exitOK, "output:\n  n: 1\n", ""},
		{"call noop", "POST /api/v1/calls", `{"status":"pending_approval","call_id":"c-1"}`, exitPending, "", "binnacle: call c-1 waits for approval; `binnacle approvals list` shows it\n"},
		{"call noop --json", "POST /api/v1/calls", `{"status":"pending_approval","call_id":"c-1"}`, exitPending, `{"status":"pending_approval","call_id":"c-1"}`, "waits for approval"},
		{"call noop", "POST /api/v1/calls", `{"error":{"code":"denied","message":"denied by policy: DENY_X","receipt_id":"r-1"}}`, exitDenied, "", "binnacle: denied by policy: DENY_X (receipt r-1, session )\n"},
		{"call noop", "POST /api/v1/calls", `{"error":{"code":"invalid_input","message":"want a number","param":"/args/n"}}`, exitFailed, "", "binnacle: /args/n: want a number\n"},
		{"call noop", "POST /api/v1/calls", `{"error":{"code":"invalid_input","reason_code":"SCHEMA_VIOLATION","message":"invalid input: SCHEMA_VIOLATION: x","receipt_id":"r-1"}}`, exitFailed, "", "binnacle: invalid input: SCHEMA_VIOLATION: x (receipt r-1, session )\n"},
		{"call noop --json", "POST /api/v1/calls", `{"error":{"code":"invalid_input","message":"want a number","param":"/args/n"}}`, exitFailed, `{"error":{"code":"invalid_input","field":"/args/n","message":"want a number"}}` + "\n", ""},
		{"freeze --reason x", "POST /api/v1/calls", `{"output":{"acknowledged":["a","b"],"missing":[]}}`, exitOK, "frozen; acknowledged by a, b\n", ""},
		{"freeze --reason x", "POST /api/v1/calls", `{"output":{"acknowledged":["a"],"missing":["b"]}}`, exitFailed, "frozen; acknowledged by a\n", "not acknowledged by b"},
		{"unfreeze --reason x", "POST /api/v1/calls", `{"status":"pending_approval","call_id":"c-9"}`, exitPending, "", "call c-9 waits for approval"},
		{"judge --session s --rubric RUBRIC", "POST /api/v1/judgements", `{"output":{"valid":true,"score":0.5,"justification":"fine","citations":["e-1"]}}`, exitOK, "score 0.5\nfine\ncites e-1\n", ""},
		{"judge --session s --rubric RUBRIC", "POST /api/v1/judgements", `{"output":{"valid":false,"invalid_reason":"cites nothing"}}`, exitFailed, "", "the judgement is invalid: cites nothing"},
		{"decide tool.noop", "POST /api/v1/decide", `{"verdict":"ALLOW","reason_code":"RULE_X","intent_id":"i-1","args_digest":"d","report_by":"t"}`, exitOK, "ALLOW RULE_X\nintent i-1\nargs   d\nreport by t\n", ""},
		{"decide tool.noop", "POST /api/v1/decide", `{"handed_out_before":true}`, exitOK, "intent", "its effect may have begun"},
		{"decide tool.noop", "POST /api/v1/decide", `{"status":"pending_approval","call_id":"c-1"}`, exitPending, "", "binnacle decide --call c-1"},
		{"report i-1 --args-digest d", "POST /api/v1/intents/i-1/outcome", `{"status":"succeeded","receipt_id":"r","session_id":"s"}`, exitOK, "succeeded: attested by you alone (receipt r, session s)\n", ""},
		{"report i-1 --args-digest d", "POST /api/v1/intents/i-1/outcome", `{"status":"unknown","late":true,"repeated":true}`, exitOK, "the report came too late and is a fact of its own; it was recorded before", ""},
		{"chat hi", "POST /v1/chat/completions", `{"choices":[{"message":{"content":"hello"}}]}`, exitOK, "hello\n", "receipt "},
		{"chat hi", "POST /v1/chat/completions", `{"choices":[]}`, exitFailed, "", "the response has no choice"},
		{"chat hi --stream", "POST /v1/chat/completions", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\ndata: [DONE]\n", exitOK, "ab\n", ""},
		{"chat hi --stream --json", "POST /v1/chat/completions", "data: {\"choices\":[]}\n\ndata: [DONE]\n", exitOK, "{\"choices\":[]}\n", ""},
		{"chat hi --stream", "POST /v1/chat/completions", "data: {\"error\":{\"message\":\"broke\"}}\n\n", exitFailed, "", "broke"},
		{"chat hi --stream", "POST /v1/chat/completions", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", exitFailed, "a", "the stream ended without [DONE]"},
		{"secret put k", "POST /api/v1/secrets", `{"name":"k","fingerprint":"f"}`, exitOK, "stored k, fingerprint f\n", ""},
		{"key create k", "POST /api/v1/keys", `{"key":"bk-1"}`, exitOK, "bk-1\n", ""},
		{"key list", "GET /api/v1/keys", `[{"id":"a","actor":"x"},{"id":"b","actor":"y","expires":"2020-01-01T00:00:00.000000Z"},{"id":"c","actor":"z","revoked":"over"}]`, exitOK,
			"a                    x                    active\nb                    y                    expired\nc                    z                    revoked: over\n", ""},
		{"llm stats", "GET /api/v1/llm/stats", `[{"provider":"demo","model":"echo","attempts":2,"success_rate":1}]`, exitOK, "demo/echo                        2  100.0%  0  0  0  0\n", ""},
		{"policy limits", "GET /api/v1/limits", `{"limits":[{"id":"l","measure":"calls","level":"agent","window":"day","max":3,"on_exceed":"DENY"}],"accounts":[{"account":"a","window":"w","reserved":1,"committed":2}]}`, exitOK,
			"l                    calls of each agent per day: at most 3 DENY\n  a                                        w                                reserved 1, committed 2\n", ""},
		{"policy show", "GET /api/v1/policies", `[{"layer":"p1","name":"n","precedence":5,"digest":"d","source":"s"},{"layer":"p2","name":"m","digest":"e","body":"eyJhIjoxfQ=="}]`, exitOK,
			"p1  n                         5  d  s\np2  m                         0  e\n    {\n      \"a\": 1\n    }\n", ""},
		{"approvals list", "GET /api/v1/approvals", `[{"call_id":"c-1","kind":"tool.x","actor":"a","reason_code":"R","expires":"t","votes":[]}]`, exitOK, "c-1  tool.x                   by a                R                            until t,  0 votes\n", ""},
		{"approvals show c-1", "GET /api/v1/approvals/c-1", `{"a":1}`, exitOK, "{\n  \"a\": 1\n}\n", ""},
		{"roles list", "GET /api/v1/identities", `{"identities":[{"kind":"role","principal":"bob","role":"approver","from_lamport":3,"to_lamport":5,"expires":"t"},{"kind":"principal","principal":"bob"}]}`, exitOK,
			"bob                  approver         since lamport 3, ended at lamport 5, expires t\n", ""},
		{"principals list", "GET /api/v1/identities", `{"identities":[{"kind":"principal","principal":"bob","type":"person","suspended":true,"from_lamport":3}]}`, exitOK, "bob                  person           since lamport 3, suspended\n", ""},
		{"session list", "GET /api/v1/identities", `{"identities":[{"kind":"session","id":"s-1","delegate":"robot","principal":"dana","from_lamport":3}]}`, exitOK, "s-1  robot for dana, since lamport 3\n", ""},
		{"delegations list", "GET /api/v1/identities", `{"identities":[{"kind":"delegation","id":"g-1","delegate":"robot","principal":"dana","kinds":["a","b"],"from_lamport":3}]}`, exitOK, "g-1  robot for dana: a b, since lamport 3\n", ""},
		{"roles list -o jsonl", "GET /api/v1/identities", `{"identities":[{"kind":"principal","principal":"bob"},{"kind":"role","principal":"bob","role":"clerk"}],"frozen":"f-1"}`, exitOK,
			`{"kind":"role","id":"","principal":"bob","role":"clerk","delegate":"","kinds":null,"expires":"","from_lamport":0,"to_lamport":0,"type":"","suspended":false}` + "\n", ""},
		{"members list -o jsonl", "GET /api/v1/identities", `{"identities":[{"kind":"principal","principal":"bob"},{"kind":"group","id":"eng","role":"clerk"}]}`, exitOK,
			`{"kind":"group","id":"eng","principal":"","role":"clerk","delegate":"","kinds":null,"expires":"","from_lamport":0,"to_lamport":0,"type":"","suspended":false}` + "\n", ""},
		{"break-glass list", "GET /api/v1/identities", `{"break_glass":[{"id":"b-1"}]}`, exitOK, "{\"id\":\"b-1\"}\n", ""},
		{"trust list", "GET /api/v1/trust/keys", `[{"kid":"k-1","owner":"policy","uses":["a","b"],"since_lamport":2,"valid":true},{"kid":"k-2","owner":"o"}]`, exitOK,
			"k-1  policy               a,b                              since 2         valid\nk-2  o                                                     since 0         not valid\n", ""},
		{"tenant list", "GET /api/v1/tenants", tenantList, exitOK,
			"acme_shop_prod       2026-11-23T00:00:00.000000Z  suspended           3 in flight, 7 body bytes\ndefault              2026-11-22T00:00:00.000000Z  active, original    default\n", ""},
		{"tenant show default", "GET /api/v1/tenants", tenantList, exitOK, "default              2026-11-22T00:00:00.000000Z  active, original    default\n", ""},
		{"tenant show default --json", "GET /api/v1/tenants", tenantList, exitOK,
			`{"original":true,"quota":{},"since":"2026-11-22T00:00:00.000000Z","suspended":false,"tenant":"default"}` + "\n", ""},
		{"tenant show acme_shop_prd", "GET /api/v1/tenants", tenantList, exitFailed, "", "the mesh has no tenant acme_shop_prd; did you mean acme_shop_prod?"},
		{"tenant suspend a --reason x", "POST /api/v1/calls", `{"error":{"code":"denied","message":"denied by policy: OPERATOR_REQUIRED"}}`, exitDenied, "", "OPERATOR_REQUIRED"},
		{"tenant export a", "GET /api/v1/tenants/a/evidence", "bytes", exitOK, "bytes", ""},
		{"export --session s", "GET /api/v1/sessions/s/evidence", "bytes", exitOK, "bytes", ""},
		{"export --session s --json", "GET /api/v1/sessions/s/evidence", "bytes", exitOK, `{"bytes":5,"content_base64":"Ynl0ZXM="}` + "\n", ""},
	} {
		addr, _ := answers(t, map[string]string{x.path: x.doc})
		rubric := filepath.Join(t.TempDir(), "r")
		if err := os.WriteFile(rubric, []byte("r"), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errOut := invokeWith(t, "v", append(strings.Fields(strings.Replace(x.line, "RUBRIC", rubric, 1)), "--addr", addr, "--token", "good")...)
		if code != x.code || out != x.out && !(len(x.out) > 5 && strings.Contains(out, strings.TrimSuffix(x.out, "\n"))) || !strings.Contains(errOut, x.errOut) {
			t.Errorf("%s: %d, want %d\n%q\nwant\n%q\n%s", x.line, code, x.code, out, x.out, errOut)
		}
	}
}

// tenantList is a response to GET /api/v1/tenants.
const tenantList = `[{"tenant":"acme_shop_prod","organization":"acme","project":"shop","environment":"prod","since":"2026-11-23T00:00:00.000000Z","suspended":true,"quota":{"in_flight":3,"body_bytes":7},"original":false},` +
	`{"tenant":"default","since":"2026-11-22T00:00:00.000000Z","suspended":false,"quota":{},"original":true}]`
