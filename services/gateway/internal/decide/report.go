package decide

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handout"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	events "github.com/binnacle-mesh/binnacle/schemas/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// OutcomeRequest is the body of POST /api/v1/intents/{id}/outcome.
type OutcomeRequest struct {
	ArgsDigest   string          `json:"args_digest"` // digest of the args, as in the intent
	Status       string          `json:"status"`      // succeeded, failed, timed_out or cancelled
	ErrorCode    string          `json:"error_code,omitempty"`
	ErrorMessage string          `json:"error_message,omitempty"`
	Output       json.RawMessage `json:"output,omitempty"`
	Usage        *ReportedUsage  `json:"usage,omitempty"` // a measure that is absent or 0 is charged as reserved, and any other as reported but at most as reserved
}

// ReportedUsage is the usage of the effect as the caller reports it.
type ReportedUsage struct {
	Cents        int64 `json:"cents,omitempty"`
	CPUMillis    int64 `json:"cpu_ms,omitempty"`
	EgressBytes  int64 `json:"egress_bytes,omitempty"`
	InputTokens  int64 `json:"input_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
	USDMicros    int64 `json:"usd_micros,omitempty"`
	WallMS       int64 `json:"wall_ms,omitempty"`
}

// OutcomeResponse is the response to a report: the recorded state of the call.
type OutcomeResponse struct {
	CallID     string `json:"call_id"`
	ReceiptID  string `json:"receipt_id"`
	Session    string `json:"session_id"`
	Status     string `json:"status"`      // status of the call; unknown if the report was received after the deadline
	AttestedBy string `json:"attested_by"` // "caller" if the caller attests the outcome, or empty
	Late       bool   `json:"late"`        // the report was recorded as an event separate from the outcome
	Repeated   bool   `json:"repeated"`    // the same report was recorded before
}

// maxErrorText is the maximum length, in bytes, of a caller's description of a failure.
const maxErrorText = 1000

func (q *OutcomeRequest) check() error {
	r := handout.Report{Status: q.Status, ErrorCode: q.ErrorCode, ErrorMessage: q.ErrorMessage}
	var wrong *handout.ReportError
	if errors.As(r.Check(), &wrong) {
		return apierr.BadRequest("/"+wrong.Field, wrong.Problem)
	}
	if err := body.CheckName("/error_code", q.ErrorCode); err != nil {
		return err
	}
	if len(q.ErrorMessage) > maxErrorText {
		return apierr.BadRequest("/error_message", "at most 1000 bytes")
	}
	return q.Usage.check()
}

func (u *ReportedUsage) check() error {
	if u == nil {
		return nil
	}
	v := reflect.ValueOf(*u)
	for f, n := range v.Fields() {
		if n.Int() < 0 {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return apierr.BadRequest("/usage/"+name, "want a whole number from 0")
		}
	}
	return nil
}

// Report handles POST /api/v1/intents/{id}/outcome. It records the outcome that the caller reports
// for a call that it executed, marked as attested by the caller. When it responds with 200, the
// report is on the ledger. A call has one outcome: a report equal to the first one is accepted as a
// repetition, and a different one is a conflict (409). A report after the deadline is recorded as a
// separate event in addition to the outcome "unknown". A report whose args digest is not the
// intent's is also a conflict. An output of a call that succeeded and does not match the tool's
// schema is an error (400). The response is 404 if the intent was not handed out to the caller.
func (s *API) Report(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Decide)
	if err != nil {
		return err
	}
	var q OutcomeRequest
	if _, err := body.Into(c, &q); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	ctx := c.Request().Context()
	e, a, err := s.lent(ctx, who, c.Param("id"))
	if err != nil {
		return err
	}
	if q.ArgsDigest != a.Decision.Intent.ArgsDigest {
		return &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: contract.CodeArgsDigestMismatch, Param: "/args_digest", CallID: a.Call.ID,
			Message: "the intent permits " + a.Decision.Intent.ArgsDigest + " and nothing else"}
	}
	if q.Status == contract.Succeeded {
		if err := s.fitsOutput(a, q.Output); err != nil {
			return err
		}
	}
	out, err := s.closeCall(ctx, e, a, &q)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// lent returns the event that allowed the call of an intent, and its data. The error is
// 404 unless the caller proposed the call in order to execute it and policy allowed it.
func (s *API) lent(ctx context.Context, who *auth.Caller, intent string) (*contract.Event, *contract.Allowed, error) {
	missing := apierr.NotFound("no intent " + intent + " was handed out to you")
	call := guard.CallID(intent)
	if call == "" {
		return nil, nil, missing
	}
	e, err := s.Queries.In(who.Tenant).Event(ctx, audit.DecisionQuery, call)
	if err != nil {
		return nil, nil, err
	}
	var a contract.Allowed
	if e == nil || !who.Made(e) || contract.Decode(e.Data, &a) != nil || a.Decision.Intent == nil || a.Decision.Intent.Executor != contract.CallerExecutor {
		return nil, nil, missing
	}
	return e, &a, nil
}

// fitsOutput returns an error (400) if an output does not match the tool's schema. It
// checks nothing if the output is empty, or the tool has changed since the decision or
// is not in the catalog.
func (s *API) fitsOutput(a *contract.Allowed, output []byte) error {
	if len(output) == 0 {
		return nil
	}
	if tool, digest := s.Tools.Lookup(a.Call.Kind); tool != nil && digest == a.Decision.ToolDigest {
		if err := s.schemas.Output(digest, tool, output); err != nil {
			return apierr.BadRequest("/output", "the output "+err.Error()+"; report the call as failed if the tool returned this output")
		}
	}
	return nil
}

// closeCall records a report as the call's outcome or, if the deadline has passed, as a
// separate event beside the outcome "unknown". If the call has an outcome already, the
// results are those of reportedBefore. If the intent was not handed out, closeCall
// records nothing and returns an error (404).
func (s *API) closeCall(ctx context.Context, e *contract.Event, a *contract.Allowed, q *OutcomeRequest) (*OutcomeResponse, error) {
	if s.Lender == nil {
		return nil, apierr.Unavailable("the gateway has no signing key")
	}
	last, err := s.Queries.In(e.Tenant).Last(ctx, a.Call.ID)
	switch {
	case err != nil:
		return nil, err
	case last == nil || last.Name == contract.EventAllowed:
		return nil, apierr.NotFound("the intent " + a.Decision.Intent.ID + " was not handed out")
	case last.Name == contract.EventEffectRecorded:
		return s.reportedBefore(ctx, e, a, q, last)
	case last.Service() != contract.CallerExecutor: // the call expired
		return nil, apierr.NotFound("the intent " + a.Decision.Intent.ID + " expired before it was handed out")
	}
	r, err := s.reportOf(ctx, e.Tenant, &a.Call, q)
	if err != nil {
		return nil, err
	}
	eff, late, err := s.Lender.Close(ctx, last, a, r)
	switch {
	case errors.Is(err, outcome.ErrSuperseded): // the outcome was recorded meanwhile, because of the deadline or by a concurrent report
		if last, err = s.Queries.In(e.Tenant).Last(ctx, a.Call.ID); err != nil || last == nil || last.Name != contract.EventEffectRecorded {
			return nil, apierr.Unavailable("the outcome of the call cannot be read now")
		}
		return s.reportedBefore(ctx, e, a, q, last)
	case err != nil:
		return nil, apierr.Unavailable("the report could not be recorded now: " + err.Error())
	case late:
		return s.lateReport(ctx, e, a, q, r, &eff)
	}
	s.Metrics.Count(a.Call.Kind, eff.Status)
	return &OutcomeResponse{CallID: a.Call.ID, ReceiptID: receipt.ID(a.Call.ID), Session: e.Session, Status: eff.Status, AttestedBy: eff.AttestedBy}, nil
}

// under returns the report as it is recorded for a call whose contents are encrypted under the key
// with the given id, or q itself if key is "". The error message, which may repeat a part of the
// arguments, is in the output then; see outcome.Failure.
func (q *OutcomeRequest) under(key string) *OutcomeRequest {
	if key == "" || q.ErrorMessage == "" {
		return q
	}
	out := *q
	if out.Output == nil {
		out.Output = outcome.Failure(q.ErrorMessage)
	}
	out.ErrorMessage = outcome.MessageEncrypted
	return &out
}

// reportOf converts the body of a report for a call, and stores its output as content of
// a tenant. The error is 400 if the output is too large, and 503 if it cannot be stored.
func (s *API) reportOf(ctx context.Context, tenant string, call *contract.Call, q *OutcomeRequest) (*handout.Report, error) {
	key := call.KeyID()
	q = q.under(key)
	r := &handout.Report{Status: q.Status, ErrorCode: q.ErrorCode, ErrorMessage: q.ErrorMessage}
	if u := q.Usage; u != nil {
		r.Usage = &contract.Usage{Cents: u.Cents, CPUMillis: u.CPUMillis, EgressBytes: u.EgressBytes, InputTokens: u.InputTokens,
			OutputTokens: u.OutputTokens, USDMicros: u.USDMicros, WallMS: u.WallMS}
	}
	if q.Output == nil {
		return r, nil
	}
	content, err := s.Reports.Commit(ctx, tenant, call.Kind, key, q.Output)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, apierr.BadRequest("/output", err.Error())
	}
	if err != nil {
		return nil, apierr.Unavailable("the output could not be stored now: " + err.Error())
	}
	r.Output = &content
	return r, nil
}

// reportedBefore handles a report for a call that has an outcome. A report that is equal
// to the recorded one is accepted as a repetition; a different one is rejected with
// error 409. If the outcome is "unknown" because no report was received in time, the
// report is recorded as a separate event; see lateReport. If the call ended before its
// intent was handed out, the error is 404.
func (s *API) reportedBefore(ctx context.Context, e *contract.Event, a *contract.Allowed, q *OutcomeRequest, last *contract.Event) (*OutcomeResponse, error) {
	var rec contract.Recorded
	if err := contract.Decode(last.Data, &rec); err != nil {
		return nil, err
	}
	if rec.Effect.AttestedBy == "" {
		if rec.Effect.Status != contract.Unknown {
			return nil, apierr.NotFound("the intent " + a.Decision.Intent.ID + " was not handed out; the call ended " + rec.Effect.Status)
		}
		r, err := s.reportOf(ctx, e.Tenant, &a.Call, q)
		if err != nil {
			return nil, err
		}
		eff := rec.Effect
		eff.AttestedBy, eff.Status, eff.ErrorCode, eff.ErrorMessage, eff.Usage, eff.Ended = contract.Caller, r.Status, r.ErrorCode, r.ErrorMessage, r.Usage, s.Emit.Time()
		if r.Output != nil {
			eff.OutputDigest = r.Output.Commitment
		}
		return s.lateReport(ctx, e, a, q, r, &eff)
	}
	same, err := s.sameReport(ctx, e.Tenant, &a.Call, &rec.Effect, rec.Output, q)
	if err != nil {
		return nil, err
	}
	if !same {
		return nil, reportConflict(a)
	}
	return &OutcomeResponse{CallID: a.Call.ID, ReceiptID: rec.Receipt.ID, Session: e.Session, Status: rec.Effect.Status, AttestedBy: rec.Effect.AttestedBy, Repeated: true}, nil
}

func reportConflict(a *contract.Allowed) *apierr.Error {
	return &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: contract.CodeOutcomeConflict, CallID: a.Call.ID, ReceiptID: receipt.ID(a.Call.ID),
		Message: "another outcome was reported under this intent; an intent has one"}
}

// sameReport reports whether q is equal to a recorded report of a tenant for a call, with the
// effect eff and the output out. It does not compare outputs if the recorded one was erased. The
// error is 503 if the recorded output cannot be read.
func (s *API) sameReport(ctx context.Context, tenant string, call *contract.Call, eff *contract.Effect, out *contract.Content, q *OutcomeRequest) (bool, error) {
	q = q.under(call.KeyID())
	var usage contract.Usage
	if eff.Usage != nil {
		usage = *eff.Usage
	}
	var said contract.Usage
	if u := q.Usage; u != nil {
		said = contract.Usage{Cents: u.Cents, CPUMillis: u.CPUMillis, EgressBytes: u.EgressBytes, InputTokens: u.InputTokens,
			OutputTokens: u.OutputTokens, USDMicros: u.USDMicros, WallMS: u.WallMS}
	}
	if eff.Status != q.Status || eff.ErrorCode != q.ErrorCode || eff.ErrorMessage != q.ErrorMessage || !bytes.Equal(contract.Bytes(&usage), contract.Bytes(&said)) || (out == nil) != (q.Output == nil) {
		return false, nil
	}
	if out == nil {
		return true, nil
	}
	same, err := s.Reports.Same(ctx, tenant, call.Kind, out, q.Output)
	if err != nil {
		return false, apierr.Unavailable("the recorded output cannot be read now: " + err.Error())
	}
	return same, nil
}

// lateReport records a report that was received after the deadline. The outcome of the
// call remains unknown. If a late report was recorded before, an equal one is a
// repetition and a different one is a conflict.
func (s *API) lateReport(ctx context.Context, e *contract.Event, a *contract.Allowed, q *OutcomeRequest, r *handout.Report, eff *contract.Effect) (*OutcomeResponse, error) {
	w := canon.Object(nil)
	w.Raw("effect", contract.Bytes(eff))
	if r.Output != nil {
		w.Raw("output", contract.Bytes(r.Output))
	}
	fact := s.Emit.New(events.OutcomeReportedName, e.Session, contract.Bytes(&events.OutcomeReported{CallID: a.Call.ID, IntentID: a.Decision.Intent.ID,
		ReceiptID: receipt.ID(a.Call.ID), Report: w.End()}), e)
	fact.ID = contract.IDOutcome + a.Call.ID
	out := &OutcomeResponse{CallID: a.Call.ID, ReceiptID: receipt.ID(a.Call.ID), Session: e.Session, Status: contract.Unknown, Late: true}
	before, err := s.lateBefore(ctx, e)
	if err == nil && before == nil {
		if _, err = s.Emit.Append(ctx, fact); errors.Is(err, eventlog.ErrIDConflict) {
			before, err = s.lateBefore(ctx, e)
		}
	}
	if err != nil {
		return nil, apierr.Unavailable("the report could not be recorded now: " + err.Error())
	}
	if before == nil {
		return out, nil
	}
	var x events.OutcomeReported
	var doc struct {
		Effect json.RawMessage `json:"effect"`
		Output json.RawMessage `json:"output"`
	}
	var was contract.Effect
	var content *contract.Content
	if err := errors.Join(contract.Decode(before.Data, &x), json.Unmarshal(x.Report, &doc), contract.Decode(doc.Effect, &was)); err != nil {
		return nil, err
	}
	if doc.Output != nil {
		content = &contract.Content{}
		if err := contract.Decode(doc.Output, content); err != nil {
			return nil, err
		}
	}
	same, err := s.sameReport(ctx, e.Tenant, &a.Call, &was, content, q)
	if err != nil {
		return nil, err
	}
	if !same {
		return nil, reportConflict(a)
	}
	out.Repeated = true
	return out, nil
}

// lateBefore returns the late report of a call, or nil if there is none.
func (s *API) lateBefore(ctx context.Context, e *contract.Event) (*contract.Event, error) {
	return s.Queries.In(e.Tenant).Event(ctx, audit.LateReportQuery, e.CallID)
}
