// Package flow decides what a run of a pipeline does next. Its state is folded from the
// events of the run (Evolve) and the outputs of its calls (Put); Decide returns the next
// actions. The package is pure: the shell passes times to it, proposes the calls and
// appends the events.
package flow

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// Statuses of steps and items besides those of calls.
const (
	waiting = ""        // not started, or to be started again
	running = "running" // its call has no outcome yet
	skipped = "skipped"
)

// maxRunning is the maximum number of calls of a run at a time.
const maxRunning = 16

// maxOutputs is the maximum number of bytes of the outputs of a run's calls.
const maxOutputs = 64 << 20

// Names lists the events that a run is folded from.
var Names = []string{contract.EventPipelineStarted, contract.EventPipelineStepStarted, contract.EventPipelineStepEnded, contract.EventPipelineEnded}

// Item is the state of one item of a step, that is, of its newest attempt. A step without
// map has one item. Each attempt is a call of its own.
type Item struct {
	Attempt   int // number of the newest attempt, from 1; 0 before the first
	CallID    string
	Status    string
	ErrorCode string
	Outcome   uint64    // ledger sequence of the outcome
	Again     time.Time // earliest time of the next attempt, if Status is waiting; zero before the first attempt
	StartedAt uint64    // ledger sequence of the event that started the attempt
	output    any
	has       bool // whether Put was called and did not return ErrTooLarge; output is nil if the call has no output
}

// step is the state of a step.
type step struct {
	status string // set if the step ended by an event without an item, for example because its condition was false; otherwise the items determine it (see Status)
	code   string
	err    string
	items  []*Item
	list   []any // items of a map
	ready  bool  // items were made
}

// State is the state of a run. It is not safe for concurrent use.
type State struct {
	Run    string // id of the call that started the run
	Doc    *pipeline.Document
	Inputs map[string]any
	Ended  *events.PipelineEnded // nil while the run goes on

	steps []step
	size  int // bytes of outputs
}

// New returns the state of a run before its first event.
func New(run string, doc *pipeline.Document, inputs map[string]any) *State {
	return &State{Run: run, Doc: doc, Inputs: inputs, steps: make([]step, len(doc.Steps))}
}

// CallID returns the id of the call of a step. It is the same however often the call is
// proposed.
func CallID(run, step string, item, attempt int) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{"binnacle pipeline step", run, step, strconv.Itoa(item), strconv.Itoa(attempt)}, "\n")))
	return contract.IDCall + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])[:26]
}

// Key returns the aggregate key of the runs of a document by an actor with inputs.
func Key(tenant, actor, digest string, inputs []byte) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{"binnacle pipeline flight", tenant, actor, digest, string(inputs)}, "\n")))
	return contract.IDPipeline + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])[:26]
}

// Started returns the event data with which a run begins.
func (s *State) Started(digest string) *events.PipelineStarted {
	d := &events.PipelineStarted{CallID: s.Run, Digest: digest, Name: s.Doc.Name, Steps: []events.PipelineStep{}}
	for i := range s.Doc.Steps {
		st := events.PipelineStep{ID: s.Doc.Steps[i].ID, Needs: s.Doc.NeedsOf(i), Pack: s.Doc.Steps[i].PackOf()}
		if st.Needs == nil {
			st.Needs = []string{}
		}
		if s.Doc.Steps[i].Map != "" {
			st.Mapped = 1
		}
		d.Steps = append(d.Steps, st)
	}
	return d
}

// item returns the state of an item, which it makes if necessary, or nil if the document
// has no such step or n is out of range.
func (s *State) item(id string, n int64) *Item {
	i := s.Doc.Index(id)
	if i < 0 || n < 0 || n >= pipeline.MaxItems {
		return nil
	}
	st := &s.steps[i]
	for int64(len(st.items)) <= n {
		st.items = append(st.items, &Item{})
	}
	return st.items[n]
}

// Evolve applies an event with its ledger sequence. Events of other runs have no effect.
func (s *State) Evolve(seq uint64, e *contract.Event) error {
	switch e.Name {
	case contract.EventPipelineStepStarted:
		var d events.PipelineStepStarted
		if err := contract.Decode(e.Data, &d); err != nil || d.Run != s.Run {
			return err
		}
		if it := s.item(d.Step, d.Item); it != nil {
			*it = Item{Attempt: int(d.Attempt), CallID: d.CallID, Status: running, StartedAt: seq}
		}
	case contract.EventPipelineStepEnded:
		var d events.PipelineStepEnded
		if err := contract.Decode(e.Data, &d); err != nil || d.Run != s.Run {
			return err
		}
		return s.stepEnded(e, &d)
	case contract.EventPipelineEnded:
		var d events.PipelineEnded
		if err := contract.Decode(e.Data, &d); err != nil || d.Run != s.Run {
			return err
		}
		s.Ended = &d
	}
	return nil
}

// stepEnded applies pipeline_step_ended. The event has no effect if its step or
// item is unknown, or if its call is not the newest one of the item.
func (s *State) stepEnded(e *contract.Event, d *events.PipelineStepEnded) error {
	i := s.Doc.Index(d.Step)
	if i < 0 {
		return nil
	}
	if d.Item < 0 {
		s.steps[i].status, s.steps[i].code, s.steps[i].err = d.Status, d.ErrorCode, d.Error
		return nil
	}
	it := s.item(d.Step, d.Item)
	if it == nil || it.CallID != d.CallID {
		return nil
	}
	it.Status, it.ErrorCode, it.Outcome = d.Status, d.ErrorCode, uint64(d.Outcome)
	if d.RetryMS > 0 {
		at, err := contract.ParseTime(e.Time)
		if err != nil {
			return err
		}
		it.Status, it.Again = waiting, at.Add(time.Duration(d.RetryMS)*time.Millisecond)
	}
	return nil
}

// Call is a call of a step that has started.
type Call struct {
	Step    string
	Item    int
	Attempt int
	CallID  string
	Kind    string
	Since   uint64 // ledger sequence of the event that started it
	Outcome uint64 // ledger sequence of its outcome; 0 while it runs
}

// calls returns the calls of the items for which is(item) is true, in the order of
// the document.
func (s *State) calls(is func(*Item) bool) []Call {
	var out []Call
	for i := range s.steps {
		for n, it := range s.steps[i].items {
			if is(it) {
				out = append(out, Call{Step: s.Doc.Steps[i].ID, Item: n, Attempt: it.Attempt, CallID: it.CallID, Kind: KindOf(&s.Doc.Steps[i]), Since: it.StartedAt, Outcome: it.Outcome})
			}
		}
	}
	return out
}

// Running returns the calls that have no outcome yet.
func (s *State) Running() []Call { return s.calls(func(it *Item) bool { return it.Status == running }) }

// Lacking returns the calls that succeeded and for which Put was not called.
func (s *State) Lacking() []Call {
	return s.calls(func(it *Item) bool { return it.Status == contract.Succeeded && !it.has })
}

// ErrTooLarge is the error of Put for outputs that exceed the limit of a run.
var ErrTooLarge = fmt.Errorf("the outputs of the run exceed %d MiB", maxOutputs>>20)

// Put stores the output of a call that succeeded; raw is nil if it has none. A second
// output of a call is ignored. The error is ErrTooLarge if the outputs of the run exceed
// the limit, or another one if raw is not valid JSON.
func (s *State) Put(c Call, raw []byte) error {
	it := s.item(c.Step, int64(c.Item))
	if it == nil || it.has {
		return nil
	}
	if s.size += len(raw); s.size > maxOutputs {
		return ErrTooLarge
	}
	it.has = true
	if raw == nil {
		return nil
	}
	var err error
	it.output, err = pipeline.Decode(raw)
	return err
}

// KindOf returns the kind of a step's calls.
func KindOf(s *pipeline.Step) string { return pipeline.KindOf(s.PackOf()) }

// Start is an action: to start a call.
type Start struct {
	Step    *pipeline.Step
	Item    int
	Attempt int
	Args    []byte // canonical JSON
}

// Actions are the next actions of a run.
type Actions struct {
	Starts []Start
	Ends   []*events.PipelineStepEnded // ends of steps that are not outcomes of calls
	Stop   bool                        // the calls that run are to be cancelled
	End    *events.PipelineEnded       // the run ends
	Wake   time.Time                   // when to decide again; zero if only an event changes something

	size int // bytes of the arguments in Starts
}

// Decide returns the next actions of the run at the time now. Put must have been called for all
// calls that succeeded. After the actions were recorded and applied, Decide is to be called
// again.
func (s *State) Decide(now time.Time) Actions {
	if s.Ended != nil {
		return Actions{}
	}
	if i := s.failedStep(); i >= 0 {
		if len(s.Running()) > 0 {
			return Actions{Stop: true}
		}
		return Actions{End: s.failure(i)}
	}
	var a Actions
	room, open := maxRunning-len(s.Running()), false
	for i := range s.steps {
		if s.Status(i) != "" {
			continue
		}
		if !s.mayStart(i) {
			open = true
			continue
		}
		if end := s.prepare(i); end != nil {
			open = true
			a.Ends = append(a.Ends, end)
			continue
		}
		if s.Status(i) == "" { // the number of a map's items is known now, and all may have ended
			open = true
			s.starts(i, now, &room, &a)
		}
	}
	if !open && room == maxRunning {
		a.End = &events.PipelineEnded{Run: s.Run, Status: contract.Succeeded}
	}
	return a
}

// failedStep returns the index of the first step that is not optional and that
// failed or has an item that failed, or -1.
func (s *State) failedStep() int {
	for i := range s.steps {
		if st := s.Status(i); st != "" && st != contract.Succeeded && st != skipped && !s.Doc.Steps[i].Optional {
			return i
		}
		if s.Doc.Steps[i].Optional {
			continue
		}
		for _, it := range s.steps[i].items { // an item failed, and others run
			if it.Status != waiting && it.Status != running && it.Status != contract.Succeeded {
				return i
			}
		}
	}
	return -1
}

// failure returns the end of a run whose i-th step failed.
func (s *State) failure(i int) *events.PipelineEnded {
	st := &s.steps[i]
	e := &events.PipelineEnded{Run: s.Run, Status: contract.Failed, Step: s.Doc.Steps[i].ID, ErrorCode: st.code, Error: st.err}
	for _, it := range st.items {
		if it.Status != waiting && it.Status != contract.Succeeded && it.Status != running {
			e.ErrorCode, e.Error = it.ErrorCode, "step "+e.Step+" ended: "+it.Status+" (call "+it.CallID+")"
			break
		}
	}
	return e
}

// Status returns the status of the i-th step, or "" if it has not ended.
func (s *State) Status(i int) string {
	st := &s.steps[i]
	if st.status != "" {
		return st.status
	}
	if len(st.items) == 0 || s.Doc.Steps[i].Map != "" && (!st.ready || len(st.items) != len(st.list)) {
		return ""
	}
	status := contract.Succeeded
	for _, it := range st.items {
		switch it.Status {
		case waiting, running:
			return ""
		case contract.Succeeded:
		default:
			status = it.Status
		}
	}
	return status
}

// mayStart reports whether the steps that the i-th step needs have ended.
func (s *State) mayStart(i int) bool {
	for _, id := range s.Doc.NeedsOf(i) {
		if s.Status(s.Doc.Index(id)) == "" {
			return false
		}
	}
	return true
}

// Scope returns the values for templates.
func (s *State) Scope() *pipeline.Scope {
	sc := &pipeline.Scope{Inputs: s.Inputs, Steps: map[string]pipeline.Ended{}}
	for i := range s.steps {
		status := s.Status(i)
		if status == "" {
			continue
		}
		e := pipeline.Ended{Status: status}
		if status == contract.Succeeded || s.Doc.Steps[i].Map != "" {
			e.Output = s.output(i)
		}
		sc.Steps[s.Doc.Steps[i].ID] = e
	}
	return sc
}

// output returns the output of the i-th step: that of its call, nil if it has no
// call or the call has no output, or for a map a list of the outputs of its calls.
func (s *State) output(i int) any {
	st := &s.steps[i]
	if s.Doc.Steps[i].Map == "" {
		if len(st.items) == 0 {
			return nil
		}
		return st.items[0].output
	}
	out := make([]any, len(st.items))
	for n, it := range st.items {
		out[n] = it.output
	}
	return out
}

// prepare makes the items of the i-th step, whose needs have ended. It returns the end of
// the step if the step makes no call, or else nil.
func (s *State) prepare(i int) *events.PipelineStepEnded {
	st, doc := &s.steps[i], &s.Doc.Steps[i]
	if st.ready {
		return nil
	}
	sc := s.Scope()
	if doc.If != nil {
		ok, err := doc.If.Holds(sc)
		if err != nil {
			return s.without(i, contract.Failed, contract.CodeInvalidInput, "if: "+err.Error())
		}
		if !ok {
			return s.without(i, skipped, "", "")
		}
	}
	n := 1
	if doc.Map != "" {
		list, err := s.list(doc, sc)
		if err != nil {
			return s.without(i, contract.Failed, contract.CodeInvalidInput, "map: "+err.Error())
		}
		if len(list) == 0 {
			return s.without(i, contract.Succeeded, "", "")
		}
		st.list, n = list, len(list)
	}
	s.item(doc.ID, int64(n-1))
	st.ready = true
	return nil
}

// list returns the items of a map: the elements of a list with at most
// pipeline.MaxItems elements, or none for null. Any other value is an error.
func (s *State) list(doc *pipeline.Step, sc *pipeline.Scope) ([]any, error) {
	raw, err := json.Marshal(doc.Map)
	if err != nil {
		return nil, err
	}
	v, err := pipeline.Expand(raw, sc)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("the value is no list")
	}
	if len(list) > pipeline.MaxItems {
		return nil, fmt.Errorf("the list has %d items; at most %d are permitted", len(list), pipeline.MaxItems)
	}
	return list, nil
}

// without returns the event data for the end of a step that is not the outcome
// of a call.
func (s *State) without(i int, status, code, message string) *events.PipelineStepEnded {
	return &events.PipelineStepEnded{Run: s.Run, Step: s.Doc.Steps[i].ID, Item: -1, Status: status, ErrorCode: code, Error: message}
}

// starts adds the calls of the i-th step that may start now to a, and decrements room for each.
// If a retry has to wait, a.Wake is no later than the end of that delay. If the arguments of a
// call cannot be made, starts adds the end of the step instead.
func (s *State) starts(i int, now time.Time, room *int, a *Actions) {
	st, doc := &s.steps[i], &s.Doc.Steps[i]
	width := 1
	if doc.Map != "" {
		width = doc.Width()
	}
	for _, it := range st.items {
		if it.Status == running {
			width--
		}
	}
	for n, it := range st.items {
		if it.Status != waiting {
			continue
		}
		if now.Before(it.Again) {
			if a.Wake.IsZero() || it.Again.Before(a.Wake) {
				a.Wake = it.Again
			}
			continue
		}
		if width <= 0 || *room <= 0 || a.size >= pipeline.MaxExpanded {
			return // the next Decide continues
		}
		args, err := s.args(i, n)
		if err != nil {
			a.Ends = append(a.Ends, s.without(i, contract.Failed, contract.CodeInvalidInput, "input: "+err.Error()))
			return
		}
		width--
		*room--
		a.size += len(args)
		a.Starts = append(a.Starts, Start{Step: doc, Item: n, Attempt: it.Attempt + 1, Args: args})
	}
}

// Args returns the arguments of a call that has started.
func (s *State) Args(c Call) ([]byte, error) {
	i := s.Doc.Index(c.Step)
	if i < 0 {
		return nil, fmt.Errorf("the document has no step %q", c.Step)
	}
	for k := range i + 1 { // Decide prepares no step of a run that was loaded again after one of its steps had failed
		if s.Status(k) == "" && s.mayStart(k) {
			s.prepare(k)
		}
	}
	if s.Doc.Steps[i].Map != "" && c.Item >= len(s.steps[i].list) {
		return nil, errors.New("the list of the map has changed")
	}
	return s.args(i, c.Item)
}

// args returns the arguments of the call for the n-th item of the i-th step.
func (s *State) args(i, n int) ([]byte, error) {
	doc, sc := &s.Doc.Steps[i], s.Scope()
	if doc.Map != "" {
		sc.Item, sc.Index = s.steps[i].list[n], n
	}
	template := []byte(doc.Input)
	if doc.Approval != "" {
		var err error
		if template, err = json.Marshal(map[string]string{"reason": doc.Approval, "step": doc.ID}); err != nil {
			return nil, err
		}
	}
	if len(template) == 0 {
		return []byte("{}"), nil
	}
	v, err := pipeline.Expand(template, sc)
	if err != nil {
		return nil, err
	}
	return encode(v)
}

// encode returns the canonical JSON of a value. The error is pipeline.ErrExpanded if it has
// more than pipeline.MaxExpanded bytes. This is possible after Expand has succeeded, since
// escaped control characters need more bytes.
func encode(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out, err := canon.Transform(nil, raw)
	if err == nil && len(out) > pipeline.MaxExpanded {
		return nil, pipeline.ErrExpanded
	}
	return out, err
}

// Judge returns the event data for the outcome of a call. outcome is its ledger
// sequence. RetryMS is set if the step makes another attempt.
func (s *State) Judge(c Call, status, code string, outcome uint64) *events.PipelineStepEnded {
	e := &events.PipelineStepEnded{Run: s.Run, Step: c.Step, Item: int64(c.Item), Attempt: int64(c.Attempt), CallID: c.CallID, Status: status, ErrorCode: code, Outcome: int64(outcome)}
	if i := s.Doc.Index(c.Step); i >= 0 && status != contract.Succeeded && s.failedStep() < 0 {
		if delay, again := s.Doc.Steps[i].MayRetry(code, c.Attempt, func(code string) bool { return contract.Codes[code].Retryable }); again {
			e.RetryMS = int64(delay)
		}
	}
	return e
}

// Output returns the output of a run that succeeded.
func (s *State) Output() (any, error) {
	for i := range s.steps { // prepare has not made the items of maps if the state was loaded after the end of the run
		if st := &s.steps[i]; s.Doc.Steps[i].Map != "" && s.Status(i) == "" {
			list, err := s.list(&s.Doc.Steps[i], s.Scope())
			if err != nil {
				return nil, err
			}
			st.list, st.ready = list, true
		}
	}
	if len(s.Doc.Output) > 0 {
		return pipeline.Expand(s.Doc.Output, s.Scope())
	}
	return s.output(len(s.steps) - 1), nil
}
