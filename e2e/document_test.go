package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey/passkeytest"
)

// TestDocument uses every operation of the gateway successfully, and many also with an
// error. It checks each response, and each request that succeeds, against the OpenAPI
// document that the gateway serves. It fails if the document has an operation that the
// test does not use successfully, except useTerminal, which needs containers (TestTerminal).
func TestDocument(t *testing.T) {
	p := startProvider(t, "CLAIMS=id_token")
	m := harness.One(t, harness.Options{LLM: allModels(t), Noop: true, Env: append(p.env, "BINNACLE_OAUTH_REGISTRATION=true")})
	d := harness.Checked(t, m)
	operator := m.OperatorToken
	m = m.As(m.Token)
	m.Addr, m.OperatorToken = d.Addr, operator
	u := &user{t: t, m: m, provider: p}

	u.edge()
	u.logins()
	u.calls()
	u.artifacts()
	u.pipelines()
	u.models()
	u.govern()
	u.approve()
	u.decide()
	u.ledger()
	u.tree()
	u.witness()
	u.mcp()
	u.wrong()
	for _, id := range d.Operations() {
		if !d.Succeeded(id) && id != "useTerminal" {
			t.Errorf("the operation %s was not used with success", id)
		}
	}
}

// allModels writes an llm document with providers of every API format and a model that
// judges, and the secrets of the providers. It returns the document's path.
func allModels(t *testing.T) string {
	p, path := harness.NewProviders(t, nil)
	l, other := harness.NewLLM(t)
	var a, b map[string]any
	for path, doc := range map[string]*map[string]any{path: &a, other: &b} {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, doc); err != nil {
			t.Fatal(err)
		}
	}
	a["providers"] = append(a["providers"].([]any), b["providers"].([]any)...)
	raw, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	secrets := maps.Clone(p.Keys)
	secrets["llm.fixture"] = l.Key
	harness.WriteSecrets(t, path, secrets)
	return path
}

// user sends the requests of TestDocument.
type user struct {
	t *testing.T
	m *harness.Mesh // its address is that of the proxy that checks the exchanges

	provider *identityProvider
}

// must sends a request and returns the response, which must have the given status. header
// holds alternately the names and the values of header fields.
func (u *user) must(status int, method, path, body string, header ...string) *harness.Response {
	u.t.Helper()
	h := map[string]string{"Content-Type": "application/json", "X-Binnacle-Session": "s-doc"}
	for i := 0; i < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	r, err := u.m.DoHeader(u.t.Context(), method, path, body, h)
	if err != nil {
		u.t.Fatal(method, path, err)
	}
	if r.Status != status {
		u.t.Errorf("%s %s: %d, want %d: %s", method, path, r.Status, status, r.Body)
	}
	return r
}

func (u *user) get(path string) *harness.Response {
	u.t.Helper()
	return u.must(http.StatusOK, "GET", path, "")
}

// until repeats a GET until its response has the status 200, for at most 20 seconds.
func (u *user) until(path string) *harness.Response {
	u.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		r, err := u.m.Do(u.t.Context(), "GET", path, "", "")
		if err != nil {
			u.t.Fatal(err)
		}
		if r.Status == http.StatusOK || time.Now().After(end) {
			if r.Status != http.StatusOK {
				u.t.Errorf("GET %s: %d: %s", path, r.Status, r.Body)
			}
			return r
		}
	}
}

// as returns a user that sends its requests with the given token.
func (u *user) as(token string) *user {
	m := u.m.As(token)
	return &user{u.t, m, u.provider}
}

// operator returns a user that sends its requests with the operator's token.
func (u *user) operator() *user { return u.as(u.m.OperatorToken) }

// member returns a member of a JSON response, which must be a string.
func (u *user) member(r *harness.Response, name string) string {
	u.t.Helper()
	var doc map[string]any
	r.JSON(u.t, &doc)
	v, ok := doc[name].(string)
	if !ok {
		u.t.Fatalf("no %s in %s", name, r.Body)
	}
	return v
}

func (u *user) edge() {
	for _, path := range []string{"/healthz", "/readyz", "/openapi.json", "/version"} {
		u.get(path)
	}
	u.operator().get("/metrics")
}

func (u *user) logins() {
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	if _, err := u.m.CLIStdin("correct horse battery staple", "password", "set", "admin"); err != nil {
		u.t.Fatal(err)
	}
	u.must(200, "POST", "/api/v1/calls", `{"kind":"policy.grant_role","args":{"principal":"admin","role":"developer"}}`)
	u.get("/.well-known/jwks.json")
	u.get("/.well-known/oauth-authorization-server")
	u.get("/.well-known/oauth-protected-resource/mcp")
	r := u.must(200, "POST", "/oauth/token", "grant_type=password&username=admin&password=correct+horse+battery+staple", form...)
	u.as(u.member(r, "access_token")).get("/api/v1/packs")
	u.must(200, "POST", "/oauth/introspect", "token="+u.member(r, "access_token"), form...)
	u.must(200, "POST", "/oauth/revoke", "token="+u.member(r, "refresh_token"), form...)
	d := u.must(200, "POST", "/oauth/device", "client_id=doc", form...)
	u.must(200, "POST", "/api/v1/devices", `{"code":"`+u.member(d, "user_code")+`"}`)
	u.passkey()
	u.browser(u.member(u.must(200, "POST", "/oauth/device", "client_id=doc", form...), "user_code"))
}

// passkey registers a passkey of the administrator, votes with it and removes it. Browsers have no
// passkeys for an IP address, so that the requests name localhost.
func (u *user) passkey() {
	at := *u
	addr := strings.Replace(u.m.Addr, "127.0.0.1", "localhost", 1)
	at.m = u.m.As(u.m.Token)
	at.m.Addr = addr
	device := passkeytest.New("http://"+addr, "localhost")
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", "http://" + addr}
	u.must(200, "POST", "/api/v1/calls", `{"kind":"policy.grant_role","args":{"principal":"admin","role":"approver"}}`)
	r := at.must(200, "POST", "/auth/login", "username=admin&password=correct+horse+battery+staple", form...)
	form = append(form, "Cookie", strings.Split(r.Header.Get("Set-Cookie"), ";")[0])
	body := html.UnescapeString(string(at.must(200, "GET", "/auth/passkeys", "", form...).Body))
	part := func(before, after string) string {
		_, rest, _ := strings.Cut(body, before)
		value, _, _ := strings.Cut(rest, after)
		return value
	}
	state := part(`name="state" value="`, `"`)
	created := url.Values{"state": {state}, "name": {"test"}, "credential": {string(device.Create(part(`"challenge":"`, `"`)))}}
	at.must(200, "POST", "/auth/passkeys", created.Encode(), form...)
	at.must(200, "GET", "/auth/approvals", "", form...)

	u.must(200, "POST", "/api/v1/calls", `{"kind":"policy.register_principal","args":{"principal":"asker","type":"agent"}}`)
	overlay := `{"id":"ask","scope":"agent","subject":"asker","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"ESCALATE_ASK","approval":{"passkey":true,"quorum":1,"timeout_ms":600000}}]}`
	cli(u.t, u.m, "policy", "activate", write(u.t, "ask.json", overlay))
	call := u.member(u.as(u.m.TokenFor("asker", "tools:call")).must(202, "POST", "/api/v1/packs/noop", "{}", "Prefer", "respond-async"), "call_id")
	body = html.UnescapeString(string(at.must(200, "GET", "/auth/approvals?call="+call, "", form...).Body))
	ballot := contract.Ballot{Approver: "admin", CallID: call, DecisionDigest: part(`"decision_digest":"`, `"`), Reason: "seen", Tenant: part(`"tenant":"`, `"`), Vote: contract.Grant}
	a := device.Assert(passkey.Challenge(&ballot))
	credential, err := json.Marshal(map[string]any{"id": a.CredentialID, "response": map[string]string{"authenticatorData": a.AuthenticatorData, "clientDataJSON": a.ClientData, "signature": a.Signature}})
	if err != nil {
		u.t.Fatal(err)
	}
	vote := url.Values{"call": {call}, "vote": {"grant"}, "reason": {"seen"}, "credential": {string(credential)}}
	at.must(200, "POST", "/auth/approvals", vote.Encode(), form...)
	at.must(200, "POST", "/auth/passkeys", url.Values{"remove": {a.CredentialID}}.Encode(), form...)
	cli(u.t, u.m, "policy", "retire", "p2", "ask")
}

// browser logs in as a browser does, approves a code and logs out.
func (u *user) browser(code string) {
	page := []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", "http://" + u.m.Addr}
	u.get("/auth/login")
	r := u.must(200, "POST", "/auth/login", "username=admin&password=correct+horse+battery+staple&code="+code, page...)
	_, invited := invitation(u.t, u.m, "admin")
	u.must(200, "POST", "/api/v1/calls", `{"kind":"policy.map_group","args":{"group":"eng","role":"viewer"}}`)
	u.provider.groups("ann", `["eng"]`)
	b := newBrowser(u.t, u.m)
	b.says(b.login(u.provider, u.m.Addr, u.m.Addr, "ann", "invitation="+invited), 200, "Logged in")
	page = append(page, "Cookie", strings.Split(r.Header.Get("Set-Cookie"), ";")[0])
	u.must(200, "GET", "/auth/device?code="+code, "", page...)
	u.must(200, "POST", "/auth/device", "code="+code, page...)
	u.authorize(page)
	u.must(200, "POST", "/auth/logout", "", page...)
}

// authorize registers a program and consents to its login, with the headers of a page.
func (u *user) authorize(page []string) {
	id := u.member(u.must(201, "POST", "/oauth/register", `{"redirect_uris":["http://127.0.0.1/callback"],"client_name":"doc"}`), "client_id")
	q := url.Values{"response_type": {"code"}, "client_id": {id}, "redirect_uri": {"http://127.0.0.1:7/callback"}, "code_challenge": {strings.Repeat("c", 43)}, "code_challenge_method": {"S256"}, "scope": {"tools:call"}, "resource": {"http://" + u.m.Addr + "/mcp"}}
	r := u.must(200, "GET", "/oauth/authorize?"+q.Encode(), "", page...)
	page[len(page)-1] += "; " + strings.Split(r.Header.Get("Set-Cookie"), ";")[0]
	at := strings.TrimPrefix(r.Header.Get("Refresh"), "0;url=")
	u.must(200, "GET", at, "", page...)
	u.must(200, "POST", "/auth/consent", "choice=approve&scope=tools%3Acall&"+at[strings.Index(at, "request="):], page...)
}

func (u *user) calls() {
	u.get("/api/v1/packs")
	u.get("/api/v1/packs/cmd.upper")
	u.get("/api/v1/packs/vault.put?unapproved=true")
	u.must(200, "POST", "/api/v1/packs/cmd.upper", `{"text":"a"}`)
	u.must(200, "POST", "/api/v1/packs/noop", `{}`)
	r := u.must(200, "POST", "/api/v1/calls", `{"kind":"tool.cmd.upper","args":{"text":"b"}}`, "X-Binnacle-Session", "", "Idempotency-Key", "k1")
	u.get("/api/v1/calls/" + u.member(r, "call_id"))
	u.must(200, "DELETE", "/api/v1/calls/"+u.member(r, "call_id"), "")
	u.must(200, "POST", "/api/v1/calls", `{"kind":"llm.chat","args":{"model":"openai/m-good","messages":[{"role":"user","content":"hi"}]}}`)
	denied := u.must(403, "POST", "/api/v1/packs/no-such", `{}`)
	u.get("/api/v1/calls/" + denied.Header.Get("X-Binnacle-Call-Id"))
	u.get("/api/v1/calls/" + denied.Header.Get("X-Binnacle-Call-Id") + "/explanation")
	u.must(200, "POST", "/api/v1/secrets", `{"name":"doc-secret","value":"v"}`)
	rubric, err := json.Marshal(map[string]string{"session": "s-doc", "rubric": "name: on-course\nmodel: fixture/judge\nmin: 0\nmax: 10\ncriteria:\n  - id: answered\n    description: it was answered\n"})
	if err != nil {
		u.t.Fatal(err)
	}
	u.must(200, "POST", "/api/v1/judgements", string(rubric), "X-Binnacle-Session", "")
}

func (u *user) artifacts() {
	r := u.must(200, "POST", "/api/v1/artifacts?name=a.txt", "some text", "Content-Type", "application/octet-stream")
	var call struct {
		Output struct{ Artifact string }
	}
	r.JSON(u.t, &call)
	at := "/api/v1/artifacts/" + call.Output.Artifact
	u.until("/api/v1/artifacts")
	u.until(at)
	u.until(at + "/content")
	u.get(u.member(u.must(200, "POST", at+"/link", `{}`), "path"))
}

func (u *user) pipelines() {
	const doc = `{"name":"doc","steps":[{"id":"one","pack":"cmd.upper","input":{"text":"a"}}]}`
	u.get("/api/v1/pipelines")
	u.must(200, "POST", "/api/v1/pipelines/validate", doc)
	at := "/api/v1/pipelines/runs/" + u.member(u.must(200, "POST", "/api/v1/pipelines/runs", `{"document":`+doc+`}`), "call_id")
	u.get("/api/v1/pipelines/runs?limit=1")
	u.get(at)
	u.get(at + "/graph")
	u.must(200, "DELETE", at, "")
	schedule := u.member(u.must(200, "POST", "/api/v1/calls", `{"kind":"tool.pipeline.schedule","args":{"cron":"0 0 30 2 *","document":`+doc+`}}`), "call_id")
	u.get("/api/v1/pipelines/schedules?limit=1")
	u.get("/api/v1/pipelines/schedules/" + schedule)
}

func (u *user) models() {
	chat := `{"model":"openai/m-good","messages":[{"role":"user","content":"hi"}]`
	u.must(200, "POST", "/v1/chat/completions", chat+`}`)
	u.must(200, "POST", "/v1/chat/completions", chat+`,"stream":true}`)
	u.must(200, "POST", "/v1/completions", `{"model":"openai/m-good","prompt":"hi"}`)
	u.must(200, "POST", "/v1/embeddings", `{"model":"openai/m-good","input":["a"]}`)
	u.must(200, "POST", "/v1/messages", `{"model":"anthropic/m-good","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}`)
	u.must(200, "POST", "/v1/messages/count_tokens", `{"model":"anthropic/m-good","messages":[{"role":"user","content":"hi"}]}`)
	r := u.must(200, "POST", "/v1/responses", `{"model":"openai/m-good","input":"hi","store":true}`)
	id := u.member(r, "id")
	u.until("/v1/responses/" + id)
	u.get("/v1/responses/" + id + "/input_items?limit=1&order=asc")
	u.must(200, "POST", "/v1/responses", `{"model":"openai/m-good","input":"hi","stream":true}`)
	u.must(200, "DELETE", "/v1/responses/"+id, "")
	u.get("/v1/models")
	u.must(200, "GET", "/v1/models", "", "Anthropic-Version", "2023-06-01")
	u.get("/v1/models/fixture/good")
	u.get("/v1/models/fixture%2Fgood")
	u.get("/api/v1/llm/stats?from=2026-01-01T00:00:00Z")
	u.get("/api/v1/llm/spend?by=model,day")
}

func (u *user) govern() {
	key := u.member(u.must(200, "POST", "/api/v1/keys", `{"id":"doc","scopes":["llm:call"],"models":["openai/*"],"tags":["team-a"],"budget_usd_micros":1000000,"budget_window":"day","rate_calls":100,"rate_window":"minute","ttl_ms":3600000}`), "key")
	u.as(key).must(403, "POST", "/v1/chat/completions", `{"model":"openai/m-good","messages":[{"role":"user","content":"hi"}]}`)
	u.get("/api/v1/keys")
	ann := u.as(u.m.TokenFor("ann", "llm:call"))
	ann.must(200, "POST", "/api/v1/keys/ann/consent", `{"maker":"admin","scopes":["llm:call"],"ttl_ms":60000}`)
	ann.must(200, "DELETE", "/api/v1/keys/ann/consent", "")
	u.must(200, "POST", "/api/v1/tokens/revocations", `{"principal":"unregistered","reason":"test"}`)
	for _, path := range []string{"/api/v1/policies", "/api/v1/limits", "/api/v1/identities", "/api/v1/identities?at=5", "/api/v1/trust/keys", "/api/v1/trust/keys?at=5"} {
		u.get(path)
	}
	u.must(200, "POST", "/api/v1/calls", `{"kind":"policy.set_limits","args":{"limits":[{"id":"doc","level":"agent","max":100000,"measure":"calls","window":"day"}]}}`)
	u.must(200, "POST", "/api/v1/packs/noop", `{}`)
	u.get("/api/v1/limits")
}

// approve registers two people. The second registration waits until the first person has
// approved it.
func (u *user) approve() {
	register := func(who string) string {
		return `{"kind":"policy.register_principal","args":{"principal":"` + who + `","type":"person"}}`
	}
	u.must(200, "POST", "/api/v1/calls", register("bob"))
	cli(u.t, u.m, "roles", "grant", "bob", "approver")
	call := u.member(u.must(202, "POST", "/api/v1/calls", register("carol"), "Prefer", "respond-async"), "call_id")
	u.get("/api/v1/calls/" + call)
	u.get("/api/v1/calls?limit=100")
	bob := u.as(u.m.TokenFor("bob", "approvals:vote", "tools:call"))
	bob.get("/api/v1/approvals")
	bob.get("/api/v1/approvals/" + call)
	bob.must(200, "POST", "/api/v1/approvals/"+call+"/votes", `{"vote":"grant","reason":"I know her"}`)
	u.get("/api/v1/identities")
}

func (u *user) decide() {
	r := u.must(200, "POST", "/api/v1/decide", `{"kind":"tool.noop","args":{"n":1},"report_within_ms":30000}`)
	report := `{"args_digest":"` + u.member(r, "args_digest") + `","status":"succeeded","output":{"n":1},"usage":{"cpu_ms":5}}`
	u.must(200, "POST", u.member(r, "report"), report)
	u.must(200, "POST", u.member(r, "report"), report)
	u.must(409, "POST", u.member(r, "report"), `{"args_digest":"`+u.member(r, "args_digest")+`","status":"failed"}`)
	const began = `{"action":"sha256:x","content":{"agent":"a","event":"SessionStart","workspace":"/"},"journal":"j-doc","kind":"client.session","number":1,"observed_at":"2026-01-01T00:00:00.000Z","phase":"began"}`
	u.must(200, "POST", "/api/v1/observations", began)
	u.must(200, "POST", "/api/v1/observations", began)
	u.must(409, "POST", "/api/v1/observations", strings.Replace(began, "sha256:x", "sha256:y", 1))
}

func (u *user) ledger() {
	u.must(200, "POST", "/api/v1/packs/cmd.upper", `{"text":"`+strings.Repeat("x", 40_000)+`"}`)
	u.get("/helm/receipts?limit=100")
	u.get("/helm/receipts?session=s-doc&owner=admin")
	u.until("/helm/proofgraph?session=s-doc")
	u.get("/api/v1/proofgraph/sessions?limit=10&offset=1")
	var receipts []json.RawMessage
	u.get("/api/v1/proofgraph/sessions/s-doc/receipts").JSON(u.t, &receipts)
	var second struct {
		Prev string `json:"prev"`
	}
	if err := json.Unmarshal(receipts[1], &second); err != nil {
		u.t.Fatal(err)
	}
	u.get("/api/v1/proofgraph/receipts/" + second.Prev)
	u.get("/api/v1/proofgraph/receipts/" + strings.Replace(second.Prev, ":", "%3A", 1))
	var tenants []struct{ Tenant string }
	u.operator().get("/api/v1/tenants").JSON(u.t, &tenants)
	u.operator().get("/api/v1/tenants/" + tenants[0].Tenant)
	u.get("/api/v1/events?session=s-doc&type=effect_recorded&since=1h")
	u.get("/api/v1/search?tool=cmd.upper&status=succeeded&limit=5")
	stored := object.FindSubmatch(u.get("/api/v1/events?session=s-doc").Body)
	u.operator().get("/api/v1/ledger")
	u.until("/api/v1/tenants/default/evidence")
	if stored == nil {
		u.t.Fatal("the session refers to no content object")
	}
	u.get(fmt.Sprintf("/api/v1/contents/%s?size=%s", stored[1], stored[2]))
	u.get(fmt.Sprintf("/api/v1/contents/%s?size=%s", url.QueryEscape(string(stored[1])), stored[2]))
	pack := u.until("/api/v1/sessions/s-doc/evidence")
	u.until("/api/v1/sessions/s-doc/evidence?redact=all")
	u.must(200, "POST", "/api/v1/evidence/export", `{"session_id":"s-doc","format":"tar.gz"}`)
	u.must(200, "POST", "/api/v1/evidence/verify", string(pack.Body), "Content-Type", "application/x-tar")
	u.must(200, "POST", "/api/v1/evidence/verify?root=k-other", string(pack.Body), "Content-Type", "application/x-tar")
	u.form(pack.Body)
	r := u.must(200, "POST", "/api/v1/conformance/run", `{"level":"L1","model":"openai/m-good"}`, "X-Binnacle-Session", "")
	u.get("/api/v1/conformance/reports/" + u.member(r, "report_id"))
	for _, path := range []string{"audit", "gateway", "gateway-authority", "llm-router", "policy", "policy-budget", "policy-starts", "keys-policy", "work", "work-pipelines", "work-catalog", "mcp-router"} {
		u.operator().get("/api/v1/views/" + path)
	}
}

// form uploads an evidence pack as a file of a multipart form, for verification.
func (u *user) form(pack []byte) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("bundle", "pack.tar")
	if err != nil {
		u.t.Fatal(err)
	}
	if _, err := part.Write(pack); err != nil {
		u.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		u.t.Fatal(err)
	}
	u.must(200, "POST", "/api/v1/evidence/verify", b.String(), "Content-Type", w.FormDataContentType())
}

// object matches a reference to a content object, with its commitment and size.
var object = regexp.MustCompile(`"commitment":"(sha256:[0-9a-f]+)"(?:,"encryption":\{[^}]*\})?,"media_type":"[^"]*","size":(\d+),"store":"object"`)

// tree adds more than the 256 entries that a full tile needs, and reads the log.
func (u *user) tree() {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				if r, err := u.m.Do(u.t.Context(), "POST", "/api/v1/packs/noop", "", "{}"); err != nil || r.Status != 200 {
					u.t.Error(err, r)
				}
			}
		})
	}
	wg.Wait()
	u.get("/log/checkpoint")
	u.operator().until("/log/tile/0/000")
	u.operator().get("/log/tile/0/000.p/12")
	u.operator().get("/log/tile/0/000.p%2F12")
	u.get("/log/consistency?from=2&to=200")
	u.get("/api/v1/ledger/7/proof")
}

func (u *user) witness() {
	seed := filepath.Join(u.t.TempDir(), "w.seed")
	if err := os.WriteFile(seed, []byte(strings.Repeat("7", 64)), 0o600); err != nil {
		u.t.Fatal(err)
	}
	kid := strings.TrimSpace(cli(u.t, u.m, "trust", "add", "witness", "w1", "--public", strings.TrimSpace(cli(u.t, u.m, "trust", "public", seed))))
	eventually(u.t, "the witness's key is published", 10*time.Second, func() bool { return strings.Contains(cli(u.t, u.m, "trust", "list"), kid) })
	eventually(u.t, "the witness cosigns", 20*time.Second, func() bool {
		_, err := u.m.CLI("witness", "--addr", u.m.Addr, "--name", "w1", "--key", seed, "--state", seed+".state", "--every", "0")
		return err == nil
	})
	u.get("/log/checkpoint?witness=true")
	u.until("/log/checkpoint?witnessed=1")
}

func (u *user) mcp() {
	u.get("/mcp/v1/capabilities")
	u.must(200, "POST", "/mcp/v1/execute", `{"method":"cmd.upper","params":{"text":"b"}}`)
	u.must(403, "POST", "/mcp/v1/execute", `{"method":"no-such"}`)
	accept := []string{"Accept", "application/json, text/event-stream", "X-Binnacle-Session", ""}
	r := u.must(200, "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, accept...)
	accept = append(accept, "Mcp-Session-Id", r.Header.Get("Mcp-Session-Id"))
	u.must(202, "POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, accept...)
	u.must(200, "POST", "/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, accept...)
	u.stream("/mcp", r.Header.Get("Mcp-Session-Id"))
	u.must(204, "DELETE", "/mcp", "", accept...)
	u.must(404, "POST", "/mcp", `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`, accept...)
}

// stream opens the stream of events at path, checks that the response has the status
// 200, and closes it.
func (u *user) stream(path, session string) {
	ctx, cancel := context.WithCancel(u.t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", u.m.URL()+path, nil)
	if err != nil {
		u.t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer " + u.m.Token, "Accept": "text/event-stream", "Mcp-Session-Id": session} {
		req.Header.Set(k, v)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		u.t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		u.t.Errorf("GET %s: %d", path, r.StatusCode)
	}
}

// wrong sends requests whose responses must be errors.
func (u *user) wrong() {
	u.as("no-token").must(401, "GET", "/api/v1/packs", "")
	u.as("no-token").must(401, "POST", "/v1/messages", `{}`)
	u.as(u.m.TokenFor("eve", "tools:call")).must(403, "GET", "/api/v1/policies", "")
	u.must(400, "POST", "/api/v1/keys", `{"id":"x","scopes":["llm:call","nonsense"]}`)
	u.must(400, "POST", "/api/v1/keys", `{"id":"x","unknown":1}`)
	u.must(400, "POST", "/api/v1/calls", `{"kind":"tool.cmd.upper","args":{"text":5}}`)
	u.must(400, "POST", "/api/v1/calls", `not json`)
	u.must(400, "POST", "/v1/messages", `{"model":5}`)
	u.must(404, "POST", "/v1/messages", `{"model":"missing/m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`)
	u.must(404, "POST", "/v1/chat/completions", `{"model":"missing/m","messages":[{"role":"user","content":"hi"}]}`)
	u.must(404, "GET", "/v1/models/missing/m", "")
	u.must(404, "GET", "/api/v1/calls/c-none", "")
	u.must(404, "GET", "/v1/responses/resp_none", "")
	u.must(404, "GET", "/api/v1/approvals/c-none", "")
	u.must(400, "GET", "/api/v1/search?limit=0", "")
	u.must(413, "POST", "/api/v1/packs/cmd.upper", `{"text":"`+strings.Repeat("x", 17<<20)+`"}`)
}
