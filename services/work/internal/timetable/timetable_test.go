package timetable

import (
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
)

var begin = time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)

// minutes returns the next full minute.
func minutes(after time.Time) time.Time { return after.Truncate(time.Minute).Add(time.Minute) }

// fired returns a decision in one line.
func fired(d *events.ScheduleFired, wake time.Time) string {
	if d == nil {
		return "wait until " + wake.Format("15:04:05")
	}
	run := "no run"
	if d.CallID != "" {
		run = "run"
	}
	return fmt.Sprintf("%s %s %q, %d missed", d.At[11:19], run, d.Skipped, d.Missed)
}

// TestDecide checks the decisions of a schedule at times before, at and after its times,
// while a run is in progress, and after a time in which no instance executed it.
func TestDecide(t *testing.T) {
	for _, c := range []struct {
		missed string
		open   bool
		after  time.Duration // time since begin, which is State.Last
		want   string
	}{
		{Skip, false, 0, "wait until 12:01:00"},
		{Skip, false, 29 * time.Second, "wait until 12:01:00"},
		{Skip, false, 30 * time.Second, `12:01:00 run "", 0 missed`},
		{Skip, true, 30 * time.Second, `12:01:00 no run "overlap", 0 missed`},
		{Run, true, 10 * time.Minute, `12:10:00 no run "overlap", 9 missed`},
		{Skip, false, 10 * time.Minute, `12:10:00 run "", 9 missed`},
	} {
		s := State{ID: "c-1", Next: minutes, Missed: c.missed, Last: begin, Open: c.open}
		if got := fired(s.Decide(begin.Add(c.after))); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	daily := func(after time.Time) time.Time { return after.Truncate(24 * time.Hour).Add(24 * time.Hour) }
	for missed, want := range map[string]string{Skip: `00:00:00 no run "missed", 2 missed`, Run: `00:00:00 run "", 2 missed`} {
		s := State{ID: "c-1", Next: daily, Missed: missed, Last: begin}
		if got := fired(s.Decide(begin.Add(72 * time.Hour))); got != want {
			t.Errorf("%s: %s", missed, got)
		}
	}
	for after, want := range map[time.Duration]string{Grace: `12:01:00 run "", 0 missed`, Grace + 1: `12:01:00 no run "missed", 0 missed`} {
		once := func(from time.Time) time.Time {
			if at := begin.Add(30 * time.Second); from.Before(at) {
				return at
			}
			return time.Time{}
		}
		s := State{ID: "c-1", Next: once, Missed: Skip, Last: begin}
		if got := fired(s.Decide(begin.Add(30*time.Second + after))); got != want {
			t.Errorf("%v late: %s", after, got)
		}
	}
	s := State{ID: "c-1", Next: func(time.Time) time.Time { return time.Time{} }, Last: begin}
	if d, wake := s.Decide(begin); d != nil || !wake.IsZero() {
		t.Error(d, wake)
	}
}

// TestEvolve checks that a time is decided once, that the call of a run depends on schedule
// and time only, and that events of other schedules and invalid ones have no effect.
func TestEvolve(t *testing.T) {
	s := State{ID: "c-1", Next: minutes, Missed: Skip, Last: begin}
	now := begin.Add(30 * time.Second)
	d, _ := s.Decide(now)
	if again, _ := s.Decide(now.Add(time.Second)); again.CallID != d.CallID || d.CallID == "" {
		t.Error(d.CallID, again.CallID)
	}
	put := func(d *events.ScheduleFired) {
		if err := s.Evolve(7, &contract.Event{Name: contract.EventScheduleFired, Data: contract.Bytes(d)}); err != nil {
			t.Error(err)
		}
	}
	other := *d
	other.Schedule, other.At = "c-2", contract.Time(begin.Add(time.Hour))
	put(&other)
	if err := s.Evolve(8, &contract.Event{Name: contract.EventScheduleFired, Data: []byte(`{"at":1}`)}); err == nil || s.Open {
		t.Error(err, s)
	}
	put(d)
	if got := fired(s.Decide(now)); got != "wait until 12:02:00" || s.Call != d.CallID || s.Since != 7 || !s.Open {
		t.Errorf("%s: %+v", got, s)
	}
	if a, b := Key("t", "a", "d", "c", "z", nil), Key("t", "a", "d", "c", "y", nil); a == b || a != Key("t", "a", "d", "c", "z", nil) {
		t.Error(a, b)
	}
}

// TestManyMissed checks that a decision counts at most maxTimes times as missed, and that the
// next one continues with the time after them.
func TestManyMissed(t *testing.T) {
	s := State{ID: "c-1", Next: minutes, Missed: Skip, Last: begin}
	now := begin.Add((maxTimes + 3) * time.Minute)
	for _, want := range []int64{maxTimes, 1} {
		d, _ := s.Decide(now)
		if d == nil || d.Missed != want {
			t.Fatalf("%+v, want %d missed", d, want)
		}
		if err := s.Evolve(1, &contract.Event{Name: contract.EventScheduleFired, Data: contract.Bytes(d)}); err != nil {
			t.Fatal(err)
		}
	}
	if d, _ := s.Decide(now); d != nil {
		t.Errorf("%+v after the newest time", d)
	}
}
