package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// as sends a request with the given token and returns the response.
func as(t *testing.T, m *harness.Mesh, token, method, path, session, body string) *harness.Response {
	t.Helper()
	r, err := m.As(token).Do(context.Background(), method, path, session, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// govern makes a governing call and returns the first response, without waiting for an
// approval.
func govern(t *testing.T, m *harness.Mesh, token, kind string, args map[string]any) *harness.Response {
	t.Helper()
	doc, err := json.Marshal(map[string]any{"kind": "policy." + kind, "tool": "policy." + kind, "args": args})
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.As(token).DoHeader(context.Background(), "POST", "/api/v1/calls", string(doc), map[string]string{"Prefer": "respond-async"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func must(t *testing.T, r *harness.Response, status int, word string) {
	t.Helper()
	if r.Status != status || !strings.Contains(string(r.Body), word) {
		t.Errorf("%d %s, want %d %s", r.Status, r.Body, status, word)
	}
}

// within fails the test unless cond returns true within d.
func within(t *testing.T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
		if time.Now().After(end) {
			t.Errorf("not within %s: %s", d, what)
			return
		}
	}
}

// shut lists paths whose GET requests must be rejected if the credential has expired or
// been revoked, or if its principal is suspended.
var shut = []string{"/api/v1/events", "/api/v1/ledger", "/helm/receipts", "/api/v1/search?actor=admin", "/api/v1/proofgraph/sessions", "/api/v1/identities", "/api/v1/policies",
	"/api/v1/packs", "/v1/models", "/api/v1/trust/keys", "/log/checkpoint", "/api/v1/views/gateway", "/api/v1/llm/stats"}

// tail opens the event stream of the ledger. It returns a channel that is closed when
// the stream ends.
func tail(t *testing.T, m *harness.Mesh, token string) <-chan struct{} {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+m.Addr+"/api/v1/events?follow=true&since=1s", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 {
		t.Fatal("tail: ", resp.Status)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		}
	}()
	return done
}

// goes returns a condition for the function within: whether c is closed.
func goes(c <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
}

var _ = register("12.4 an expired virtual key reads on", func(t *testing.T, m *harness.Mesh) {
	doc := `{"id":"expiring-124","scopes":["audit:read","tools:call"],"ttl_ms":2500}`
	r := as(t, m, m.Token, "POST", "/api/v1/keys", "", doc)
	var out struct{ Key string }
	r.JSON(t, &out)
	must(t, as(t, m, out.Key, "GET", "/api/v1/packs", "", ""), 200, "")
	followed := tail(t, m, out.Key)
	time.Sleep(2500 * time.Millisecond)
	for _, path := range shut {
		must(t, as(t, m, out.Key, "GET", path, "", ""), 401, "")
	}
	must(t, as(t, m, out.Key, "POST", "/api/v1/packs/noop", "", "{}"), 401, "KEY_INVALID")
	within(t, time.Second, "the tail of an expired key ends", goes(followed))
})

var _ = register("12.4 a token's followers outlive it", func(t *testing.T, m *harness.Mesh) {
	out, err := m.CLI("token", "create", "--actor", "short-124", "--scope", "audit:read", "--ttl", "2s")
	if err != nil {
		t.Fatal(err)
	}
	short := strings.TrimSpace(out)
	followed := tail(t, m, short)
	time.Sleep(500 * time.Millisecond)
	if goes(followed)() {
		t.Error("the tail ended before its token")
	}
	within(t, 2500*time.Millisecond, "the tail of an expired token ends", goes(followed))
	must(t, as(t, m, short, "GET", "/api/v1/events", "", ""), 401, "")
})

var _ = register("12.4 a suspended principal reads and calls on", func(t *testing.T, m *harness.Mesh) {
	who := "suspended-124"
	tok := mint(t, m, who, "tools:call", "audit:read", "llm:call")
	key, err := m.AgreedKey("suspended-124", who)
	if err != nil {
		t.Fatal(err)
	}
	key = strings.TrimSpace(key)
	g := govern(t, m, mint(t, m, who, "policy:admin", "tools:call"), "delegate", map[string]any{"delegate": "delegate-124", "kinds": []string{"tool.*"}, "ttl_ms": 60000})
	var gave struct {
		Output struct{ Result struct{ ID string } }
	}
	g.JSON(t, &gave)
	byDelegate := func() *harness.Response {
		r, err := m.As(mint(t, m, "delegate-124", "tools:call")).DoHeader(context.Background(), "POST", "/api/v1/packs/noop", "{}",
			map[string]string{"X-Binnacle-On-Behalf-Of": who, "X-Binnacle-Delegation": gave.Output.Result.ID})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	must(t, byDelegate(), 200, "")
	mcpStream, followed := follow(t, m, tok, openMCP(t, m, tok)), tail(t, m, tok)
	must(t, govern(t, m, m.Token, "suspend_principal", map[string]any{"principal": who, "reason": "attack"}), 200, "")
	within(t, time.Second, "queries of a suspended principal are refused", func() bool { return as(t, m, tok, "GET", "/api/v1/packs", "", "").Status == 403 })
	for _, path := range shut {
		must(t, as(t, m, tok, "GET", path, "", ""), 403, "")
	}
	must(t, as(t, m, key, "GET", "/v1/models", "", ""), 403, "suspended")
	must(t, as(t, m, tok, "POST", "/api/v1/packs/noop", "", "{}"), 403, "PRINCIPAL_SUSPENDED")
	must(t, as(t, m, key, "POST", "/v1/chat/completions", "", `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`), 403, "PRINCIPAL_SUSPENDED")
	must(t, byDelegate(), 403, "PRINCIPAL_SUSPENDED")
	within(t, time.Second, "the streams of a suspended principal end", func() bool { return goes(followed)() && goes(mcpStream)() })
	must(t, govern(t, m, m.Token, "resume_principal", map[string]any{"principal": who, "reason": "over"}), 200, "")
	within(t, time.Second, "a resumed principal reads", func() bool { return as(t, m, tok, "GET", "/api/v1/packs", "", "").Status == 200 })
	must(t, as(t, m, tok, "POST", "/api/v1/packs/noop", "", "{}"), 200, "")
})

var _ = register("12.4 a revoked token works on", func(t *testing.T, m *harness.Mesh) {
	who := "revoked-124"
	tok, spare := mint(t, m, who, "tools:call", "audit:read"), mint(t, m, who, "tools:call", "audit:read")
	key, err := m.AgreedKey("revoked-124", who)
	if err != nil {
		t.Fatal(err)
	}
	key = strings.TrimSpace(key)
	mcpStream, followed := follow(t, m, tok, openMCP(t, m, tok)), tail(t, m, tok)
	if out, err := m.CLI("token", "revoke", tok, "--reason", "stolen"); err != nil {
		t.Fatal(out, err)
	}
	within(t, time.Second, "a revoked token is refused", func() bool { return as(t, m, tok, "GET", "/api/v1/packs", "", "").Status == 401 })
	within(t, time.Second, "the streams of a revoked token end", func() bool { return goes(followed)() && goes(mcpStream)() })
	for _, path := range shut {
		must(t, as(t, m, tok, "GET", path, "", ""), 401, "")
	}
	must(t, as(t, m, tok, "POST", "/api/v1/packs/noop", "", "{}"), 401, "CREDENTIAL_REVOKED")
	must(t, as(t, m, spare, "POST", "/api/v1/packs/noop", "", "{}"), 200, "")
	must(t, as(t, m, key, "GET", "/v1/models", "", ""), 200, "")

	// All credentials of the principal are revoked over HTTP.
	must(t, as(t, m, m.Token, "POST", "/api/v1/tokens/revocations", "", `{"principal":"revoked-124","reason":"stolen machine"}`), 200, "")
	within(t, time.Second, "all tokens and keys of the principal are refused", func() bool {
		return as(t, m, spare, "GET", "/api/v1/packs", "", "").Status == 401 && as(t, m, key, "GET", "/v1/models", "", "").Status == 401
	})
	must(t, as(t, m, mint(t, m, who, "tools:call"), "POST", "/api/v1/packs/noop", "", "{}"), 200, "")
	must(t, as(t, m, mint(t, m, who, "tools:call"), "POST", "/api/v1/tokens/revocations", "", `{"principal":"admin","reason":"x"}`), 403, "")
})

// persons registers people. If a registration requires a second person's approval, an
// already registered person approves it.
func persons(t *testing.T, m *harness.Mesh, names ...string) {
	t.Helper()
	for _, n := range names {
		r := govern(t, m, m.Token, "register_principal", map[string]any{"principal": n, "type": "person"})
		if r.Status == 200 {
			continue
		}
		if r.Status != 202 {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
		var waits struct { // other attacks have already registered people, of whom one approves
			CallID string `json:"call_id"`
		}
		r.JSON(t, &waits)
		var ids struct {
			Identities []struct{ Kind, Type, Principal string } `json:"identities"`
		}
		as(t, m, m.Token, "GET", "/api/v1/identities", "", "").JSON(t, &ids)
		agreed := false
		for _, id := range ids.Identities {
			if !agreed && id.Kind == "principal" && id.Type == "person" && id.Principal != "admin" {
				must(t, govern(t, m, m.Token, "grant_role", map[string]any{"principal": id.Principal, "role": "approver"}), 200, "")
				v := as(t, m, mint(t, m, id.Principal, "approvals:vote"), "POST", "/api/v1/approvals/"+waits.CallID+"/votes", "", `{"vote":"grant","reason":"x"}`)
				if agreed = v.Status == 200; !agreed {
					t.Logf("%s: %d %s", id.Principal, v.Status, v.Body)
				}
			}
		}
		if !agreed {
			t.Fatalf("no other administrator approves that %s is a person", n)
		}
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			var st struct{ Status string }
			as(t, m, m.Token, "GET", "/api/v1/calls/"+waits.CallID, "", "").JSON(t, &st)
			if st.Status == "succeeded" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not registered: %s", n, st.Status)
			}
		}
	}
}

var _ = register("12.5 one administrator fills a quorum", func(t *testing.T, m *harness.Mesh) {
	victim := "victim-125"
	for name, doc := range map[string]string{
		"for another":     `{"id":"k-125","actor":"victim-125","scopes":["approvals:vote"]}`,
		"for a ghost":     `{"id":"k-125","actor":"ghost-125","scopes":["approvals:vote"]}`,
		"for an approver": `{"id":"k-125","actor":"bob-125","scopes":["approvals:vote","policy:admin"]}`,
	} {
		if r := as(t, m, m.Token, "POST", "/api/v1/keys", "", doc); r.Status == 200 || !strings.Contains(string(r.Body), "has not agreed") {
			t.Errorf("a key %s: %d %s", name, r.Status, r.Body)
		}
	}
	args := func(id, actor string) map[string]any {
		return map[string]any{"id": id, "actor": actor, "digest": "sha256:" + strings.Repeat("0", 64), "scopes": []string{"approvals:vote"}}
	}
	if r := govern(t, m, m.Token, "create_key", args("k-125", victim)); r.Status == 200 {
		t.Errorf("a key for another, by a bare call: %s", r.Body)
	}
	// On-behalf-of does not permit a caller to consent for another principal. A virtual
	// key is refused for governing calls that require a bearer token.
	r, err := m.DoHeader(context.Background(), "POST", "/api/v1/keys/k-125/consent", `{"maker":"admin","scopes":["approvals:vote"],"ttl_ms":60000}`, map[string]string{"X-Binnacle-On-Behalf-Of": victim, "X-Binnacle-Delegation": "g-none"})
	if err != nil || r.Status != 403 {
		t.Errorf("consent in another's name: %v %+v", err, r)
	}
	own := key(t, m, "own-125", "approvals:vote", "policy:admin", "tools:call")
	for kind, args := range map[string]map[string]any{
		"consent_key": {"id": "k2-125", "maker": "eve", "scopes": []string{"tools:call"}, "ttl_ms": 1000}, "create_key": args("k3-125", "admin"),
		"register_principal": {"principal": "fake-125", "type": "person"}, "grant_role": {"principal": "admin", "role": "approver"},
		"delegate": {"delegate": "eve", "kinds": []string{"*"}, "ttl_ms": 1000}, "vote": {"call_id": "c-none", "reason": "x", "vote": "grant"},
	} {
		must(t, govern(t, m, own, kind, args), 403, "KEY_NOT_IN_PERSON")
	}

	// In a call that requires two approvals, votes of unregistered principals and of
	// agents do not count.
	if out, err := m.CLIStdin(`{"id":"two-125","scope":"agent","subject":"asker-125","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED","approval":{"quorum":2,"timeout_ms":60000}}]}`, "principals", "register", "asker-125", "agent"); err != nil {
		t.Fatal(out, err)
	}
	must(t, govern(t, m, m.Token, "activate", map[string]any{"layer": "p2", "name": "two-125",
		"document": `{"id":"two-125","scope":"agent","subject":"asker-125","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED","approval":{"quorum":2,"timeout_ms":60000}}]}`}), 200, "")
	asker := mint(t, m, "asker-125", "tools:call")
	w, err := m.As(asker).DoHeader(context.Background(), "POST", "/api/v1/packs/noop", "{}", map[string]string{"Prefer": "respond-async"})
	if err != nil || w.Status != 202 {
		t.Fatal(err, w)
	}
	var waits struct {
		CallID string `json:"call_id"`
	}
	w.JSON(t, &waits)
	vote := func(token string) *harness.Response {
		return as(t, m, token, "POST", "/api/v1/approvals/"+waits.CallID+"/votes", "", `{"vote":"grant","reason":"x"}`)
	}
	must(t, govern(t, m, m.Token, "register_principal", map[string]any{"principal": "bot-125", "type": "agent"}), 200, "")
	for _, who := range []string{"admin", "ghost-125", "bot-125"} {
		must(t, govern(t, m, m.Token, "grant_role", map[string]any{"principal": who, "role": "approver"}), 200, "")
	}
	if r := vote(mint(t, m, "ghost-125", "approvals:vote")); r.Status == 200 || !strings.Contains(string(r.Body), "not registered") {
		t.Errorf("a stranger votes: %d %s", r.Status, r.Body)
	}
	if r := vote(mint(t, m, "bot-125", "approvals:vote")); r.Status == 200 || !strings.Contains(string(r.Body), "only persons vote") {
		t.Errorf("an agent votes: %d %s", r.Status, r.Body)
	}
	must(t, vote(own), 403, "KEY_NOT_IN_PERSON")
	must(t, vote(m.Token), 200, "") // the only valid vote
	// Registering a person needs the approval of a second person.
	persons(t, m, "bob-125")
	must(t, govern(t, m, m.Token, "register_principal", map[string]any{"principal": "fake-125", "type": "person"}), 202, "pending_approval")
	must(t, govern(t, m, m.Token, "break_glass", map[string]any{"reason": "attack", "ttl_ms": 1000}), 200, "")
	must(t, govern(t, m, m.Token, "register_principal", map[string]any{"principal": "fake2-125", "type": "person"}), 202, "pending_approval")
	must(t, govern(t, m, m.Token, "suspend_principal", map[string]any{"principal": "bob-125", "reason": "attack"}), 200, "")
	must(t, govern(t, m, m.Token, "register_principal", map[string]any{"principal": "fake3-125", "type": "person"}), 202, "pending_approval")
	must(t, govern(t, m, m.Token, "register_principal", map[string]any{"principal": "admin", "type": "agent"}), 202, "pending_approval")
	if r := vote(mint(t, m, "fake-125", "approvals:vote")); r.Status == 200 {
		t.Errorf("a made-up person votes: %s", r.Body)
	}
	var st struct{ Status string }
	as(t, m, asker, "GET", "/api/v1/calls/"+waits.CallID, "", "").JSON(t, &st)
	if st.Status != "pending_approval" {
		t.Errorf("the call is %s: one administrator filled a quorum of two", st.Status)
	}
	// Resume the suspended principal, retire the policy of this attack and review the
	// break-glass access.
	must(t, govern(t, m, m.Token, "resume_principal", map[string]any{"principal": "bob-125", "reason": "over"}), 200, "")
	must(t, govern(t, m, m.Token, "retire", map[string]any{"layer": "p2", "name": "two-125"}), 200, "")
	var ids struct {
		BreakGlass []struct{ ID, Actor, Reviewer string } `json:"break_glass"`
	}
	as(t, m, m.Token, "GET", "/api/v1/identities", "", "").JSON(t, &ids)
	for _, g := range ids.BreakGlass {
		if g.Actor == "admin" && g.Reviewer == "" {
			must(t, govern(t, m, mint(t, m, "ghost-125", "policy:admin"), "review", map[string]any{"id": g.ID, "reason": "x", "verdict": "justified"}), 400, "only registered persons review")
		}
	}
	reviewGlass(t, m, "bob-125")
})

// reviewGlass reviews each break-glass access that the administrator opened and that
// has no review yet.
func reviewGlass(t *testing.T, m *harness.Mesh, reviewer string) {
	t.Helper()
	tok := mint(t, m, reviewer, "policy:admin")
	var ids struct {
		BreakGlass []struct{ ID, Actor, Reviewer string } `json:"break_glass"`
	}
	as(t, m, m.Token, "GET", "/api/v1/identities", "", "").JSON(t, &ids)
	for _, g := range ids.BreakGlass {
		if g.Actor == "admin" && g.Reviewer == "" {
			must(t, govern(t, m, tok, "review", map[string]any{"id": g.ID, "reason": "attack is over", "verdict": "justified"}), 200, "")
		}
	}
}

var _ = register("12.5 a key beyond its maker's scopes", func(t *testing.T, m *harness.Mesh) {
	weak := mint(t, m, "weak-125", "policy:admin")
	for _, scope := range []string{"audit:read", "tools:call", "vault:write", "approvals:vote"} {
		if r := as(t, m, weak, "POST", "/api/v1/keys", "", fmt.Sprintf(`{"id":"w-125","scopes":[%q]}`, scope)); r.Status == 200 {
			t.Errorf("%s: %s", scope, r.Body)
		}
		if r := govern(t, m, weak, "create_key", map[string]any{"id": "w-125", "actor": "weak-125", "digest": "sha256:" + strings.Repeat("0", 64), "scopes": []string{scope}}); r.Status == 200 || !strings.Contains(string(r.Body), "lacks it") {
			t.Errorf("%s, by a bare call: %d %s", scope, r.Status, r.Body)
		}
	}
	// A virtual key becomes invalid when the credentials of its maker are revoked.
	maker := mint(t, m, "maker-125", "policy:admin", "tools:call")
	r := as(t, m, maker, "POST", "/api/v1/keys", "", `{"id":"made-125","scopes":["tools:call"]}`)
	var out struct{ Key string }
	r.JSON(t, &out)
	must(t, as(t, m, out.Key, "POST", "/api/v1/packs/noop", "", "{}"), 200, "")
	must(t, govern(t, m, m.Token, "revoke_token", map[string]any{"principal": "maker-125", "reason": "attack"}), 200, "")
	within(t, time.Second, "a key ends with its maker's authority", func() bool { return as(t, m, out.Key, "POST", "/api/v1/packs/noop", "", "{}").Status == 401 })
})

// eventsOf returns the events of a session, by its id.
func eventsOf(t *testing.T, m *harness.Mesh, id string) []*contract.Event {
	t.Helper()
	var out []*contract.Event
	r := as(t, m, m.Token, "GET", "/api/v1/events?session="+id, "", "")
	for line := range strings.Lines(string(r.Body)) {
		var x struct {
			Event json.RawMessage `json:"event"`
		}
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		e, err := contract.DecodeEvent(x.Event)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

var _ = register("12.16 names and chains of others' sessions", func(t *testing.T, m *harness.Mesh) {
	thief, owner := mint(t, m, "thief-1216", "tools:call", "llm:call", "judge:run", "policy:admin"), mint(t, m, "owner-1216", "tools:call", "llm:call")
	// A denied call of another caller does not affect the session of the same name that
	// the owner creates.
	must(t, as(t, m, thief, "POST", "/api/v1/packs/no.such", "s-mine-1216", "{}"), 403, "UNKNOWN_TOOL")
	r := as(t, m, owner, "POST", "/api/v1/packs/noop", "s-mine-1216", "{}")
	must(t, r, 200, `"session":"s-mine-1216"`)
	id := r.Header.Get("X-Binnacle-Session-Id")
	if id != harness.SessionID("owner-1216", "s-mine-1216") || r.Header.Get("X-Binnacle-Session") != "s-mine-1216" {
		t.Errorf("%v", r.Header)
	}
	before := len(eventsOf(t, m, id))
	// No other caller can add a receipt to the session's chain by naming the session by
	// its id. The same holds for the id of a session that does not exist.
	ghost := harness.SessionID("owner-1216", "s-never-made")
	for _, victim := range []string{id, ghost} {
		refused := as(t, m, thief, "POST", "/api/v1/packs/noop", victim, "{}")
		must(t, refused, 404, "IDENTITY_ISOLATION_VIOLATION")
		home := refused.Header.Get("X-Binnacle-Session-Id")
		if home != contract.SessionID("default", "thief-1216", contract.SessionRefused) {
			t.Errorf("refused in %s", home)
		}
		must(t, as(t, m, thief, "POST", "/v1/chat/completions", victim, `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`), 404, "")
		must(t, as(t, m, thief, "POST", "/api/v1/judgements", "", fmt.Sprintf(`{"session":%q,"rubric":"name: x\nmodel: demo/echo\nmin: 0\nmax: 1\ncriteria:\n  - id: a\n    description: b\n"}`, victim)), 404, "IDENTITY_ISOLATION_VIOLATION")
		for _, args := range []map[string]any{{"session": victim, "principal": "thief-1216", "ttl_ms": 60000}, {"session": victim, "principal": "friend-1216", "ttl_ms": 60000}} {
			if r := govern(t, m, thief, "grant_session", args); r.Status == 200 {
				t.Errorf("another's session is granted: %s", r.Body)
			}
		}
		found := false
		for _, e := range eventsOf(t, m, home) {
			var c contract.Call
			if e.Name == "call_proposed" && contract.Decode(e.Data, &c) == nil && c.Requested == sign.Digest([]byte(victim)) {
				found = true
			}
			if strings.Contains(string(e.Data), victim) && e.CallID != "" && !strings.Contains(string(e.Data), "judge.score") && !strings.Contains(string(e.Data), "grant_session") {
				t.Errorf("the refusal names the session: %s", e.Data)
			}
		}
		if !found {
			t.Error("the refusal is not recorded with the digest of the id")
		}
		must(t, as(t, m, thief, "GET", "/api/v1/sessions/"+victim+"/evidence", "", ""), 403, "scope_missing")
	}
	must(t, as(t, m, m.Token, "GET", "/api/v1/sessions/"+ghost+"/evidence", "", ""), 404, "")
	if after := len(eventsOf(t, m, id)); after != before {
		t.Errorf("the session of another has %d events more", after-before)
	}
	// A session that a caller names by a string with the syntax of a session id is
	// looked up by id; any other string is a name of the caller's own.
	must(t, as(t, m, owner, "POST", "/api/v1/packs/noop", id, "{}"), 200, id)
	for _, name := range []string{id + "a", id[:len(id)-1], strings.ToUpper(id[3:4]) + id[4:]} {
		if !strings.HasPrefix(name, "s-") {
			name = "s-" + name
		}
		r := as(t, m, thief, "POST", "/api/v1/packs/noop", name, "{}")
		must(t, r, 200, "")
		if r.Header.Get("X-Binnacle-Session-Id") == id {
			t.Errorf("%s reaches the session", name)
		}
	}
	// The owner grants another principal access to the session, and revokes it.
	must(t, govern(t, m, owner, "grant_session", map[string]any{"session": "s-mine-1216", "principal": "friend-1216", "ttl_ms": 60000}), 200, id)
	friend := mint(t, m, "friend-1216", "tools:call")
	within(t, time.Second, "a granted session is entered", func() bool { return as(t, m, friend, "POST", "/api/v1/packs/noop", id, "{}").Status == 200 })
	must(t, as(t, m, thief, "POST", "/api/v1/packs/noop", id, "{}"), 404, "")
	must(t, govern(t, m, owner, "revoke_session", map[string]any{"session": id, "principal": "friend-1216"}), 200, "")
	within(t, time.Second, "a revoked grant holds no more", func() bool { return as(t, m, friend, "POST", "/api/v1/packs/noop", id, "{}").Status == 404 })
})

var _ = register("12.16 first calls of one name at once", func(t *testing.T, m *harness.Mesh) {
	a, b := mint(t, m, "first-a-1216", "tools:call"), mint(t, m, "first-b-1216", "tools:call")
	for round := range 4 {
		name := fmt.Sprintf("s-first-%d", round)
		var wg sync.WaitGroup
		var ids sync.Map
		for range 8 {
			for actor, tok := range map[string]string{"first-a-1216": a, "first-b-1216": b} {
				wg.Go(func() {
					r, err := m.As(tok).Do(context.Background(), "POST", "/api/v1/packs/noop", name, "{}")
					if err != nil || r.Status != 200 {
						t.Errorf("%v %+v", err, r)
						return
					}
					ids.Store(actor+" "+r.Header.Get("X-Binnacle-Session-Id"), true)
				})
			}
		}
		wg.Wait()
		ids.Range(func(k, _ any) bool {
			actor, id, _ := strings.Cut(k.(string), " ")
			if id != harness.SessionID(actor, name) {
				t.Errorf("%s is in %s", actor, id)
			}
			for _, e := range eventsOf(t, m, id) {
				if e.Actor != actor {
					t.Errorf("%s of %s is in the session of %s", e.Name, e.Actor, actor)
				}
			}
			return true
		})
	}
})

var _ = register("12 a delegate does what its delegator may not", func(t *testing.T, m *harness.Mesh) {
	// The delegator's token lacks the tools scope; the delegate's token has it.
	weak := mint(t, m, "weak-dele", "policy:admin")
	g := govern(t, m, weak, "delegate", map[string]any{"delegate": "strong-dele", "kinds": []string{"tool.*"}, "ttl_ms": 60000})
	var gave struct {
		Output struct{ Result struct{ ID string } }
	}
	g.JSON(t, &gave)
	h := map[string]string{"X-Binnacle-On-Behalf-Of": "weak-dele", "X-Binnacle-Delegation": gave.Output.Result.ID}
	strong := m.As(mint(t, m, "strong-dele", "tools:call"))
	r, err := strong.DoHeader(context.Background(), "POST", "/api/v1/packs/noop", "{}", h)
	if err != nil {
		t.Fatal(err)
	}
	must(t, r, 403, "MISSING_REQUIREMENT")
	must(t, as(t, m, strong.Token, "POST", "/api/v1/packs/noop", "", "{}"), 200, "")
})
