// Package agents lets a Binnacle mesh decide the calls of an agent's tools before they run.
// A tool runs only after the mesh has allowed its call, and the outcome becomes a receipt
// that the caller attests. The package imports the standard library alone.
package agents

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Mesh is access to a mesh for one session. The zero value uses the defaults of the fields,
// which are set before the first use; a Mesh is then safe for concurrent use if its functions
// are.
type Mesh struct {
	URL          string                 // base URL or host:port; the variable BINNACLE_ADDR or http://127.0.0.1:8080 if empty
	Token        func() (string, error) // bearer token with the scopes calls:decide and tools:call; the variable BINNACLE_TOKEN if nil
	Session      string                 // name of the session, s-…; each call has a session of its own if empty
	Agent        string                 // member agent of the args; "sdk" if empty
	Workspace    string                 // member workspace of the args; the current folder if empty
	Wait         time.Duration          // how long a call may wait for a person's approval; 5 minutes if 0, and not at all if negative
	ReportWithin time.Duration          // maximum time from the decision to the report of a call; 10 minutes if 0
	Content      bool                   // record outputs themselves, and not only their digests
	Client       *http.Client           // http.DefaultClient without redirects if nil

	Kinds        func(tool string, input any) (kind string, args map[string]any) // kind and args of a tool's calls; those of client.other if nil, or if it returns ""
	OnDecision   func(Decision)                                                  // receives each decision
	OnReceipt    func(Receipt)                                                   // receives each outcome that Wrap, Run or Stream has recorded
	OnUnreported func(error, Decision)                                           // receives the error if the outcome of a tool that ran could not be recorded; slog.Error if nil
}

// The verdicts of a Decision.
const (
	Allow    = "ALLOW"
	Deny     = "DENY"
	Escalate = "ESCALATE"
)

// Decision is policy's decision on a call, or the state of a call that waits for approval.
type Decision struct {
	Tool       string
	Verdict    string
	ReasonCode string
	Message    string // why the call was not allowed, for the model or a person
	CallID     string
	SessionID  string
	ReceiptID  string // id of the receipt; that of an allowed call exists once its outcome is recorded

	IntentID   string          // of an allowed call: the permission to run it once
	ArgsDigest string          // of an allowed call
	ReportBy   string          // of an allowed call
	Signed     json.RawMessage // of an allowed call: the decision as policy signed it
}

// Receipt is the recorded outcome of a call.
type Receipt struct {
	ReceiptID  string `json:"receipt_id"`
	CallID     string `json:"call_id"`
	SessionID  string `json:"session_id"`
	Status     string `json:"status"`      // unknown if the report arrived after its deadline
	AttestedBy string `json:"attested_by"` // "caller"; empty if the report arrived after its deadline
}

// Outcome is a caller's report about a call that it ran.
type Outcome struct {
	Status       string `json:"-"` // succeeded, failed, timed_out or cancelled
	ErrorCode    string `json:"error_code,omitempty"`
	ErrorMessage string `json:"error_message,omitempty"`
	Output       any    `json:"output,omitempty"`
}

// DeniedError is the error of a call that policy denied, or that still waits for a person's
// approval. The tool did not run.
type DeniedError struct{ Decision Decision }

// Error implements error.
func (e *DeniedError) Error() string { return e.Decision.Message }

// Error is the error of a request that got no response, that could not be sent, or that was
// refused for a reason other than policy. If Wrap, Run or Stream returns it, the tool did not
// run.
type Error struct {
	Code    string // code of the mesh's error, or mesh_away, no_token, input_changed or unexpected_response
	Status  int    // HTTP status, or 0
	Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// away is the code of the error for a mesh that does not respond, or a response that is not that of
// a mesh.
const away = "mesh_away"

// Wrap returns a function that runs fn only if its call is allowed. Its error is that of fn
// or, if fn did not run, a *DeniedError if the call was not allowed, and otherwise that of
// Mesh.Decide, or an *Error with code input_changed if the input changed after its decision.
func Wrap[In, Out any](m *Mesh, tool string, fn func(context.Context, In) (Out, error)) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) {
		out, _, err := Run(ctx, m, tool, in, func(ctx context.Context) (Out, error) { return fn(ctx, in) })
		return out, err
	}
}

// Run decides a call, runs fn if the call is allowed, and records the outcome. The receipt
// is nil if fn did not run, or the outcome could not be recorded. The error is as for Wrap;
// if policy denied the call, it contains the decision.
func Run[Out any](ctx context.Context, m *Mesh, tool string, input any, fn func(context.Context) (Out, error)) (Out, *Receipt, error) {
	var out Out
	d, err := m.permit(ctx, tool, input)
	if err != nil {
		return out, nil, err
	}
	ended := false
	defer func() {
		if !ended { // fn panicked
			m.close(ctx, d, &Outcome{Status: "failed", ErrorCode: "agent_tool_failed", ErrorMessage: "the tool panicked"})
		}
	}()
	out, err = fn(ctx)
	ended = true
	if err != nil {
		return out, m.close(ctx, d, failure(err)), err
	}
	return out, m.close(ctx, d, m.success(out)), nil
}

// Stream returns a sequence that requests a decision each time that it is read and, if the
// call is allowed, yields the items of fn, unchanged and as they come. The first error ends
// the sequence; if fn did not run, the error is as for Wrap and is yielded with the zero
// value. The outcome is recorded after the last item, or as cancelled if the reader leaves
// earlier; the recorded digest is that of a line of JSON for each item.
func Stream[T any](ctx context.Context, m *Mesh, tool string, input any, fn func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		d, err := m.permit(ctx, tool, input)
		if err != nil {
			var zero T
			yield(zero, err)
			return
		}
		h, n := sha256.New(), 0
		o := &Outcome{Status: "cancelled", ErrorCode: "stream_left", ErrorMessage: "the reader left the stream before its end"}
		defer func() { m.close(ctx, d, o) }()
		for item, err := range fn(ctx) {
			if err != nil {
				o = failure(err)
				yield(item, err)
				return
			}
			line := append(text(item), '\n')
			h.Write(line)
			n += len(line)
			if !yield(item, nil) {
				return
			}
		}
		o = &Outcome{Status: "succeeded", Output: map[string]any{"bytes": n, "output_digest": "sha256:" + hex.EncodeToString(h.Sum(nil))}}
	}
}

// permit returns the decision of an allowed call. The error is a *DeniedError if policy did
// not allow the call. If the input has changed since the request, permit reports the call as
// cancelled and returns an *Error.
func (m *Mesh) permit(ctx context.Context, tool string, input any) (*Decision, error) {
	proposed := text(input)
	d, err := m.Decide(ctx, tool, input)
	if err != nil {
		return nil, err
	}
	if d.Verdict != Allow {
		return nil, &DeniedError{Decision: *d}
	}
	if !bytes.Equal(text(input), proposed) {
		m.close(ctx, d, &Outcome{Status: "cancelled", ErrorCode: "input_changed", ErrorMessage: "the input changed after its decision; nothing ran"})
		return nil, &Error{Code: "input_changed", Message: tool + ": the input changed after its decision; pass a value that is not modified"}
	}
	return d, nil
}

// Decide requests the mesh's decision on a call, which the caller, if it is allowed, executes and
// reports with Report. If a person must approve the call, Decide waits for at most m.Wait, and then
// returns the verdict Escalate. If there is no decision, the error is an *Error, that of ctx or of
// m.Token, or means that the input cannot be encoded as JSON or that m.URL is invalid.
func (m *Mesh) Decide(ctx context.Context, tool string, input any) (*Decision, error) {
	wait := m.Wait
	if wait == 0 {
		wait = 5 * time.Minute
	}
	until := time.Now().Add(wait)
	kind, args := m.named(tool, input)
	within := m.ReportWithin
	if within == 0 {
		within = 10 * time.Minute
	}
	body := map[string]any{"kind": kind, "args": args, "report_within_ms": within.Milliseconds()}
	d, err := m.ask(ctx, tool, body, http.Header{"Idempotency-Key": {rand.Text()}, "Prefer": {"respond-async"}}, 10*time.Second)
	for err == nil && d.Verdict == Escalate && time.Until(until) >= time.Second {
		d, err = m.ask(ctx, tool, map[string]any{"call_id": d.CallID}, http.Header{}, min(time.Until(until), time.Minute))
	}
	if err == nil && m.OnDecision != nil {
		m.OnDecision(*d)
	}
	return d, err
}

// named returns the kind and the args of a call.
func (m *Mesh) named(tool string, input any) (string, map[string]any) {
	kind, args := "", map[string]any(nil)
	if m.Kinds != nil {
		kind, args = m.Kinds(tool, input)
	}
	switch {
	case kind == "":
		kind, args = "client.other", map[string]any{"input": input, "tool": tool}
	case !strings.HasPrefix(kind, "client."):
		return kind, args
	}
	out := map[string]any{"agent": m.Agent, "workspace": m.Workspace}
	if m.Agent == "" {
		out["agent"] = "sdk"
	}
	if m.Workspace == "" {
		dir, err := os.Getwd()
		if err != nil {
			dir = "/"
		}
		out["workspace"] = dir
	}
	for k, v := range args {
		out[k] = v
	}
	return kind, out
}

// ask requests a decision. It repeats the request once if there is no response; the request
// contains the idempotency key or the id of the call, so that the call is decided only once.
func (m *Mesh) ask(ctx context.Context, tool string, body any, h http.Header, within time.Duration) (*Decision, error) {
	h.Set("X-Binnacle-Timeout", strconv.Itoa(max(1, int(within/time.Second))))
	if m.Session != "" {
		h.Set("X-Binnacle-Session", m.Session)
	}
	status, raw, err := m.post(ctx, "/api/v1/decide", body, h, within+5*time.Second)
	var e *Error
	if errors.As(err, &e) && e.Code == away {
		status, raw, err = m.post(ctx, "/api/v1/decide", body, h, within+5*time.Second)
	}
	if err != nil {
		return nil, err
	}
	var doc struct {
		CallID     string          `json:"call_id"`
		SessionID  string          `json:"session_id"`
		Verdict    string          `json:"verdict"`
		ReasonCode string          `json:"reason_code"`
		IntentID   string          `json:"intent_id"`
		ArgsDigest string          `json:"args_digest"`
		ReportBy   string          `json:"report_by"`
		ReceiptID  string          `json:"receipt_id"`
		Signed     json.RawMessage `json:"decision"`
		Error      problem         `json:"error"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, m.foreign(status)
	}
	d := &Decision{Tool: tool, Verdict: Deny, ReasonCode: doc.ReasonCode, CallID: doc.CallID, SessionID: doc.SessionID, ReceiptID: doc.ReceiptID}
	switch p := &doc.Error; {
	case status == http.StatusOK && doc.Verdict == Allow && doc.IntentID != "":
		d.Verdict, d.IntentID, d.ArgsDigest, d.ReportBy, d.Signed = Allow, doc.IntentID, doc.ArgsDigest, doc.ReportBy, doc.Signed
	case status == http.StatusAccepted && doc.CallID != "":
		d.Verdict = Escalate
		d.Message = fmt.Sprintf("the call waits for approval as %s: a person grants it with `binnacle approvals grant %s --reason WHY`; then try again", d.CallID, d.CallID)
	case p.ReasonCode != "" && p.ReceiptID != "":
		d.ReasonCode, d.CallID, d.ReceiptID = p.ReasonCode, p.CallID, p.ReceiptID
		d.Message = p.Message
		if !strings.Contains(p.Message, p.ReasonCode) {
			d.Message = "denied by policy: " + p.ReasonCode + ": " + p.Message
		}
		d.Message += " (receipt " + p.ReceiptID + ")"
	default:
		return nil, p.refusal(status)
	}
	return d, nil
}

// Report records the outcome of an allowed call. The same outcome can be reported again. The errors
// are those of Decide, with the output in place of the input.
func (m *Mesh) Report(ctx context.Context, d *Decision, o *Outcome) (*Receipt, error) {
	body := struct {
		ArgsDigest string `json:"args_digest"`
		Status     string `json:"status"`
		*Outcome
	}{d.ArgsDigest, o.Status, o}
	status, raw, err := m.post(ctx, "/api/v1/intents/"+url.PathEscape(d.IntentID)+"/outcome", body, http.Header{}, 10*time.Second)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Receipt
		Error problem `json:"error"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, m.foreign(status)
	}
	if status != http.StatusOK {
		return nil, doc.Error.refusal(status)
	}
	return &doc.Receipt, nil
}

// close records an outcome, also if ctx is done. It returns nil, and no error, if that is not
// possible, because an error would make an agent repeat a tool that has run.
func (m *Mesh) close(ctx context.Context, d *Decision, o *Outcome) *Receipt {
	ctx = context.WithoutCancel(ctx)
	for attempt := 0; ; attempt++ {
		r, err := m.Report(ctx, d, o)
		if err == nil {
			if m.OnReceipt != nil {
				m.OnReceipt(*r)
			}
			return r
		}
		var e *Error
		if attempt < 3 && errors.As(err, &e) && (e.Status == 0 || e.Status == http.StatusTooManyRequests || e.Status >= 500) {
			time.Sleep(100 * time.Millisecond << attempt)
			continue
		}
		if m.OnUnreported != nil {
			m.OnUnreported(err, *d)
		} else {
			slog.Error("binnacle: an outcome was not recorded, and will be unknown", "call", d.CallID, "err", err)
		}
		return nil
	}
}

// success returns the outcome of a tool that returned output.
func (m *Mesh) success(output any) *Outcome {
	b := text(output)
	sum := sha256.Sum256(b)
	doc := map[string]any{"bytes": len(b), "output_digest": "sha256:" + hex.EncodeToString(sum[:])}
	if m.Content {
		doc["content"] = json.RawMessage(b)
	}
	return &Outcome{Status: "succeeded", Output: doc}
}

// failure returns the outcome of a tool that returned err. The text of err can contain data
// that the tool read, so it is not recorded.
func failure(err error) *Outcome {
	switch {
	case errors.Is(err, context.Canceled):
		return &Outcome{Status: "cancelled", ErrorCode: "aborted", ErrorMessage: "the tool was aborted"}
	case errors.Is(err, context.DeadlineExceeded):
		return &Outcome{Status: "timed_out", ErrorCode: "deadline_exceeded", ErrorMessage: "the tool exceeded its deadline"}
	}
	return &Outcome{Status: "failed", ErrorCode: "agent_tool_failed", ErrorMessage: fmt.Sprintf("the tool returned an error of type %T", err)}
}

// text returns the JSON text of a value or, if it cannot be encoded, the name of its Go type
// as a JSON string.
func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		b = []byte(strconv.Quote(fmt.Sprintf("%T", v)))
	}
	return b
}

// problem is an error in a response of the mesh.
type problem struct {
	Message    string `json:"message"`
	Code       string `json:"code"`
	ReasonCode string `json:"reason_code"`
	CallID     string `json:"call_id"`
	ReceiptID  string `json:"receipt_id"`
}

func (p *problem) refusal(status int) error {
	e := &Error{Code: p.Code, Status: status, Message: p.Message}
	if p.Message == "" {
		e.Code, e.Message = "unexpected_response", fmt.Sprintf("the mesh responded with status %d", status)
	}
	return e
}

// foreign returns the error for a response that is not that of a mesh.
func (m *Mesh) foreign(status int) error {
	return &Error{Code: away, Status: status, Message: fmt.Sprintf("the response of %s is not that of a mesh (status %d)", m.base(), status)}
}

func (m *Mesh) base() string {
	u := m.URL
	if u == "" {
		u = os.Getenv("BINNACLE_ADDR")
	}
	if u == "" {
		u = "127.0.0.1:8080"
	}
	if !strings.Contains(u, "://") {
		u = "http://" + u
	}
	return strings.TrimRight(u, "/")
}

// noRedirects is the default of Mesh.Client. It follows no redirect, because a redirect could
// send the call to another host.
var noRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// post sends a document and returns the status and the body of the response. If there is no
// response, the error is that of ctx if ctx is done, and else an *Error. Other errors mean that
// there is no token, that body cannot be encoded, or that m.URL is invalid.
func (m *Mesh) post(ctx context.Context, path string, body any, h http.Header, within time.Duration) (int, []byte, error) {
	token, err := os.Getenv("BINNACLE_TOKEN"), error(nil)
	if m.Token != nil {
		token, err = m.Token()
	}
	if err == nil && token == "" {
		err = &Error{Code: "no_token", Message: "there is no token: set the field Token or the variable BINNACLE_TOKEN"}
	}
	if err != nil {
		return 0, nil, err
	}
	b, err := json.Marshal(body)
	if err != nil {
		return 0, nil, fmt.Errorf("the input is not JSON: %w", err)
	}
	timed, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(timed, http.MethodPost, m.base()+path, bytes.NewReader(b))
	if err != nil {
		return 0, nil, err
	}
	req.Header = h
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	client := m.Client
	if client == nil {
		client = noRedirects
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, m.unanswered(ctx)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return 0, nil, m.unanswered(ctx)
	}
	return resp.StatusCode, raw, nil
}

// unanswered returns the error of a request without a response.
func (m *Mesh) unanswered(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return &Error{Code: away, Message: "the mesh cannot be reached at " + m.base() + "; `binnacle up` runs one"}
}
