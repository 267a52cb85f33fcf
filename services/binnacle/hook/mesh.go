package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/journal"
)

// Mesh is access to the gateway that decides. Its fields are set before its first use; it
// is safe for concurrent use.
type Mesh struct {
	URL    string                 // base URL without a final slash
	Others bool                   // Client can connect to other gateways of the mesh, so a request whose connection ends is repeated once
	Token  func() (string, error) // returns the bearer token
	Client *http.Client
}

// Proposal is a call that is proposed to the mesh.
type Proposal struct {
	Kind         string
	Args         map[string]any
	Session      string // name of the session
	Key          string // Idempotency-Key
	ReportWithin time.Duration
}

// Decision is the mesh's response to a proposal.
type Decision struct {
	CallID     string `json:"call_id"`
	IntentID   string `json:"intent_id"`
	ArgsDigest string `json:"args_digest"`
	Repeated   bool   `json:"handed_out_before"` // the intent was handed out before, so the tool may have run
	Page       string `json:"approval_page"`     // URL of the page on which a person votes on the call; only of one that waits
	Pending    bool   `json:"-"`                 // the call waits for approval

	waiting string // name of the file that stores a call that waits
}

// at returns where a person votes on a call that waits, as part of a sentence, or "".
func (d *Decision) at() string {
	if d.Page == "" {
		return ""
	}
	return "at " + d.Page + " or "
}

// Refusal is the error for a call that policy denied, or for another request that the mesh
// rejected with a status 4xx other than 429.
type Refusal struct {
	Code, Reason, Message, Receipt string

	status int // of the response
}

// failure is the error document of a response with the status 429 or 5xx.
type failure struct {
	code, message string
	status        int
}

// Error implements error.
func (e *failure) Error() string { return e.message }

// Error implements error.
func (e *Refusal) Error() string {
	const denied = "denied by policy"
	s := e.Message
	switch {
	case e.Reason != "" && !strings.Contains(s, e.Reason):
		s = denied + ": " + e.Reason + suffix(s)
	case e.Reason == "" && !strings.HasPrefix(s, denied):
		s = "rejected by the mesh" + suffix(s)
	}
	if e.Receipt != "" {
		s += " (receipt " + e.Receipt + ")"
	}
	return s
}

// suffix returns a message after a colon, or "" if it is empty.
func suffix(message string) string {
	if message == "" {
		return ""
	}
	return ": " + message
}

// ErrAway is wrapped by the errors of requests to which the mesh does not
// respond, or cannot respond now.
var ErrAway = errors.New("the mesh cannot be reached")

// errNoMesh is wrapped by the error of a request if there is no complete response, if a response
// with a status 2xx is not JSON, if one with a status 5xx is not an error document of the mesh, or
// if the mesh responded that its ledger does not respond. It wraps ErrAway. An error that wraps
// only ErrAway is for another response, for example that the mesh is frozen.
var errNoMesh = fmt.Errorf("%w", ErrAway)

// decisionWait is how long a hook waits for a decision that needs no person,
// and for the response to a report.
const decisionWait = 10 * time.Second

// Decide proposes a call and waits for its decision; if people must approve the call, it returns a
// Decision with Pending. The error is a *Refusal if policy denied the call or the mesh rejected the
// request, wraps ErrAway if the mesh did not decide, and is that of m.Token if there is no token.
func (m *Mesh) Decide(ctx context.Context, p *Proposal) (*Decision, error) {
	body := map[string]any{"kind": p.Kind, "tool": p.Kind, "args": p.Args, "report_within_ms": p.ReportWithin.Milliseconds()}
	return m.decide(ctx, body, http.Header{"X-Binnacle-Session": {p.Session}, "Idempotency-Key": {p.Key}, "Prefer": {"respond-async"}}, decisionWait)
}

// TakeUp returns the decision on a call that was proposed earlier, and waits for at most wait if
// people must approve it. The errors are those of Decide, and a *Refusal if there is no such call of
// the token's principal, or its outcome was reported.
func (m *Mesh) TakeUp(ctx context.Context, call string, wait time.Duration) (*Decision, error) {
	until := time.Now().Add(wait)
	d, err := m.decide(ctx, map[string]any{"call_id": call}, http.Header{"Prefer": {"respond-async"}}, decisionWait)
	if err != nil || !d.Pending || time.Until(until) < time.Second {
		return d, err
	}
	return m.Await(ctx, call, time.Until(until))
}

// Await repeats a request that failed up to attempts times in succession, with a pause before each,
// for example because a gateway has ended and another one has to take its place.
const (
	attempts = 20
	pause    = 500 * time.Millisecond
)

// Await waits for at most wait, which is at least a second, until people have voted on a call. It
// repeats requests that the mesh does not answer, but not if the mesh is silent until the end of the
// time for one. The errors are those of TakeUp, except that none wraps errNoMesh: the mesh has
// answered once.
func (m *Mesh) Await(ctx context.Context, call string, wait time.Duration) (*Decision, error) {
	until := time.Now().Add(wait)
	for failed := 0; ; {
		began, within := time.Now(), min(time.Until(until), time.Minute)
		d, err := m.decide(ctx, map[string]any{"call_id": call}, http.Header{}, within)
		pending := err == nil && d.Pending
		away := errors.Is(err, ErrAway) && !isOver(err) && failed < attempts && time.Since(began) < within
		if pending {
			failed = 0
		}
		if away {
			failed++
			sleep(ctx, pause)
		}
		if (pending || away) && time.Until(until) >= time.Second && ctx.Err() == nil {
			continue
		}
		if errors.Is(err, errNoMesh) {
			err = fmt.Errorf("%w, and the call %s waits for approval", ErrAway, call)
		}
		return d, err
	}
}

// sleep returns after d or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (m *Mesh) decide(ctx context.Context, body map[string]any, h http.Header, wait time.Duration) (*Decision, error) {
	seconds := max(1, int(wait/time.Second))
	h.Set("X-Binnacle-Timeout", strconv.Itoa(seconds))
	ctx, cancel := context.WithTimeout(ctx, wait+5*time.Second)
	defer cancel()
	var d Decision
	status, err := m.post(ctx, "/api/v1/decide", body, h, &d)
	if err != nil {
		return nil, err
	}
	d.Pending = status == http.StatusAccepted
	if d.CallID == "" || !d.Pending && d.IntentID == "" {
		return nil, fmt.Errorf("%w: the response has no call and intent; check that the address is a mesh's", ErrAway)
	}
	return &d, nil
}

// Outcome is a report of what a caller executed. It can be stored as JSON and sent later.
type Outcome struct {
	IntentID     string         `json:"intent_id"`
	ArgsDigest   string         `json:"args_digest"`
	Status       string         `json:"status"`
	ErrorCode    string         `json:"error_code,omitempty"`
	ErrorMessage string         `json:"error_message,omitempty"`
	Output       map[string]any `json:"output,omitempty"`
}

// Report records an outcome. Reporting the same outcome twice records it once. The error is a
// *Refusal if the mesh rejects the report, wraps ErrAway if it does not respond, or cannot respond
// now, and is that of m.Token if there is no token.
func (m *Mesh) Report(ctx context.Context, o *Outcome) error {
	body := map[string]any{"args_digest": o.ArgsDigest, "status": o.Status}
	for name, v := range map[string]string{"error_code": o.ErrorCode, "error_message": o.ErrorMessage} {
		if v != "" {
			body[name] = v
		}
	}
	if o.Output != nil {
		body["output"] = o.Output
	}
	ctx, cancel := context.WithTimeout(ctx, decisionWait)
	defer cancel()
	_, err := m.post(ctx, "/api/v1/intents/"+url.PathEscape(o.IntentID)+"/outcome", body, http.Header{}, &struct{}{})
	return err
}

// Observe records an entry of a journal in its session. An entry that was recorded before is
// not recorded again. The errors are those of Report.
func (m *Mesh) Observe(ctx context.Context, id string, e *journal.Entry) error {
	body := map[string]any{"action": e.Action, "content": e.Content, "journal": id, "kind": e.Kind, "number": e.Number, "observed_at": e.ObservedAt, "phase": e.Phase}
	for name, v := range map[string]string{"error_code": e.ErrorCode, "status": e.Status} {
		if v != "" {
			body[name] = v
		}
	}
	ctx, cancel := context.WithTimeout(ctx, decisionWait)
	defer cancel()
	_, err := m.post(ctx, "/api/v1/observations", body, http.Header{"X-Binnacle-Session": {e.Session}}, &struct{}{})
	return err
}

// post sends a document. The error is a *Refusal if the mesh rejects it with a status 4xx other
// than 429, wraps ErrAway if there is no response, a malformed one, or one with the status 429 or
// 5xx, and is that of m.Token if there is no token.
func (m *Mesh) post(ctx context.Context, path string, body any, h http.Header, out any) (status int, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL+path, bytes.NewReader(b))
	if err != nil {
		return 0, err
	}
	tok, err := m.Token()
	if err != nil {
		return 0, err
	}
	req.Header = h
	req.Header.Set("Authorization", "Bearer "+tok)
	req.Header.Set("Content-Type", "application/json")
	resp, err := m.Client.Do(req)
	if err != nil && m.Others && ctx.Err() == nil { // every request of a hook can be repeated
		if req.Body, err = req.GetBody(); err == nil {
			resp, err = m.Client.Do(req)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%w at %s; `binnacle up` runs one", errNoMesh, m.URL)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return 0, fmt.Errorf("%w: its response was cut off", errNoMesh)
	}
	if resp.StatusCode/100 == 2 {
		if err := json.Unmarshal(raw, out); err != nil {
			return 0, fmt.Errorf("%w: its response is not JSON", errNoMesh)
		}
		return resp.StatusCode, nil
	}
	return 0, errorOf(resp, raw)
}

// errorOf returns the error for a response whose status is not 2xx; see post.
func errorOf(resp *http.Response, raw []byte) error {
	var doc struct {
		Error struct {
			Message string `json:"message"`
			Code    string `json:"code"`
			Reason  string `json:"reason_code"`
			Receipt string `json:"receipt_id"`
		} `json:"error"`
	}
	away := ErrAway
	untyped := json.Unmarshal(raw, &doc) != nil || doc.Error.Message == ""
	if resp.StatusCode >= 500 && (untyped || doc.Error.Code == contract.CodeLedgerUnavailable) {
		away = errNoMesh
	}
	if untyped {
		return fmt.Errorf("%w: it answered %s", away, resp.Status)
	}
	if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
		return fmt.Errorf("%w: %w", away, &failure{doc.Error.Code, doc.Error.Message, resp.StatusCode})
	}
	return &Refusal{Code: doc.Error.Code, Reason: doc.Error.Reason, Message: doc.Error.Message, Receipt: doc.Error.Receipt, status: resp.StatusCode}
}
