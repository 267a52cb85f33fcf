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
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/journal"
)

// Mesh is access to the gateway that decides. Its fields are set before its first use; it
// is safe for concurrent use.
type Mesh struct {
	URL    string                 // base URL without a final slash
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
	Pending    bool   `json:"-"` // the call waits for approval
}

// Refusal is the error for a call that policy denied, or for another request that the mesh
// rejected with a status 4xx other than 429.
type Refusal struct {
	Code, Reason, Message, Receipt string

	status int // of the response
}

// Error implements error.
func (e *Refusal) Error() string {
	s := "denied by policy"
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Receipt != "" {
		s += " (receipt " + e.Receipt + ")"
	}
	return s
}

// ErrAway is wrapped by the errors of requests to which the mesh does not
// respond, or cannot respond now.
var ErrAway = errors.New("the mesh cannot be reached")

// errNoMesh is wrapped by the error of a request if there is no response, if a program other
// than the mesh responded, or if the mesh responded that its ledger does not respond. It
// wraps ErrAway. An error that wraps only ErrAway is for a mesh that responded, for example
// that it is frozen.
var errNoMesh = fmt.Errorf("%w", ErrAway)

// decisionWait is how long a hook waits for a decision that needs no person,
// and for the response to a report.
const decisionWait = 10 * time.Second

// Decide proposes a call and waits for its decision; if people must approve the call, it
// waits for at most wait, and then returns a Decision with Pending. The error is a
// *Refusal if policy denied the call or the mesh rejected the request, and wraps ErrAway
// if the mesh did not decide.
func (m *Mesh) Decide(ctx context.Context, p *Proposal, wait time.Duration) (*Decision, error) {
	until := time.Now().Add(wait)
	body := map[string]any{"kind": p.Kind, "tool": p.Kind, "args": p.Args, "report_within_ms": p.ReportWithin.Milliseconds()}
	d, err := m.decide(ctx, body, http.Header{"X-Binnacle-Session": {p.Session}, "Idempotency-Key": {p.Key}, "Prefer": {"respond-async"}}, decisionWait)
	for err == nil && d.Pending && time.Until(until) >= time.Second {
		call := d.CallID
		if d, err = m.decide(ctx, map[string]any{"call_id": call}, http.Header{}, min(time.Until(until), time.Minute)); errors.Is(err, errNoMesh) {
			err = fmt.Errorf("%w, and the call %s waits for approval", ErrAway, call) // the mesh has answered once
		}
	}
	return d, err
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

// Report records an outcome. Reporting the same outcome twice records it once. The error
// is a *Refusal if the mesh rejects the report, and wraps ErrAway if it does not
// respond, or cannot respond now.
func (m *Mesh) Report(ctx context.Context, o *Outcome) error {
	body := map[string]any{"args_digest": o.ArgsDigest, "status": o.Status}
	for name, v := range map[string]string{"error_code": o.ErrorCode, "error_message": o.ErrorMessage} {
		if v != "" {
			body[name] = v
		}
	}
	if o.Output != nil && o.Status == contract.Succeeded {
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

// post sends a document. The error is a *Refusal if the mesh rejects it with a status 4xx
// other than 429, and wraps ErrAway if there is no response, a malformed one, or one with
// the status 429 or 5xx.
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
		return fmt.Errorf("%w: %s", away, doc.Error.Message)
	}
	return &Refusal{Code: doc.Error.Code, Reason: doc.Error.Reason, Message: doc.Error.Message, Receipt: doc.Error.Receipt, status: resp.StatusCode}
}
