package logins

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// TestBallot shows which form the page of a call has: with a passkey, one that the script signs;
// without one, or at a host that can have none, one without a script; and none if a rule requires a
// passkey that the person does not have. Values of the call are text on the page.
func TestBallot(t *testing.T) {
	s := Voting{&Pages{API: api(t)}}
	const name, address = "http://localhost:8080", "http://127.0.0.1:8080"
	rule := []contract.ApprovalRule{{Passkey: true, Quorum: 1}}
	own := []policy.Identity{{ID: "AAAA", Kind: "passkey", Principal: "ann"}}
	for _, c := range []struct {
		name, at     string
		rules        []contract.ApprovalRule
		keys         []policy.Identity
		want, absent string
	}{
		{"a passkey", name, rule, own, `data-get=`, `name="vote" value="grant"`},
		{"a passkey that no rule requires", name, nil, own, `data-get=`, `name="vote" value="grant"`},
		{"no passkey", name, nil, nil, `name="vote" value="grant"`, `<script`},
		{"an address", address, nil, own, `name="vote" value="grant"`, `<script`},
		{"a required passkey is absent", name, rule, nil, `You have no passkey`, `<form method="post" action="/auth/approvals"`},
		{"an address, and a required passkey", address, rule, own, `name of a host over TLS`, `<form method="post" action="/auth/approvals"`},
	} {
		w := httptest.NewRecorder()
		ctx := echo.New().NewContext(httptest.NewRequest(http.MethodGet, c.at+auth.ApprovalsPath, nil), w)
		who := &auth.Caller{Tenant: "t", Actor: "ann"}
		x := ballotPage{Call: &policy.PendingCall{CallID: "c-1", Actor: `<b>coder`, Kind: "client.shell", Rules: c.rules}, Args: `{"command":"</pre><script>alert(1)</script>"}`}
		if err := s.ballot(ctx, who, &x, c.keys); err != nil {
			t.Fatal(c.name, err)
		}
		if err := show(ctx, http.StatusOK, &page{Title: "Approvals", Who: who, Ballot: &x}); err != nil {
			t.Fatal(c.name, err)
		}
		body := w.Body.String()
		if !strings.Contains(body, c.want) || strings.Contains(body, c.absent) || strings.Contains(body, "<b>") || strings.Contains(body, "alert(1)</script>") {
			t.Errorf("%s: %s", c.name, body)
		}
	}
}

// TestAfterLogin shows to which page a browser continues after a login, and that other values lead
// nowhere else.
func TestAfterLogin(t *testing.T) {
	for code, want := range map[string]string{
		"":                           LoginPath,
		"ABC-DEF-123":                DevicePath + "?code=ABC-DEF-123",
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ": ConsentPath + "?request=ABCDEFGHIJKLMNOPQRSTUVWXYZ",
		"c-01ABC":                    auth.ApprovalsPath + "?call=c-01ABC",
		"c-":                         LoginPath,
		"c-1;url=https://evil":       LoginPath,
		"https://evil":               LoginPath,
	} {
		if got := after(code); got != want {
			t.Errorf("%q: %s, want %s", code, got, want)
		}
	}
}
