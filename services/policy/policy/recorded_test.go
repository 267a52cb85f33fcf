//go:build bench

package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/stack"
)

// TestBenchDecision measures the evaluation of an ALLOW under three layers and ten
// rules, and a recorded denial, from the facts to the acknowledgement of the ledger. It
// measures recorded denials in the durability modes "process" and "power" on an empty
// ledger, and in "process" also after 1,000,000 other outcomes; in "power" it also
// measures fsync. If BENCH_ROWS names a file, it writes its rows there, for e2e/bench.
func TestBenchDecision(t *testing.T) {
	var rows []map[string]any
	add := func(name, durability, budget string, took []time.Duration) {
		slices.Sort(took)
		us := func(q float64) float64 { return float64(took[int(float64(len(took)-1)*q)].Nanoseconds()) / 1000 }
		fmt.Printf("%-60s %-8s p50 %8.0f us  p99 %8.0f us  (budget %s)\n", name, durability, us(.5), us(.99), budget)
		rows = append(rows, map[string]any{"name": name, "durability": durability, "clients": 1, "p50_us": us(.5), "p99_us": us(.99), "budget": budget})
	}
	add("policy CPU of an ALLOW, three layers, ten rules", "none", "<= 60 us p50", allows(t))
	for _, mode := range []string{"process", "power"} {
		b := meshtest.StartMode(t, []bus.Declaration{(&Service{}).Declaration()}, mode == "power")
		conn := b.Connect(t, "policy")
		m := &emit.Emitter{Log: eventlog.JetStream{Conn: conn}, Tenant: "t", Source: "policy/policy-1", Now: time.Now}
		k := key(t, "policy")
		w := ten(t)
		r := &outcome.Recorder{Emit: m, Key: func() *sign.Key { return k }, Service: "policy"}
		budget := map[string]string{"process": "<= 220 us p50", "power": "beside the disk's fsync"}[mode]
		if mode == "power" {
			add("floor: fsync of 1 KiB", "power", "", fsyncs(t))
		}
		add("recorded decision, chain link, 1 client", mode, budget, recorded(t, w, m, r, 2000))
		if mode == "power" {
			continue
		}
		history(t, b, 1_000_000)
		add("recorded decision behind 1,000,000 calls", mode, "flat", recorded(t, w, m, r, 2000))
	}
	if out := os.Getenv("BENCH_ROWS"); out != "" {
		j, err := json.Marshal(rows)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(out, j, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func allows(t *testing.T) []time.Duration {
	w, k, f := ten(t), key(t, "policy"), facts("noop")
	var took []time.Duration
	for i := range 20_000 {
		f.Client = fmt.Sprint("c", i) // a rule reads this value, so each decision must evaluate the bundle instead of using the cache
		began := time.Now()
		w.addFacts(&f)
		eval := w.st.OfCell().Evaluate(context.Background(), stack.Call{ID: "c-1", Facts: f, Args: []byte(`{"n":1}`)})
		d := eval.Decide(0, k)
		if took = append(took, time.Since(began)); d.ReasonCode != "RULE_TEN" {
			t.Fatal(d.ReasonCode)
		}
	}
	return took
}

// recorded makes and records n denials, one after the other, and returns the time that
// each took.
func recorded(t *testing.T, w *world, m *emit.Emitter, r *outcome.Recorder, n int) []time.Duration {
	k := key(t, "policy")
	var took []time.Duration
	for range n {
		id := emit.NewID(contract.IDCall)
		f := facts("noop")
		f.Actor, f.Client = "mallory", id // the fourth rule denies; another rule reads this value, which is new in each call, so that no answer is cached
		args := []byte(`{"n":1}`)
		cause := &contract.Event{ID: "p-" + id, Source: "gateway/gw1", Tenant: "t", Actor: f.Actor, Client: "-", Session: "s-1", CallID: id, Origin: "gw1", Lamport: 1}
		began := time.Now()
		w.addFacts(&f)
		eval := w.st.OfCell().Evaluate(context.Background(), stack.Call{ID: id, Facts: f, Args: args})
		d := eval.Decide(m.Tick(), k)
		eff := contract.Effect{CallID: id, EffectType: f.Kind, Ended: m.Time(), ErrorCode: "denied", InputDigest: f.ArgsDigest, Instance: "policy-1", Status: contract.Denied, Tool: f.Tool}
		if err := r.Record(context.Background(), cause, &d, true, eff, nil); err != nil {
			t.Fatal(err)
		}
		if took = append(took, time.Since(began)); d.ReasonCode != "DENY_FOUR" {
			t.Fatal(d.ReasonCode)
		}
	}
	return took
}

// history appends n entries with the subject of an outcome to the ledger.
func history(t *testing.T, b *meshtest.Bus, n int) {
	js, err := jetstream.New(b.Connect(t, "provision").NC, jetstream.WithPublishAsyncMaxPending(20_000))
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), 400)
	for i := range n {
		if _, err := js.PublishAsync(fmt.Sprintf("evt.t.session-runner.-.effect_recorded.s-h%d", i%10_000), body, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(5 * time.Minute):
		t.Fatal("the history is not stored")
	}
}

func fsyncs(t *testing.T) []time.Duration {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var took []time.Duration
	for range 500 {
		began := time.Now()
		if _, err := f.Write(make([]byte, 1024)); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	return took
}
