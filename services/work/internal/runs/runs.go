// Package runs executes the calls pipeline.run: it runs pipelines, whose steps are calls
// that it proposes on behalf of the caller. Package flow decides on the next actions of a
// run; this package appends the events, proposes the calls and awaits their outcomes. Any
// instance can continue a run that was interrupted, from the events of the run.
package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
)

// Proposer proposes calls; see propose.Proposer.
type Proposer interface {
	Propose(ctx context.Context, r propose.Request) (*propose.Pending, error)
	Join(e *contract.Event, c *contract.Call) *propose.Pending
	Deliver(en eventlog.Entry) error
}

// Runner runs pipelines. Its fields are set before its first use.
type Runner struct {
	Emit     *emit.Emitter
	Blobs    *blob.Store
	Log      *slog.Logger
	Proposer Proposer
	Tools    *catalog.Catalog
	// Board calls a function with the view of the runs, which contains every event that was
	// stored before.
	Board func(ctx context.Context, f func(*flow.Board)) error

	places    *fair.Places // of runs
	schedules *fair.Places
}

// MaxRuns is the maximum number of runs of an instance at a time. A tenant has at most half
// of them, and fewer if other tenants have runs; see fair.Places.
const MaxRuns = 256

// New returns a Runner with places for MaxRuns runs and MaxSchedules schedules.
func New(r Runner) *Runner {
	r.places, r.schedules = &fair.Places{N: MaxRuns}, &fair.Places{N: MaxSchedules}
	return &r
}

// Args are the arguments of a call pipeline.run.
type Args struct {
	Document json.RawMessage `json:"document"` // the pipeline; instead of Pipeline
	Pipeline string          `json:"pipeline"` // name of a built-in pipeline
	Digest   string          `json:"digest"`   // digest of the document; required with Pipeline
	Inputs   json.RawMessage `json:"inputs"`
}

// run is a run in progress.
type run struct {
	*Runner
	w      *execute.Work
	state  *flow.State
	digest string
	key    string
	filter string    // of the aggregate
	from   uint64    // sequence of pipeline_started
	began  time.Time // time of pipeline_started
	last   uint64    // sequence of the newest event of the aggregate
	live   map[string]*live
	ended  chan ended
}

// live is a call that this run waits for.
type live struct {
	pending *propose.Pending // result of Propose or Join
	cancel  context.CancelFunc
	stopped bool
}

// ended is a call that has an outcome, or whose outcome could not be awaited.
type ended struct {
	call    flow.Call
	outcome *propose.Outcome
	err     error
}

// Run executes a call pipeline.run.
func (r *Runner) Run(ctx context.Context, w *execute.Work) execute.Result {
	doc, digest, inputs, refused := r.read(w)
	if refused != nil {
		return *refused
	}
	leave, ok := r.places.Take(w.Event.Tenant)
	if !ok {
		return execute.Fail(contract.CodeUnavailable, "this instance has no place for another run of the tenant: start the run again later")
	}
	defer leave()
	if refused := r.check(doc); refused != nil {
		return *refused
	}
	values := map[string]any{}
	if v, err := pipeline.Decode(inputs); err == nil {
		values, _ = v.(map[string]any)
	}
	key := flow.Key(w.Event.Tenant, w.Event.Actor, digest, inputs)
	x := &run{Runner: r, w: w, state: flow.New(w.Call.ID, doc, values), digest: digest, key: key, filter: bus.AggregateFilter(w.Event.Tenant, services.Work, key),
		live: map[string]*live{}, ended: make(chan ended, 16)}
	other, err := x.begin(ctx)
	if err != nil {
		return x.interrupted(ctx, err)
	}
	if other != "" {
		return output(map[string]any{"coalesced": true, "pipeline": doc.Name, "run": other, "status": "running"})
	}
	if doc.TimeoutS > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, x.began.Add(time.Duration(doc.TimeoutS)*time.Second))
		defer stop()
	}
	return x.drive(ctx)
}

// read returns the document, its digest and the inputs of a call, in canonical form, or the
// result of a call with wrong arguments.
func (r *Runner) read(w *execute.Work) (doc *pipeline.Document, digest string, inputs []byte, refused *execute.Result) {
	var a Args
	fail := func(format string, args ...any) (*pipeline.Document, string, []byte, *execute.Result) {
		res := execute.Fail(contract.CodeInvalidInput, format, args...)
		return nil, "", nil, &res
	}
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return fail("arguments: %v", err)
	}
	raw, refused := source(&a)
	if refused != nil {
		return nil, "", nil, refused
	}
	doc, err := pipeline.Parse(raw)
	if err != nil {
		return fail("/document%v", err)
	}
	if digest, err = pipeline.Digest(raw); err != nil {
		return fail("/document: %v", err)
	}
	if a.Digest != "" && a.Digest != digest {
		res := execute.Fail(contract.CodeConflict, "/digest: the document of pipeline %s has the digest %s", doc.Name, digest)
		return nil, "", nil, &res
	}
	if inputs, err = canonical(a.Inputs); err != nil {
		return fail("/inputs: %v", err)
	}
	v, err := pipeline.Decode(inputs)
	if err != nil {
		return fail("/inputs: %v", err)
	}
	m, ok := v.(map[string]any)
	if !ok {
		return fail("/inputs: want an object")
	}
	if err := doc.CheckInputs(m); err != nil {
		return fail("%v", err)
	}
	return doc, digest, inputs, nil
}

// source returns the document that arguments contain or name, or the result of
// a call with invalid arguments.
func source(a *Args) ([]byte, *execute.Result) {
	fail := func(format string, args ...any) ([]byte, *execute.Result) {
		res := execute.Fail(contract.CodeInvalidInput, format, args...)
		return nil, &res
	}
	switch {
	case (len(a.Document) == 0) == (a.Pipeline == ""):
		return fail("/document: give either document or pipeline")
	case a.Pipeline == "":
		return a.Document, nil
	}
	raw, digest, ok := pipeline.BuiltIn(a.Pipeline)
	switch {
	case !ok:
		res := execute.Fail(contract.CodeNotFound, "/pipeline: there is no built-in pipeline %q: pipeline.list lists them", a.Pipeline)
		return nil, &res
	case a.Digest == "":
		return fail("/digest: is required with pipeline, so that the decision is on the document: that of %s has the digest %s", a.Pipeline, digest)
	}
	return raw, nil
}

// canonical returns inputs in canonical form, or {} if raw is empty or null.
func canonical(raw []byte) ([]byte, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return []byte("{}"), nil
	}
	return canon.Transform(nil, raw)
}

// check returns the result of a call whose document has problems, or nil if it has none.
func (r *Runner) check(doc *pipeline.Document) *execute.Result {
	problems := doc.Validate(r.Known)
	if len(problems) == 0 {
		return nil
	}
	more := ""
	if n := len(problems) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more problems)", n)
	}
	res := execute.Fail(contract.CodeInvalidInput, "/document%v%s", problems[0], more)
	return &res
}

// Known reports whether the mesh has a pack in a version, or in any version if version is
// empty.
func (r *Runner) Known(pack, version string) bool {
	t, _ := r.Tools.Lookup(pipeline.KindOf(pack))
	return t != nil && (version == "" || t.Version == version)
}

// errOther is the error of the decision in begin if another run with the same key began
// meanwhile.
var errOther = errors.New("another run began meanwhile")

// begin records that the run begins, unless that is recorded already, and loads the state
// of the run. If another run of the same pipeline with the same inputs for the same actor
// is in progress, begin records nothing and returns the id of that run.
func (x *run) begin(ctx context.Context) (other string, err error) {
	newest := bus.Filter{Tenant: x.w.Event.Tenant, Service: services.Work, Event: contract.EventPipelineStarted, Key: x.key}.String()
	for {
		en, err := x.Emit.Log.Last(ctx, newest)
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return "", err
		}
		if err == nil {
			own, open, id, err := x.inProgress(ctx, en, newest)
			if err != nil {
				return "", err
			}
			if own {
				x.from = en.Seq // inProgress has set x.began
				return "", x.load(ctx)
			}
			if open {
				return id, nil
			}
		}
		e, err := handle.DoFrom(ctx, x.Emit.Log, x.filter, en.Seq+1, func(since []*contract.Event) (*contract.Event, error) {
			for _, e := range since {
				if e.Name == contract.EventPipelineStarted {
					return nil, errOther
				}
			}
			return x.Emit.New(contract.EventPipelineStarted, x.key, contract.Bytes(x.state.Started(x.digest)), x.w.Event), nil
		})
		if err != nil && !errors.Is(err, errOther) {
			return "", err
		}
		_ = e // the next iteration finds it
	}
}

// inProgress describes the run that began with the entry en: own reports whether it is x,
// open whether it has not ended, and id is its id. If it is x, inProgress sets x.began.
// An entry that is not a valid event began no run, and id is "".
func (x *run) inProgress(ctx context.Context, en eventlog.Entry, filter string) (own, open bool, id string, err error) {
	e, err := eventlog.Open(en, filter)
	if err != nil {
		return false, false, "", nil // it is no valid event, so it began no run
	}
	var d events.PipelineStarted
	if err := contract.Decode(e.Data, &d); err != nil {
		return false, false, "", nil
	}
	if d.CallID == x.w.Call.ID {
		x.began, err = contract.ParseTime(e.Time)
		return true, true, d.CallID, err
	}
	ended, _, err := outcome.Call{Tenant: e.Tenant, Session: e.Session, ID: d.CallID, Executor: services.Work}.Ended(ctx, x.Emit.Log, en.Seq)
	return false, !ended, d.CallID, err
}

// load makes the state of the run from its events.
func (x *run) load(ctx context.Context) error {
	fresh := flow.New(x.w.Call.ID, x.state.Doc, x.state.Inputs)
	for en, err := range x.Emit.Log.Scan(ctx, x.filter, x.from) {
		if err != nil {
			return err
		}
		x.last = en.Seq
		e, err := eventlog.Open(en, x.filter)
		if err != nil {
			continue
		}
		x.Emit.See(e.Lamport)
		if err := fresh.Evolve(en.Seq, e); err != nil {
			return err
		}
	}
	x.state = fresh
	return nil
}

// append records an event of the run and applies it. If another instance has recorded an
// event of the run meanwhile, append loads the state again and returns errReloaded, so
// that the caller decides again.
func (x *run) append(ctx context.Context, name string, doc canon.Document) error {
	e := x.Emit.New(name, x.key, contract.Bytes(doc), x.w.Event)
	b, err := e.Encode()
	if err != nil {
		return err
	}
	seq, err := x.Emit.Log.AppendExpect(ctx, e.Subject(), e.ID, b, x.filter, x.last)
	if errors.Is(err, eventlog.ErrConflict) {
		if err := x.load(ctx); err != nil {
			return err
		}
		return errReloaded
	}
	if err != nil {
		return err
	}
	x.last = seq
	return x.state.Evolve(seq, e)
}

// errReloaded is the error of append after a conflict.
var errReloaded = errors.New("the run was loaded again")

// output returns the result with an output.
func output(v any) execute.Result {
	raw, err := json.Marshal(v)
	if err == nil {
		raw, err = canon.Transform(nil, raw)
	}
	if err != nil {
		return execute.Fail(contract.CodeInvalidOutput, "the output cannot be encoded: %v", err)
	}
	return execute.Result{EffectType: "pipeline", Output: raw}
}
