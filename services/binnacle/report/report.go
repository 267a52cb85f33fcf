// Package report summarizes what agents did in a period, from the events of the ledger: the
// calls that were denied and those that people had to approve first, then those that
// failed, the actions that no policy decided, and the rest. It reads each event once and
// holds a bounded number of lines and groups, however long the ledger is.
//
// A report is not evidence: each of its lines links to the receipt, the call or the events on the
// ledger.
package report

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/gateway"
)

// Bounds of what a Builder holds. If events of at least maxCalls other calls come between two
// events of a call, the call loses what the earlier events state: repository, principal, approvers,
// and that it was escalated. Of the calls that wait for approval, at most maxCalls are listed. If
// maxCalls undecided actions have not ended, a further one is listed at its beginning and again at
// its end. Groups beyond maxGroups are counted in one group for each class.
const (
	maxCalls  = 50_000
	maxGroups = 5_000
)

// MaxLines is the maximum number of lines in a section.
const MaxLines = 100_000

// Lookback is the time before the period of a report for which events are read, too, so that calls
// that were proposed before the period have their repositories.
const Lookback = time.Hour

// Class is the class of a line, by which the sections of a report are ordered.
type Class string

// The classes, in the order of the sections.
const (
	Denied    Class = contract.Denied         // policy denied the call
	Escalated Class = contract.EventEscalated // people had to approve the call, and it was not denied
	Failed    Class = contract.Failed         // the call was allowed without people, and did not succeed
	Undecided Class = "undecided"             // no policy decided the action, because the mesh was away
	Succeeded Class = contract.Succeeded
)

// Classes lists the classes in the order of the sections.
var Classes = []Class{Denied, Escalated, Failed, Undecided, Succeeded}

// Line is one call or one undecided action.
type Line struct {
	Time       string   `json:"time"`
	Person     string   `json:"person"`               // actor, or the principal on whose behalf the actor acted
	Actor      string   `json:"actor"`                // principal that made the call
	Repository string   `json:"repository,omitempty"` // workspace of a coding agent; empty if the ledger does not have it in the clear
	Tool       string   `json:"tool"`
	Verdict    string   `json:"verdict"` // ALLOW, DENY or ESCALATE; empty if there is no decision
	Reason     string   `json:"reason,omitempty"`
	Status     string   `json:"status"`
	Approvers  []string `json:"approvers,omitempty"` // principals who voted
	USDMicros  int64    `json:"usd_micros,omitempty"`
	Call       string   `json:"call,omitempty"`
	Session    string   `json:"session"`
	Receipt    string   `json:"receipt,omitempty"` // id
	Link       string   `json:"link,omitempty"`    // URL of the receipt, of a call that waits for approval, or of the events of an undecided action
}

// Group counts the lines with the same person, repository, tool and class.
type Group struct {
	Class      Class  `json:"class"`
	Person     string `json:"person"`
	Repository string `json:"repository,omitempty"`
	Tool       string `json:"tool"`
	Count      int    `json:"count"`
	USDMicros  int64  `json:"usd_micros"`
	Link       string `json:"link"` // of the newest line
}

// Section lists the newest lines of a class, in the order of the ledger. The calls that still wait
// for approval, or the undecided actions that have not ended, come last, by time.
type Section struct {
	Class   Class  `json:"class"`
	Count   int    `json:"count"`
	Omitted int    `json:"omitted"` // older lines that are not in Lines
	Lines   []Line `json:"lines"`
}

// Report is a finished report. Its slices are not nil.
type Report struct {
	Mesh      string    `json:"mesh"` // address that was read
	From      string    `json:"from"`
	Until     string    `json:"until"`
	First     uint64    `json:"first_seq"` // ledger sequences of the first and the last event in the period; 0 without events
	Last      uint64    `json:"last_seq"`
	Events    int       `json:"events"`
	Rejected  int       `json:"rejected"` // events that are malformed, or that their service must not record; they are not in the report
	USDMicros int64     `json:"usd_micros"`
	Groups    []Group   `json:"groups"`
	Sections  []Section `json:"sections"`
	Controls  []Mapping `json:"controls"`
}

// call holds the facts about a call from the events before its outcome.
type call struct {
	repository, behalf string
	escalated          bool
	approvers          []string
}

// Builder makes a report. Use New. It is not safe for concurrent use.
type Builder struct {
	report  Report
	limit   int
	calls   lru.Cache[*call]
	waiting map[string]Line // calls that wait for approval
	groups  map[Group]*Group
	lines   map[Class]*ring
	counts  map[string]*Evidence // by the event's name
	running map[string]Line      // undecided actions that have not ended, by action
}

// New returns a Builder for the events of the mesh at an address in the period from (inclusive)
// to until (exclusive). Each section has at most limit lines.
func New(mesh string, from, until time.Time, limit int) *Builder {
	b := &Builder{limit: limit, waiting: map[string]Line{}, groups: map[Group]*Group{}, lines: map[Class]*ring{}, counts: map[string]*Evidence{}, running: map[string]Line{}}
	b.calls.Max = maxCalls
	b.report.Mesh, b.report.From, b.report.Until = strings.TrimSuffix(mesh, "/"), contract.Time(from), contract.Time(until)
	for _, c := range Classes {
		b.lines[c] = &ring{limit: limit}
	}
	return b
}

// Add adds the event at a ledger sequence. Events must be added in the order of the ledger. An
// event before the period is not counted; it supplies details of later ones, and the line of a call
// that still waits for approval. An event after the period is ignored.
func (b *Builder) Add(seq uint64, e *contract.Event) {
	if e.Time >= b.report.Until {
		return
	}
	in := e.Time >= b.report.From
	if err := b.apply(e, in); err != nil && in {
		b.Reject()
		return
	}
	if in {
		b.count(seq, e)
	}
}

// Reject counts an entry of the ledger that is not a valid event.
func (b *Builder) Reject() { b.report.Rejected++ }

// errProducer is the error for an event that its service must not record.
var errProducer = errors.New("recorded by another service")

// apply applies an event to the calls. It returns an error if the event's data cannot be decoded,
// another service must record such events, or the receipt of an outcome is of another call.
func (b *Builder) apply(e *contract.Event, in bool) error {
	if want, ok := producers[e.Name]; ok && e.Service() != want {
		return errProducer
	}
	switch e.Name {
	case contract.EventCallProposed:
		return b.proposed(e)
	case contract.EventEscalated:
		return b.escalated(e)
	case contract.EventApprovalRecorded:
		return b.voted(e)
	case contract.EventEffectRecorded:
		return b.recorded(e, in)
	case contract.EventActionObserved:
		return b.observed(e, in)
	}
	return nil
}

// producers maps some events to the only service that may record them. The service that may
// record an outcome is the executor in its receipt.
var producers = map[string]string{contract.EventEscalated: services.Policy, contract.EventApprovalRecorded: services.Policy, contract.EventActionObserved: contract.CallerExecutor}

// count counts an event as evidence.
func (b *Builder) count(seq uint64, e *contract.Event) {
	r := &b.report
	if r.First == 0 {
		r.First = seq
	}
	r.Last = seq
	r.Events++
	x := b.counts[e.Name]
	if x == nil {
		x = &Evidence{Event: e.Name, First: seq}
		b.counts[e.Name] = x
	}
	x.Count++
	x.Last = seq
}

func (b *Builder) of(id string) *call { return b.calls.GetOrPut(id, func() *call { return &call{} }) }

func (b *Builder) proposed(e *contract.Event) error {
	var x contract.Call
	if err := contract.Decode(e.Data, &x); err != nil {
		return err
	}
	c := b.of(e.CallID)
	c.behalf, c.repository = x.OnBehalfOf, workspace(x.Kind, &x.Args)
	return nil
}

// workspace returns the folder of the repository in the args of an action of a coding
// agent, or "" if the args have none or are not in the event in the clear.
func workspace(kind string, args *contract.Content) string {
	var doc struct{ Workspace string }
	if !strings.HasPrefix(kind, clientkind.Prefix) || args.Encryption != nil || json.Unmarshal([]byte(args.Text), &doc) != nil {
		return ""
	}
	return doc.Workspace
}

func (b *Builder) escalated(e *contract.Event) error {
	var x contract.Escalated
	if err := contract.Decode(e.Data, &x); err != nil {
		return err
	}
	c := b.of(e.CallID)
	c.escalated = true
	l := b.line(e, c)
	l.Tool, l.Verdict, l.Reason, l.Status = x.Call.Tool, contract.Escalate, x.Decision.ReasonCode, "waits for approval"
	l.Link = b.report.Mesh + "/api/v1/calls/" + e.CallID
	if len(b.waiting) < maxCalls {
		b.waiting[e.CallID] = l
	}
	return nil
}

func (b *Builder) voted(e *contract.Event) error {
	var x contract.Approval
	if err := contract.Decode(e.Data, &x); err != nil {
		return err
	}
	if c := b.of(e.CallID); x.Approver != "-" && !slices.Contains(c.approvers, x.Approver) {
		c.approvers = append(c.approvers, x.Approver)
	}
	return nil
}

func (b *Builder) recorded(e *contract.Event, in bool) error {
	var x contract.Recorded
	if err := contract.Decode(e.Data, &x); err != nil {
		return err
	}
	if x.Receipt.Executor != e.Service() || x.Receipt.CallID != e.CallID || x.Receipt.ID != receipt.ID(e.CallID) {
		return errProducer
	}
	delete(b.waiting, e.CallID)
	if !in {
		return nil
	}
	c := b.of(e.CallID)
	l := b.line(e, c)
	l.Tool, l.Verdict, l.Reason, l.Status, l.Receipt = x.Effect.Tool, x.Receipt.Verdict, x.Receipt.ReasonCode, x.Effect.Status, x.Receipt.ID
	l.Link = b.report.Mesh + "/api/v1/proofgraph/receipts/" + contract.Digest(&x.Receipt)
	if u := x.Effect.Usage; u != nil {
		l.USDMicros = cmp.Or(u.USDMicros, u.Cents*10_000)
	}
	switch {
	case l.Verdict == contract.Deny:
		b.add(Denied, l)
	case c.escalated:
		b.add(Escalated, l)
	case l.Status != contract.Succeeded:
		b.add(Failed, l)
	default:
		b.add(Succeeded, l)
	}
	return nil
}

func (b *Builder) observed(e *contract.Event, in bool) error {
	var x gateway.ActionObserved
	if err := contract.Decode(e.Data, &x); err != nil {
		return err
	}
	if !in {
		return nil
	}
	var content contract.Content
	if err := contract.Decode(x.Content, &content); err != nil {
		return err
	}
	l, ok := b.running[x.Action]
	if !ok {
		l = b.line(e, &call{repository: workspace(x.Kind, &content)})
		l.Session, l.Time, l.Tool, l.Status = e.Key, x.ObservedAt, x.Kind, "began"
		l.Link = b.report.Mesh + "/api/v1/events?type=" + contract.EventActionObserved + "&session=" + e.Key
	}
	if x.Status == "" {
		if len(b.running) < maxCalls {
			b.running[x.Action] = l
			return nil
		}
	} else {
		l.Status, l.Reason = x.Status, x.ErrorCode
		delete(b.running, x.Action)
	}
	b.add(Undecided, l)
	return nil
}

// line returns a line with the members that follow from the envelope of an event and from the
// events before it.
func (b *Builder) line(e *contract.Event, c *call) Line {
	return Line{Time: e.Time, Person: cmp.Or(c.behalf, e.Actor), Actor: e.Actor, Repository: c.repository, Approvers: c.approvers, Call: e.CallID, Session: e.Session}
}

// add adds a line to its section and its group.
func (b *Builder) add(class Class, l Line) {
	b.lines[class].add(l)
	b.report.USDMicros += l.USDMicros
	key := Group{Class: class, Person: l.Person, Repository: l.Repository, Tool: l.Tool}
	g := b.groups[key]
	if g == nil && len(b.groups) >= maxGroups {
		key = Group{Class: class, Person: "others", Tool: "others"}
		g = b.groups[key]
	}
	if g == nil {
		own := key
		g = &own
		b.groups[key] = g
	}
	g.Count++
	g.USDMicros += l.USDMicros
	g.Link = l.Link
}

// Done returns the report with the mappings of controls. The Builder must not be used
// after it.
func (b *Builder) Done(mappings []Mapping) *Report {
	byTime := func(a, c Line) int { return cmp.Or(cmp.Compare(a.Time, c.Time), cmp.Compare(a.Call, c.Call)) }
	for _, l := range slices.SortedFunc(maps.Values(b.waiting), byTime) {
		b.add(Escalated, l)
	}
	for _, l := range slices.SortedFunc(maps.Values(b.running), byTime) {
		b.add(Undecided, l)
	}
	r := &b.report
	r.Sections, r.Groups, r.Controls = []Section{}, []Group{}, []Mapping{}
	for _, c := range Classes {
		r.Sections = append(r.Sections, b.lines[c].section(c))
	}
	for _, g := range b.groups {
		r.Groups = append(r.Groups, *g)
	}
	slices.SortFunc(r.Groups, func(a, c Group) int {
		return cmp.Or(cmp.Compare(slices.Index(Classes, a.Class), slices.Index(Classes, c.Class)), cmp.Compare(c.Count, a.Count),
			cmp.Compare(a.Person, c.Person), cmp.Compare(a.Repository, c.Repository), cmp.Compare(a.Tool, c.Tool))
	})
	for _, m := range mappings {
		r.Controls = append(r.Controls, m.filled(b.counts))
	}
	return r
}

// ring holds the newest lines of a section.
type ring struct {
	limit, count int
	lines        []Line
}

func (r *ring) add(l Line) {
	if len(r.lines) < r.limit {
		r.lines = append(r.lines, l)
	} else if r.limit > 0 {
		r.lines[r.count%r.limit] = l
	}
	r.count++
}

func (r *ring) section(c Class) Section {
	s := Section{Class: c, Count: r.count, Omitted: r.count - len(r.lines), Lines: []Line{}}
	if s.Omitted > 0 && r.limit > 0 {
		at := r.count % r.limit
		s.Lines = append(s.Lines, r.lines[at:]...)
		s.Lines = append(s.Lines, r.lines[:at]...)
		return s
	}
	s.Lines = append(s.Lines, r.lines...)
	return s
}

// ErrNoControls is the error for a mapping that does not exist.
var ErrNoControls = errors.New("no such mapping of controls")
