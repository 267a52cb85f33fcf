package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// approver is a receiver of the approval webhook that votes for a person.
type approver struct {
	t     *testing.T
	actor string      // the agent; notices of other actors' calls are ignored
	seen  chan string // commands of the notices
	ready atomic.Pointer[approving]
}

// approving is what an approver needs to vote.
type approving struct {
	mesh  *harness.Mesh
	key   []byte
	voter *harness.Mesh // with the token of the person
	coder *harness.Mesh // with the token of the agent
}

// ServeHTTP verifies the notice, reads the arguments of the call and votes. Its response contains the
// opposite of the vote, which must have no effect. Before vote, it ignores notices, and those of other
// actors always.
func (a *approver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := a.ready.Load()
	body, err := io.ReadAll(r.Body)
	if x == nil {
		return
	}
	ts, sig, _ := strings.Cut(r.Header.Get("X-Binnacle-Signature"), ",")
	mac := hmac.New(sha256.New, x.key)
	mac.Write([]byte(strings.TrimPrefix(ts, "t=") + "." + string(body)))
	if err != nil || sig != "v1="+hex.EncodeToString(mac.Sum(nil)) {
		a.t.Errorf("the signature %q is not that of %s (%v)", sig, body, err)
		return
	}
	var n struct {
		CallID                string `json:"call_id"`
		Approval, Votes, Page string
		Actor, Kind           string
	}
	if err := json.Unmarshal(body, &n); err != nil || n.Page != "https://console.example/"+n.CallID {
		a.t.Errorf("%v %s", err, body)
	}
	if n.Actor != a.actor {
		return
	}
	asked, err := x.voter.Do(r.Context(), "GET", n.Approval, "", "")
	if err != nil || asked.Status != http.StatusOK {
		a.t.Errorf("%v %+v", err, asked)
		return
	}
	var call struct{ Args struct{ Command string } }
	if err := json.Unmarshal(asked.Body, &call); err != nil {
		a.t.Error(err)
	}
	vote := `{"vote":"grant","reason":"seen"}`
	if strings.Contains(call.Args.Command, "left-pad") {
		vote = `{"vote":"deny","reason":"not this one"}`
	}
	for name, m := range map[string]*harness.Mesh{"no token": x.mesh.As("x"), "the agent's token": x.coder} {
		if refused, err := m.Do(r.Context(), "POST", n.Votes, "", `{"vote":"grant","reason":"x"}`); err != nil || refused.Status/100 == 2 {
			a.t.Errorf("a vote with %s: %v %+v", name, err, refused)
		}
	}
	if voted, err := x.voter.Do(r.Context(), "POST", n.Votes, "", vote); err != nil || voted.Status != http.StatusOK {
		a.t.Errorf("%v %+v", err, voted)
	}
	if strings.Contains(vote, "deny") {
		_, _ = w.Write([]byte(`{"vote":"grant","reason":"unauthenticated"}`))
	}
	a.seen <- call.Args.Command
}

// TestApprovalWebhook shows that a hook that waits for approval runs or is denied by the vote of a
// person that a receiver of the webhook casts with the person's token, and that neither the response
// of the receiver, nor a vote without a token or with that of the agent counts.
func TestApprovalWebhook(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) { approvalWebhook(t, start) })
	}
}

// approvalWebhook runs the checks of TestApprovalWebhook on a topology.
func approvalWebhook(t *testing.T, start func(testing.TB, harness.Options) *harness.Mesh) {
	a, url := newApprover(t, "coder")
	m := start(t, harness.Options{Env: []string{"BINNACLE_APPROVAL_WEBHOOK=" + url, "BINNACLE_APPROVAL_PAGE=https://console.example/{call}"}})
	activateCoding(t, m, "guard")
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "roles", "grant", "ann", "approver")
	a.vote(m, filepath.Join(m.Dir, "keys/webhook.seed"))
}

// newApprover starts a receiver that votes on the calls of an agent, and returns its URL.
func newApprover(t *testing.T, actor string) (a *approver, url string) {
	a = &approver{t: t, actor: actor, seen: make(chan string, 10)}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	return a, srv.URL + "/hook"
}

// vote runs hooks before tools that wait for approval, and checks that one is denied and one permitted
// by the votes of ann, who is an approver. seed is the file of the key of the webhook.
func (a *approver) vote(m *harness.Mesh, seed string) {
	t := a.t
	t.Helper()
	raw, err := os.ReadFile(seed)
	if err != nil {
		t.Fatal(err)
	}
	x := &approving{mesh: m, coder: m.As(m.TokenFor(a.actor, "tools:call", "calls:decide")), voter: m.As(m.TokenFor("ann", "approvals:vote"))}
	if x.key, err = hex.DecodeString(strings.TrimSpace(string(raw))); err != nil {
		t.Fatal(err)
	}
	a.ready.Store(x)
	dir, state := t.TempDir(), t.TempDir()
	for command, want := range map[string]string{"npm install left-pad": "deny", "npm install right-pad": ""} {
		out, err := x.coder.CLIStdin(hookDocument("PreToolUse", command, "Bash", map[string]any{"command": command}, dir), "hook", "run", "claude-code", "--state", state, "--wait", "60s")
		if err != nil || (want == "") != (out == "") || !strings.Contains(out, want) {
			t.Errorf("%s: %q %v, want %q", command, out, err, want)
		}
		select {
		case got := <-a.seen:
			if got != command {
				t.Errorf("the notice is about %q, want %q", got, command)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the webhook received no notice")
		}
	}
	if out := cli(t, m, "search", "actor=ann", "--limit", "1000", "-o", "jsonl"); strings.Count(out, `policy.vote`) < 2 {
		t.Errorf("the votes of ann: %s", out)
	}
}
