// Package pipelines serves the REST API of pipelines. A run is a call pipeline.run, which
// the API proposes and cancels as any other call; its steps are read from the service work.
package pipelines

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
)

// API serves the routes of pipelines. Its fields are set before its first use.
type API struct {
	Gate    *auth.Gate
	Calls   *calls.API
	Queries *queries.Services
	Tools   *catalog.Catalog
}

// maxList is the maximum number of runs or schedules in a list.
const maxList = 100

// Template is any JSON value of a document. Its strings may hold references in double
// braces, which a run replaces by values: docs/how-to/pipelines.md describes them.
type Template json.RawMessage

// Arguments are the arguments of a step's call, by the names that its pack defines.
type Arguments map[string]Template

// Inputs are the inputs of a run. Their members are those that the document of the
// pipeline uses in its templates.
type Inputs map[string]json.RawMessage

// RunRequest is the body of POST /api/v1/pipelines/runs. Policy, and not the gateway,
// checks it against the input schema of pipeline.run, so a body that does not match is
// recorded as a denied call.
type RunRequest struct {
	Digest   string             `json:"digest,omitempty"`   // digest of the document; required with pipeline
	Document *pipeline.Document `json:"document,omitempty"` // instead of pipeline
	Inputs   Inputs             `json:"inputs,omitempty"`
	Pipeline string             `json:"pipeline,omitempty"` // name of a built-in pipeline
}

// ValidateResponse is the response of POST /api/v1/pipelines/validate.
type ValidateResponse struct {
	Name     string             `json:"name"`     // empty if the document cannot be decoded
	Problems []pipeline.Problem `json:"problems"` // empty if the document is valid
	Steps    int                `json:"steps"`
	Valid    bool               `json:"valid"`
}

// known returns a function that reports whether a caller's tenant has a pack in a version,
// or in any version if version is empty.
func (s *API) known(tenant string) func(pack, version string) bool {
	versions := map[string]string{}
	for _, t := range packs.Approved(s.Tools.In(tenant)) {
		versions[t.Tool] = t.Version
	}
	return func(pack, version string) bool {
		v, ok := versions[pack]
		return ok && (version == "" || version == v)
	}
}

// List handles GET /api/v1/pipelines. It responds with the built-in pipelines.
func (s *API) List(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, pipeline.Describe(s.known(who.Tenant)))
}

// Validate handles POST /api/v1/pipelines/validate, whose body is the document of a
// pipeline. It checks the document against the packs of the caller's tenant.
func (s *API) Validate(c echo.Context) error {
	who, raw, err := s.Gate.Body(c)
	if err != nil {
		return err
	}
	out := ValidateResponse{Problems: []pipeline.Problem{}}
	doc, err := pipeline.Parse(raw)
	if p := (pipeline.Problem{}); errors.As(err, &p) {
		out.Problems = append(out.Problems, p)
		return c.JSON(http.StatusOK, out)
	}
	if err != nil {
		return err
	}
	out.Name, out.Steps = doc.Name, len(doc.Steps)
	out.Problems = append(out.Problems, doc.Validate(s.known(who.Tenant))...)
	out.Valid = len(out.Problems) == 0
	return c.JSON(http.StatusOK, out)
}

// Run handles POST /api/v1/pipelines/runs. It proposes a call pipeline.run and responds as
// calls.API.Answer does.
func (s *API) Run(c echo.Context) error {
	who, args, err := s.Gate.Body(c)
	if err != nil {
		return err
	}
	return s.Calls.Respond(c, who, "tool."+pipeline.RunPack, pipeline.RunPack, args)
}

// Runs handles GET /api/v1/pipelines/runs. It responds with the newest runs of the caller,
// or of all principals of the tenant if the caller has the scope token.Audit.
func (s *API) Runs(c echo.Context) error {
	who, limit, err := s.listing(c)
	if err != nil {
		return err
	}
	return queries.Send(c, s.Queries.In(who.Tenant), work.PipelineRunsQuery, work.PipelineRunsRequest{Actor: who.Reads(), Limit: limit})
}

// listing returns the caller and the limit of a request for a list.
func (s *API) listing(c echo.Context) (*auth.Caller, int64, error) {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return nil, 0, err
	}
	limit := int64(50)
	if v := c.QueryParam("limit"); v != "" {
		if limit, err = strconv.ParseInt(v, 10, 64); err != nil || limit < 1 || limit > maxList {
			return nil, 0, apierr.BadRequest("limit", "want a number from 1 to "+strconv.Itoa(maxList))
		}
	}
	return who, limit, nil
}

// Show handles GET /api/v1/pipelines/runs/:id. See find.
func (s *API) Show(c echo.Context) error {
	r, err := s.find(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, r)
}

// Graph handles GET /api/v1/pipelines/runs/:id/graph. It responds with the run as a
// flowchart in Mermaid's syntax.
func (s *API) Graph(c echo.Context) error {
	r, err := s.find(c)
	if err != nil {
		return err
	}
	var nodes []pipeline.Node
	for _, t := range r.Steps {
		nodes = append(nodes, pipeline.Node{ID: t.ID, Pack: t.Pack, Needs: t.Needs, Status: t.Status, Calls: t.Attempts, Started: t.Started, Ended: t.Ended})
	}
	return c.String(http.StatusOK, pipeline.Flowchart(nodes))
}

// find returns the run that a request names. A run that has not begun, that ended before it
// began, or that is not one of the newest of the tenant is described by the state of its
// call, without steps. A call that returned the id of another run is described by that
// run. If the caller may not read the run, or there is none, the error is 404.
func (s *API) find(c echo.Context) (work.PipelineRun, error) {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return work.PipelineRun{}, err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	get := func(id string) (work.PipelineRun, error) {
		return queries.Do(ctx, s.Queries.In(who.Tenant), work.PipelineRunQuery, work.PipelineRunRequest{Run: id, Actor: who.Reads()})
	}
	id := c.Param("id")
	r, err := get(id)
	if !missing(err) {
		return r, err
	}
	e, err := s.proposal(ctx, who, id, pipeline.RunPack)
	if err != nil {
		return r, err
	}
	state, last, err := s.Calls.StateOf(ctx, who, id)
	if err != nil {
		return r, err
	}
	var out struct {
		Coalesced bool   `json:"coalesced"`
		Pipeline  string `json:"pipeline"`
		Run       string `json:"run"`
	}
	if state.Status == contract.Succeeded && json.Unmarshal(state.Output, &out) == nil && out.Coalesced && out.Run != id {
		if r, err := get(out.Run); !missing(err) {
			return r, err
		}
	}
	r = work.PipelineRun{Actor: e.Actor, ErrorCode: state.ErrorCode, Pipeline: out.Pipeline, Run: id, Session: e.Session, Status: state.Status, Steps: []work.RunStep{}}
	if state.ReceiptID != "" {
		r.Ended = last.Time
	}
	return r, nil
}

// missing reports whether err is that of a request for something that does not exist.
func missing(err error) bool {
	var e *apierr.Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound
}

// proposal returns the event that proposed a call of a pack. If the caller may not read the
// call, or it is a call of another pack, the error is 404.
func (s *API) proposal(ctx context.Context, who *auth.Caller, id, pack string) (*contract.Event, error) {
	e, err := s.Queries.In(who.Tenant).Event(ctx, audit.ProposalQuery, id)
	if err != nil {
		return nil, err
	}
	what := "run"
	if pack == pipeline.SchedulePack {
		what = "schedule"
	}
	none := apierr.NotFound("no " + what + " " + id)
	if e == nil || e.Actor != cmp.Or(who.Reads(), e.Actor) {
		return nil, none
	}
	var call contract.Call
	if err := contract.Decode(e.Data, &call); err != nil {
		return nil, err
	}
	if call.Kind != "tool."+pack {
		return nil, none
	}
	return e, nil
}

// Cancel handles DELETE /api/v1/pipelines/runs/:id. It cancels the call of a run as
// calls.API.Cancel does. The id of a call that is no run is not found.
func (s *API) Cancel(c echo.Context) error {
	who, err := s.Gate.Caller(c, "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), queries.Timeout)
	defer cancel()
	if _, err := s.proposal(ctx, who, c.Param("id"), pipeline.RunPack); err != nil {
		return err
	}
	return s.Calls.Cancel(c)
}
