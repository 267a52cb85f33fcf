// Package conformance runs the conformance gates against this gateway on request, and
// stores the reports.
package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/gateway/conform"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// API runs the conformance gates against this gateway. Its exported fields are set
// before its first use.
type API struct {
	RootKID string
	Gate    *auth.Gate
	Blobs   *blob.Store
	Emit    *emit.Emitter

	mu      sync.Mutex
	running map[string]bool // tenants for which a run is in progress
}

// maxRuns is the maximum number of runs at one gateway at the same time.
const maxRuns = 4

// begin begins a run for a tenant, which the caller must end with end. It returns false if
// a run for the tenant, or maxRuns runs for others, are in progress.
func (s *API) begin(tenant string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[tenant] || len(s.running) >= maxRuns {
		return false
	}
	if s.running == nil {
		s.running = map[string]bool{}
	}
	s.running[tenant] = true
	return true
}

// end ends the run for a tenant.
func (s *API) end(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, tenant)
}

// ConformanceRequest is the body of POST /api/v1/conformance/run.
type ConformanceRequest struct {
	Level   string          `json:"level,omitempty"`   // L1, L2 or L3; empty = L1
	Profile string          `json:"profile,omitempty"` // synonym of level
	Tool    string          `json:"tool,omitempty"`    // tool that the caller may call; empty = cmd.upper
	Args    json.RawMessage `json:"args,omitempty"`    // arguments of the tool; absent = {}, or {"text":"conform"} if tool is absent too
	Model   string          `json:"model,omitempty"`   // model that the caller may use; empty = demo/echo
}

// ConformanceReport is the result of a run. Its id contains the commitment of its
// content.
type ConformanceReport struct {
	ID      string           `json:"report_id,omitempty"`
	Verdict string           `json:"verdict"` // PASS or FAIL
	Level   string           `json:"level"`
	Gates   []conform.Result `json:"gates"`
	Failed  int              `json:"failed"`
	Details []string         `json:"details"` // a line for each gate that failed
	Actor   string           `json:"actor"`   // principal that requested the run
	Time    string           `json:"time"`
}

// conformanceWithin is the maximum duration of a run.
const conformanceWithin = 2 * time.Minute

// Run handles POST /api/v1/conformance/run. It runs the gates against this gateway with
// the caller's own credential, so the calls of the gates are the caller's calls and are
// recorded like other calls. Gates that read data of all tenants run only if the caller
// is an operator of the mesh with scope cell:audit. The response is 429 during another
// run for the caller's tenant, or maxRuns runs for others, at this gateway, and 503 if the
// run takes longer than conformanceWithin or its report cannot be stored.
func (s *API) Run(c echo.Context) error {
	var req ConformanceRequest
	who, _, err := s.Gate.Into(c, &req)
	if err != nil {
		return err
	}
	t, level, err := req.target()
	if err != nil {
		return err
	}
	t.Root = s.RootKID
	t.Token, _ = auth.Credential(c.Request().Header)
	if s.Gate.OfMesh(who) == nil && slices.Contains(who.Scopes, token.CellAudit) {
		t.Operator = t.Token
	}
	if !s.begin(who.Tenant) {
		return &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeConformanceBusy, RetryAfter: "10", Message: "another conformance run of the tenant, or several of others, are under way at this gateway"}
	}
	defer s.end(who.Tenant)
	l := newPipes()
	srv := &http.Server{Handler: c.Echo(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	t.Endpoint, t.Transport = "http://gateway", &http.Transport{DialContext: l.dial}
	ctx, cancel := context.WithTimeout(c.Request().Context(), conformanceWithin)
	defer cancel()
	rep := ConformanceReport{Verdict: "PASS", Level: level, Gates: []conform.Result{}, Details: []string{}, Actor: who.Actor, Time: s.Emit.Time()}
	if err := conform.Run(ctx, t, level, rep.add); err != nil {
		return apierr.Unavailable("the run did not end: " + err.Error())
	}
	if rep.ID, err = s.storeReport(ctx, who.Tenant, &rep); err != nil {
		return apierr.Unavailable("the report cannot be stored now: " + err.Error())
	}
	return c.JSON(http.StatusOK, rep)
}

// target returns the target and the level of a run, with defaults for omitted members.
// It returns an error if a member is invalid.
func (r *ConformanceRequest) target() (t conform.Target, level string, err error) {
	if r.Level != "" && r.Profile != "" && r.Level != r.Profile {
		return t, "", apierr.BadRequest("/profile", "is another name for level; send one of them")
	}
	at := "/level"
	if r.Level == "" && r.Profile != "" {
		at = "/profile"
	}
	level = cmp.Or(r.Level, r.Profile, "L1")
	if !slices.Contains(conform.Levels, level) {
		return t, "", apierr.BadRequest(at, "want one of "+strings.Join(conform.Levels, ", "))
	}
	t = conform.Target{Tool: "cmd.upper", Args: json.RawMessage(`{"text":"conform"}`), Model: llm.DemoModel}
	if r.Tool != "" {
		t.Tool, t.Args = r.Tool, json.RawMessage("{}")
	}
	if r.Args != nil {
		if t.Args, err = body.CallArgs("/args", r.Args); err != nil {
			return t, "", err
		}
	}
	if r.Model != "" {
		t.Model = r.Model
	}
	return t, level, nil
}

func (r *ConformanceReport) add(g conform.Result) {
	r.Gates = append(r.Gates, g)
	if !g.Pass {
		r.Verdict, r.Failed = "FAIL", r.Failed+1
		r.Details = append(r.Details, g.Level+" "+g.Gate+": "+g.Detail)
	}
}

// reportPrefix is the prefix of the id of a report. The commitment of the content and
// its size follow it, so every gateway can read the report by its id, and no other
// content has that id.
const reportPrefix = contract.IDConform

func (s *API) storeReport(ctx context.Context, tenant string, r *ConformanceReport) (string, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	ref, object := blob.Withheld(b, "application/json")
	ref.Store = contract.StoreObject
	if err := s.Blobs.In(tenant).Put(ctx, &ref, object); err != nil {
		return "", err
	}
	return reportPrefix + strings.TrimPrefix(ref.Commitment, "sha256:") + "-" + strconv.Itoa(len(b)), nil
}

// Report handles GET /api/v1/conformance/reports/:id. It responds with a stored report
// of the caller's tenant, with 400 if id does not have the form of a report id, with 404
// if there is no such report, or with 503 if it cannot be read now.
func (s *API) Report(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	id := c.Param("id")
	digits, size, _ := strings.Cut(strings.TrimPrefix(id, reportPrefix), "-")
	n, err := strconv.ParseInt(size, 10, 32)
	if err != nil || len(digits) != 64 || !strings.HasPrefix(id, reportPrefix) || !contract.Token(digits) {
		return apierr.BadRequest("id", "want the report_id of a run, cr-…")
	}
	b, err := s.Blobs.In(who.Tenant).Open(c.Request().Context(), &contract.Content{Commitment: "sha256:" + digits, MediaType: "application/json", Size: n, Store: contract.StoreObject})
	if errors.Is(err, contract.ErrErased) {
		return apierr.NotFound("no conformance report " + id)
	}
	if err != nil {
		return apierr.Unavailable("the report cannot be read now: " + err.Error())
	}
	var r ConformanceReport
	if err := json.Unmarshal(b, &r); err != nil || r.Verdict == "" {
		return apierr.NotFound("no conformance report " + id)
	}
	r.ID = id
	return c.JSON(http.StatusOK, r)
}

// pipes is a net.Listener that connects a client and a server in the same process.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It must be called only once.
func (p *pipes) Close() error { close(p.done); return nil }

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "in process", Net: "pipe"} }
