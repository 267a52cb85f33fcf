package timetable

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

// boardTest is a board to which events are applied.
type boardTest struct{ Board }

func (b *boardTest) put(tenant, actor, call, name string, data []byte) {
	b.Apply(&contract.Event{Tenant: tenant, Actor: actor, Session: "s-1", CallID: call, Name: name, Time: contract.Time(begin), Data: data})
}

func (b *boardTest) start(tenant, actor, call string) {
	b.put(tenant, actor, call, contract.EventScheduleStarted, contract.Bytes(&events.ScheduleStarted{CallID: call, Cron: "@every 10s", Digest: "d", Missed: Skip, Name: "x", Timezone: "UTC"}))
}

func (b *boardTest) fire(tenant, call, run, skipped string, missed int64, at time.Time) {
	b.put(tenant, "-", call, contract.EventScheduleFired, contract.Bytes(&events.ScheduleFired{At: contract.Time(at), CallID: run, Missed: missed, Schedule: call, Skipped: skipped}))
}

func (b *boardTest) end(tenant, actor, call, status, code string) {
	b.put(tenant, actor, call, contract.EventEffectRecorded, contract.Bytes(&contract.Recorded{Effect: contract.Effect{CallID: call, ErrorCode: code, Status: status, Tool: pipeline.SchedulePack}}))
}

// list returns the list of an actor's schedules in one line.
func (b *boardTest) list(tenant, actor string, limit int) string {
	var out []string
	for _, s := range b.List(tenant, actor, limit) {
		out = append(out, s.Schedule+" "+s.Status)
	}
	return strings.Join(out, ", ")
}

// TestBoard checks the description of schedules after each of their events, and that it is
// returned to neither another tenant nor another actor.
func TestBoard(t *testing.T) {
	var b boardTest
	b.start("t", "alice", "c-1")
	s := b.Get("t", "alice", "c-1")
	if s == nil || s.Status != "running" || s.Next != contract.Time(begin.Add(10*time.Second)) || s.Pipeline != "x" || s.Cron != "@every 10s" {
		t.Fatalf("%+v", s)
	}
	b.fire("t", "c-1", "c-run", "", 2, begin.Add(30*time.Second))
	b.fire("t", "c-1", "", Overlap, 0, begin.Add(40*time.Second))
	b.fire("t", "c-none", "c-run", "", 0, begin)
	if s = b.Get("t", "", "c-1"); s.Runs != 1 || s.Skipped != 3 || s.NewestRun != "" || s.NewestSkipped != Overlap || s.Next != contract.Time(begin.Add(50*time.Second)) {
		t.Errorf("%+v", s)
	}
	b.start("t", "bob", "c-2")
	b.end("t", "alice", "c-1", contract.Cancelled, contract.CodeCancelled)
	b.end("t", "alice", "c-1", contract.Failed, "") // a second outcome changes nothing
	b.end("t", "alice", "c-wrong", contract.Failed, contract.CodeInvalidInput)
	b.end("t", "alice", "c-coalesced", contract.Succeeded, "")
	if s = b.Get("t", "alice", "c-1"); s.Status != contract.Cancelled || s.Ended == "" || s.Next != "" {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct{ tenant, actor, want string }{
		{"t", "", "c-2 running, c-wrong failed, c-1 cancelled"},
		{"t", "alice", "c-wrong failed, c-1 cancelled"},
		{"t", "bob", "c-2 running"},
		{"other", "", ""},
	} {
		if got := b.list(c.tenant, c.actor, 9); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.tenant, c.actor, got, c.want)
		}
	}
	if b.Get("t", "bob", "c-1") != nil || b.Get("other", "", "c-1") != nil || b.list("t", "", 1) != "c-2 running" {
		t.Error("a schedule is described to another actor or tenant, or the limit has no effect")
	}
}

// TestBoardFull checks that the board removes the oldest schedules that have ended, and none
// that goes on.
func TestBoardFull(t *testing.T) {
	var b boardTest
	b.start("t", "alice", "c-open")
	for i := range maxBoard + 5 {
		id := fmt.Sprint("c-", i)
		b.start("t", "alice", id)
		b.end("t", "alice", id, contract.Cancelled, contract.CodeCancelled)
	}
	if b.Get("t", "", "c-open") == nil || b.Get("t", "", "c-0") != nil || b.Get("t", "", fmt.Sprint("c-", maxBoard+4)) == nil || len(b.all) != maxBoard {
		t.Errorf("%d schedules", len(b.all))
	}
}
