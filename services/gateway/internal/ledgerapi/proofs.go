package ledgerapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
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
	Ledger    eventlog.Log
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

// searchQuery is what audit's index is searched for.
type searchQuery struct {
	Terms  map[string]string `json:"terms"`
	Since  string            `json:"since,omitempty"`
	Until  string            `json:"until,omitempty"`
	Before uint64            `json:"before,omitempty"`
	Limit  int               `json:"limit"`
}

// Search is GET /api/v1/search: it finds events by audit's index, newest first.
func (s *API) Search(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	q := searchQuery{Terms: map[string]string{}, Limit: 50}
	for name, values := range c.QueryParams() {
		if len(values) > 1 || values[0] == "" {
			return apierr.BadRequest(name, "want one value")
		}
		if name == "session" {
			if q.Terms[name], err = s.Sessions.QueriedBy(c, who, values[0]); err != nil {
				return err
			}
		} else if err := q.set(name, values[0]); err != nil {
			return apierr.BadRequest(name, err.Error())
		}
	}
	return s.Queries.Lines(c, "audit", "search", q)
}

// set takes one parameter of a request.
func (q *searchQuery) set(name, v string) (err error) {
	switch name {
	case "owner": // of the session
	case "since":
		q.Since = v
		_, err = time.Parse(time.RFC3339, v)
	case "until":
		q.Until = v
		_, err = time.Parse(time.RFC3339, v)
	case "before":
		q.Before, err = strconv.ParseUint(v, 10, 53)
	case "limit":
		if q.Limit, err = strconv.Atoi(v); err == nil && (q.Limit < 1 || q.Limit > 1000) {
			return errors.New("want 1 to 1000")
		}
	default:
		if !slices.Contains(facets, name) {
			return errors.New("search knows " + strings.Join(facets, ", ") + ", owner, since, until, before and limit")
		}
		q.Terms[name] = v
	}
	return err
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
	q, err := packOf(c)
	if err != nil {
		return err
	}
	q.Session = id
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

// packOf reads what a request demands of a pack.
func packOf(c echo.Context) (q Query, err error) {
	if raw := c.QueryParam("witnessed"); raw != "" {
		if q.Witnessed, err = strconv.Atoi(raw); err != nil || q.Witnessed < 0 || q.Witnessed > 100 {
			return q, apierr.BadRequest("witnessed", "want a number of witnesses")
		}
	}
	if raw := c.QueryParam("from"); raw != "" {
		if q.From, err = strconv.ParseUint(raw, 10, 53); err != nil || q.From == 0 {
			return q, apierr.BadRequest("from", "want the size of an earlier checkpoint")
		}
	}
	if q.Redact = c.QueryParam("redact"); !slices.Contains([]string{"", "args", "output", "all"}, q.Redact) {
		return q, apierr.BadRequest("redact", "want args, output or all")
	}
	if raw := c.QueryParam("disclose"); raw != "" {
		if q.Redact == "" {
			return q, apierr.BadRequest("disclose", "is an exception from redact")
		}
		q.Disclose = strings.Split(raw, ",")
	}
	return q, nil
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
