package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/recorded"
	"github.com/binnacle-mesh/binnacle/services/work/work"
)

// settled checks the invariants of a mesh without pending work: the outcomes that clients
// received are on the ledger, a checkpoint covers the ledger, the instances agree about the
// tenants, no proxy is open, nothing is left in containerd, no tenant receives data of
// another, the exported ledger verifies, and replay produces the same views and decisions.
func (w *world) settled() {
	w.receivedOutcomes()
	w.recalled()
	size := w.bus.ledger().Size()
	if !w.until(time.Minute, func() bool { return w.checkpointed() >= size }) {
		w.violate("no checkpoint covers the ledger of %d events", size)
		return
	}
	w.cells()
	w.closed()
	w.emptied()
	w.attempted()
	w.isolated()
	w.verify()
	w.replay()
}

// receivedOutcomes checks, for each outcome that a client received, that the ledger has
// an outcome of the call, that both have the same status if the client received a status,
// and that a call of a tool which succeeded had an effect.
func (w *world) receivedOutcomes() {
	for _, c := range w.calls {
		for _, t := range c.received {
			f := w.events.calls[t.id]
			switch {
			case f == nil || f.ended == 0:
				w.violate("client %d received an outcome of call %s, and the ledger has none", c.n, t.id)
			case t.status != "" && t.status != f.status:
				w.violate("client %d received that call %s %s, and the ledger holds %s", c.n, t.id, t.status, f.status)
			case f.status == contract.Succeeded && simulated(f.kind) && len(w.effects[t.id]) == 0:
				w.violate("call %s succeeded without an effect", t.id)
			}
		}
	}
}

// checkpoint returns the newest signed tree head, or nil if there is none.
func (w *world) checkpoint() []byte {
	s := w.bus.streams[bus.Checkpoints]
	if en := s.get(s.last("log." + w.base.log + ".checkpoint")); en != nil {
		return en.Data
	}
	return nil
}

func (w *world) checkpointed() uint64 {
	h, err := ledger.ReadHead(w.checkpoint())
	if err != nil {
		return 0
	}
	return h.Size
}

// each calls f for every valid event on the ledger, in order. An invalid event is a
// violation.
func (w *world) each(f func(en eventlog.Entry, e *contract.Event)) {
	for en, err := range w.bus.ledger().Scan(context.Background(), ">", 1) {
		if err != nil {
			panic(err)
		}
		e, err := w.event(en)
		if err != nil {
			w.violate("event %d: %v", en.Seq, err)
			continue
		}
		f(en, e)
	}
}

// event returns the event of an entry of the ledger. The caller must not modify it.
func (w *world) event(en eventlog.Entry) (*contract.Event, error) {
	if i := en.Seq - 1; i < uint64(len(w.base.events)) {
		return w.base.events[i], nil
	}
	return eventlog.Open(en, eventlog.Every)
}

// verify exports the ledger up to the newest checkpoint and verifies the export.
func (w *world) verify() {
	var export bytes.Buffer
	size := w.checkpointed()
	w.each(func(en eventlog.Entry, _ *contract.Event) {
		if en.Seq <= size {
			export.Write(append(en.Data, '\n'))
		}
	})
	export.Write(evidence.LedgerTrailer(string(w.checkpoint())))
	rep, err := evidence.VerifyLedger(export.Bytes(), w.base.ring.RootKID)
	switch {
	case err != nil:
		w.violate("the ledger does not verify: %v", err)
	case rep.Open != 0:
		w.violate("the verifier finds %d calls open", rep.Open)
	}
}

// liveView is a service's view as the gateway returns it: Position is the ledger
// sequence of the last entry that the view has applied, and Dump is the content of the
// view.
type liveView struct {
	Position uint64 `json:"position"`
	Dump     string `json:"dump"`
	compared bool   // whether replay has compared it
}

// declared returns the views that the simulated services declare.
func declared() []view.Declaration {
	return slices.Concat(policy.Views(), gateway.Views(), audit.Views(), llmrouter.Views(), work.Views(), mcprouter.Views())
}

// liveViews holds the content of a declared view in each instance of its service.
type liveViews struct {
	view.Declaration
	live []liveView
}

// live reads a view from each instance of the service that declares it. ok is false if
// the view cannot be read, which is a violation.
func (w *world) live(d *view.Declaration) (out liveViews, ok bool) {
	out.Declaration = *d
	_, service, _ := services.ViewAt(d.Path)
	for _, in := range w.instances {
		if in.kind != service {
			continue
		}
		read := func() (v liveView, err error) { return w.query(in, d) }
		if d.Verb == "" || d.Lines {
			read = func() (liveView, error) { return w.get(in, d) }
		}
		v, err := read()
		for try := 0; err != nil && try < 3; try++ { // the slot of a dead instance stays leased for a while
			w.until(bus.SlotTTL/2, w.broken)
			v, err = read()
		}
		if err != nil {
			w.violate("view %s of %s: %v", d.Name, in.name, err)
			return out, false
		}
		out.live = append(out.live, v)
	}
	return out, true
}

// get requests a view from a gateway: from in if in is a gateway, and otherwise from the
// first gateway.
func (w *world) get(in *instance, d *view.Declaration) (v liveView, err error) {
	r := request{method: "GET", path: "/api/v1/views/" + d.Path, tenant: w.meshTenant()}
	if in.edge != nil {
		r.gateway = slices.Index(w.edges(), in.edge)
	}
	a := w.ask(r)
	if a.code != 200 {
		return v, fmt.Errorf("%d %s %w", a.code, a.body, a.err)
	}
	first, _, _ := bytes.Cut(a.body, []byte("\n"))
	if d.Lines {
		defer func() { v.Dump = string(a.body) }()
	}
	return v, json.Unmarshal(first, &v)
}

// query reads a view from the instance in by a query that a gateway sends.
func (w *world) query(in *instance, d *view.Declaration) (liveView, error) {
	i := slices.IndexFunc(w.instances, func(in *instance) bool { return in.edge != nil })
	from, to := w.instances[i].env.Load(), in.env.Load()
	if from == nil || to == nil {
		return liveView{}, errors.New("an instance does not run")
	}
	q := query.ViewQuery.Of(in.kind)
	q.Verb = d.Verb
	var r rpc.Response[query.ViewDump]
	var err error
	var done atomic.Bool
	go func() {
		defer done.Store(true)
		r, err = rpc.Do(context.Background(), from.Queries.In(w.meshTenant()).To(to.Instance), q, query.ViewRequest{})
	}()
	w.until(2*time.Minute, done.Load)
	if !done.Load() {
		return liveView{}, errors.New("no response")
	}
	return liveView{Position: r.Value.Position, Dump: r.Value.Dump}, err
}

// replay rebuilds the views from the first event, compares them with the views of every
// instance, also of instances that started from snapshots, and repeats every decision.
func (w *world) replay() {
	views := declared()
	live := make([]liveViews, len(views))
	for i := range views {
		var ok bool
		if live[i], ok = w.live(&views[i]); !ok {
			return
		}
	}
	dir := w.base.folder()
	defer os.RemoveAll(dir)
	keys := trust.Registry{Root: w.base.ring.RootKID}
	again := make([]view.State, len(views))
	for i, d := range views {
		var err error
		if again[i], err = d.Empty(&view.Origin{RootKID: keys.Root, Keys: keys.At, Open: w.open, Dir: filepath.Join(dir, d.Name)}); err != nil {
			panic(err)
		}
		if c, ok := again[i].(io.Closer); ok {
			defer c.Close()
		}
	}
	reads, err := view.Select(views)
	if err != nil {
		panic(err)
	}
	all, args := recorded.NewState(keys.At, w.open), map[string]*contract.Content{}
	fail := func(what string, err error) {
		if err != nil {
			w.violate("replay of %s: %v", what, err)
		}
	}
	w.each(func(en eventlog.Entry, e *contract.Event) {
		for _, i := range reads.Of(en.Subject) {
			w.compare(&live[i], again[i], en.Seq-1)
			if live[i].last() >= en.Seq {
				fail(views[i].Name, again[i].Apply(en, e))
			}
		}
		if all.Reads(e.Name) {
			fail("decisions", all.Apply(e))
		}
		if k, ok := view.Key(e); ok {
			fail("keys", keys.Apply(k, e.Lamport))
			return
		}
		if e.Name != contract.EventCallProposed {
			fail("decision", w.redecide(all, e, args))
			return
		}
		var c contract.Call
		if contract.Decode(e.Data, &c) == nil {
			args[c.ID] = &c.Args
		}
	})
	for i := range live {
		w.compare(&live[i], again[i], math.MaxUint64)
	}
}

// last returns the highest position of the live views.
func (l *liveViews) last() (at uint64) {
	for _, v := range l.live {
		at = max(at, v.Position)
	}
	return at
}

// compare compares the live views at positions up to at, which were not compared yet,
// with a view that is rebuilt up to at.
func (w *world) compare(l *liveViews, again view.State, at uint64) {
	if !slices.ContainsFunc(l.live, func(v liveView) bool { return !v.compared && v.Position <= at }) {
		return
	}
	b, err := again.Dump()
	if err != nil {
		w.violate("replay of %s: %v", l.Name, err)
	}
	for i := range l.live {
		v := &l.live[i]
		if v.compared || v.Position > at {
			continue
		}
		v.compared = true
		if string(b) != v.Dump {
			w.violate("view %s at %d is not what replay comes to: %s", l.Name, v.Position, parts(v.Dump, string(b)))
		}
	}
}

// parts returns the lines of two dumps at which they first differ, or their numbers of
// lines if one begins with the other.
func parts(live, again string) string {
	a, b := strings.Split(live, "\n"), strings.Split(again, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("live %.300s, again %.300s", a[i], b[i])
		}
	}
	return fmt.Sprintf("live %d lines, again %d", len(a), len(b))
}

// redecide repeats the decision in an event allowed or effect_recorded, if there is one.
// It returns an error if that fails, or if the verdict, the reason or the policy hash is
// not the recorded one.
func (w *world) redecide(st *recorded.State, e *contract.Event, args map[string]*contract.Content) error {
	var d *contract.Decision
	switch e.Name {
	case "allowed":
		var a contract.Allowed
		if err := contract.Decode(e.Data, &a); err != nil {
			return err
		}
		d = &a.Decision
	case "effect_recorded":
		var r contract.Recorded
		if err := contract.Decode(e.Data, &r); err != nil {
			return err
		}
		d = r.Decision
	}
	if d == nil {
		return nil
	}
	raw, err := w.open(d.Tenant, args[d.CallID])
	if err != nil {
		return err
	}
	recalled, err := st.Recall(e, d)
	if err != nil {
		return err
	}
	if verdict, reason, hash, _ := recalled.Redecide(context.Background(), raw); verdict != d.Verdict || reason != d.ReasonCode || hash != d.PolicyHash {
		err = fmt.Errorf("decision %s: recorded %s %s, decided again %s %s", d.ID, d.Verdict, d.ReasonCode, verdict, reason)
	}
	return err
}

// open returns the bytes of a content, or an error if c is nil.
func (w *world) open(tenant string, c *contract.Content) ([]byte, error) {
	return w.bus.streams[bus.Blobs].open(tenant, c)
}

// open does what world.open does, where s is the stream of contents.
func (s *stream) open(tenant string, c *contract.Content) ([]byte, error) {
	if c == nil {
		return nil, fmt.Errorf("the call was never proposed")
	}
	var object []byte
	for n := 0; c.Store == contract.StoreObject; n++ {
		en := s.get(s.last(fmt.Sprintf("blob.%s.payloads.%s.%d", tenant, strings.TrimPrefix(c.Commitment, "sha256:"), n)))
		if en == nil {
			break
		}
		object = append(object, en.Data...)
	}
	return c.Open(object)
}
