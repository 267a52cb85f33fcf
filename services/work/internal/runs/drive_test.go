package runs

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
)

// one returns the arguments of a run of a pipeline with one step, which has further members.
func one(members string) string {
	return `{"document":{"name":"one","steps":[{"id":"a","pack":"echo"` + members + `}]}}`
}

// TestAppendRefused refuses each append of a run in turn: the first one ends the run, since
// nothing is recorded then; any other is repeated, after a delay or when its call is
// proposed again. No call is made twice.
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
			case n > 1 && (string(res.Output) != eightOutput || took > again):
				t.Errorf("append %d: %+v after %v\n%s", n, res, took, names(w))
			}
			once(t, w)
		})
	}
}

// TestCodes checks the error code and the status of a run for each way in which its step may
// fail.
func TestCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, x := range []struct{ status, code, want string }{
			{contract.Failed, contract.CodeConflict, contract.CodeConflict},
			{contract.Failed, "", contract.CodeHandlerFailed},
			{contract.TimedOut, "", contract.CodeHandlerFailed},
			{contract.Denied, "", contract.CodeDenied},
			{contract.Denied, contract.CodeResourceExhausted, contract.CodeResourceExhausted},
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

// TestRunTimeout checks that a run ends after its timeout and, if the call that runs has no
// outcome then, a bounded time later; and at once if that call ends in time.
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

// TestPlaces checks that an instance runs at most MaxRuns pipelines at a time.
func TestPlaces(t *testing.T) {
	r := New(Runner{Tools: tools()})
	for range MaxRuns {
		r.places <- struct{}{}
	}
	res := r.Run(t.Context(), &execute.Work{Call: &contract.Call{ID: "c-run", Kind: KindRun}, Args: []byte(one("")), Event: cause("c-run")})
	if res.ErrorCode != contract.CodeUnavailable || !strings.Contains(res.ErrorMessage, fmt.Sprint(MaxRuns)) {
		t.Errorf("%+v", res)
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
