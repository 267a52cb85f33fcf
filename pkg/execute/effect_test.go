package execute

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/outcome"
)

// TestInterrupted shows that the cause for which a call's context ended determines the
// status of its result. It also shows that succeeded is never changed, and that
// timed_out is not changed after the deadline.
func TestInterrupted(t *testing.T) {
	ended := func(cause error) context.Context {
		ctx, stop := context.WithCancelCause(context.Background())
		stop(cause)
		return ctx
	}
	late, stop := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer stop()
	for _, c := range []struct {
		name       string
		ctx        context.Context
		status     string
		want, code string
	}{
		{"nothing happened", context.Background(), "", "", ""},
		{"cancelled", ended(errCancelled), contract.Failed, contract.Cancelled, "cancelled"},
		{"cancelled, without a status", ended(errCancelled), "", contract.Cancelled, "cancelled"},
		{"cancelled, but succeeded", ended(errCancelled), contract.Succeeded, contract.Succeeded, ""},
		{"the executor is stopped", ended(errStopped), contract.Failed, contract.Failed, "executor_stopped"},
		{"the executor is stopped, but succeeded", ended(errStopped), contract.Succeeded, contract.Succeeded, ""},
		{"late", late, contract.Failed, contract.TimedOut, "timeout"},
		{"late, and the handler says so", late, contract.TimedOut, contract.TimedOut, ""},
		{"late, but succeeded", late, contract.Succeeded, contract.Succeeded, ""},
	} {
		res := Result{Status: c.status}
		if interrupted(c.ctx, &res); res.Status != c.want || res.ErrorCode != c.code {
			t.Errorf("%s: %s %s, want %s %s", c.name, res.Status, res.ErrorCode, c.want, c.code)
		}
	}
}

// TestWithin shows that the intent's deadline applies, or the call's if the intent has
// none, and that there is no deadline if both are empty.
func TestWithin(t *testing.T) {
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	for _, c := range []struct {
		name         string
		intent, call string
		want         time.Time
	}{
		{"the intent's", contract.Time(at), contract.Time(at.Add(time.Hour)), at},
		{"the call's", "", contract.Time(at), at},
		{"none", "", "", time.Time{}},
	} {
		var a contract.Allowed
		a.Call.Deadline, a.Decision.Intent = c.call, new(contract.ExecutionIntent)
		a.Decision.Intent.Deadline = c.intent
		ctx, stop := within(context.Background(), &a)
		if got, _ := ctx.Deadline(); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		stop()
	}
}

// TestRefuse shows that unclaimed work with a rejected intent is dropped, delivered
// again or terminated, depending on the error and the number of deliveries.
func TestRefuse(t *testing.T) {
	unknown := errors.New("the key is not known yet")
	for _, c := range []struct {
		name  string
		tries uint64
		err   error
		want  error
	}{
		{"expired", 1, guard.ErrExpired, nil},
		{"expired after many deliveries", maxDeliver + 1, guard.ErrExpired, nil},
		{"a key on its way", maxDeliver, unknown, unknown},
		{"a key that never arrives", maxDeliver + 1, unknown, errPoison},
	} {
		if got := (&item{tries: c.tries}).refuse(c.err); !errors.Is(got, c.want) || (c.want == nil) != (got == nil) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestExcused shows that a claim excuses an expired intent and no other fault, such as a
// forged decision.
func TestExcused(t *testing.T) {
	claimed := outcome.History{Claim: &contract.Event{}}
	forged := errors.New("decision: signature does not verify")
	for _, c := range []struct {
		name string
		err  error
		h    outcome.History
		want bool
	}{
		{"expired and claimed", guard.ErrExpired, claimed, true},
		{"expired and unclaimed", guard.ErrExpired, outcome.History{}, false},
		{"forged and claimed", forged, claimed, false},
		{"forged and unclaimed", forged, outcome.History{}, false},
	} {
		if got := excused(c.err, c.h); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestEnter shows that a call cannot run twice at the same time.
func TestEnter(t *testing.T) {
	x := &Executor{running: map[callKey]running{}}
	one, other, ofOther := callKey{"t", "c-1"}, callKey{"t", "c-2"}, callKey{"u", "c-1"}
	if !x.enter(one, running{}) || x.enter(one, running{}) || !x.enter(other, running{}) || !x.enter(ofOther, running{}) {
		t.Error("a call that runs was entered again, or another was not")
	}
	x.leave(one)
	if !x.enter(one, running{}) || x.enter(ofOther, running{}) {
		t.Error("a call that has ended was not entered")
	}
}

// TestProposerOf shows that the proposer is found in canonical facts even if other
// strings in them contain the same text, and that the result is "" for facts without
// one.
func TestProposerOf(t *testing.T) {
	for facts, want := range map[string]string{
		`{"proposer":"gateway"}`: "gateway", `{"kind":"x","proposer":"judge","session":"s"}`: "judge", `{}`: "", ``: "",
		`{"actor":"\"proposer\":\"liar\"","proposer":"gateway"}`: "gateway",
	} {
		if got := proposerOf(contract.Raw(facts)); got != want {
			t.Errorf("%s: %q, want %q", facts, got, want)
		}
	}
}

// TestPanic shows that after a panic of the handler the result is a failure with the
// number of the frames that it sent and the facts that it recorded.
func TestPanic(t *testing.T) {
	x := &Executor{Emit: &emit.Emitter{Now: time.Now}, Blobs: &blob.Store{}, Handler: func(_ context.Context, w *Work) Result {
		w.frames = 3
		w.facts = append(w.facts, func(context.Context) (uint64, error) { return 1, nil })
		panic("broken")
	}}
	args, err := (&blob.Store{}).Commit(t.Context(), []byte(`{}`), "application/json")
	if err != nil {
		t.Fatal(err)
	}
	d := &item{a: contract.Allowed{Call: contract.Call{ID: "c-1", Kind: "tool.x", Args: args}, Decision: contract.Decision{Intent: &contract.ExecutionIntent{}}}}
	res := x.run(t.Context(), &contract.Event{}, d)
	if res.ErrorCode != contract.CodeInternal || res.sent != 3 || len(res.facts) != 1 || res.Usage == nil {
		t.Errorf("%+v", res)
	}
}
