package approvals_test

import (
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/react"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/approvals"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/webhook"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestVotes checks that the list of approvals and a single approval are policy's
// responses, that the list requires the scope for votes, and that a vote is proposed as
// a call.
func TestVotes(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "policy.vote")
	m.Answers["policy approvals"] = []map[string]any{{"call_id": "c-1"}}
	m.Answers["policy approval"] = func(raw json.RawMessage) (any, error) { return json.RawMessage(raw), nil }
	voter := m.Token("bob", token.Vote)
	if r := m.Do("GET", "/api/v1/approvals", voter, ""); !strings.Contains(r.Body.String(), `"call_id":"c-1"`) {
		t.Error(r.Body)
	}
	if r := m.Do("GET", "/api/v1/approvals/c-1", voter, ""); r.Doc["call_id"] != "c-1" {
		t.Error(r.Body)
	}
	var args string
	m.Execute = func(c *edgetest.Call) { args = string(c.Args); c.Succeed([]byte(`{}`)) }
	for body, want := range map[string]string{
		`{"vote":"grant","reason":"fine"}`: `{"call_id":"c-1","reason":"fine","vote":"grant"}`,
		`{"vote":"grant","reason":"fine","passkey":{"signature":"cw","credential_id":"aQ","client_data":"Yw","authenticator_data":"ZA"}}`: `{"call_id":"c-1","passkey":{"authenticator_data":"ZA","client_data":"Yw","credential_id":"aQ","signature":"cw"},"reason":"fine","vote":"grant"}`,
		`{"vote":"deny","reason":"no","kid":"k-1","sig":"c2ln"}`:                                                                          `{"call_id":"c-1","kid":"k-1","reason":"no","sig":"c2ln","vote":"deny"}`,
	} {
		if r := m.Do("POST", "/api/v1/approvals/c-1/votes", voter, body); r.Code != 200 || args != want {
			t.Errorf("%s: %d, args %s", body, r.Code, args)
		}
	}
	if r := m.Do("GET", "/api/v1/approvals", m.Token("eve", token.Tools), ""); r.Error() != "scope_missing" {
		t.Error(r.Body)
	}
}

// TestWebhook checks that the webhook receives an escalation with a signature, that the
// message is redelivered if the webhook fails, redirects or is unreachable, and that the
// webhook receives neither an expired escalation, nor one that is not synced, nor a
// message that is not an escalation.
func TestWebhook(t *testing.T) {
	key := []byte("0123456789abcdef")
	status := http.StatusNoContent
	var body []byte
	var signature string
	redirected := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		signature = r.Header.Get(webhook.SignatureHeader)
		if r.URL.Path == "/elsewhere" {
			redirected = true
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	}))
	defer srv.Close()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	em := &emit.Emitter{Tenant: "t", Source: "gateway/gw1", Now: func() time.Time { return now }}
	keys := func() ([][]byte, error) { return [][]byte{key}, nil }
	hook := &approvals.Webhook{Endpoint: &webhook.Endpoint{URL: srv.URL + "/secret-path", Keys: keys, Now: em.Now, Transport: func(string, string) http.RoundTripper { return &http.Transport{} }}, Emit: em, Durable: func(context.Context) error { return nil }, Page: "https://console.example/{call}?from=webhook"}
	x := contract.Escalated{Call: contract.Call{ID: "c-1", Kind: "tool.x", Scopes: []string{}}, Expires: contract.Time(now.Add(time.Hour))}
	x.Decision.Facts, x.Decision.ReasonCode = []byte("{}"), contract.ReasonApprovalRequired
	by := &emit.Emitter{Tenant: "t", Source: "policy/p1", Now: em.Now}
	send := func(data []byte) error {
		e := by.New(contract.EventEscalated, "s-1", data, nil)
		e.Session, e.CallID = "s-1", "c-1"
		return hook.Reactor().Handle(t.Context(), e)
	}
	if err := send(contract.Bytes(&x)); err != nil || !strings.Contains(string(body), `"call_id":"c-1"`) || !strings.Contains(string(body), `"votes":"/api/v1/approvals/c-1/votes","approval":"/api/v1/approvals/c-1","page":"https://console.example/c-1?from=webhook"`) {
		t.Errorf("%v: %s", err, body)
	}
	if want := webhook.Signature([][]byte{key}, now, body); !hmac.Equal([]byte(want), []byte(signature)) || webhook.Signature([][]byte{[]byte("another key, also long")}, now, body) == want {
		t.Error("signature", signature, "want", want)
	}
	if status = http.StatusBadGateway; final(send(contract.Bytes(&x))) {
		t.Error("a webhook that fails is not notified again")
	}
	if status = http.StatusTemporaryRedirect; final(send(contract.Bytes(&x))) || redirected {
		t.Error("a redirect of the webhook was followed:", redirected)
	}
	body = nil
	if err := send([]byte(`{}`)); !errors.Is(err, react.ErrPermanent) || body != nil {
		t.Error("no escalation:", err)
	}
	x.Expires = contract.Time(now.Add(-time.Second))
	if err := send(contract.Bytes(&x)); err != nil || body != nil {
		t.Error("one that is over:", err, string(body))
	}
	x.Expires = contract.Time(now.Add(time.Hour))
	hook.Durable = func(context.Context) error { return bus.ErrNotDurable }
	if err := send(contract.Bytes(&x)); final(err) || body != nil {
		t.Error("one that is not synced:", err, string(body))
	}
	hook.Durable = func(context.Context) error { return nil }
	srv.Close()
	if err := send(contract.Bytes(&x)); final(err) {
		t.Error("an unreachable webhook:", err)
	}
}

// final reports whether an event with this result is not handled again.
func final(err error) bool { return err == nil || errors.Is(err, react.ErrPermanent) }
