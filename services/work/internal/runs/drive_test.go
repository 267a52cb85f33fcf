package runs

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
)

// one returns the arguments of a run of a pipeline with one step, which has further members.
func one(members string) string {
	return `{"document":{"name":"one","steps":[{"id":"a","pack":"echo"` + members + `}]}}`
}

// TestAppendRefused refuses each append of a run in turn. If the first one is refused, the
// run fails, since nothing is recorded; any other is repeated, after a delay or when its call
// is proposed again. No call is made twice.
func TestAppendRefused(t *testing.T) {
	appends := appendsOf(t)
	for n := 1; n <= appends; n++ {
		synctest.Test(t, func(t *testing.T) {
			w, began := newWorld(t), time.Now()
			done, _ := w.begin(t.Context(), &instance{world: w, full: n}, "c-run", eight)
			res, took := <-done, time.Since(began)
			switch {
			case n == 1 && (res.ErrorCode != contract.CodeUnavailable || w.Size() != 0):
				t.Errorf("append %d: %+v, %d events", n, res, w.Size())
			case n > 1 && (string(res.Output) != eightOutput || took > again), n == appends && took != again:
				t.Errorf("append %d: %+v after %v\n%s", n, res, took, names(w))
			}
			once(t, w)
		})
	}
}

// TestCodes checks the error code and the status of a run for several ways in which its step
// may fail.
func TestCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, x := range []struct{ status, code, want string }{
			{contract.Failed, contract.CodeConflict, contract.CodeConflict},
			{contract.Failed, "", contract.CodeHandlerFailed},
			{contract.TimedOut, "", contract.CodeHandlerFailed},
			{contract.Denied, "", contract.CodeDenied},
			{contract.Denied, contract.ReasonUnknownTool, contract.CodeDenied},
			{contract.Denied, contract.ReasonArgsUnknownField, contract.CodeInvalidInput},
		} {
			w := newWorld(t)
			w.outcome = func(*contract.Call, int) (string, string, any) { return x.status, x.code, nil }
			res := w.run(t.Context(), "c-run", one(""))
			if res.Status != contract.Failed || res.ErrorCode != x.want || res.EffectType != "pipeline" || !strings.Contains(res.ErrorMessage, "step a ended: "+x.status) {
				t.Errorf("%+v: %+v", x, res)
			}
		}
	})
}

// TestNoOutput checks that a step whose output is not stored, or that has none, has the
// output null.
func TestNoOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, out := range []any{nil, withheld} {
			w := newWorld(t)
			w.outcome = func(*contract.Call, int) (string, string, any) { return contract.Succeeded, "", out }
			if res := w.run(t.Context(), "c-run", one("")); string(res.Output) != `{"output":null,"pipeline":"one","run":"c-run","status":"succeeded"}` {
				t.Errorf("%v: %+v", out, res)
			}
		}
	})
}

// TestDeadline checks that the call of a step may take as long as its step permits, and not
// longer than the run.
func TestDeadline(t *testing.T) {
	for _, x := range []struct {
		step, run string
		want      time.Duration
	}{{`,"timeout_s":30`, "", 30 * time.Second}, {`,"timeout_s":30`, `,"timeout_s":20`, 20 * time.Second}, {`,"timeout_s":30`, `,"timeout_s":40`, 30 * time.Second}, {"", "", time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.outcome = func(c *contract.Call, _ int) (string, string, any) {
				if at, err := contract.ParseTime(c.Deadline); err != nil || time.Until(at).Round(time.Second) != x.want {
					t.Errorf("step%s, run%s: until %s, %v", x.step, x.run, c.Deadline, err)
				}
				return contract.Succeeded, "", 1
			}
			args := strings.Replace(one(x.step), `"one",`, `"one"`+x.run+`,`, 1)
			if res := w.run(t.Context(), "c-run", args); res.ErrorCode != "" {
				t.Errorf("%+v", res)
			}
		})
	}
}

// TestRunTimeout checks that a run whose timeout has passed ends as soon as the running call
// has an outcome, or otherwise a bounded time later.
func TestRunTimeout(t *testing.T) {
	args := strings.Replace(one(""), `"one",`, `"one","timeout_s":20,`, 1)
	for _, ends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, began, want := newWorld(t), time.Now(), 20*time.Second+settle
			w.quiet = true
			done, prop := w.begin(t.Context(), &instance{world: w}, "c-run", args)
			if ends {
				time.Sleep(21 * time.Second)
				for en := range w.Log.Scan(t.Context(), "evt.t.session-runner.>", 1) {
					_ = prop.Deliver(en)
				}
				want = 21 * time.Second
			}
			res := <-done
			if took := time.Since(began); res.Status != contract.TimedOut || res.ErrorCode != contract.CodeTimeout || took != want {
				t.Errorf("call ends %v: after %v, %+v", ends, took, res)
			}
			if n := w.count(contract.EventPipelineStepEnded); (n == 1) != ends {
				t.Errorf("call ends %v: %d ends of steps", ends, n)
			}
		})
	}
}

// TestPlaces checks that a tenant cannot take all places of an instance for runs or for
// schedules, so that another tenant finds one.
func TestPlaces(t *testing.T) {
	r := New(Runner{Tools: tools()})
	for range MaxRuns {
		r.places.Take("t")
	}
	for range MaxSchedules {
		r.schedules.Take("t")
	}
	const wrong = `"document":{"name":"x","steps":[{"id":"a","pack":"no"}]}`
	for tenant, want := range map[string]string{"t": contract.CodeUnavailable, "other": contract.CodeInvalidInput} {
		e := cause("c-run")
		e.Tenant = tenant
		if res := r.Run(t.Context(), &execute.Work{Call: &contract.Call{ID: "c-run", Kind: KindRun}, Args: []byte(`{` + wrong + `}`), Event: e}); res.ErrorCode != want {
			t.Errorf("run of %s: %+v", tenant, res)
		}
		if tenant == "other" {
			continue // it would last
		}
		res := r.Schedule(t.Context(), &execute.Work{Call: &contract.Call{ID: "c-run", Kind: KindSchedule}, Args: []byte(scheduled), Event: e})
		if res.ErrorCode != want {
			t.Errorf("schedule of %s: %+v", tenant, res)
		}
	}
	if _, ok := r.schedules.Take("other"); !ok {
		t.Error("another tenant has no place for a schedule")
	}
}

// TestProblems checks that the error of a document names its first problem, and the number
// of the others if there are any.
func TestProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for args, want := range map[string]string{
			one(`,"version":"v2"`): `/document/steps/0/version: the mesh has pack "echo" in another version than "v2"`,
			`{"document":{"name":"x","steps":[{"id":"a","pack":"no"},{"id":"b","pack":"no"},{"id":"c","pack":"no"}]}}`: `/document/steps/0/pack: the mesh has no pack "no": 'binnacle pack list' lists them (and 2 more problems)`,
		} {
			res := newWorld(t).run(context.Background(), "c-run", args)
			if res.ErrorCode != contract.CodeInvalidInput || res.ErrorMessage != want {
				t.Errorf("%s: %+v", args, res)
			}
		}
	})
}

// each has a step with two calls at a time.
const each = `{"document":{"name":"each","steps":[{"id":"a","pack":"echo","map":"${{ inputs.list }}","input":{"item":"${{ item }}"}}]},"inputs":{"list":["x","y"]}}`

// TestTwoCalls checks that two calls of a step are proposed before one of them has an
// outcome, and that another instance which continues the run waits for both at once.
func TestTwoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hold = true
		ctx, stop := context.WithCancel(t.Context())
		first, _ := w.begin(ctx, &instance{world: w}, "c-run", each)
		synctest.Wait()
		second, _ := w.begin(ctx, &instance{world: w}, "c-run", each)
		synctest.Wait()
		var proposed []*contract.Event
		for en := range w.Log.Scan(t.Context(), bus.Filter{Event: contract.EventCallProposed}.String(), 1) {
			e, err := eventlog.Open(en, eventlog.Every)
			if err != nil {
				t.Fatal(err)
			}
			proposed = append(proposed, e)
		}
		if len(proposed) != 2 {
			t.Fatalf("%d calls are proposed\n%s", len(proposed), names(w))
		}
		w.mu.Lock()
		w.hold = false
		w.mu.Unlock()
		w.execute(proposed[1])
		synctest.Wait()
		if n := w.count(contract.EventPipelineStepEnded); n != 1 {
			t.Errorf("%d ends of calls are recorded\n%s", n, names(w))
		}
		stop()
		<-first
		<-second
	})
}

// TestNotBegun checks that a run that is cancelled before its start is recorded leaves no
// event.
func TestNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, stop := context.WithCancel(t.Context())
		stop()
		done, _ := w.begin(ctx, &instance{world: w, full: 1}, "c-run", one(""))
		if res := <-done; res.Status != contract.Cancelled || w.Size() != 0 {
			t.Errorf("%+v\n%s", res, names(w))
		}
	})
}

// TestEndRefused checks that a cancelled run whose end cannot be recorded returns its
// result, and does not try again.
func TestEndRefused(t *testing.T) {
	for n, ends := range map[int]int{0: 1, 5: 0} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.hold = true
			ctx, stop := context.WithCancel(t.Context())
			i := &instance{world: w, full: n}
			done, _ := w.begin(ctx, i, "c-run", one(""))
			synctest.Wait()
			stop()
			if res := <-done; res.Status != contract.Cancelled || w.count(contract.EventPipelineEnded) != ends || i.appends != 5 {
				t.Errorf("%+v after %d appends\n%s", res, i.appends, names(w))
			}
		})
	}
}

// started records the start of a run of a pipeline with one step, and returns a run in
// progress that has not read it.
func (w *world) started() (*run, *emit.Emitter) {
	w.t.Helper()
	doc, err := pipeline.Parse([]byte(`{"name":"one","steps":[{"id":"a","pack":"echo"}]}`))
	if err != nil {
		w.t.Fatal(err)
	}
	digest, err := pipeline.Digest([]byte(`{"name":"one","steps":[{"id":"a","pack":"echo"}]}`))
	if err != nil {
		w.t.Fatal(err)
	}
	by := &emit.Emitter{Log: w.Log, Source: services.Work + "/work-2", Now: time.Now}
	key := flow.Key("t", "ann", digest, []byte("{}"))
	if _, _, err := eventlog.AppendEvent(context.Background(), w.Log, by.New(contract.EventPipelineStarted, key, contract.Bytes(flow.New("c-run", doc, map[string]any{}).Started(digest)), cause("c-run"))); err != nil {
		w.t.Fatal(err)
	}
	return &run{Runner: New(Runner{Emit: by}), w: &execute.Work{Call: &contract.Call{ID: "c-run"}, Event: cause("c-run")}, state: flow.New("c-run", doc, map[string]any{}),
		digest: digest, key: key, filter: bus.AggregateFilter("t", services.Work, key), from: 1}, by
}

// TestReload checks that an append after an event of another instance loads that event and
// reports it, so that the run decides again, and that the next append is stored.
func TestReload(t *testing.T) {
	w := newWorld(t)
	x, _ := w.started()
	end := &events.PipelineEnded{Run: "c-run", Status: contract.Succeeded}
	if err := x.append(t.Context(), contract.EventPipelineEnded, end); !errors.Is(err, errReloaded) || x.last != 1 || x.state.Ended != nil {
		t.Errorf("%v at %d", err, x.last)
	}
	if err := x.append(t.Context(), contract.EventPipelineEnded, end); err != nil || x.last != 2 || x.state.Ended == nil {
		t.Errorf("%v at %d", err, x.last)
	}
}

// TestEndedBefore checks that an instance which continues a run whose end is recorded returns
// the recorded status.
func TestEndedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, end := range []events.PipelineEnded{{Status: contract.TimedOut, ErrorCode: contract.CodeTimeout}, {Status: contract.Cancelled, ErrorCode: contract.CodeCancelled}, {Status: contract.Failed, ErrorCode: contract.CodeConflict}} {
			w := newWorld(t)
			x, by := w.started()
			end.Run = "c-run"
			if _, _, err := eventlog.AppendEvent(t.Context(), w.Log, by.New(contract.EventPipelineEnded, x.key, contract.Bytes(&end), cause("c-run"))); err != nil {
				t.Fatal(err)
			}
			if res := w.run(t.Context(), "c-run", `{"document":{"name":"one","steps":[{"id":"a","pack":"echo"}]}}`); res.Status != end.Status || res.ErrorCode != end.ErrorCode {
				t.Errorf("%+v, want %+v", res, end)
			}
		}
	})
}
