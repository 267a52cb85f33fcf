package ledgerapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API reads the ledger for its readers. Its exported fields are set before its
// first use.
type API struct {
	Tenant    string
	RootKID   string
	Gate      *auth.Gate
	Queries   *queries.Client
	Sessions  *sessions.Resolver
	Conn      *bus.Conn
	Blobs     *blob.Store
	Catalog   View
	Authority View
	Position  func() uint64 // of both views

	verifying atomic.Int32 // packs that are verified now
}

// View is a view of the gateway's own, in canonical form.
type View interface{ Dump() []byte }

// Query selects receipts or sessions.
type Query struct {
	Session string `json:"session,omitempty"`
	Limit   int    `json:"limit"`
	Offset  int    `json:"offset"`

	Witnessed int `json:"witnessed,omitempty"` // cosignatures demanded of a pack's checkpoint

	From     uint64   `json:"from,omitempty"` // size of an earlier checkpoint
	Redact   string   `json:"redact,omitempty"`
	Disclose []string `json:"disclose,omitempty"`
}

// query reads the parameters of a list; its session is the one that who means.
func (s *API) query(c echo.Context, who *auth.Caller) (q Query, err error) {
	q = Query{Limit: 1000}
	if q.Session, err = s.Sessions.QueriedBy(c, who, c.QueryParam("session")); err != nil {
		return q, err
	}
	for _, p := range []struct {
		name string
		v    *int
	}{{"limit", &q.Limit}, {"offset", &q.Offset}} {
		if raw := c.QueryParam(p.name); raw != "" {
			n, err := strconv.Atoi(raw)
			if err != nil || n < 0 || n > 100000 {
				return q, apierr.BadRequest(p.name, "want a number from 0 to 100000")
			}
			*p.v = n
		}
	}
	return q, nil
}

func (s *API) Receipts(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	q, err := s.query(c, who)
	if err != nil {
		return err
	}
	return s.Queries.Lines(c, "audit", "receipts", q)
}

// facets are what search takes beside since, until, before and limit. A facet
// that nobody knows is refused here: audit's index would find nothing by it.
var facets = []string{"actor", "client", "event", "reason", "service", "session", "status", "tool", "verdict"}

// Search finds events by audit's index, newest first.
func (s *API) Search(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	q := struct {
		Terms  map[string]string `json:"terms"`
		Since  string            `json:"since,omitempty"`
		Until  string            `json:"until,omitempty"`
		Before uint64            `json:"before,omitempty"`
		Limit  int               `json:"limit"`
	}{Terms: map[string]string{}, Limit: 50}
	for name, values := range c.QueryParams() {
		v := values[0]
		var err error
		switch {
		case len(values) > 1 || v == "":
			err = errors.New("want one value")
		case name == "owner": // of the session
		case name == "session":
			if q.Terms[name], err = s.Sessions.QueriedBy(c, who, v); err != nil {
				return err
			}
		case slices.Contains(facets, name):
			q.Terms[name] = v
		case name == "since":
			q.Since = v
			_, err = time.Parse(time.RFC3339, v)
		case name == "until":
			q.Until = v
			_, err = time.Parse(time.RFC3339, v)
		case name == "before":
			q.Before, err = strconv.ParseUint(v, 10, 53)
		case name == "limit":
			if q.Limit, err = strconv.Atoi(v); err == nil && (q.Limit < 1 || q.Limit > 1000) {
				err = errors.New("want 1 to 1000")
			}
		default:
			err = errors.New("search knows " + strings.Join(facets, ", ") + ", owner, since, until, before and limit")
		}
		if err != nil {
			return apierr.BadRequest(name, err.Error())
		}
	}
	return s.Queries.Lines(c, "audit", "search", q)
}

func (s *API) ProofGraph(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	q, err := s.query(c, who)
	if err != nil {
		return err
	}
	if q.Session == "" {
		return apierr.BadRequest("session", "name the session: /helm/proofgraph?session=s-…")
	}
	nodes, err := s.Queries.Array(c, "audit", "proofgraph", q)
	if err != nil {
		return err
	}
	digest := sha256.New()
	for _, n := range nodes {
		digest.Write(append(n[:len(n):len(n)], '\n'))
	}
	return c.JSON(http.StatusOK, map[string]any{"session_id": q.Session, "digest": "sha256:" + hex.EncodeToString(digest.Sum(nil)), "nodes": nodes})
}

func (s *API) ListSessions(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	q, err := s.query(c, who)
	if err != nil {
		return err
	}
	return s.Queries.Doc(c, "audit", "sessions", q)
}

func (s *API) SessionReceipts(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	id, err := s.Sessions.QueriedBy(c, who, c.Param("id"))
	if err != nil {
		return err
	}
	list, err := s.Queries.Array(c, "audit", "session_receipts", Query{Session: id, Limit: 1_000_000})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, list)
}

// Evidence streams a session's pack.
func (s *API) Evidence(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	id, err := s.Sessions.QueriedBy(c, who, c.Param("id"))
	if err != nil {
		return err
	}
	q := Query{Session: id}
	if raw := c.QueryParam("witnessed"); raw != "" {
		n, err := strconv.Atoi(raw)
		if err != nil || n < 0 || n > 100 {
			return apierr.BadRequest("witnessed", "want a number of witnesses")
		}
		q.Witnessed = n
	}
	if raw := c.QueryParam("from"); raw != "" {
		n, err := strconv.ParseUint(raw, 10, 53)
		if err != nil || n == 0 {
			return apierr.BadRequest("from", "want the size of an earlier checkpoint")
		}
		q.From = n
	}
	if q.Redact = c.QueryParam("redact"); !slices.Contains([]string{"", "args", "output", "all"}, q.Redact) {
		return apierr.BadRequest("redact", "want args, output or all")
	}
	if raw := c.QueryParam("disclose"); raw != "" {
		if q.Redact == "" {
			return apierr.BadRequest("disclose", "is an exception from redact")
		}
		q.Disclose = strings.Split(raw, ",")
	}
	st, err := s.Queries.AskStream(ctx, "audit", "evidence", q)
	if err != nil {
		return apierr.Unavailable("audit does not answer: " + err.Error())
	}
	defer st.Close()
	f := &queries.Frames{Ctx: ctx, St: st}
	if _, err := f.Peek(); err != nil {
		return queries.Error(err)
	}
	c.Response().Header().Set("Content-Type", "application/x-tar")
	c.Response().WriteHeader(http.StatusOK)
	if _, err := io.Copy(c.Response(), s2.NewReader(f)); err != nil {
		panic(http.ErrAbortHandler) // half a pack must not be taken for a whole one
	}
	return nil
}

func (s *API) Proof(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
		return err
	}
	seq, err := strconv.ParseUint(c.Param("seq"), 10, 64)
	if err != nil || seq == 0 {
		return apierr.BadRequest("seq", "want a ledger sequence from 1")
	}
	return s.Queries.Doc(c, "audit", "proof", map[string]uint64{"seq": seq})
}

// Events lists or follows the ledger as JSON lines {seq, event}, filtered by
// session, type and time.
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
	filter := "evt." + s.Tenant + ".>"
	if session != "" {
		filter = "evt." + s.Tenant + ".*.*.*." + session
	}
	return s.lines(c, filter, c.QueryParam("follow") == "true", func(en eventlog.Entry) []byte {
		e, err := eventlog.Open(en)
		if err != nil || typ != "" && e.Name != typ && e.Type() != typ {
			return nil
		}
		if t, err := contract.ParseTime(e.Time); err == nil && t.Before(after) {
			return nil
		}
		b := append([]byte(`{"event":`), en.Data...)
		return append(strconv.AppendUint(append(b, `,"seq":`...), en.Seq, 10), '}')
	})
}

// Ledger streams stored bytes, one line each, from sequence `from` on.
func (s *API) Ledger(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
		return err
	}
	return s.lines(c, "evt.>", false, func(en eventlog.Entry) []byte { return en.Data })
}

func (s *API) lines(c echo.Context, filter string, forever bool, render func(eventlog.Entry) []byte) error {
	from := uint64(1)
	if raw := c.QueryParam("from"); raw != "" {
		var err error
		if from, err = strconv.ParseUint(raw, 10, 64); err != nil {
			return apierr.BadRequest("from", "want a ledger sequence")
		}
	}
	to := uint64(0)
	if raw := c.QueryParam("to"); raw != "" {
		var err error
		if to, err = strconv.ParseUint(raw, 10, 64); err != nil {
			return apierr.BadRequest("to", "want a ledger sequence")
		}
	}
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	ctx, done := s.Gate.Watch(c.Request().Context(), who, true)
	defer done()
	log := eventlog.JetStream{Conn: s.Conn}
	last, err := s.Conn.LastSeq(ctx, bus.Events)
	if err != nil {
		return apierr.Unavailable("the ledger does not answer: " + err.Error())
	}
	c.Response().Header().Set("Content-Type", "application/x-ndjson")
	c.Response().Header().Set("X-Binnacle-Ledger-Size", strconv.FormatUint(last, 10))
	c.Response().WriteHeader(http.StatusOK)
	c.Response().Flush()
	for {
		for en, err := range log.Scan(ctx, filter, from) {
			if err != nil || ctx.Err() != nil { // the caller's authority may have ended
				panic(http.ErrAbortHandler)
			}
			if to > 0 && en.Seq > to {
				return nil
			}
			from = en.Seq + 1
			if b := render(en); b != nil {
				if _, err := c.Response().Write(append(b[:len(b):len(b)], '\n')); err != nil {
					return nil
				}
			}
		}
		if !forever {
			return nil
		}
		c.Response().Flush()
		select {
		case <-ctx.Done():
			if c.Request().Context().Err() == nil {
				panic(http.ErrAbortHandler) // not the client: its authority ended
			}
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Content returns an object by its commitment: salt and bytes.
func (s *API) Content(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
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
	object, err := s.Blobs.Object(c.Request().Context(), &ref)
	if err != nil {
		return apierr.Unavailable(err.Error())
	}
	if object == nil {
		return apierr.NotFound("no such content, or erased")
	}
	return c.Blob(http.StatusOK, "application/octet-stream", object)
}

// View returns a service's live view in canonical form, with position.
func (s *API) View(c echo.Context) error {
	if _, err := s.Gate.Caller(c, token.Audit); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	if c.Param("service") == "gateway" {
		return c.JSON(http.StatusOK, map[string]any{"name": "gateway.catalog", "position": s.Position(), "dump": string(s.Catalog.Dump()), "root": s.RootKID})
	}
	if c.Param("service") == "gateway-authority" {
		for { // the position and the dump are taken together or not at all
			at, dump := s.Position(), s.Authority.Dump()
			if s.Position() == at {
				return c.JSON(http.StatusOK, map[string]any{"name": "gateway.authority", "position": at, "dump": string(dump)})
			}
		}
	}
	if !contract.Token(c.Param("service")) {
		return apierr.BadRequest("service", "no such service")
	}
	if c.Param("service") == "audit" {
		return s.Queries.Lines(c, "audit", "view", nil)
	}
	if c.Param("service") == "policy-budget" {
		return s.Queries.Doc(c, "policy", "budget_view", nil)
	}
	if c.Param("service") == "policy-starts" {
		return s.Queries.Doc(c, "policy", "starts_view", nil)
	}
	if owner, ok := strings.CutPrefix(c.Param("service"), "keys-"); ok {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var doc json.RawMessage
		if err := s.Queries.Ask(short, owner, run.KeysView, nil, &doc); err != nil {
			return apierr.Unavailable(err.Error())
		}
		return c.JSONBlob(http.StatusOK, doc)
	}
	var doc json.RawMessage
	if err := s.Queries.Ask(ctx, c.Param("service"), "view", nil, &doc); err != nil {
		return apierr.Unavailable(err.Error())
	}
	return c.JSONBlob(http.StatusOK, doc)
}
