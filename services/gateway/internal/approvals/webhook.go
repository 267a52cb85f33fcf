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
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
)

// Webhook notifies a URL of calls that wait for approval. Its fields are set before its
// first use.
type Webhook struct {
	URL  string
	Key  []byte // HMAC-SHA256 key of the signature
	Emit *emit.Emitter
	Log  *slog.Logger
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

// Notify posts one escalation to the webhook. It acknowledges the escalation's message
// if the webhook accepts the escalation or the time to vote has passed, terminates the
// message if it is not an escalation, and otherwise returns it for redelivery with a
// delay of at most 30 seconds. A webhook may receive an escalation more than once; the
// body has the same id each time.
func (s *Webhook) Notify(ctx context.Context, d *consumer.Delivery) {
	var x contract.Escalated
	e, err := d.Open()
	if err == nil {
		err = contract.Decode(e.Data, &x)
	}
	if err != nil {
		s.Log.Error("not an escalation", "subject", d.Subject, "err", err)
		d.Term()
		return
	}
	if x.Expires <= s.Emit.Time() {
		d.Ack() // the time to vote has passed
		return
	}
	if err = s.Durable(ctx); err == nil {
		err = s.post(ctx, e, &x)
	}
	if err != nil {
		s.Log.Warn("webhook will be notified again", "call", e.CallID, "err", err)
		d.Nak(min(time.Duration(d.Tries)*time.Second, 30*time.Second))
		return
	}
	d.Ack()
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

// webhookClient follows no redirect, so that the webhook's server cannot direct a notice to
// an address that the operator did not configure.
var webhookClient = &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Signature returns the value of SignatureHeader for a body that is sent at t.
func Signature(key []byte, t time.Time, body []byte) string {
	ts := strconv.FormatInt(t.Unix(), 10)
	h := hmac.New(sha256.New, key)
	h.Write([]byte(ts + "."))
	h.Write(body)
	return "t=" + ts + ",v1=" + hex.EncodeToString(h.Sum(nil))
}
