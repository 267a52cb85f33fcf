package ledgerapi

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API serves reads of the ledger. Its exported fields are set before its first use.
type API struct {
	RootKID   string
	Gate      *auth.Gate
	Queries   *queries.Services
	Sessions  *sessions.Resolver
	Ledger    eventlog.Log
	Blobs     *blob.Store
	Catalog   View
	Authority View
	Position  func() uint64 // returns the sequence of the last ledger entry that both Catalog and Authority have applied
	Verifiers *fair.Gate    // has MaxVerifying places
	Streams   *fair.Places  // has MaxStreams places
	Packs     *fair.Places  // has MaxPacks places
}

// View is one of the gateway's own views; Dump returns it in canonical form.
type View interface{ Dump() []byte }

// page holds the parameters of a request for a part of a list.
type page struct {
	queries       *queries.Client // of the caller's tenant
	session       string
	limit, offset int64
}

// sessionOf returns the client for queries of the caller's tenant, and the id of the
// session that a request names by its id or by a name. The name is the one that the
// principal in the query parameter owner gave the session or, without that parameter,
// the caller of the request. The caller must have scope audit:read.
func (s *API) sessionOf(c echo.Context, session string) (*queries.Client, string, error) {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return nil, "", err
	}
	id, err := s.Sessions.QueriedBy(c, who, session)
	return s.Queries.In(who.Tenant), id, err
}

// pageOf reads the parameters that select a part of a list: session, limit (default
// 1000) and offset. A limit or offset outside 0 to 100000 is an error (400). The caller
// must have scope audit:read.
func (s *API) pageOf(c echo.Context) (p page, err error) {
	p = page{limit: 1000}
	if p.queries, p.session, err = s.sessionOf(c, c.QueryParam("session")); err != nil {
		return p, err
	}
	for _, x := range []struct {
		name string
		v    *int64
	}{{"limit", &p.limit}, {"offset", &p.offset}} {
		if raw := c.QueryParam(x.name); raw != "" {
			n, err := strconv.ParseInt(raw, 10, 64)
			if err != nil || n < 0 || n > 100000 {
				return p, apierr.BadRequest(x.name, "want a number from 0 to 100000")
			}
			*x.v = n
		}
	}
	return p, nil
}

// Receipts handles GET /helm/receipts. It responds with the receipts that the parameters
// select, in ledger order, as JSON lines.
func (s *API) Receipts(c echo.Context) error {
	q, err := s.pageOf(c)
	if err != nil {
		return err
	}
	return s.admitted(c, s.Streams, false, func() error {
		return queries.Lines(c, q.queries, audit.ReceiptsQuery, audit.ReceiptsRequest{Session: q.session, Limit: q.limit, Offset: q.offset})
	})
}

// facets lists the facets that search accepts in addition to owner, since, until, before
// and limit. Other names are rejected here, because audit's error for an unknown facet
// does not name the parameter.
var facets = []string{"actor", "client", "event", "reason", "service", "session", "status", "tool", "verdict"}

// Search handles GET /api/v1/search. It responds with the matching events in audit's
// index, newest first, up to the parameter limit (default 50).
func (s *API) Search(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	q := audit.SearchRequest{Terms: map[string]string{}, Limit: 50}
	for name, values := range c.QueryParams() {
		if len(values) > 1 || values[0] == "" {
			return apierr.BadRequest(name, "want one value")
		}
		if name == "session" {
			if q.Terms[name], err = s.Sessions.QueriedBy(c, who, values[0]); err != nil {
				return err
			}
		} else if err := setTerm(&q, name, values[0]); err != nil {
			return apierr.BadRequest(name, err.Error())
		}
	}
	return queries.Lines(c, s.Queries.In(who.Tenant), audit.SearchQuery, q)
}

// setTerm sets the parameter name of a search query to v. It returns an error if the name is
// unknown or v is invalid.
func setTerm(q *audit.SearchRequest, name, v string) (err error) {
	switch name {
	case "owner": // used by QueriedBy
	case "since":
		q.Since = v
		_, err = time.Parse(time.RFC3339, v)
	case "until":
		q.Until = v
		_, err = time.Parse(time.RFC3339, v)
	case "before":
		q.Before, err = strconv.ParseUint(v, 10, 53)
	case "limit":
		if q.Limit, err = strconv.ParseInt(v, 10, 64); err == nil && (q.Limit < 1 || q.Limit > 1000) {
			return errors.New("want 1 to 1000")
		}
	default:
		if !slices.Contains(facets, name) {
			return errors.New("the facets are " + strings.Join(facets, ", ") + ", owner, since, until, before and limit")
		}
		q.Terms[name] = v
	}
	return err
}

// ProofGraph handles GET /helm/proofgraph. It responds with the nodes of a session's
// proof graph, and their digest.
func (s *API) ProofGraph(c echo.Context) error {
	q, err := s.pageOf(c)
	if err != nil {
		return err
	}
	if q.session == "" {
		return apierr.BadRequest("session", "name the session: /helm/proofgraph?session=s-…")
	}
	return s.admitted(c, s.Packs, false, func() error {
		nodes, err := queries.Collect(c, q.queries, audit.ProofgraphQuery, audit.ProofgraphRequest{Session: q.session})
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, Graph{SessionID: q.session, Digest: proofgraph.Digest(nodes), Nodes: nodes})
	})
}

// Graph is a session's proof graph.
type Graph struct {
	SessionID string            `json:"session_id"`
	Digest    string            `json:"digest"` // "sha256:" and, in hex, the SHA-256 of the nodes in canonical form, each followed by a newline
	Nodes     []proofgraph.Node `json:"nodes"`
}

// ListSessions handles GET /api/v1/proofgraph/sessions. It responds with the sessions
// that limit and offset select, at most 1000.
func (s *API) ListSessions(c echo.Context) error {
	q, err := s.pageOf(c)
	if err != nil {
		return err
	}
	return queries.Send(c, q.queries, audit.SessionsQuery, audit.SessionsRequest{Limit: q.limit, Offset: q.offset})
}

// SessionReceipts handles GET /api/v1/proofgraph/sessions/:id/receipts. It responds with
// one session's receipts, at most 1,000,000, in the order of the session's chain.
func (s *API) SessionReceipts(c echo.Context) error {
	own, id, err := s.sessionOf(c, c.Param("id"))
	if err != nil {
		return err
	}
	return s.admitted(c, s.Packs, false, func() error {
		list, err := queries.Collect(c, own, audit.SessionReceiptsQuery, audit.SessionReceiptsRequest{Session: id, Limit: 1_000_000})
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, list)
	})
}

// Evidence handles GET /api/v1/sessions/:id/evidence. It streams a session's evidence
// pack. If, after the response has begun, the pack cannot be read to its end or the
// caller's access ends (see auth.Gate.WatchReads), the connection is aborted, so that the
// pack is not mistaken for a complete one.
func (s *API) Evidence(c echo.Context) error {
	own, id, err := s.sessionOf(c, c.Param("id"))
	if err != nil {
		return err
	}
	q, err := packOf(c)
	if err != nil {
		return err
	}
	q.Session = id
	return s.admitted(c, s.Packs, false, func() error { return sendPack(c, own, q) })
}

// sendPack responds with the evidence pack that a query returns.
func sendPack(c echo.Context, own *queries.Client, q audit.EvidenceRequest) error {
	pack, err := rpc.Bytes(c.Request().Context(), own.Client, audit.EvidenceQuery, q)
	if err != nil {
		return queries.Error(audit.EvidenceQuery.Service, err)
	}
	defer pack.Close()
	c.Response().Header().Set("Content-Type", "application/x-tar")
	c.Response().WriteHeader(http.StatusOK)
	if _, err := io.Copy(c.Response(), s2.NewReader(pack)); err != nil {
		panic(http.ErrAbortHandler) // an incomplete pack must not be mistaken for a complete one
	}
	return nil
}

// packOf returns the query for an evidence pack with the options in a request's
// parameters.
func packOf(c echo.Context) (q audit.EvidenceRequest, err error) {
	if raw := c.QueryParam("witnessed"); raw != "" {
		if q.Witnessed, err = strconv.ParseInt(raw, 10, 64); err != nil || q.Witnessed < 0 || q.Witnessed > 100 {
			return q, apierr.BadRequest("witnessed", "want a number of witnesses from 0 to 100")
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
			return q, apierr.BadRequest("disclose", "requires the parameter redact")
		}
		q.Disclose = strings.Split(raw, ",")
	}
	return q, nil
}

// Proof handles GET /api/v1/ledger/:seq/proof. It responds with the leaf hash and the
// inclusion proof of the ledger entry with the sequence seq, and with the checkpoint
// that the proof leads to.
func (s *API) Proof(c echo.Context) error {
	who, err := s.Gate.Caller(c, token.Audit)
	if err != nil {
		return err
	}
	seq, err := strconv.ParseUint(c.Param("seq"), 10, 64)
	if err != nil || seq == 0 {
		return apierr.BadRequest("seq", "want a ledger sequence from 1")
	}
	return queries.Send(c, s.Queries.In(who.Tenant), audit.ProofQuery, audit.ProofRequest{Seq: seq})
}
