package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// checker reads the ledger as it grows and checks the invariants after every event. It
// does not use the services' views, so that an error in a view does not occur in the
// checker as well.
type checker struct {
	w     *world
	seen  uint64
	ids   map[string]uint64 // sequences of the events, by event id
	clock map[string]int64  // Lamport times, by event id
	calls map[string]*fate
	tips  map[string]receipt.Tip // tips of the receipt chains, by tenant and session
	used  map[string]int64       // amounts that calls hold or have used, by account and window
	held  map[string][]events.Charge
	parts map[string]map[string]int64 // unused amounts of the open allotments, by id, and by account and window
	drawn map[string]string           // allotment that a call with held amounts draws from
	void  map[string]bool             // calls that were allowed with draws from a closed allotment

	proxies  map[string]*opening // proxies of calls, by the id of egress_opened
	requests map[string]string   // calls of requests for proxies, by the id of the event
	uploads  map[string]*upload  // by tenant and id

	opened   bool                 // whether the cell is open
	tenants  map[string]*standing // tenants that exist, without the cell's own
	suspends bool                 // whether a tenant was ever suspended
	causes   map[string]bool      // names of recorded events, by tenant and name; for a suspension, the tenant is the suspended one
}

// fate is the recorded state of a call.
type fate struct {
	tenant, kind, session              string
	proposed, decided, claimed, ended  uint64 // sequences of the call's events; 0: not recorded
	verdict, executor, claimer, status string

	attempts attempts // of a call to a model
	tokens   int64    // that the outcome reports
	upload   *upload  // that a call stores
}

func newChecker(w *world) *checker {
	return &checker{w: w, ids: map[string]uint64{}, clock: map[string]int64{}, calls: map[string]*fate{}, tips: map[string]receipt.Tip{},
		used: map[string]int64{}, held: map[string][]events.Charge{}, parts: map[string]map[string]int64{}, drawn: map[string]string{}, void: map[string]bool{},
		proxies: map[string]*opening{}, requests: map[string]string{}, uploads: map[string]*upload{}, tenants: map[string]*standing{original: {}}, causes: map[string]bool{}}
}

// look checks the events that were stored since the last call.
func (c *checker) look() {
	l := c.w.bus.ledger()
	if l == nil {
		return
	}
	for c.seen < l.Size() {
		c.seen++
		en, err := l.Get(context.Background(), c.seen)
		if err != nil {
			c.w.violate("event %d cannot be read: %v", c.seen, err)
			return
		}
		if err := c.one(en); err != nil {
			c.w.violate("event %d (%s): %v", en.Seq, en.Subject, err)
		}
	}
}

func (c *checker) one(en eventlog.Entry) error {
	e, err := c.w.event(en)
	if err != nil {
		return err
	}
	if first := c.ids[e.ID]; first > 0 && !strings.HasPrefix(e.ID, "s-") {
		return fmt.Errorf("id %s of call %s is event %d's", e.ID, e.CallID, first)
	}
	if before, ok := c.clock[e.Cause]; ok && before >= int64(e.Lamport) {
		return fmt.Errorf("lamport %d is not behind its cause's, %d", e.Lamport, before)
	}
	if c.w.keep {
		c.w.show("EVENT #%d %s %s %s: %.900s", en.Seq, e.Source, e.Name, e.CallID, e.Data)
	}
	c.ids[e.ID], c.clock[e.ID] = en.Seq, int64(e.Lamport)
	if handled, err := c.budgets(e); handled {
		return err
	}
	if e.Name == contract.EventSnapshotRejected {
		return c.rejected(e)
	}
	c.caused(e)
	if err := c.cell(e); err != nil {
		return err
	}
	if e.Name == events.MeshFrozenName {
		return errors.New("the mesh is frozen, and no operator requested it")
	}
	if err := c.artifacts(e, en.Seq); err != nil {
		return err
	}
	if e.CallID == "" {
		return nil
	}
	if !c.exists(e.Tenant) {
		return fmt.Errorf("call %s is of tenant %s, which does not exist", e.CallID, e.Tenant)
	}
	f := c.calls[e.CallID]
	if f == nil {
		f = &fate{tenant: e.Tenant, session: e.Session}
		c.calls[e.CallID] = f
	}
	if f.tenant != e.Tenant {
		return fmt.Errorf("call %s of tenant %s has an event in tenant %s", e.CallID, f.tenant, e.Tenant)
	}
	if f.proposed == 0 && e.Name != "call_proposed" {
		return fmt.Errorf("call %s has an event before its proposal", e.CallID)
	}
	switch e.Name {
	case "call_proposed":
		if f.proposed > 0 {
			return fmt.Errorf("call %s is proposed twice", e.CallID)
		}
		f.proposed = en.Seq
		var p contract.Call
		if err := contract.Decode(e.Data, &p); err != nil {
			return err
		}
		f.kind = p.Kind
	case "allowed":
		return c.allowed(f, e, en.Seq)
	case "effect_started", "start_expired":
		return c.claim(f, e, en.Seq)
	case "effect_recorded":
		return c.recorded(f, e, en.Seq)
	case llmrouter.AttemptFinishedName:
		return c.attempted(f, e)
	}
	return c.egress(f, e)
}

func (c *checker) allowed(f *fate, e *contract.Event, seq uint64) error {
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	switch {
	case e.Service() != "policy":
		return fmt.Errorf("%s allows a call", e.Service())
	case f.proposed == 0:
		return fmt.Errorf("call %s is allowed and was not proposed", e.CallID)
	case f.decided > 0:
		return fmt.Errorf("call %s is decided twice", e.CallID)
	}
	f.decided, f.verdict, f.executor = seq, contract.Allow, a.Decision.Intent.Executor
	if err := c.draw(f, e, &a); err != nil || c.void[e.CallID] {
		return err
	}
	if a.Decision.Facts != nil && strings.Contains(string(a.Decision.Facts), `"budget":{"accounts":["`) && c.held[e.CallID] == nil {
		return fmt.Errorf("call %s is allowed on a budget without a reservation before it", e.CallID)
	}
	if (strings.HasPrefix(a.Call.Kind, "tool.") || a.Call.Kind == llm.Chat) && e.Tenant == original && c.held[e.CallID] == nil {
		return fmt.Errorf("call %s is allowed outside the limits in force", e.CallID)
	}
	return nil
}

func (c *checker) claim(f *fate, e *contract.Event, seq uint64) error {
	switch {
	case f.verdict != contract.Allow:
		return fmt.Errorf("call %s is claimed and not allowed", e.CallID)
	case f.claimed > 0:
		return fmt.Errorf("call %s has a second claim; the first is event %d", e.CallID, f.claimed)
	case e.Name == "effect_started" && e.Service() != f.executor:
		return fmt.Errorf("call %s of %s is claimed by %s", e.CallID, f.executor, e.Service())
	case e.Name == "start_expired" && e.Service() != "policy":
		return fmt.Errorf("call %s is expired by %s", e.CallID, e.Service())
	}
	f.claimed, f.claimer = seq, e.Service()
	return nil
}

func (c *checker) recorded(f *fate, e *contract.Event, seq uint64) error {
	var rec contract.Recorded
	if err := contract.Decode(e.Data, &rec); err != nil {
		return err
	}
	r := &rec.Receipt
	key := e.Tenant + "." + e.Session
	tip, ok := c.tips[key]
	if !ok {
		tip = receipt.Genesis(e.Tenant, e.Session)
	}
	if r.Prev != tip.Digest || r.Index != tip.Index+1 {
		return fmt.Errorf("the chain of session %s is broken: receipt %d follows %d", e.Session, r.Index, tip.Index)
	}
	c.tips[key] = receipt.TipOf(r)
	switch {
	case f.ended > 0:
		return fmt.Errorf("call %s has a second outcome; the first is event %d", e.CallID, f.ended)
	case rec.Decision == nil && f.claimed == 0:
		return fmt.Errorf("call %s has an outcome and no claim", e.CallID)
	case rec.Decision == nil && f.claimer != e.Service():
		return fmt.Errorf("call %s was claimed by %s and is ended by %s", e.CallID, f.claimer, e.Service())
	case rec.Decision != nil && f.decided > 0:
		return fmt.Errorf("call %s is denied behind its permission", e.CallID)
	}
	f.ended, f.status = seq, rec.Effect.Status
	if u := rec.Effect.Usage; u != nil {
		f.tokens = u.InputTokens + u.OutputTokens
	}
	if rec.Decision == nil {
		return errors.Join(c.spent(e, &rec.Effect), kept(f, &rec.Effect))
	}
	f.decided, f.verdict = seq, rec.Decision.Verdict
	return c.denied(f, e, rec.Decision.ReasonCode)
}

// open returns the ids of the proposed calls that have no outcome.
func (c *checker) open() (ids []string) {
	for id, f := range c.calls {
		if f.proposed > 0 && f.ended == 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// TestDeclaredViews checks that replay compares every view that package services lists,
// except that of the session-runner and those of the key registry.
func TestDeclaredViews(t *testing.T) {
	have := map[string]bool{}
	for _, d := range declared() {
		have[d.Name] = true
	}
	for _, s := range services.Programs() {
		if s.Name == services.SessionRunner { // the schedules run pkg/execute with a substitute under this name, without the views of the service
			continue
		}
		for _, v := range s.Views {
			if !have[v.Name] {
				t.Errorf("replay does not compare the view %s of %s", v.Name, s.Name)
			}
		}
	}
}

// rejected applies snapshot_rejected. It returns an error unless tamper has stored the
// snapshot: one that an instance has stored must not be rejected.
func (c *checker) rejected(e *contract.Event) error {
	var r contract.SnapshotRejected
	if err := contract.Decode(e.Data, &r); err != nil {
		return err
	}
	if !c.w.tampered[r.Digest] {
		return fmt.Errorf("snapshot of view %s at %d, which %s stored, is rejected: %s", r.View, r.Position, r.Instance, r.Reason)
	}
	return nil
}
