package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
	"github.com/binnacle-mesh/binnacle/services/policy/recorded"
)

// settled checks the invariants of a mesh without pending work: clients received the
// state that the ledger has, the exported ledger verifies, and replay produces the same
// views and decisions.
func (w *world) settled() {
	w.receivedOutcomes()
	size := w.bus.ledger().Size()
	if !w.until(time.Minute, func() bool { return w.checkpointed() >= size }) {
		w.violate("no checkpoint covers the ledger of %d events", size)
		return
	}
	w.verify()
	w.replay()
}

// receivedOutcomes checks that the outcomes which clients received are those on the
// ledger, and that each call whose success a client received had an effect.
func (w *world) receivedOutcomes() {
	for _, c := range w.calls {
		for _, t := range c.received {
			f := w.events.calls[t.id]
			switch {
			case f == nil || f.ended == 0:
				w.violate("client %d received an outcome of call %s, and the ledger has none", c.n, t.id)
			case t.status != "" && t.status != f.status:
				w.violate("client %d received that call %s %s, and the ledger holds %s", c.n, t.id, t.status, f.status)
			case f.status == contract.Succeeded && len(w.effects[t.id]) == 0:
				w.violate("call %s succeeded without an effect", t.id)
			}
		}
	}
}

// checkpoint returns the newest signed tree head, or nil if there is none.
func (w *world) checkpoint() []byte {
	s := w.bus.streams[bus.Checkpoints]
	if en := s.get(s.last("log." + tenant + ".checkpoint")); en != nil {
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
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			w.violate("event %d: %v", en.Seq, err)
			continue
		}
		f(en, e)
	}
}

// verify exports the ledger and verifies the export.
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

// liveView is a service's view, as the response to a query contains it.
type liveView struct {
	Position uint64 `json:"position"`
	Dump     string `json:"dump"`
}

// declared returns the views that the simulated services declare.
func declared() []view.Declaration {
	return slices.Concat(policy.Views(), gateway.Views(), audit.Views())
}

// live reads a view from the mesh; ok is false if the view cannot be read, which is a
// violation.
func (w *world) live(d *view.Declaration) (v liveView, ok bool) {
	a := w.ask(request{method: "GET", path: "/api/v1/views/" + d.Path})
	for try := 0; a.code == 503 && try < 3; try++ { // the slot of a dead instance stays leased for a while
		w.until(bus.SlotTTL/2, w.broken)
		a = w.ask(request{method: "GET", path: "/api/v1/views/" + d.Path})
	}
	if a.code != 200 {
		w.violate("view %s: %d %s %v", d.Name, a.code, a.body, a.err)
		return v, false
	}
	first, _, _ := bytes.Cut(a.body, []byte("\n"))
	if err := json.Unmarshal(first, &v); err != nil {
		w.violate("view %s: %v", d.Name, err)
		return v, false
	}
	if d.Lines {
		v.Dump = string(a.body)
	}
	return v, true
}

// replay rebuilds the views from the first event, compares them with the live ones, and
// repeats every decision.
func (w *world) replay() {
	views := declared()
	live := make([]liveView, len(views))
	for i := range views {
		var ok bool
		if live[i], ok = w.live(&views[i]); !ok {
			return
		}
	}
	dir, err := os.MkdirTemp(w.base.scratch, "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	keys := trust.Registry{Root: w.base.ring.RootKID}
	again := make([]view.State, len(views))
	for i, d := range views {
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
			if en.Seq <= live[i].Position {
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
	for i, d := range views {
		b, err := again[i].Dump()
		fail(d.Name, err)
		if string(b) != live[i].Dump {
			w.violate("view %s at %d is not what replay comes to: %s", d.Name, live[i].Position, parts(live[i].Dump, string(b)))
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
// It returns an error if the result differs from the recorded one.
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
	raw, err := w.open(args[d.CallID])
	if err != nil {
		return err
	}
	verdict, reason, hash, err := st.Redecide(context.Background(), e, d, raw)
	if err == nil && (verdict != d.Verdict || reason != d.ReasonCode || hash != d.PolicyHash) {
		err = fmt.Errorf("decision %s: recorded %s %s, decided again %s %s", d.ID, d.Verdict, d.ReasonCode, verdict, reason)
	}
	return err
}

// open returns the bytes of a content.
func (w *world) open(c *contract.Content) ([]byte, error) {
	if c == nil {
		return nil, fmt.Errorf("the call was never proposed")
	}
	var object []byte
	s := w.bus.streams[bus.Blobs]
	for n := 0; c.Store == contract.StoreObject; n++ {
		en := s.get(s.last(fmt.Sprintf("blob.%s.payloads.%s.%d", tenant, strings.TrimPrefix(c.Commitment, "sha256:"), n)))
		if en == nil {
			break
		}
		object = append(object, en.Data...)
	}
	return c.Open(object)
}
