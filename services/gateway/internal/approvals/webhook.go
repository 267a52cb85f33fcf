package approvals

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
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/react"
)

// Webhook notifies a URL of calls that wait for approval. Its fields are set before its
// first use.
type Webhook struct {
	URL  string
	Key  []byte // HMAC-SHA256 key of the signature
	Emit *emit.Emitter
	// Durable waits until the escalation, and all else that this process has read, is
	// synced to disk.
	Durable func(context.Context) error
}

// Work is the consumer of escalations for Webhook.Notify. An escalation is redelivered
// until the webhook returns 2xx or the time to vote has passed.
var Work = bus.Work{Name: "notify", Filters: bus.Filters("policy", contract.EventEscalated), Ends: bus.Decisions(), AckWait: 20 * time.Second, MaxAckPending: 64}

// SignatureHeader is the request header with the signature of a notification: "t=<unix
// seconds>,v1=<hex HMAC-SHA256>". The HMAC is that of the seconds, a dot and the body.
const SignatureHeader = "X-Binnacle-Signature"

// Reactor returns the reactor that notifies the webhook. It does not limit the number of
// attempts: an escalation is redelivered until Notify returns nil or a permanent error.
func (s *Webhook) Reactor() react.Reactor {
	return react.Reactor{Name: "approval_webhook", Work: Work, Limit: 4, MaxTries: math.MaxUint64, Handle: s.Notify}
}

// Notify posts one escalation to the webhook. It returns nil if the webhook accepts the
// escalation or the time to vote has passed, an error that wraps react.ErrPermanent if the
// event is not an escalation, and otherwise the error of the attempt. A webhook may receive
// an escalation more than once; the body has the same id each time.
func (s *Webhook) Notify(ctx context.Context, e *contract.Event) error {
	var x contract.Escalated
	if err := contract.Decode(e.Data, &x); err != nil {
		return react.Permanent(err)
	}
	if x.Expires <= s.Emit.Time() {
		return nil // the time to vote has passed
	}
	if err := s.Durable(ctx); err != nil {
		return err
	}
	return s.post(ctx, e, &x)
}

func (s *Webhook) post(ctx context.Context, e *contract.Event, x *contract.Escalated) error {
	body, err := json.Marshal(map[string]any{"type": "approval.requested", "id": e.ID, "call_id": e.CallID, "session_id": e.Session, "tenant": e.Tenant,
		"actor": e.Actor, "on_behalf_of": x.Call.OnBehalfOf, "kind": x.Call.Kind, "tool": x.Call.Tool, "reason_code": x.Decision.ReasonCode,
		"rules": x.Rules, "since": e.Time, "expires": x.Expires, "decision_digest": contract.Digest(&x.Decision), "votes": "/api/v1/approvals/" + e.CallID + "/votes"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(SignatureHeader, Signature(s.Key, s.Emit.Now(), body))
	resp, err := webhookClient.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // u contains the URL, which may contain a secret
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the webhook returned %s", resp.Status)
	}
	return nil
}

// webhookClient follows no redirect, so that the webhook's server cannot redirect a
// notification to an address that the operator did not configure.
var webhookClient = &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Signature returns the value of SignatureHeader for a body that is sent at t.
func Signature(key []byte, t time.Time, body []byte) string {
	ts := strconv.FormatInt(t.Unix(), 10)
	h := hmac.New(sha256.New, key)
	h.Write([]byte(ts + "."))
	h.Write(body)
	return "t=" + ts + ",v1=" + hex.EncodeToString(h.Sum(nil))
}
