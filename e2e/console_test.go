package e2e

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// consolePassword is the password of the person who votes on the gateway's page.
const consolePassword = "correct horse battery staple"

// approvalPages matches the address of the page on which a person votes on a call.
var approvalPages = regexp.MustCompile(`http\S*/auth/approvals\?call=(c-[0-9A-Z]+)`)

// logIn fills in the form to log in that a browser shows.
func (b *chromium) logIn(name string) {
	b.t.Helper()
	b.js(`document.querySelector('[name=username]').value = '` + name + `'; document.querySelector('[name=password]').value = '` + consolePassword + `'; document.querySelector('[action="/auth/login"]').submit()`)
}

// vote fills in the form of the page of a call, and selects a button.
func (b *chromium) vote(button string) {
	b.t.Helper()
	b.js(`document.querySelector('[name=reason]').value = 'seen'; document.querySelector('[value=` + button + `]').click()`)
}

// TestConsole shows in Chromium that the address in the answer of a hook leads a person, who logs in,
// to the page of the call, and that the person grants the call and denies another one there, without a
// passkey and at an IP address; that a page of another origin cannot vote with the cookie, which
// scripts cannot read; that a person without the role cannot vote; and that the agent's next attempt
// runs after the grant.
func TestConsole(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) { console(t, start(t, harness.Options{})) })
	}
}

// console runs the checks of TestConsole on a mesh.
func console(t *testing.T, m *harness.Mesh) {
	activateCoding(t, m, "guard")
	cli(t, m, "principals", "register", "ann", "person")
	for _, who := range []string{"ann", "admin"} {
		if _, err := m.CLIStdin(consolePassword, "password", "set", who); err != nil {
			t.Fatal(err)
		}
	}
	cli(t, m, "roles", "grant", "ann", "approver")
	cli(t, m, "roles", "grant", "admin", "developer")
	coder := m.As(m.TokenFor("coder", "tools:call", "calls:decide"))
	dir, state := t.TempDir(), t.TempDir()
	hook := func(id, command string) string {
		t.Helper()
		out, err := coder.CLIStdin(hookDocument("PreToolUse", id, "Bash", map[string]any{"command": command}, dir), "hook", "run", "claude-code", "--state", state, "--wait", "0s")
		if err != nil {
			t.Fatal(out, err)
		}
		return out
	}
	ask := func(id, command string) (page, call string) {
		t.Helper()
		at := approvalPages.FindStringSubmatch(hook(id, command))
		if at == nil || !strings.HasPrefix(at[0], m.URL()) {
			t.Fatalf("%s: no address of the approval: %q", command, at)
		}
		return at[0], at[1]
	}
	b := startChromium(t)
	page, call := ask("t1", "npm install left-pad")
	b.open(page, "Log in")
	b.logIn("admin")
	b.shows("approvals:vote")
	b.open(m.URL()+"/auth/login", "You are admin")
	b.js(`document.querySelector('[action="/auth/logout"]').submit()`)
	b.shows("Log in")

	b.open(page, "Log in")
	b.logIn("ann")
	b.shows("npm install left-pad")
	if cookie := b.js(`document.cookie`); cookie != "" {
		t.Error("scripts read the cookie:", cookie)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(`<form method="post" action="` + m.URL() + `/auth/approvals"><input name="call" value="` + call + `"><input name="reason" value="x"><input name="vote" value="grant"></form><script>document.forms[0].submit()</script>`))
	}))
	defer other.Close()
	b.open(other.URL, "only from a page of")
	if out := hook("t2", "npm install left-pad"); !strings.Contains(out, call) {
		t.Errorf("after the vote of another origin: %s", out)
	}
	b.open(page, "npm install left-pad")
	b.vote("grant")
	b.shows("Your vote is on the ledger")
	eventually(t, "the next attempt runs", 20*time.Second, func() bool { return hook("t3", "npm install left-pad") == "" })

	_, call = ask("t4", "npm install right-pad")
	b.open(m.URL()+"/auth/approvals", "client.shell by coder")
	b.js(`document.querySelector('[href*="` + call + `"]').click()`)
	b.shows("npm install right-pad")
	b.vote("deny")
	b.shows("Your vote is on the ledger")
	eventually(t, "the next attempt is denied", 20*time.Second, func() bool { return strings.Contains(hook("t5", "npm install right-pad"), "denied by policy") })
	b.open(m.URL()+"/auth/approvals", "No call waits for approval")
}

// consoleOnCompose sets the password of a person as a user of compose does, who then grants a call on
// the page of the gateways behind the balancer.
func consoleOnCompose(t *testing.T, m *harness.Mesh, who, call string) {
	t.Helper()
	m.KeysStdin(consolePassword, "password", "set", who)
	b := startChromium(t)
	b.open(m.URL()+"/auth/approvals?call="+call, "Log in")
	b.logIn(who)
	b.shows("npm install left-pad")
	b.vote("grant")
	b.shows("Your vote is on the ledger")
}
