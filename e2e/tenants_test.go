package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// The tenants of TestTenants. They belong to one organization, so that they also share a
// budget ledger.
const (
	shopProd = "acme_shop_prod"
	shopTest = "acme_shop_test"
)

// tenantScopes lists every scope that a token of a tenant may have.
var tenantScopes = []string{"tools:call", "llm:call", "vault:write", "vault:erase", "judge:run", "policy:admin", "approvals:vote", "audit:read", "calls:decide", "health:read", "log:cosign"}

// tenantMesh returns a copy of the mesh that uses a token of a principal of a tenant,
// with every scope that a token of a tenant may have.
func tenantMesh(t *testing.T, m *harness.Mesh, tenant, actor string) *harness.Mesh {
	t.Helper()
	return m.As(tenantToken(t, m, tenant, actor, tenantScopes...))
}

// tenantToken returns a new token of a principal of a tenant.
func tenantToken(t *testing.T, m *harness.Mesh, tenant, actor string, scopes ...string) string {
	t.Helper()
	args := []string{"token", "create", "--tenant", tenant, "--actor", actor}
	for _, s := range scopes {
		args = append(args, "--scope", s)
	}
	return strings.TrimSpace(cli(t, m, args...))
}

// TestTenants creates tenants on a running mesh and uses them, on each topology that
// needs no container engine. With a process per service, each service that may have
// several instances has two.
func TestTenants(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		m := harness.One(t, harness.Options{Noop: true, Listen: true})
		tenants(t, m, func() { m.Restart("binnacle") }, nil)
	})
	t.Run("processes", func(t *testing.T) {
		m := harness.Processes(t, harness.Options{Noop: true})
		var again []string
		for _, s := range services.Programs() {
			if s.Slots > 1 && s.Name != services.Gateway {
				m.StartService(s.Name+"-b", s.Name)
				again = append(again, s.Name+"-b")
			}
			again = append(again, s.Name)
		}
		m.StartGateway("gateway-b")
		tenants(t, m, func() {
			for _, name := range append([]string{"nats", "provision"}, again...) {
				m.Restart(name)
			}
		}, func() func() {
			signal := func(s syscall.Signal) {
				for _, name := range []string{"session-runner", "session-runner-b"} {
					m.Signal(name, s)
				}
			}
			signal(syscall.SIGSTOP)
			return func() { signal(syscall.SIGCONT) }
		})
	})
}

// TestTenantsCompose makes the checks of TestTenants on compose, with two containers of each
// service that may have several, except the vault-broker, which can have only one if it stores
// secrets in a file.
func TestTenantsCompose(t *testing.T) {
	m := harness.Compose(t, harness.Options{Noop: true})
	var two []string
	for _, s := range services.Programs() {
		if s.Slots > 1 && s.Name != services.VaultBroker {
			two = append(two, s.Name+"=2")
		}
	}
	m.Scale(two...)
	compose := func(args ...string) {
		if out, err := m.ComposeCLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
	tenants(t, m, func() {
		compose("restart")
	}, func() func() {
		compose("pause", "session-runner")
		return func() { compose("unpause", "session-runner") }
	})
}

// tenants makes the checks of TestTenants on a mesh. restart restarts the processes of the mesh,
// except possibly a second gateway. hold is passed to suspension.
func tenants(t *testing.T, m *harness.Mesh, restart func(), hold func() (release func())) {
	m.WaitReady()
	createTenants(t, m)
	a, b, original := settle(t, m, shopProd, "ann"), settle(t, m, shopTest, "bea"), settle(t, m, "default", "admin")
	others := map[string]*harness.Mesh{shopTest: b.m, "default": original.m}
	a.checkOwn(t)
	g := &inputGenerator{ids: a.ids, used: map[string]bool{}}
	foreignQueries(t, m, g, a, []string{shopTest, "default"})
	foreignRoutes(t, m, g, a, others)
	slices.Sort(g.faults)
	for _, fault := range slices.Compact(g.faults) {
		t.Error(fault)
	}
	if unused := g.unused(); len(unused) > 0 {
		t.Errorf("no operation and no query has the inputs %q", unused)
	}
	a.checkOwn(t)
	cli(t, m, "tenant", "quota", shopTest, "--quota-in-flight", "64", "--quota-artifact-bytes", "4096")
	artifactQuota(t, a, b)
	suspension(t, m, a, b, hold)

	restart()
	m.WaitReady()
	for _, s := range []*settlement{a, b, original} {
		s.m.Addr = m.Addr
		s.calls(t)
		s.checkOwn(t)
	}
	for _, r := range g.requests(openDocument(t, m)) {
		for who, other := range others {
			if r.method == "GET" && r.kind != "" { // by now, events of the other tenants name ids of a
				a.foreign(t, who, r, other)
			}
		}
	}
	artifactQuota(t, a, b)
	tenantProofs(t, m, a, b, original)
}

// artifactQuota checks that artifacts that exceed the quota of the tenant of b are refused, and
// that the tenant of a, which has no quota of its own, can store one of that size. A quota applies
// a moment after it is set.
func artifactQuota(t *testing.T, a, b *settlement) {
	t.Helper()
	body := strings.Repeat("x", 4096)
	eventually(t, "an upload beyond the quota is refused", time.Minute, func() bool {
		r, err := b.m.Do(t.Context(), "POST", "/api/v1/artifacts", "", body)
		return err == nil && r.Status == http.StatusRequestEntityTooLarge
	})
	doc := fmt.Sprintf(`{"content":%q}`, body)
	if r, err := b.m.Do(t.Context(), "POST", "/api/v1/packs/artifact.put", "", doc); err != nil || r.Status == http.StatusOK || !strings.Contains(string(r.Body), "its quota of 4096 bytes") {
		t.Errorf("artifact.put beyond the quota: %v %d %s", err, r.Status, r.Body)
	}
	if r, err := a.m.Do(t.Context(), "POST", "/api/v1/artifacts", "", body); err != nil || r.Status != http.StatusOK {
		t.Errorf("a tenant without a quota of its own: %v %d %s", err, r.Status, r.Body)
	}
}

// createTenants creates the tenants of the test. It checks that names that are reserved,
// malformed or in use are refused, and that only operators create tenants.
func createTenants(t *testing.T, m *harness.Mesh) {
	t.Helper()
	cli(t, m, "tenant", "create", "acme/shop/prod", "--admin", "ann")
	cli(t, m, "tenant", "create", "acme/shop/test", "--admin", "bea", "--quota-in-flight", "64")
	if out, err := m.CLI("tenant", "create", "acme/shop/prod", "--admin", "eve"); err == nil || !strings.Contains(err.Error(), shopProd) {
		t.Errorf("a second creation of the tenant was not refused: %v %s", err, out)
	}
	for _, c := range []struct{ organization, project, environment, field string }{
		{"_cell", "p", "e", "organization"}, {"_org-acme", "p", "e", "organization"}, {"", "p", "e", "organization"}, {"acme", "_p", "e", "project"}, {"acme", "p", "e_", "environment"},
		{"acme", "p", strings.Repeat("e", 33), "environment"}, {"Acme", "p", "e", "organization"}, {"acme", "p.>", "e", "project"},
	} {
		doc := fmt.Sprintf(`{"kind":"tenant.create","args":{"organization":%q,"project":%q,"environment":%q,"admin":"eve"}}`, c.organization, c.project, c.environment)
		r, err := m.Operator().Do(t.Context(), "POST", "/api/v1/calls", "", doc)
		if err != nil || r.Status != http.StatusBadRequest && r.Status != http.StatusUnprocessableEntity || !strings.Contains(string(r.Body), c.field) {
			t.Errorf("%s: %v %d %s", doc, err, r.Status, r.Body)
		}
	}
	doc := `{"kind":"tenant.create","args":{"organization":"evil","project":"p","environment":"e","admin":"eve"}}`
	for who, token := range map[string]string{"the original tenant's admin": m.Token, "a tenant's admin": tenantToken(t, m, shopProd, "ann", "cell:admin", "policy:admin"), "no operator": tenantToken(t, m, contract.CellTenant, "eve", "cell:admin")} {
		if r, err := m.As(token).Do(t.Context(), "POST", "/api/v1/calls", "", doc); err != nil || r.Status != http.StatusForbidden {
			t.Errorf("%s created a tenant: %v %d %s", who, err, r.Status, r.Body)
		}
	}
	if list := cli(t, m, "tenant", "list"); !strings.Contains(list, shopProd) || !strings.Contains(list, shopTest) || !strings.Contains(list, "default") || strings.Contains(list, "evil") {
		t.Errorf("wrong list of tenants: %s", list)
	}
	for _, unknown := range []string{"acme_shop_none", "_org-acme", "_other"} {
		r, err := m.As(tenantToken(t, m, unknown, "ann", tenantScopes...)).Do(t.Context(), "POST", "/api/v1/packs/noop", "", "{}")
		if err != nil || r.Status != http.StatusUnauthorized {
			t.Errorf("a call of the tenant %s, which does not exist: %v %d %s", unknown, err, r.Status, r.Body)
		}
	}
}

// settlement holds what a test has created in a tenant.
type settlement struct {
	t      *testing.T
	m      *harness.Mesh // with a token of the tenant's first person
	tenant string
	who    string
	mark   string            // occurs in the content and the names of the tenant, and nowhere else
	ids    map[string]string // ids of the tenant, by kind
	n      int               // number of runs of the method calls; makes the text and the idempotency key of each run distinct
}

// settle uses the facilities whose state is separate for each tenant, among them calls, models,
// secrets, virtual keys, policies, approvals, limits, labels and intents.
func settle(t *testing.T, m *harness.Mesh, tenant, who string) *settlement {
	t.Helper()
	s := &settlement{t: t, m: tenantMesh(t, m, tenant, who), tenant: tenant, who: who, mark: "canary-" + strings.ReplaceAll(tenant, "_", "-"), ids: map[string]string{"tenant": tenant}}
	s.calls(t)
	s.models()
	s.labels()
	s.keys()
	s.governs()
	s.evidence()
	return s
}

// must sends a request that names the session s-work. The response must have the given
// status.
func (s *settlement) must(status int, method, path, body string, header ...string) *harness.Response {
	s.t.Helper()
	h := map[string]string{"Content-Type": "application/json", "X-Binnacle-Session": "s-work"}
	for i := 0; i < len(header); i += 2 {
		h[header[i]] = header[i+1]
	}
	r, err := s.m.DoHeader(s.t.Context(), method, path, body, h)
	if err != nil {
		s.t.Fatalf("%s: %s %s: %v", s.tenant, method, path, err)
	}
	if r.Status != status {
		s.t.Errorf("%s: %s %s: %d, want %d: %.600s", s.tenant, method, path, r.Status, status, r.Body)
	}
	return r
}

// member returns a member of a JSON response, which must be a string.
func (s *settlement) member(r *harness.Response, name string) string {
	s.t.Helper()
	return (&user{t: s.t}).member(r, name)
}

// calls makes calls of tools, and checks that an idempotency key that every tenant uses
// is the tenant's own.
func (s *settlement) calls(t *testing.T) {
	t.Helper()
	s.n++
	text := fmt.Sprintf("%s-%d", s.mark, s.n)
	r := s.must(200, "POST", "/api/v1/packs/cmd.upper", `{"text":"`+text+`"}`, "Idempotency-Key", fmt.Sprintf("same-key-%d", s.n))
	if !strings.Contains(string(r.Body), strings.ToUpper(text)) {
		t.Errorf("%s: %s", s.tenant, r.Body)
	}
	s.ids["call"], s.ids["session"] = r.Header.Get("X-Binnacle-Call-Id"), r.Header.Get("X-Binnacle-Session-Id")
	if want := contract.SessionID(s.tenant, s.who, "s-work"); s.ids["session"] != want {
		t.Errorf("the session is %s, want %s", s.ids["session"], want)
	}
	r = s.must(200, "POST", "/api/v1/decide", `{"kind":"tool.noop","args":{"n":1},"report_within_ms":600000}`)
	s.ids["decided"], s.ids["intent"] = s.member(r, "call_id"), s.member(r, "intent_id")
}

func (s *settlement) models() {
	s.must(200, "POST", "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"`+s.mark+`"}]}`)
	s.ids["response"] = s.member(s.must(200, "POST", "/v1/responses", `{"model":"demo/echo","input":"`+s.mark+`","store":true}`), "id")
	eventually(s.t, "the response is stored", 20*time.Second, func() bool {
		r, err := s.m.Do(s.t.Context(), "GET", "/v1/responses/"+s.ids["response"], "", "")
		return err == nil && r.Status == http.StatusOK
	})
}

// labels stores a secret under the name that every tenant uses, and uses it in a session
// of its own, which gets the label secret.
func (s *settlement) labels() {
	s.must(200, "POST", "/api/v1/secrets", `{"name":"demo-api-key","value":"`+s.mark+`-value"}`)
	r := s.must(200, "POST", "/api/v1/packs/cmd.secretlen", "{}", "X-Binnacle-Session", "s-secret")
	if want := fmt.Sprintf(`"length":%d`, len(s.mark+"-value")); !strings.Contains(string(r.Body), want) {
		s.t.Errorf("%s used another secret than its own: %s, want %s", s.tenant, r.Body, want)
	}
	s.ids["secret call"] = r.Header.Get("X-Binnacle-Call-Id")
}

// keys makes a virtual key, a secret, a delegation, an artifact, a run and a schedule of a
// pipeline, and a call with an idempotency key, whose names occur in no other tenant, and
// stores the id of the tenant's token.
func (s *settlement) keys() {
	s.ids["secret"], s.ids["idempotency key"], s.ids["principal"] = s.mark+"-secret", s.mark+"-once", s.who
	s.must(200, "POST", "/api/v1/secrets", `{"name":"`+s.ids["secret"]+`","value":"`+s.mark+`-value"}`)
	s.must(200, "POST", "/api/v1/packs/noop", `{}`, "Idempotency-Key", s.ids["idempotency key"])
	delegate := map[bool]string{true: "ann", false: "bea"}[s.who == "bea"]
	grant := s.must(200, "POST", "/api/v1/calls", `{"kind":"policy.delegate","args":{"delegate":"`+delegate+`","kinds":["tool.*","llm.*"],"ttl_ms":3600000}}`, "X-Binnacle-Session", "")
	s.ids["delegation"] = "g-" + grant.Header.Get("X-Binnacle-Call-Id")
	claims, err := base64.RawURLEncoding.DecodeString(strings.Split(s.m.Token, ".")[1])
	var token struct{ JTI string }
	if err != nil || json.Unmarshal(claims, &token) != nil {
		s.t.Fatalf("%s: %v %s", s.tenant, err, claims)
	}
	s.ids["token"] = token.JTI
	s.ids["artifact"] = s.put()
	s.ids["run"] = s.member(s.must(200, "POST", "/api/v1/pipelines/runs", `{"document":{"name":"`+strings.ToLower(s.mark)+`","steps":[{"id":"one","pack":"noop","input":{"say":"`+s.mark+`"}}]}}`), "call_id")
	s.ids["schedule"] = s.member(s.must(200, "POST", "/api/v1/calls", `{"kind":"tool.pipeline.schedule","args":{"cron":"0 0 30 2 *","document":{"name":"`+strings.ToLower(s.mark)+`","steps":[{"id":"one","pack":"noop"}]}}}`), "call_id")
	s.ids["key"] = s.mark + "-key"
	r := s.must(200, "POST", "/api/v1/keys", `{"id":"`+s.ids["key"]+`","scopes":["llm:call"],"ttl_ms":3600000}`)
	key := s.m.As(s.member(r, "key"))
	r, err = key.Do(s.t.Context(), "POST", "/v1/chat/completions", "", `{"model":"demo/echo","messages":[{"role":"user","content":"by key"}]}`)
	if err != nil || r.Status != http.StatusOK {
		s.t.Errorf("%s: a call with a virtual key: %v %d %s", s.tenant, err, r.Status, r.Body)
	}
}

// governs registers an agent whose calls of noop need an approval, sets a limit, and proposes such
// a call, which waits for its approval.
func (s *settlement) governs() {
	worker := s.mark + "-worker"
	cli(s.t, s.m, "principals", "register", worker, "agent")
	cli(s.t, s.m, "policy", "activate", write(s.t, "ask.json", `{"id":"`+s.mark+`","scope":"agent","subject":"`+worker+`","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED"}]}`))
	cli(s.t, s.m, "policy", "set-limits", write(s.t, "limits.json", `{"limits":[{"id":"`+s.mark+`","level":"environment","measure":"calls","window":"total","max":100000}]}`))
	at := s.m.As(tenantToken(s.t, s.m, s.tenant, worker, "tools:call"))
	r, err := at.DoHeader(s.t.Context(), "POST", "/api/v1/calls", `{"kind":"tool.noop","args":{}}`, map[string]string{"Prefer": "respond-async", "X-Binnacle-Timeout": "600"})
	if err != nil || r.Status != http.StatusAccepted {
		s.t.Fatalf("%s: %v %d %s", s.tenant, err, r.Status, r.Body)
	}
	s.ids["waiting"] = s.member(r, "call_id")
}

// evidence stores the ids of evidence that the tenant can read: a receipt, a content
// object, an entry of the ledger, and the report of a conformance run. It also opens an
// MCP session.
func (s *settlement) evidence() {
	s.must(200, "POST", "/api/v1/packs/cmd.upper", `{"text":"`+s.mark+strings.Repeat("x", 40_000)+`"}`)
	var receipts []struct{ Prev string }
	eventually(s.t, "the receipts are listed", 20*time.Second, func() bool {
		r, err := s.m.Do(s.t.Context(), "GET", "/api/v1/proofgraph/sessions/s-work/receipts", "", "")
		return err == nil && r.Status == http.StatusOK && json.Unmarshal(r.Body, &receipts) == nil && len(receipts) > 1
	})
	s.ids["receipt"] = receipts[1].Prev
	var line struct{ Seq int }
	eventually(s.t, "the content object is listed", 20*time.Second, func() bool {
		r := s.must(200, "GET", "/api/v1/events?session="+s.ids["session"], "")
		stored := object.FindSubmatch(r.Body)
		if stored == nil {
			return false
		}
		s.ids["content"], s.ids["size"] = string(stored[1]), string(stored[2])
		first, _, _ := strings.Cut(string(r.Body), "\n")
		return json.Unmarshal([]byte(first), &line) == nil && line.Seq > 0
	})
	s.ids["seq"] = strconv.Itoa(line.Seq)
	r := s.must(200, "POST", "/api/v1/conformance/run", `{"level":"L1","model":"demo/echo"}`, "X-Binnacle-Session", "")
	s.ids["report"] = s.member(r, "report_id")
	r = s.must(200, "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		"Accept", "application/json, text/event-stream", "X-Binnacle-Session", "")
	s.ids["mcp"] = r.Header.Get("Mcp-Session-Id")
}

// checkOwn checks that the tenant can read its calls, response, approval, receipts and content, and
// that its limit and its virtual key are listed.
func (s *settlement) checkOwn(t *testing.T) {
	t.Helper()
	for _, path := range []string{"/api/v1/calls/" + s.ids["call"], "/api/v1/calls/" + s.ids["waiting"], "/v1/responses/" + s.ids["response"], "/api/v1/approvals/" + s.ids["waiting"],
		"/api/v1/proofgraph/receipts/" + s.ids["receipt"], "/api/v1/contents/" + s.ids["content"] + "?size=" + s.ids["size"], "/api/v1/proofgraph/sessions/s-work/receipts", "/helm/receipts?session=s-work",
		"/api/v1/search?session=s-work", "/api/v1/identities", "/api/v1/limits"} {
		s.must(200, "GET", path, "", "X-Binnacle-Session", "")
	}
	if limits := string(s.must(200, "GET", "/api/v1/limits", "").Body); !strings.Contains(limits, s.mark) {
		t.Errorf("%s lacks its limit: %s", s.tenant, limits)
	}
	if keys := string(s.must(200, "GET", "/api/v1/keys", "").Body); !strings.Contains(keys, s.ids["key"]) {
		t.Errorf("%s lacks its key: %s", s.tenant, keys)
	}
}

// suspension suspends a tenant. The tenant's requests must fail with 403, while the other
// tenant is not affected. After the resumption, the tenant's requests succeed. hold stops
// the session-runners and returns the function that continues them; a call that is
// allowed before the suspension, and is not started because of hold, must be cancelled.
// hold is nil if the mesh cannot stop them alone; tests of package execute cover this.
func suspension(t *testing.T, m *harness.Mesh, a, b *settlement, hold func() (release func())) {
	t.Helper()
	suspend := func() { cli(t, m, "tenant", "suspend", a.tenant, "--reason", "not paid") }
	if hold == nil {
		suspend()
	} else {
		release := hold()
		ended := make(chan string, 1)
		go func() {
			r, err := a.m.Do(t.Context(), "POST", "/api/v1/packs/cmd.upper", "s-held", `{"text":"held"}`)
			if err != nil {
				ended <- err.Error()
				return
			}
			ended <- string(r.Body)
		}()
		eventually(t, "the call is allowed", 20*time.Second, func() bool {
			r, err := a.m.Do(t.Context(), "GET", "/api/v1/events?session=s-held&type=allowed", "", "")
			return err == nil && strings.Contains(string(r.Body), "policy.allowed")
		})
		suspend()
		release()
		if end := <-ended; !strings.Contains(end, contract.CodeTenantSuspended) {
			t.Errorf("a call that was allowed before its tenant was suspended was not cancelled: %s", end)
		}
	}
	eventually(t, "the edge refuses the tenant", 20*time.Second, func() bool {
		r, err := a.m.Do(t.Context(), "GET", "/api/v1/packs", "", "")
		return err == nil && r.Status == http.StatusForbidden
	})
	for _, q := range []request{{"", "GET", "/api/v1/packs", "", "", 0}, {"", "GET", "/api/v1/events", "", "", 0}, {"", "POST", "/api/v1/packs/noop", "{}", "", 0},
		{"", "POST", "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`, "", 0}, {"", "GET", "/v1/models", "", "", 0}} {
		r := q.send(t, a.m, "", "")
		if r.Status != http.StatusForbidden || !regexp.MustCompile(`(?i)tenant_suspended`).Match(r.Body) {
			t.Errorf("%s %s of a suspended tenant: %d %s", q.method, q.path, r.Status, r.Body)
		}
	}
	b.calls(t)
	b.checkOwn(t)
	if show := cli(t, m, "tenant", "show", a.tenant); !strings.Contains(show, "suspended") {
		t.Errorf("the suspension is not listed: %s", show)
	}
	cli(t, m, "tenant", "resume", a.tenant, "--reason", "paid")
	eventually(t, "the edge accepts the tenant again", 20*time.Second, func() bool {
		r, err := a.m.Do(t.Context(), "GET", "/api/v1/packs", "", "")
		return err == nil && r.Status == http.StatusOK
	})
	if hold != nil {
		held := a.must(200, "GET", "/api/v1/events?session=s-held&type=effect_recorded", "")
		if !strings.Contains(string(held.Body), `"status":"cancelled"`) {
			t.Errorf("wrong outcome of the held call: %s", held.Body)
		}
	}
	a.calls(t)
}

// tenantProofs verifies a pack and the export of each tenant with both verifiers, and the whole
// ledger with the first one, and compares the mesh with a replay. A pack must contain only events
// of its own tenant and of the mesh itself. The other tenants must not be able to export the first
// tenant or the whole ledger.
func tenantProofs(t *testing.T, m *harness.Mesh, all ...*settlement) {
	t.Helper()
	to := t.TempDir()
	for _, s := range all {
		pack, export := filepath.Join(to, s.tenant+".tar"), filepath.Join(to, s.tenant+"-export.tar")
		cli(t, s.m, "export", "--session", "s-work", "--out", pack)
		cli(t, s.m, "tenant", "export", s.tenant, "--out", export)
		verified(t, m, pack, export)
		for _, line := range strings.Split(strings.TrimSpace(string(entry(t, pack, "events.jsonl"))), "\n") {
			e, err := contract.DecodeEvent([]byte(line))
			if err != nil || e.Tenant != s.tenant && e.Tenant != contract.CellTenant {
				t.Errorf("the pack of %s: %v %.300s", s.tenant, err, line)
			}
		}
	}
	for _, other := range all[1:] {
		if out, err := other.m.CLI("tenant", "export", all[0].tenant, "--out", filepath.Join(to, "x.tar")); err == nil {
			t.Errorf("%s has exported %s: %s", other.tenant, all[0].tenant, out)
		}
		if out, err := other.m.CLI("export", "--ledger", "--out", filepath.Join(to, "x.jsonl")); err == nil {
			t.Errorf("%s has exported the whole ledger: %s", other.tenant, out)
		}
	}
	proves(t, m)
}

// put stores an artifact with the mark of the tenant and returns its id.
func (s *settlement) put() string {
	s.t.Helper()
	r := s.must(200, "POST", "/api/v1/artifacts", s.mark+" artifact")
	var doc struct{ Output struct{ Artifact string } }
	r.JSON(s.t, &doc)
	return doc.Output.Artifact
}
