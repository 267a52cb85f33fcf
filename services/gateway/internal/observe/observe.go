// Package observe records the actions of agents that their clients report later, from the
// journals in which hooks wrote them while the mesh was away. An observation is the
// client's statement and nothing else: no policy decided the action, so there is no
// decision, no intent and no receipt, and no service reads observations to decide calls.
package observe

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	events "github.com/binnacle-mesh/binnacle/schemas/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/reported"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API records observations. Its exported fields are set before its first use; it is safe
// for concurrent use.
type API struct {
	Gate     *auth.Gate
	Sessions *sessions.Resolver
	Ledger   eventlog.Log
	Emit     *emit.Emitter
	Reports  *reported.Store
	Tools    *catalog.Catalog
	Instance string

	schemas toolschema.Checker
}

// The values of ObservationRequest.Phase.
const (
	Began = "began" // the action was about to begin; Content is its args
	Ended = "ended" // the action ended; Content is its output
)

// ObservationRequest is the body of POST /api/v1/observations: one entry of a journal.
type ObservationRequest struct {
	Action     string          `json:"action"`               // digest that the observations of one action have in common
	Content    json.RawMessage `json:"content"`              // args of the action or, if it ended, its output
	ErrorCode  string          `json:"error_code,omitempty"` // only if the action failed
	Journal    string          `json:"journal"`              // id of the journal, which the client chooses at random
	Kind       string          `json:"kind"`                 // kind of the action, such as client.shell
	Number     int64           `json:"number"`               // position in the journal, from 1
	ObservedAt string          `json:"observed_at"`          // time by the client's clock
	Phase      string          `json:"phase"`                // began or ended
	Status     string          `json:"status,omitempty"`     // succeeded or failed; only if the action ended
}

// ObservationResponse is the response to an observation that is on the ledger.
type ObservationResponse struct {
	EventID  string `json:"event_id"`
	Session  string `json:"session_id"`
	Repeated bool   `json:"repeated"` // the same entry was recorded before
}

// check returns an error (400) if a member is wrong. It sets an absent content to {}.
func (q *ObservationRequest) check() (err error) {
	for _, m := range []struct{ name, value string }{{"action", q.Action}, {"journal", q.Journal}, {"kind", q.Kind}, {"error_code", q.ErrorCode}} {
		if err := body.CheckName("/"+m.name, m.value); err != nil {
			return err
		}
		if m.value == "" && m.name != "error_code" {
			return apierr.BadRequest("/"+m.name, "set it")
		}
	}
	if q.Number < 1 {
		return apierr.BadRequest("/number", "want a whole number from 1")
	}
	if _, err := contract.ParseTime(q.ObservedAt); err != nil {
		return apierr.BadRequest("/observed_at", err.Error())
	}
	if err := q.checkPhase(); err != nil {
		return err
	}
	q.Content, err = body.CallArgs("/content", q.Content)
	return err
}

func (q *ObservationRequest) checkPhase() error {
	switch {
	case q.Phase != Began && q.Phase != Ended:
		return apierr.BadRequest("/phase", "want "+Began+" or "+Ended)
	case q.Phase == Began && q.Status != "":
		return apierr.BadRequest("/status", "an action that began has none")
	case q.Phase == Ended && q.Status != contract.Succeeded && q.Status != contract.Failed:
		return apierr.BadRequest("/status", "want "+contract.Succeeded+" or "+contract.Failed)
	case q.ErrorCode != "" && q.Status != contract.Failed:
		return apierr.BadRequest("/error_code", "only an action that failed has one")
	}
	return nil
}

// fits returns an error (400) unless the kind is that of an action of a coding agent and
// its tool's schemas accept the content.
func (s *API) fits(q *ObservationRequest) error {
	tool, digest := s.Tools.Lookup(q.Kind)
	if !strings.HasPrefix(q.Kind, clientkind.Prefix) || tool == nil {
		return apierr.BadRequest("/kind", "want the kind of an action of a coding agent, such as "+clientkind.Shell)
	}
	if q.Phase == Ended {
		if err := s.schemas.Output(digest, tool, q.Content); err != nil {
			return apierr.BadRequest("/content", "the output "+err.Error())
		}
		return nil
	}
	if reason := s.schemas.Input(digest, tool, q.Content); reason != "" {
		return apierr.BadRequest("/content", "the args do not match the schema of "+q.Kind+": "+reason)
	}
	return nil
}

// Record handles POST /api/v1/observations. When it responds with 200, the observation is
// on the ledger, once: an entry that was recorded before, however long ago, is not
// recorded again. If the journal has another entry with that number, or later ones
// without it, the response is 409: two clients use the same journal, or the entries did
// not arrive in order.
func (s *API) Record(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Decide)
	if err != nil {
		return err
	}
	var q ObservationRequest
	if _, err := body.Into(c, &q); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	if err := s.fits(&q); err != nil {
		return err
	}
	ctx := c.Request().Context()
	in, err := s.Sessions.Of(ctx, who, c.Request().Header)
	if err != nil {
		return err
	}
	out, err := s.record(ctx, who, in.ID, &q)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out)
}

// record appends the observation to the ledger, unless it is there.
func (s *API) record(ctx context.Context, who *auth.Caller, session string, q *ObservationRequest) (*ObservationResponse, error) {
	filter := bus.Filter{Tenant: who.Tenant, Service: contract.CallerExecutor, Event: contract.EventActionObserved, Key: session}.String()
	known, from, err := s.known(ctx, filter, who, q)
	if err != nil {
		return nil, apierr.Unavailable("the journal's entries on the ledger cannot be read now: " + err.Error())
	}
	var content contract.Content
	if known.same == nil && known.last < q.Number {
		if content, err = s.Reports.Commit(ctx, who.Tenant, q.outputOf(), "", q.Content); errors.Is(err, blob.ErrTooLarge) {
			return nil, apierr.BadRequest("/content", err.Error())
		} else if err != nil {
			return nil, apierr.Unavailable("the content could not be stored now: " + err.Error())
		}
	}
	var at state
	e, err := handle.DoFrom(ctx, s.Ledger, filter, from, func(later []*contract.Event) (*contract.Event, error) {
		at = known
		for _, e := range later {
			at.add(e, who, q)
		}
		if at.same != nil || at.last >= q.Number {
			return nil, nil
		}
		return s.event(who, session, q, &content), nil
	})
	switch {
	case err != nil:
		return nil, apierr.Unavailable("the observation could not be recorded now: " + err.Error())
	case e != nil:
		return &ObservationResponse{EventID: e.ID, Session: session}, nil
	case at.same != nil:
		equal, err := s.equal(ctx, who.Tenant, at.same, q)
		if err != nil {
			return nil, apierr.Unavailable("the recorded entry cannot be read now: " + err.Error())
		}
		if !equal {
			at.same = nil
		}
	}
	if at.same == nil {
		return nil, &apierr.Error{Status: http.StatusConflict, Type: "invalid_request_error", Code: contract.CodeConflict, Param: "/number",
			Message: "the journal has another entry on the ledger with this number or a later one; send the entry again in a journal with another id"}
	}
	return &ObservationResponse{EventID: at.same.ID, Session: session, Repeated: true}, nil
}

// equal reports whether a recorded observation has the content of the request. If the
// recorded content was erased, equal returns true.
func (s *API) equal(ctx context.Context, tenant string, recorded *contract.Event, q *ObservationRequest) (bool, error) {
	var x events.ActionObserved
	if err := contract.Decode(recorded.Data, &x); err != nil {
		return false, err
	}
	var content contract.Content
	if err := contract.Decode(x.Content, &content); err != nil {
		return false, err
	}
	return s.Reports.Same(ctx, tenant, q.outputOf(), &content, q.Content)
}

// outputOf returns the kind of the action if the content is its output, or "" if the content is its
// args.
func (q *ObservationRequest) outputOf() string {
	if q.Phase != Ended {
		return ""
	}
	return q.Kind
}

// event returns the event of an observation. Its key is the session, but it is not an event
// of the session: each of those belongs to a call.
func (s *API) event(who *auth.Caller, session string, q *ObservationRequest, content *contract.Content) *contract.Event {
	e := s.Emit.In(who.Tenant).New(events.ActionObservedName, session, contract.Bytes(&events.ActionObserved{Action: q.Action, AttestedBy: contract.Caller, Content: contract.Bytes(content),
		ErrorCode: q.ErrorCode, Journal: q.Journal, Kind: q.Kind, Number: q.Number, ObservedAt: q.ObservedAt, Phase: q.Phase, Status: q.Status}), nil)
	e.Actor, e.Client, e.Origin = who.Actor, who.Client, s.Instance
	return e
}

// state describes the recorded entries of a caller's journal in a session.
type state struct {
	last int64           // greatest number
	same *contract.Event // the observation with the number of the request, if it is equal apart from its content
}

// add adds an event, if it is an observation of the journal.
func (at *state) add(e *contract.Event, who *auth.Caller, q *ObservationRequest) {
	var x events.ActionObserved
	if e.Actor != who.Actor || contract.Decode(e.Data, &x) != nil || x.Journal != q.Journal {
		return
	}
	at.last = max(at.last, x.Number)
	if x.Number == q.Number && x.Action == q.Action && x.Phase == q.Phase && x.Kind == q.Kind && x.ObservedAt == q.ObservedAt && x.Status == q.Status && x.ErrorCode == q.ErrorCode {
		at.same = e
	}
}

// known returns the state of the journal up to the newest observation of the session, and
// the sequence from which later ones are read. It reads backwards, and reads only the newest
// observation if that is the one before the request's.
func (s *API) known(ctx context.Context, filter string, who *auth.Caller, q *ObservationRequest) (at state, from uint64, err error) {
	tip, err := s.Ledger.Last(ctx, filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return at, 1, nil
	}
	if err != nil {
		return at, 0, err
	}
	_, err = eventlog.Before(ctx, s.Ledger, filter, tip.Seq+1, func(en eventlog.Entry) bool {
		e, err := eventlog.Open(en, filter)
		if err != nil {
			return false
		}
		at.add(e, who, q)
		return at.same != nil || at.last > 0 && at.last < q.Number // the greatest number of the journal is its newest
	})
	if errors.Is(err, eventlog.ErrNotFound) {
		err = nil
	}
	return at, tip.Seq + 1, err
}
