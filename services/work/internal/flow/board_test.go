package flow

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// boardTest is a board with a clock that advances with each event.
type boardTest struct {
	Board
	at int
}

// put applies an event of a tenant and call by alice.
func (b *boardTest) put(tenant, call, name string, data []byte) {
	b.at++
	b.Apply(&contract.Event{Tenant: tenant, Actor: "alice", Session: "s-1", CallID: call, Name: name, Time: fmt.Sprint("t", b.at), Data: data})
}

func (b *boardTest) start(tenant, run string) {
	b.put(tenant, run, contract.EventPipelineStarted, contract.Bytes(&events.PipelineStarted{CallID: run, Digest: "d", Name: "x", Steps: []events.PipelineStep{{ID: "a", Needs: []string{}, Pack: "p"}, {ID: "m", Mapped: 1, Needs: []string{"a"}, Pack: "q"}}}))
}

func (b *boardTest) stepStarted(tenant, run, step string, item, attempt int64) {
	b.put(tenant, "c-step", contract.EventPipelineStepStarted, contract.Bytes(&events.PipelineStepStarted{Attempt: attempt, CallID: fmt.Sprintf("c-%s%d%d", step, item, attempt), Item: item, Run: run, Step: step}))
}

func (b *boardTest) stepEnded(tenant, run, step string, item int64, status, code string, retry int64) {
	b.put(tenant, "c-step", contract.EventPipelineStepEnded, contract.Bytes(&events.PipelineStepEnded{Item: item, Run: run, Step: step, Status: status, ErrorCode: code, RetryMS: retry}))
}

// describe returns a run in one line.
func describe(r *events.PipelineRun) string {
	if r == nil {
		return "none"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s by %s in %s: %s %s-%s %q %q", r.Run, r.Pipeline, r.Digest, r.Actor, r.Session, r.Status, r.Started, r.Ended, r.ErrorCode, r.Failed)
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "; %s %s%v: %s %s-%s %d calls of %d items, %q %q", s.ID, s.Pack, s.Needs, s.Status, s.Started, s.Ended, s.Attempts, s.Items, s.CallID, s.ErrorCode)
	}
	return b.String()
}

// TestBoard checks the description of a run after each of its events: those of several
// attempts, of items that run concurrently, and of the end of the run.
func TestBoard(t *testing.T) {
	var b boardTest
	const run, a0, m0 = "c-1 x d by alice in s-1: running t1- \"\" \"\"", "; a p[]: pending - 0 calls of 0 items, \"\" \"\"", "; m q[a]: pending - 0 calls of 0 items, \"\" \"\""
	const a2 = `; a p[]: succeeded t2-t5 2 calls of 1 items, "c-a02" ""`
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { b.start("t", "c-1") }, run + a0 + m0},
		{func() { b.stepStarted("t", "c-1", "a", 0, 1) }, run + `; a p[]: running t2- 1 calls of 1 items, "c-a01" ""` + m0},
		{func() { b.stepEnded("t", "c-1", "a", 0, contract.TimedOut, "timeout", 5) }, run + `; a p[]: pending t2-t3 1 calls of 1 items, "c-a01" "timeout"` + m0},
		{func() { b.stepStarted("t", "c-1", "a", 0, 2) }, run + `; a p[]: running t2-t3 2 calls of 1 items, "c-a02" ""` + m0},
		{func() { b.stepEnded("t", "c-1", "a", 0, contract.Succeeded, "", 0) }, run + a2 + m0},
		{func() { b.stepStarted("t", "c-1", "m", 1, 1) }, run + a2 + `; m q[a]: running t6- 1 calls of 2 items, "c-m11" ""`},
		{func() { b.stepStarted("t", "c-1", "m", 0, 1) }, run + a2 + `; m q[a]: running t6- 2 calls of 2 items, "c-m01" ""`},
		{func() { b.stepEnded("t", "c-1", "m", 1, contract.Failed, "internal", 0) }, run + a2 + `; m q[a]: running t6-t8 2 calls of 2 items, "c-m01" "internal"`},
		{func() { b.stepEnded("t", "c-1", "m", -1, contract.Failed, "", 0) }, run + a2 + `; m q[a]: running t6-t9 2 calls of 2 items, "c-m01" "internal"`},
		{func() { b.stepEnded("t", "c-1", "m", 0, contract.Cancelled, "", 0) }, run + a2 + `; m q[a]: cancelled t6-t10 2 calls of 2 items, "c-m01" "internal"`},
		{func() { b.stepEnded("t", "c-1", "m", 0, contract.Denied, "", 0) }, run + a2 + `; m q[a]: denied t6-t11 2 calls of 2 items, "c-m01" "internal"`},
		{func() { b.stepStarted("t", "c-1", "m", 0, 2) }, run + a2 + `; m q[a]: running t6-t11 3 calls of 2 items, "c-m02" ""`},
		{func() { b.stepEnded("t", "c-1", "m", 0, contract.Failed, "timeout", 0) }, run + a2 + `; m q[a]: failed t6-t13 3 calls of 2 items, "c-m02" "timeout"`},
	} {
		step.do()
		if got := describe(b.Get("t", "", "c-1")); got != step.want {
			t.Fatalf("got  %s\nwant %s", got, step.want)
		}
	}
	b.put("t", "c-1", contract.EventPipelineEnded, contract.Bytes(&events.PipelineEnded{Run: "c-1", Status: contract.Failed, ErrorCode: "timeout", Step: "m"}))
	ended := describe(b.Get("t", "", "c-1"))
	if !strings.HasPrefix(ended, `c-1 x d by alice in s-1: failed t1-t14 "timeout" "m"; `) {
		t.Error(ended)
	}
	b.put("t", "c-1", contract.EventEffectRecorded, []byte(`{"effect":{"status":"cancelled"}}`))
	b.put("t", "c-1", contract.EventPipelineEnded, contract.Bytes(&events.PipelineEnded{Run: "c-1", Status: contract.Succeeded}))
	if got := describe(b.Get("t", "", "c-1")); got != ended {
		t.Errorf("a run ends twice: %s", got)
	}
	b.start("t", "c-2")
	b.put("t", "c-2", contract.EventEffectRecorded, contract.Bytes(&contract.Recorded{Effect: contract.Effect{Status: contract.Cancelled, ErrorCode: "cancelled"}}))
	if got := describe(b.Get("t", "", "c-2")); !strings.Contains(got, `: cancelled t17-t18 "cancelled" ""`) {
		t.Error(got)
	}
}

// TestBoardNotBegun checks that a run is described which ended before it began, unless it
// returned the id of another run, and that the outcome of a call of another tool is no run.
func TestBoardNotBegun(t *testing.T) {
	var b boardTest
	put := func(call, tool, status, code string) {
		b.put("t", call, contract.EventEffectRecorded, contract.Bytes(&contract.Recorded{Effect: contract.Effect{Status: status, ErrorCode: code, Tool: tool}}))
	}
	put("c-1", "pipeline.run", contract.Cancelled, "cancelled")
	put("c-2", "pipeline.run", contract.Succeeded, "")
	put("c-3", "pipeline.approve", contract.Failed, "internal")
	put("c-4", "pipeline.run", contract.Failed, "invalid_input")
	var got []string
	for _, r := range b.List("t", "alice", 9) {
		got = append(got, describe(r))
	}
	if want := []string{`c-4   by alice in s-1: failed -t4 "invalid_input" ""`, `c-1   by alice in s-1: cancelled -t1 "cancelled" ""`}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestBoardForeign checks that a description is not changed by events of other runs,
// tenants and steps, by events with invalid data, by a second start, or by a start
// that another call recorded.
func TestBoardForeign(t *testing.T) {
	var b boardTest
	b.start("t", "c-1")
	want := describe(b.Get("t", "", "c-1"))
	b.put("t", "c-1", contract.EventPipelineStarted, contract.Bytes(&events.PipelineStarted{CallID: "c-1", Digest: "other"}))
	b.put("t", "c-1", contract.EventPipelineStarted, contract.Bytes(&events.PipelineStarted{CallID: "c-2"}))
	b.stepStarted("u", "c-1", "a", 0, 1)
	b.stepStarted("t", "c-2", "a", 0, 1)
	b.stepStarted("t", "c-1", "b", 0, 1)
	b.stepEnded("t", "c-1", "b", 0, contract.Failed, "", 0)
	b.stepEnded("u", "c-1", "a", 0, contract.Failed, "", 0)
	b.put("u", "c-1", contract.EventPipelineEnded, contract.Bytes(&events.PipelineEnded{Run: "c-1"}))
	b.put("u", "c-1", contract.EventEffectRecorded, []byte(`{}`))
	b.put("t", "c-2", contract.EventEffectRecorded, []byte(`{}`))
	for name, data := range map[string]string{contract.EventPipelineStarted: `{"call_id":1}`, contract.EventPipelineStepStarted: `{"run":"c-1","step":"a","item":"x"}`,
		contract.EventPipelineStepEnded: `{"run":"c-1","step":"a","item":"x"}`, contract.EventPipelineEnded: `{"run":"c-1","status":1}`, contract.EventEffectRecorded: `{"effect":1}`} {
		b.put("t", "c-1", name, []byte(data))
	}
	if got := describe(b.Get("t", "", "c-1")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if r := b.Get("t", "", "c-2"); r != nil {
		t.Errorf("a start that another call recorded: %s", describe(r))
	}
}

// TestBoardLists checks which runs are returned for an actor and in which order, that a
// returned description does not change later, and that the board holds at most maxBoard
// runs of a tenant.
func TestBoardLists(t *testing.T) {
	var b boardTest
	ids := func(tenant, actor string, limit int) string {
		var out []string
		for _, r := range b.List(tenant, actor, limit) {
			out = append(out, r.Run)
		}
		return strings.Join(out, " ")
	}
	for i := range 3 {
		b.start("t", fmt.Sprint("c-", i))
	}
	for _, x := range []struct {
		tenant, actor string
		limit         int
		want          string
	}{{"t", "", 9, "c-2 c-1 c-0"}, {"t", "alice", 2, "c-2 c-1"}, {"t", "", 0, ""}, {"t", "bob", 9, ""}, {"u", "", 9, ""}} {
		if got := ids(x.tenant, x.actor, x.limit); got != x.want {
			t.Errorf("%+v: %s", x, got)
		}
	}
	if b.Get("t", "alice", "c-0") == nil || b.Get("t", "bob", "c-0") != nil || b.Get("u", "", "c-0") != nil {
		t.Error("the runs of another actor or tenant are returned")
	}
	before := b.Get("t", "", "c-0")
	want := describe(before)
	b.stepStarted("t", "c-0", "a", 0, 1)
	if got := describe(before); got != want || describe(b.Get("t", "", "c-0")) == want {
		t.Errorf("a later event changes a description: %s", got)
	}
	for i := range maxBoard {
		b.start("u", fmt.Sprint("c-", i))
	}
	if b.Get("u", "", "c-0") == nil {
		t.Errorf("of %d runs the oldest is removed", maxBoard)
	}
	b.start("u", "c-last")
	if n := len(b.List("u", "", 2*maxBoard)); n != maxBoard || b.Get("u", "", "c-0") != nil || b.Get("u", "", "c-1") == nil || b.Get("t", "", "c-0") == nil {
		t.Errorf("%d runs of a tenant", n)
	}
}
