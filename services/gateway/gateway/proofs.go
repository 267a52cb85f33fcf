package gateway

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
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Reads are asks: nothing here is an effect, and each needs its scope.

const askTimeout = 60 * time.Second

// askLines streams audit's answer as JSON lines; each frame is an array.
func (s *Service) askLines(c echo.Context, verb string, args any) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
	defer cancel()
	st, err := s.env.AskStream(ctx, "audit", verb, args)
	if err != nil {
		return unavailable("audit does not answer: " + err.Error())
	}
	defer st.Close()
	open := false
	for {
		f, err := st.Next(ctx)
		if errors.Is(err, transient.ErrEnd) {
			if !open {
				c.Response().Header().Set("Content-Type", "application/x-ndjson")
				c.Response().WriteHeader(http.StatusOK)
			}
			return nil
		}
		if err != nil {
			if !open {
				return askError(err)
			}
			// The status line is gone; break the connection so that a half
			// answer is not taken for a whole one.
			panic(http.ErrAbortHandler)
		}
		var items []json.RawMessage
		if err := json.Unmarshal(f.Data, &items); err != nil {
			return err
		}
		if !open {
			open = true
			c.Response().Header().Set("Content-Type", "application/x-ndjson")
			c.Response().WriteHeader(http.StatusOK)
		}
		for _, it := range items {
			if _, err := c.Response().Write(append(it, '\n')); err != nil {
				return nil
			}
		}
	}
}

// askArray collects audit's answer, frames of arrays, into one.
func (s *Service) askArray(c echo.Context, verb string, args any) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
	defer cancel()
	st, err := s.env.AskStream(ctx, "audit", verb, args)
	if err != nil {
		return nil, unavailable("audit does not answer: " + err.Error())
	}
	defer st.Close()
	out := []json.RawMessage{}
	for {
		f, err := st.Next(ctx)
		if errors.Is(err, transient.ErrEnd) {
			return out, nil
		}
		if err != nil {
			return nil, askError(err)
		}
		var part []json.RawMessage
		if err := json.Unmarshal(f.Data, &part); err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
}

func askError(err error) error {
	if strings.HasPrefix(err.Error(), "not found") {
		return notFound(err.Error())
	}
	return unavailable("audit: " + err.Error())
}

func (s *Service) askDoc(c echo.Context, verb string, args any) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
	defer cancel()
	var doc json.RawMessage
	if err := s.env.Ask(ctx, "audit", verb, args, &doc); err != nil {
		return askError(errors.Unwrap(err))
	}
	return c.JSONBlob(http.StatusOK, doc)
}

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
func (s *Service) query(c echo.Context, who *caller) (q Query, err error) {
	q = Query{Limit: 1000}
	if q.Session, err = s.sessionQueried(c, who, c.QueryParam("session")); err != nil {
		return q, err
	}
	for _, p := range []struct {
		name string
		v    *int
	}{{"limit", &q.Limit}, {"offset", &q.Offset}} {
		if raw := c.QueryParam(p.name); raw != "" {
			n, err := strconv.Atoi(raw)
			if err != nil || n < 0 || n > 100000 {
				return q, badRequest(p.name, "want a number from 0 to 100000")
			}
			*p.v = n
		}
	}
	return q, nil
}

func (s *Service) receipts(c echo.Context) error {
	who, err := s.auth(c, token.Audit)
	if err != nil {
		return err
	}
	q, err := s.query(c, who)
	if err != nil {
		return err
	}
	return s.askLines(c, "receipts", q)
}

// facets are what search takes beside since, until, before and limit. A facet
// that nobody knows is refused here: audit's index would find nothing by it.
var facets = []string{"actor", "client", "event", "reason", "service", "session", "status", "tool", "verdict"}

// search finds events by audit's index, newest first.
func (s *Service) search(c echo.Context) error {
	who, err := s.auth(c, token.Audit)
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
			if q.Terms[name], err = s.sessionQueried(c, who, v); err != nil {
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
			return badRequest(name, err.Error())
		}
	}
	return s.askLines(c, "search", q)
}

func (s *Service) proofgraph(c echo.Context) error {
	who, err := s.auth(c, token.Audit)
	if err != nil {
		return err
	}
	q, err := s.query(c, who)
	if err != nil {
		return err
	}
	if q.Session == "" {
		return badRequest("session", "name the session: /helm/proofgraph?session=s-…")
	}
	nodes, err := s.askArray(c, "proofgraph", q)
	if err != nil {
		return err
	}
	digest := sha256.New()
	for _, n := range nodes {
		digest.Write(append(n[:len(n):len(n)], '\n'))
	}
	return c.JSON(http.StatusOK, map[string]any{"session_id": q.Session, "digest": "sha256:" + hex.EncodeToString(digest.Sum(nil)), "nodes": nodes})
}

func (s *Service) sessions(c echo.Context) error {
	who, err := s.auth(c, token.Audit)
	if err != nil {
		return err
	}
	q, err := s.query(c, who)
	if err != nil {
		return err
	}
	return s.askDoc(c, "sessions", q)
}

func (s *Service) sessionReceipts(c echo.Context) error {
	who, err := s.auth(c, token.Audit)
	if err != nil {
		return err
	}
	id, err := s.sessionQueried(c, who, c.Param("id"))
	if err != nil {
		return err
	}
	list, err := s.askArray(c, "session_receipts", Query{Session: id, Limit: 1_000_000})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, list)
}

// evidence streams a session's pack.
func (s *Service) evidence(c echo.Context) error {
	who, err := s.auth(c, token.Audit)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
	defer cancel()
	id, err := s.sessionQueried(c, who, c.Param("id"))
	if err != nil {
		return err
	}
	q := Query{Session: id}
	if raw := c.QueryParam("witnessed"); raw != "" {
		n, err := strconv.Atoi(raw)
		if err != nil || n < 0 || n > 100 {
			return badRequest("witnessed", "want a number of witnesses")
		}
		q.Witnessed = n
	}
	if raw := c.QueryParam("from"); raw != "" {
		n, err := strconv.ParseUint(raw, 10, 53)
		if err != nil || n == 0 {
			return badRequest("from", "want the size of an earlier checkpoint")
		}
		q.From = n
	}
	if q.Redact = c.QueryParam("redact"); !slices.Contains([]string{"", "args", "output", "all"}, q.Redact) {
		return badRequest("redact", "want args, output or all")
	}
	if raw := c.QueryParam("disclose"); raw != "" {
		if q.Redact == "" {
			return badRequest("disclose", "is an exception from redact")
		}
		q.Disclose = strings.Split(raw, ",")
	}
	st, err := s.env.AskStream(ctx, "audit", "evidence", q)
	if err != nil {
		return unavailable("audit does not answer: " + err.Error())
	}
	defer st.Close()
	f := &frames{ctx: ctx, st: st}
	if _, err := f.Peek(); err != nil {
		return askError(err)
	}
	c.Response().Header().Set("Content-Type", "application/x-tar")
	c.Response().WriteHeader(http.StatusOK)
	if _, err := io.Copy(c.Response(), s2.NewReader(f)); err != nil {
		panic(http.ErrAbortHandler) // half a pack must not be taken for a whole one
	}
	return nil
}

// frames reads the bytes of an answer's binary frames.
type frames struct {
	ctx  context.Context
	st   *transient.Stream
	left []byte
}

// Peek waits for the first bytes.
func (f *frames) Peek() ([]byte, error) {
	for len(f.left) == 0 {
		fr, err := f.st.Next(f.ctx)
		if errors.Is(err, transient.ErrEnd) {
			return nil, io.EOF
		}
		if err != nil {
			return nil, err
		}
		f.left = fr.Data
	}
	return f.left, nil
}

// Read implements io.Reader.
func (f *frames) Read(b []byte) (int, error) {
	left, err := f.Peek()
	n := copy(b, left)
	f.left = f.left[n:]
	return n, err
}

func (s *Service) proof(c echo.Context) error {
	if _, err := s.auth(c, token.Audit); err != nil {
		return err
	}
	seq, err := strconv.ParseUint(c.Param("seq"), 10, 64)
	if err != nil || seq == 0 {
		return badRequest("seq", "want a ledger sequence from 1")
	}
	return s.askDoc(c, "proof", map[string]uint64{"seq": seq})
}

// events lists or follows the ledger as JSON lines {seq, event}, filtered by
// session, type and time.
func (s *Service) events(c echo.Context) error {
	who, err := s.auth(c, token.Audit)
	if err != nil {
		return err
	}
	session, typ, since := c.QueryParam("session"), c.QueryParam("type"), c.QueryParam("since")
	if session != "" && !contract.Token(session) {
		return badRequest("session", "not a session id")
	}
	if session, err = s.sessionQueried(c, who, session); err != nil {
		return err
	}
	var after time.Time
	if since != "" {
		if d, err := time.ParseDuration(since); err == nil {
			after = time.Now().Add(-d)
		} else if after, err = time.Parse(time.RFC3339, since); err != nil {
			return badRequest("since", "want a duration like 5m or an RFC 3339 time")
		}
	}
	filter := "evt." + s.env.Tenant + ".>"
	if session != "" {
		filter = "evt." + s.env.Tenant + ".*.*.*." + session
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

// ledger streams stored bytes, one line each, from sequence `from` on.
func (s *Service) ledger(c echo.Context) error {
	if _, err := s.auth(c, token.Audit); err != nil {
		return err
	}
	return s.lines(c, "evt.>", false, func(en eventlog.Entry) []byte { return en.Data })
}

func (s *Service) lines(c echo.Context, filter string, forever bool, render func(eventlog.Entry) []byte) error {
	from := uint64(1)
	if raw := c.QueryParam("from"); raw != "" {
		var err error
		if from, err = strconv.ParseUint(raw, 10, 64); err != nil {
			return badRequest("from", "want a ledger sequence")
		}
	}
	to := uint64(0)
	if raw := c.QueryParam("to"); raw != "" {
		var err error
		if to, err = strconv.ParseUint(raw, 10, 64); err != nil {
			return badRequest("to", "want a ledger sequence")
		}
	}
	who, err := s.auth(c, token.Audit)
	if err != nil {
		return err
	}
	ctx, done := s.authority.watch(c.Request().Context(), who, true)
	defer done()
	log := eventlog.JetStream{Conn: s.env.Conn}
	last, err := s.env.Conn.LastSeq(ctx, bus.Events)
	if err != nil {
		return unavailable("the ledger does not answer: " + err.Error())
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

// content returns an object by its commitment: salt and bytes.
func (s *Service) content(c echo.Context) error {
	if _, err := s.auth(c, token.Audit); err != nil {
		return err
	}
	size, err := strconv.ParseInt(c.QueryParam("size"), 10, 64)
	if err != nil {
		return badRequest("size", "want the content's size")
	}
	ref := contract.Content{Commitment: c.Param("commitment"), Size: size, Store: contract.StoreObject}
	if !strings.HasPrefix(ref.Commitment, "sha256:") || !contract.Token(strings.TrimPrefix(ref.Commitment, "sha256:")) {
		return badRequest("commitment", "want sha256:<hex>")
	}
	object, err := s.env.Blobs.Object(c.Request().Context(), &ref)
	if err != nil {
		return unavailable(err.Error())
	}
	if object == nil {
		return notFound("no such content, or erased")
	}
	return c.Blob(http.StatusOK, "application/octet-stream", object)
}

// viewDump returns a service's live view in canonical form, with position.
func (s *Service) viewDump(c echo.Context) error {
	if _, err := s.auth(c, token.Audit); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), askTimeout)
	defer cancel()
	if c.Param("service") == "gateway" {
		return c.JSON(http.StatusOK, map[string]any{"name": "gateway.catalog", "position": s.view.Position(), "dump": string(s.tools.Dump()), "root": s.env.RootKID})
	}
	if c.Param("service") == "gateway-authority" {
		for { // the position and the dump are taken together or not at all
			at, dump := s.view.Position(), s.authority.dump()
			if s.view.Position() == at {
				return c.JSON(http.StatusOK, map[string]any{"name": "gateway.authority", "position": at, "dump": string(dump)})
			}
		}
	}
	if !contract.Token(c.Param("service")) {
		return badRequest("service", "no such service")
	}
	if c.Param("service") == "audit" {
		return s.askLines(c, "view", nil)
	}
	if c.Param("service") == "policy-budget" {
		return s.askPolicy(c, "budget_view", nil)
	}
	if c.Param("service") == "policy-starts" {
		return s.askPolicy(c, "starts_view", nil)
	}
	if owner, ok := strings.CutPrefix(c.Param("service"), "keys-"); ok {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var doc json.RawMessage
		if err := s.env.Ask(short, owner, run.KeysView, nil, &doc); err != nil {
			return unavailable(err.Error())
		}
		return c.JSONBlob(http.StatusOK, doc)
	}
	var doc json.RawMessage
	if err := s.env.Ask(ctx, c.Param("service"), "view", nil, &doc); err != nil {
		return unavailable(err.Error())
	}
	return c.JSONBlob(http.StatusOK, doc)
}
