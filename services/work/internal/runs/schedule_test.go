package runs

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

const scheduled = `{"cron":"@every 10s","missed":"skip","timezone":"UTC","document":{"name":"tick","steps":[{"id":"a","pack":"echo"}]},"inputs":{"n":1}}`

// schedule executes a call pipeline.schedule on an instance. The channel receives the
// result, unless the instance ends before.
func (w *world) schedule(ctx context.Context, i *instance, call, args string) <-chan execute.Result {
	by := &emit.Emitter{Log: i, Source: services.Work + "/work-1", Now: time.Now}
	prop := &propose.Proposer{Emit: by, Blobs: &blob.Store{}, Instance: "work-1", ExecutorOf: func(string) string { return services.Work }}
	w.mu.Lock()
	w.prop = prop
	w.mu.Unlock()
	r := New(Runner{Emit: by, Blobs: &blob.Store{}, Log: slog.New(slog.DiscardHandler), Proposer: prop, Tools: tools()})
	done := make(chan execute.Result, 1)
	go func() {
		done <- r.Schedule(ctx, &execute.Work{Call: &contract.Call{ID: call, Kind: KindSchedule, Token: "jti", Scopes: []string{"tools:call"}}, Args: []byte(args), Event: cause(call)})
	}()
	return done
}

// times returns the events schedule_fired on the ledger, and checks that each time was
// decided once, in order, and that each run has the caller's arguments, credential and
// scopes and was proposed once.
func (w *world) times() (out []events.ScheduleFired) {
	w.t.Helper()
	calls := map[string]*contract.Call{}
	for en, err := range w.Log.Scan(context.Background(), bus.Filter{}.String(), 1) {
		if err != nil {
			w.t.Fatal(err)
		}
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil {
			w.t.Fatal(err)
		}
		switch e.Name {
		case contract.EventScheduleFired:
			var d events.ScheduleFired
			if err := contract.Decode(e.Data, &d); err != nil {
				w.t.Fatal(err)
			}
			if n := len(out); n > 0 && out[n-1].At >= d.At {
				w.t.Errorf("%s after %s", d.At, out[n-1].At)
			}
			out = append(out, d)
		case contract.EventCallProposed:
			var c contract.Call
			if err := contract.Decode(e.Data, &c); err != nil {
				w.t.Fatal(err)
			}
			if calls[c.ID] != nil {
				w.t.Errorf("%s was proposed twice", c.ID)
			}
			calls[c.ID] = &c
			args, err := (&blob.Store{}).Open(context.Background(), &c.Args)
			if err != nil || string(args) != `{"document":{"name":"tick","steps":[{"id":"a","pack":"echo"}]},"inputs":{"n":1}}` || c.Kind != KindRun || c.Token != "jti" || len(c.Scopes) != 1 || c.Parent == "" || e.Actor != "ann" {
				w.t.Errorf("%s: %s %+v", c.ID, args, c)
			}
		}
	}
	for _, d := range out {
		if d.CallID != "" && calls[d.CallID] == nil {
			w.t.Errorf("the run of %s was not proposed", d.At)
		}
		delete(calls, d.CallID)
	}
	for id := range calls {
		w.t.Errorf("%s belongs to no time", id)
	}
	return out
}

// TestSchedule checks the runs of a schedule on two instances at once, and that a
// cancellation ends it.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		a := w.schedule(ctx, &instance{world: w}, "c-s", scheduled)
		b := w.schedule(ctx, &instance{world: w}, "c-s", scheduled)
		time.Sleep(65 * time.Second)
		other := <-w.schedule(ctx, &instance{world: w}, "c-other", scheduled)
		if !strings.Contains(string(other.Output), `"coalesced":true`) || !strings.Contains(string(other.Output), `"schedule":"c-s"`) {
			t.Errorf("%+v", other)
		}
		cancel()
		for _, done := range []<-chan execute.Result{a, b} {
			if res := <-done; res.Status != contract.Cancelled {
				t.Errorf("%+v", res)
			}
		}
		all := w.times()
		if len(all) != 6 {
			t.Fatalf("%d times: %+v", len(all), all)
		}
		for _, d := range all {
			if d.CallID == "" || d.Missed != 0 || d.Skipped != "" || d.Schedule != "c-s" {
				t.Errorf("%+v", d)
			}
		}
	})
}

// TestScheduleKilled ends the instance before and after each of its first appends, and checks
// that the next one continues the schedule: each time is decided once, each run is proposed
// once, and at most two times are counted as missed.
func TestScheduleKilled(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for _, after := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				ctx, cancel := context.WithCancel(t.Context())
				i := &instance{world: w, kill: n, after: after, ended: make(chan struct{})}
				w.schedule(ctx, i, "c-s", scheduled)
				<-i.ended
				time.Sleep(25 * time.Second)
				done := w.schedule(ctx, &instance{world: w}, "c-s", scheduled)
				time.Sleep(31 * time.Second)
				cancel()
				<-done
				runs, missed := 0, int64(0)
				for _, d := range w.times() {
					if missed += d.Missed; d.CallID != "" {
						runs++
					}
				}
				if runs < 3 || missed > 2 {
					t.Errorf("killed at append %d (after: %t): %d runs, %d missed times: %+v", n, after, runs, missed, w.times())
				}
			})
		}
	}
}

// TestScheduleOverlap checks that no run begins while the one before is in progress, that the
// times meanwhile are recorded as skipped, and that a cancellation of the schedule also cancels
// the run in progress.
func TestScheduleOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hold = true
		ctx, cancel := context.WithCancel(t.Context())
		done := w.schedule(ctx, &instance{world: w}, "c-s", scheduled)
		time.Sleep(35 * time.Second)
		cancel()
		<-done
		all := w.times()
		if len(all) != 3 || all[0].CallID == "" || all[1].Skipped != "overlap" || all[2].Skipped != "overlap" || all[2].CallID != "" {
			t.Errorf("%+v", all)
		}
		if !strings.Contains(names(w), contract.EventCancelRequested) {
			t.Error("the run in progress is not cancelled")
		}
	})
}
