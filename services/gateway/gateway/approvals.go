package gateway

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// escalation says that a call waits for people. It is not a failure: the call
// stands on the ledger, and its outcome can be asked for.
type escalation struct {
	callID string
	doc    *contract.Escalated
}

func (e *escalation) Error() string { return "call " + e.callID + " waits for approval" }

// error is the escalation as wires tell it that know no "not yet".
func (e *escalation) error() *apiError {
	return &apiError{Status: http.StatusForbidden, Type: "permission_error", Code: "approval_pending", ReasonCode: e.doc.Decision.ReasonCode,
		CallID: e.callID, DecisionID: e.doc.Decision.ID, ReceiptID: receipt.ID(e.callID), RetryAfter: "5",
		Message: "the call waits for approval until " + e.doc.Expires + "; GET /api/v1/calls/" + e.callID + " tells how it stands",
		Hint:    contract.Reasons[contract.ReasonApprovalRequired].Hint}
}

// CallState is how a call stands.
type CallState struct {
	CallID     string          `json:"call_id"`
	Session    string          `json:"session_id"`
	Called     string          `json:"session,omitempty"` // the caller's name for it
	Status     string          `json:"status"`            // proposed, pending_approval, allowed, running, or the effect's status
	Verdict    string          `json:"verdict,omitempty"`
	ReasonCode string          `json:"reason_code,omitempty"`
	Expires    string          `json:"expires,omitempty"` // of the approval
	ReceiptID  string          `json:"receipt_id,omitempty"`
	ErrorCode  string          `json:"error_code,omitempty"`
	Error      string          `json:"error,omitempty"`
	Output     json.RawMessage `json:"output,omitempty"`
	Poll       string          `json:"poll"`
}

// accepted answers 202: come back later.
func (s *Service) accepted(c echo.Context, r propose.Request, esc *escalation) error {
	poll := "/api/v1/calls/" + r.ID
	c.Response().Header().Set("Location", poll)
	c.Response().Header().Set("Retry-After", "5")
	return c.JSON(http.StatusAccepted, CallState{CallID: r.ID, Session: r.Session, Called: r.SessionName, Status: "pending_approval", Verdict: contract.Escalate,
		ReasonCode: esc.doc.Decision.ReasonCode, Expires: esc.doc.Expires, Poll: poll})
}

// callState is GET /api/v1/calls/{id}: for who made the call, and for readers
// of the ledger.
func (s *Service) callState(c echo.Context) error {
	who, err := s.auth(c, "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
	defer cancel()
	e, err := s.lastOf(ctx, c.Param("id"))
	if err != nil {
		return err
	}
	if e == nil || e.Actor != who.actor && !slices.Contains(who.scopes, token.Audit) {
		return notFound("not found: no call " + c.Param("id"))
	}
	out := CallState{CallID: e.CallID, Session: e.Session, Status: "proposed", Poll: "/api/v1/calls/" + e.CallID}
	switch e.Name {
	case "escalated":
		var x contract.Escalated
		if err := contract.Decode(e.Data, &x); err != nil {
			return err
		}
		out.Status, out.Verdict, out.ReasonCode, out.Expires = "pending_approval", contract.Escalate, x.Decision.ReasonCode, x.Expires
	case "allowed":
		out.Status, out.Verdict = "allowed", contract.Allow
	case "effect_started":
		out.Status, out.Verdict = "running", contract.Allow
	case "effect_recorded":
		var rec contract.Recorded
		if err := contract.Decode(e.Data, &rec); err != nil {
			return err
		}
		out.Status, out.Verdict, out.ReasonCode, out.ReceiptID = rec.Effect.Status, rec.Receipt.Verdict, rec.Receipt.ReasonCode, rec.Receipt.ID
		out.ErrorCode, out.Error = rec.Effect.ErrorCode, rec.Effect.ErrorMessage
		if rec.Output != nil && rec.Effect.Status == contract.Succeeded {
			if out.Output, err = s.env.Blobs.Open(ctx, rec.Output); err != nil {
				return unavailable("the output cannot be read now: " + err.Error())
			}
		}
	}
	if out.ReceiptID == "" {
		c.Response().Header().Set("Retry-After", "1")
	}
	return c.JSON(http.StatusOK, out)
}

// askPolicy passes a query on.
func (s *Service) askPolicy(c echo.Context, verb string, args any) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
	defer cancel()
	var doc json.RawMessage
	if err := s.env.Ask(ctx, "policy", verb, args, &doc); err != nil {
		return askError(errors.Unwrap(err))
	}
	return c.JSONBlob(http.StatusOK, doc)
}

// asked answers for readers of the ledger.
func (s *Service) asked(verb string) echo.HandlerFunc {
	return func(c echo.Context) error {
		if _, err := s.auth(c, token.Audit); err != nil {
			return err
		}
		return s.askPolicy(c, verb, nil)
	}
}

func (s *Service) approvals(c echo.Context) error {
	if _, err := s.auth(c, token.Vote); err != nil {
		return err
	}
	return s.askPolicy(c, "approvals", nil)
}

func (s *Service) approval(c echo.Context) error {
	if _, err := s.auth(c, token.Vote); err != nil {
		return err
	}
	return s.askPolicy(c, "approval", map[string]string{"call_id": c.Param("call")})
}

// VoteRequest is the body of POST /api/v1/approvals/{call}/votes.
type VoteRequest struct {
	Vote   string `json:"vote"` // grant or deny
	Reason string `json:"reason"`
	KID    string `json:"kid,omitempty"` // with sig: a ballot signed by the approver's own key
	Sig    string `json:"sig,omitempty"`
}

// vote proposes policy.vote: a vote is a call like any other.
func (s *Service) vote(c echo.Context) error {
	var req VoteRequest
	who, _, err := s.callerInto(c, &req)
	if err != nil {
		return err
	}
	w := canon.Object(nil)
	w.Str("call_id", c.Param("call"))
	if req.KID != "" {
		w.Str("kid", req.KID)
	}
	w.Str("reason", req.Reason)
	if req.Sig != "" {
		w.Str("sig", req.Sig)
	}
	w.Str("vote", req.Vote)
	return s.respond(c, who, "policy.vote", "policy.vote", w.End())
}

// KeyInfo is a key of the trust registry, with its life by lamport.
type KeyInfo struct {
	contract.TrustKey
	Since        uint64 `json:"since_lamport"`
	RevokedSince uint64 `json:"revoked_since_lamport,omitempty"`
	Valid        bool   `json:"valid"` // at the lamport asked about, or now
}

// trustKeys is GET /api/v1/trust/keys?at=: which keys there are, and whether
// each was valid at a lamport.
func (s *Service) trustKeys(c echo.Context) error {
	if _, err := s.auth(c, ""); err != nil {
		return err
	}
	at, err := lamportOf(c)
	if err != nil {
		return err
	}
	if at == 0 {
		at = canon.MaxInt
	}
	out := []KeyInfo{}
	for _, k := range s.env.Trust.Keys() {
		out = append(out, KeyInfo{k.TrustKey, k.Since, k.RevokedSince, k.Since <= at && (k.RevokedSince == 0 || at < k.RevokedSince)})
	}
	return c.JSON(http.StatusOK, out)
}

// lamportOf is the point in the past asked about; 0 = now.
func lamportOf(c echo.Context) (uint64, error) {
	raw := c.QueryParam("at")
	if raw == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(raw, 10, 53)
	if err != nil || n == 0 {
		return 0, badRequest("at", "want a lamport, a number above 0")
	}
	return n, nil
}

// identities is GET /api/v1/identities?at=.
func (s *Service) identities(c echo.Context) error {
	if _, err := s.auth(c, token.Audit); err != nil {
		return err
	}
	at, err := lamportOf(c)
	if err != nil {
		return err
	}
	return s.askPolicy(c, "identities", map[string]uint64{"at": at})
}

// notifyWork notifies the webhook of each escalated call, until it returns 2xx.
var notifyWork = bus.Work{Name: "notify", Filters: []string{"evt.*.policy.*.escalated.>"}, AckWait: 20 * time.Second, MaxAckPending: 64}

// SignatureHeader carries "t=<unix seconds>,v1=<hex HMAC-SHA256 of t.body>".
const SignatureHeader = "X-Binnacle-Signature"

func (s *Service) notify(ctx context.Context, m jetstream.Msg) {
	md, err := m.Metadata()
	if err != nil {
		return
	}
	var x contract.Escalated
	e, err := eventlog.Open(eventlog.Entry{Seq: md.Sequence.Stream, Subject: m.Subject(), Data: m.Data()})
	if err == nil {
		err = contract.Decode(e.Data, &x)
	}
	if err != nil {
		s.env.Log.Error("not an escalation", "subject", m.Subject(), "err", err)
		_ = m.Term()
		return
	}
	if x.Expires <= s.env.Emit.Time() {
		_ = m.Ack() // nobody can vote any more
		return
	}
	if err := s.post(ctx, e, &x); err != nil {
		s.env.Log.Warn("webhook will be notified again", "call", e.CallID, "err", err)
		_ = m.NakWithDelay(min(time.Duration(md.NumDelivered)*time.Second, 30*time.Second))
		return
	}
	_ = m.Ack()
}

func (s *Service) post(ctx context.Context, e *contract.Event, x *contract.Escalated) error {
	body, err := json.Marshal(map[string]any{"type": "approval.requested", "id": e.ID, "call_id": e.CallID, "session_id": e.Session, "tenant": e.Tenant,
		"actor": e.Actor, "on_behalf_of": x.Call.OnBehalfOf, "kind": x.Call.Kind, "tool": x.Call.Tool, "reason_code": x.Decision.ReasonCode,
		"rules": x.Rules, "since": e.Time, "expires": x.Expires, "decision_digest": contract.Digest(&x.Decision), "votes": "/api/v1/approvals/" + e.CallID + "/votes"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Webhook, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(SignatureHeader, Signature(s.WebhookKey, s.env.Emit.Now(), body))
	resp, err := webhookClient.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the address may hold a secret
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("it returned %s", resp.Status)
	}
	return nil
}

var webhookClient = &http.Client{Transport: &http.Transport{}}

// Signature signs a webhook's body for the moment t.
func Signature(key []byte, t time.Time, body []byte) string {
	ts := strconv.FormatInt(t.Unix(), 10)
	h := hmac.New(sha256.New, key)
	h.Write([]byte(ts + "."))
	h.Write(body)
	return "t=" + ts + ",v1=" + hex.EncodeToString(h.Sum(nil))
}
