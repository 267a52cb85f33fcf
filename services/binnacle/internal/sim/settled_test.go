package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/policy/recorded"
)

// settled checks the invariants of a mesh without pending work: clients received the
// state that the ledger has, the exported ledger verifies, and replay produces the same
// views and decisions.
func (w *world) settled() {
	w.heardTruth()
	size := w.bus.ledger().Size()
	if !w.until(time.Minute, func() bool { return w.checkpointed() >= size }) {
		w.violate("no checkpoint covers the ledger of %d events", size)
		return
	}
	w.verify()
	w.replay()
}

// heardTruth checks that the outcomes which clients received are those on the ledger.
func (w *world) heardTruth() {
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

// checkpoint returns the newest signed tree head.
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

// each calls f for every event on the ledger, in order.
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

// view is a service's view, as the response to a query contains it.
type view struct {
	Position uint64 `json:"position"`
	Dump     string `json:"dump"`
}

// replay rebuilds the views from the first event, compares them with the live ones, and
// repeats every decision.
func (w *world) replay() {
	live := map[string]view{}
	for _, name := range []string{"policy", "policy-budget", "policy-starts", "gateway", "gateway-authority", "audit"} {
		a := w.ask(request{method: "GET", path: "/api/v1/views/" + name})
		for try := 0; a.code == 503 && try < 3; try++ { // the slot of a dead instance stays leased for a while
			w.until(bus.SlotTTL/2, w.broken)
			a = w.ask(request{method: "GET", path: "/api/v1/views/" + name})
		}
		if a.code != 200 {
			w.violate("view %s: %d %s %v", name, a.code, a.body, a.err)
			return
		}
		first, _, _ := bytes.Cut(a.body, []byte("\n"))
		var v view
		if err := json.Unmarshal(first, &v); err != nil {
			w.violate("view %s: %v", name, err)
			return
		}
		if name == "audit" {
			v.Dump = string(a.body)
		}
		live[name] = v
	}
	dir, err := os.MkdirTemp(w.base.scratch, "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	index, err := audit.OpenView(dir)
	if err != nil {
		panic(err)
	}
	defer index.Close()
	var (
		keys      trust.Registry
		tools     catalog.Catalog
		authority gateway.AuthorityView
		budget    recorded.Budget
		starts    recorded.Starts
		args      = map[string]*contract.Content{}
	)
	keys.Root = w.base.ring.RootKID
	all, upTo := recorded.NewState(keys.At, w.open), recorded.NewState(keys.At, w.open)
	fail := func(what string, err error) {
		if err != nil {
			w.violate("replay of %s: %v", what, err)
		}
	}
	w.each(func(en eventlog.Entry, e *contract.Event) {
		if en.Seq <= live["audit"].Position {
			fail("audit", index.Add(en))
		}
		if en.Seq <= live["gateway"].Position {
			fail("catalog", tools.Apply(e))
		}
		if en.Seq <= live["gateway-authority"].Position {
			fail("authority", authority.Apply(e))
		}
		if recorded.StartsReads(e.Name) && en.Seq <= live["policy-starts"].Position {
			fail("starts", starts.Apply(en))
		}
		if all.Reads(e.Name) {
			fail("state", all.Apply(e))
			if en.Seq <= live["policy"].Position {
				fail("state", upTo.Apply(e))
			}
		}
		switch e.Name {
		case "key_published":
			var k contract.TrustKey
			if contract.Decode(e.Data, &k) == nil {
				fail("keys", keys.Apply(k, e.Lamport))
			}
		case "budget_changed":
			if en.Seq <= live["policy-budget"].Position {
				fail("budget", budget.Apply(e))
			}
		case "call_proposed":
			var c contract.Call
			if contract.Decode(e.Data, &c) == nil {
				args[c.ID] = &c.Args
			}
		default:
			fail("decision", w.redecide(all, e, args))
		}
	})
	fail("audit", index.Flush())
	var rebuilt bytes.Buffer
	fail("audit", index.WriteDump(&rebuilt))
	_, unstarted := starts.Dump()
	for name, again := range map[string]string{"policy": string(upTo.Dump()), "policy-budget": string(budget.Dump()), "policy-starts": string(unstarted),
		"gateway": string(tools.Dump()), "gateway-authority": string(authority.Dump()), "audit": rebuilt.String()} {
		if again != live[name].Dump {
			w.violate("view %s at %d is not what replay comes to: %s", name, live[name].Position, parts(live[name].Dump, again))
		}
	}
}

// parts returns the lines of two dumps at which they first differ.
func parts(live, again string) string {
	a, b := strings.Split(live, "\n"), strings.Split(again, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("live %.300s, again %.300s", a[i], b[i])
		}
	}
	return fmt.Sprintf("live %d lines, again %d", len(a), len(b))
}

// redecide repeats the decision that an event records.
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
