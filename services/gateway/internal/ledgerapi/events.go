package ledgerapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/durable"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Event is one event of the ledger, a CloudEvent (1.0) in canonical form
// (docs/reference/ledger-format.md). contract.Event encodes it.
type Event struct {
	Actor           string    `json:"actor"`                   // verified caller; "-" if the mesh itself acts
	CallID          string    `json:"callid,omitempty"`        // the call that the event belongs to
	CausationID     string    `json:"causationid,omitempty"`   // id of the event that caused this one
	Client          string    `json:"client"`                  // client that the actor used; "-" if none
	CorrelationID   string    `json:"correlationid,omitempty"` // id of the first event in the sequence of causes
	Data            EventData `json:"data"`
	DataContentType string    `json:"datacontenttype"` // "application/json"
	DataSchema      string    `json:"dataschema"`      // urn:binnacle:event:<service>:<event>:v<N>; <service> is mesh if the schema belongs to the mesh as a whole
	ID              string    `json:"id"`
	Lamport         string    `json:"lamport"` // Lamport time in decimal digits
	Origin          string    `json:"origin"`  // instance that waits for the outcome; "-" if none
	Session         string    `json:"session,omitempty"`
	Source          string    `json:"source"`           // producer: service "/" instance
	SpecVersion     string    `json:"specversion"`      // "1.0"
	Subject         string    `json:"subject"`          // session or aggregate
	Target          string    `json:"target,omitempty"` // executor that an allowed event addresses
	Tenant          string    `json:"tenant"`
	Time            string    `json:"time"`
	TraceParent     string    `json:"traceparent,omitempty"` // W3C trace context
	Type            string    `json:"type"`                  // dev.binnacle.<service>.<event>.v<N>
}

// EventData is the data of an event. Each type of event has a schema of its own, which
// dataschema names and docs/reference/events.md lists.
type EventData map[string]json.RawMessage

// EventLine is one line of GET /api/v1/events.
type EventLine struct {
	Event Event  `json:"event"`
	Seq   uint64 `json:"seq"` // ledger sequence
}

// meshWide lists the names of the events about the log and the mesh's own keys. The
// evidence of every tenant depends on these events.
var meshWide = []string{contract.EventCellOpened, contract.EventKeyPublished, contract.EventKeyRevoked, contract.EventLogEpochOpened}

// ofType returns a filter with the event of the parameter type and, if that is the type and not
// only the name of an event, with its service. If the parameter is empty, nothing is filtered. For
// contract.EventAllowed, the filter matches every event, because subjects contain that name
// together with an executor's. ofType returns an error (400) for text that is neither a name nor a
// type.
func ofType(typ string) (f bus.Filter, err error) {
	if typ == "" {
		return f, nil
	}
	f.Event = typ
	if rest, ok := strings.CutPrefix(typ, contract.TypePrefix); ok {
		f.Service, rest, _ = strings.Cut(rest, ".")
		f.Event, _, _ = strings.Cut(rest, ".")
	}
	if !contract.Token(f.Event) || strings.HasPrefix(typ, contract.TypePrefix) && !contract.Token(f.Service) {
		return f, apierr.BadRequest("type", "want the name of an event, such as "+contract.EventEffectRecorded+", or its type")
	}
	if f.Event == contract.EventAllowed {
		f.Event = ""
	}
	return f, nil
}

// shared reports whether an event of provision is one that callers of every tenant may
// read. Events about keys of a tenant's approvers and bundles are not.
func shared(e *contract.Event) bool {
	switch e.Name {
	case contract.EventKeyPublished, contract.EventKeyRevoked:
		var k contract.TrustKey
		return contract.Decode(e.Data, &k) == nil && !strings.HasPrefix(k.Owner, contract.OwnerApprover) && !strings.HasPrefix(k.Owner, contract.OwnerBundle)
	}
	return slices.Contains(meshWide, e.Name)
}

// Events handles GET /api/v1/events. It lists or follows the events of the caller's
// tenant as JSON lines {event, seq}, filtered by session, type, time and sequence. If the
// type is that of a mesh-wide event, and no session is given, the mesh's own events of the
// type are listed, too.
func (s *API) Events(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	session, typ, since := c.QueryParam("session"), c.QueryParam("type"), c.QueryParam("since")
	if session != "" && !contract.Token(session) {
		return apierr.BadRequest("session", "not a session id")
	}
	if session, err = s.Sessions.QueriedBy(c, who, session); err != nil {
		return err
	}
	var after time.Time
	if since != "" {
		if d, err := time.ParseDuration(since); err == nil {
			after = time.Now().Add(-d)
		} else if after, err = time.Parse(time.RFC3339, since); err != nil {
			return apierr.BadRequest("since", "want a duration like 5m or an RFC 3339 time")
		}
	}
	selected, err := ofType(typ)
	if err != nil {
		return err
	}
	if session == "" && slices.Contains(meshWide, selected.Event) {
		selected.Service = services.Provision
	} else {
		selected.Tenant, selected.Key = who.Tenant, session
	}
	filter := selected.String()
	return s.lines(c, filter, c.QueryParam("follow") == "true", false, after, func(en eventlog.Entry) []byte {
		e, err := eventlog.Open(en, filter)
		if err != nil || typ != "" && e.Name != typ && e.Type() != typ || e.Tenant != who.Tenant && !shared(e) {
			return nil
		}
		if t, err := contract.ParseTime(e.Time); err == nil && t.Before(after) {
			return nil
		}
		b := append([]byte(`{"event":`), en.Data...)
		return append(strconv.AppendUint(append(b, `,"seq":`...), en.Seq, 10), '}')
	})
}

// Entries handles GET /api/v1/ledger. It streams the stored bytes of the entries in the
// range of the parameters from and to, one line for each entry.
func (s *API) Entries(c echo.Context) error {
	return s.lines(c, bus.Filter{}.String(), false, true, time.Time{}, func(en eventlog.Entry) []byte { return en.Data })
}

// span is the range of sequences that a request reads, both ends included. If to is 0,
// the range has no end.
type span struct{ from, to uint64 }

func spanOf(c echo.Context) (p span, err error) {
	p.from = 1
	for _, x := range []struct {
		name string
		v    *uint64
	}{{"from", &p.from}, {"to", &p.to}} {
		if raw := c.QueryParam(x.name); raw != "" {
			if *x.v, err = strconv.ParseUint(raw, 10, 64); err != nil || x.v == &p.to && p.to == 0 {
				return p, apierr.BadRequest(x.name, "want a ledger sequence, from 1")
			}
		}
	}
	return p, nil
}

// followEvery is the interval at which a stream with follow=true reads new entries.
const followEvery = 50 * time.Millisecond

// lines streams the entries of the ledger that match filter and are in the range of the
// parameters from and to, each as render returns it; entries for which render returns
// nil are omitted. If forever is set, the stream waits for new entries at the end of the
// ledger. mesh states whether the stream contains events that only operators may read. If
// since is not zero, render must return nil for every event before it, and lines reads the
// ledger from about that time on.
//
// An error before the stream begins is returned. If later the ledger cannot be read or the
// caller's access ends (see auth.Gate.WatchReads), the connection is aborted, so that the
// response is not mistaken for a complete one.
func (s *API) lines(c echo.Context, filter string, forever, mesh bool, since time.Time, render func(eventlog.Entry) []byte) error {
	part, err := spanOf(c)
	if err != nil {
		return err
	}
	ctx, done, err := s.admit(c, s.Streams, mesh)
	if err != nil {
		return err
	}
	defer done()
	last, err := s.Ledger.Last(ctx, bus.Filter{}.String())
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return apierr.Unavailable("the ledger does not respond: " + err.Error())
	}
	if !since.IsZero() {
		from, err := eventlog.Since(ctx, s.Ledger, since)
		if err != nil {
			return apierr.Unavailable("the ledger does not respond: " + err.Error())
		}
		part.from = max(part.from, from)
	}
	c.Response().Header().Set("Content-Type", "application/x-ndjson")
	c.Response().Header().Set("X-Binnacle-Ledger-Size", strconv.FormatUint(last.Seq, 10))
	c.Response().WriteHeader(http.StatusOK)
	c.Response().Flush()
	for {
		if over := s.send(ctx, c, filter, &part, last.Seq, render); over || !forever {
			return nil
		}
		c.Response().Flush()
		select {
		case <-ctx.Done():
			if c.Request().Context().Err() == nil {
				panic(http.ErrAbortHandler) // the client is still connected, but its access has ended, see auth.Gate.WatchReads
			}
			return nil
		case <-time.After(followEvery):
		}
	}
}

// send writes the available entries in part, and sets part to the range after them. The
// entries up to the sequence known were stored before the response began. send reports
// whether the response is over: an entry after part was reached, or the client has
// disconnected. If the ledger cannot be read, or ctx is done when an entry is read,
// send panics with http.ErrAbortHandler.
func (s *API) send(ctx context.Context, c echo.Context, filter string, part *span, known uint64, render func(eventlog.Entry) []byte) (over bool) {
	for en, err := range s.Ledger.Scan(ctx, filter, part.from) {
		if err != nil || ctx.Err() != nil { // ctx is also done when the caller's access ends, see auth.Gate.WatchReads
			panic(http.ErrAbortHandler)
		}
		if part.to > 0 && en.Seq > part.to {
			return true
		}
		part.from = en.Seq + 1
		if b := render(en); b != nil {
			if en.Seq <= known {
				durable.Known(c)
			}
			if _, err := c.Response().Write(append(b[:len(b):len(b)], '\n')); err != nil {
				return true
			}
		}
	}
	return false
}

// Content handles GET /api/v1/contents/{commitment}, with the size of the content in the
// parameter size. It responds with a content object as it is stored: 16 bytes of salt
// followed by the content, or the ciphertext of both if the content is encrypted. The
// object is that of the caller's tenant or, if the caller is an operator of the mesh with
// the scope cell:audit, of the tenant in the parameter tenant. The response is 404 if the
// object does not exist or was erased, and 503 if it cannot be read now.
func (s *API) Content(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	size, err := strconv.ParseInt(c.QueryParam("size"), 10, 64)
	if err != nil {
		return apierr.BadRequest("size", "want the content's size")
	}
	ref := contract.Content{Commitment: c.Param("commitment"), Size: size, Store: contract.StoreObject}
	if !strings.HasPrefix(ref.Commitment, "sha256:") || !contract.Token(strings.TrimPrefix(ref.Commitment, "sha256:")) {
		return apierr.BadRequest("commitment", "want sha256:<hex>")
	}
	tenant := who.Tenant
	if of := c.QueryParam("tenant"); of != "" && of != tenant {
		if _, err := s.Gate.Caller(c, token.CellAudit); err != nil {
			return err
		}
		if err := s.Gate.OfMesh(who); err != nil {
			return err
		}
		if !contract.Token(of) {
			return apierr.BadRequest("tenant", "want the id of a tenant")
		}
		tenant = of
	}
	object, err := s.Blobs.In(tenant).Object(c.Request().Context(), &ref)
	if err != nil {
		return apierr.Unavailable(err.Error())
	}
	if object == nil {
		return apierr.NotFound("content not found or erased")
	}
	return c.Blob(http.StatusOK, "application/octet-stream", object)
}
