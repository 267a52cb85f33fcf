package held

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// noon is the time of the first event of the tests.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// fact returns an event of a sandbox, some seconds after noon.
func fact(tenant, id, name string, seconds int, doc canon.Document) *contract.Event {
	return &contract.Event{Tenant: tenant, Key: id, Name: name, Time: contract.Time(noon.Add(time.Duration(seconds) * time.Second)), Data: contract.Bytes(doc)}
}

// created returns the sandbox_created of a sandbox of alice in session s-1, which may be
// idle for 10 s and live for 60 s.
func created(tenant, id, instance string, seconds int) *contract.Event {
	return fact(tenant, id, contract.EventSandboxCreated, seconds, &events.SandboxCreated{Actor: "alice", Session: "s-1", Instance: instance, IdleMS: 10_000, LifeMS: 60_000})
}

func started(exec string, seconds int) *contract.Event {
	return fact("t", "sb-1", contract.EventSandboxExecStarted, seconds, &events.SandboxExecStarted{CallID: "c-1", Exec: exec})
}

func stopped(exec string, seconds int) *contract.Event {
	return fact("t", "sb-1", contract.EventSandboxExecEnded, seconds, &events.SandboxExecEnded{Exec: exec, Status: ExecExited})
}

func ended(id, reason string, seconds int) *contract.Event {
	return fact("t", id, contract.EventSandboxEnded, seconds, &events.SandboxEnded{Reason: reason})
}

// fold returns the sandbox after some events.
func fold(all ...*contract.Event) (s *Sandbox) {
	for i, e := range all {
		s = Evolve(s, uint64(i+1), e)
	}
	return s
}

// TestDue shows when a sandbox must end: at the end of its life, also while a command
// runs, and after its idle time without a use or a command that runs; and that one that
// has ended is not due.
func TestDue(t *testing.T) {
	renewed := fact("t", "sb-1", contract.EventSandboxRenewed, 9, &events.SandboxRenewed{CallID: "c-2"})
	for _, c := range []struct {
		name   string
		events []*contract.Event
		used   int // time of the last use that the instance has noted, in seconds after noon
		now    int
		want   string
	}{
		{"before the idle time", nil, 0, 9, ""},
		{"after the idle time", nil, 0, 10, Idle},
		{"a use that is not recorded", nil, 5, 14, ""},
		{"after that use", nil, 5, 15, Idle},
		{"renewed", []*contract.Event{renewed}, 0, 18, ""},
		{"after the renewal", []*contract.Event{renewed}, 0, 19, Idle},
		{"a command runs", []*contract.Event{started("e", 1)}, 0, 59, ""},
		{"its life is over while a command runs", []*contract.Event{started("e", 1)}, 0, 60, Life},
		{"a command ended", []*contract.Event{started("e", 1), stopped("e", 30)}, 0, 39, ""},
		{"after a command ended", []*contract.Event{started("e", 1), stopped("e", 30)}, 0, 40, Idle},
		{"ended", []*contract.Event{ended("sb-1", Terminated, 2)}, 0, 90, ""},
	} {
		s := fold(append([]*contract.Event{created("t", "sb-1", "r-1", 0)}, c.events...)...)
		if got := s.Due(noon.Add(time.Duration(c.now)*time.Second), noon.Add(time.Duration(c.used)*time.Second)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestDecide shows that no command starts, and nothing is renewed or ended, in a sandbox
// that has ended or was never created, that the number of commands is limited, and that the
// end of a command is recorded once.
func TestDecide(t *testing.T) {
	open := fold(created("t", "sb-1", "r-1", 0))
	gone := fold(created("t", "sb-1", "r-1", 0), ended("sb-1", Idle, 1))
	for name, s := range map[string]*Sandbox{"ended": gone, "never created": nil} {
		_, start := s.Start("c", "e")
		_, renew := s.Renew("c")
		if !errors.Is(start, ErrEnded) || !errors.Is(renew, ErrEnded) || s.End("c", Terminated) != nil || s.Stop(events.SandboxExecEnded{Exec: "e"}) != nil {
			t.Errorf("%s: %v %v", name, start, renew)
		}
	}
	if d, err := open.Start("c", "e"); err != nil || d.Exec != "e" || open.End("c", Idle).Reason != Idle {
		t.Errorf("open: %v %v", d, err)
	}
	busy := open
	for i := range MaxRunning {
		busy = Evolve(busy, 9, started(fmt.Sprint(i), 1))
	}
	if _, err := busy.Start("c", "e"); !errors.Is(err, ErrBusy) {
		t.Errorf("busy: %v", err)
	}
	if len(open.Running) != 0 {
		t.Error("Evolve changed its argument")
	}
	once := Evolve(busy, 9, stopped("3", 2))
	if busy.Stop(events.SandboxExecEnded{Exec: "3"}) == nil || once.Stop(events.SandboxExecEnded{Exec: "3"}) != nil {
		t.Error("the end of a command is not recorded once")
	}
}

// TestEvolve shows that events which do not apply change nothing: a second creation,
// events of another sandbox or tenant, events after the end, and invalid data.
func TestEvolve(t *testing.T) {
	s := fold(created("t", "sb-1", "r-1", 0))
	for name, e := range map[string]*contract.Event{
		"second creation": created("t", "sb-1", "r-2", 1),
		"other sandbox":   ended("sb-2", Lost, 1),
		"other tenant":    fact("u", "sb-1", contract.EventSandboxEnded, 1, &events.SandboxEnded{Reason: Lost}),
		"other event":     fact("t", "sb-1", contract.EventToolRetired, 1, &events.SandboxEnded{Reason: Lost}),
		"invalid data":    {Tenant: "t", Key: "sb-1", Name: contract.EventSandboxEnded, Time: contract.Time(noon), Data: []byte(`{"reason":1}`)},
	} {
		if got := Evolve(s, 9, e); got.Ended != "" || got.Data.Instance != "r-1" || got.Seq != 1 || !got.Used.Equal(s.Used) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if Evolve(nil, 1, ended("sb-1", Lost, 1)) != nil {
		t.Error("a sandbox without its creation")
	}
	gone := Evolve(s, 2, ended("sb-1", Lost, 1))
	if got := Evolve(gone, 3, ended("sb-1", Terminated, 2)); got.Ended != Lost {
		t.Errorf("a second end: %s", got.Ended)
	}
}

// TestView shows whose calls may use a sandbox, which one is the current one of a session,
// that the limits count open sandboxes that were created earlier, in the tenant or on the
// instance, and that Trim removes those that had ended for longer than Remember at the time of
// the newest event.
func TestView(t *testing.T) {
	var v View
	for i, e := range []*contract.Event{created("t", "sb-1", "r-1", 0), created("t", "sb-2", "r-1", 1), created("u", "sb-3", "r-1", 2), created("t", "sb-4", "r-2", 3), ended("sb-1", Idle, 4)} {
		v.Apply(uint64(i+1), e)
	}
	two, three, four := v.Get("t", "sb-2"), v.Get("u", "sb-3"), v.Get("t", "sb-4")
	for _, who := range [][3]string{{"u", "alice", "s-1"}, {"t", "bob", "s-1"}, {"t", "alice", "s-2"}} {
		if two.May(who[0], who[1], who[2]) {
			t.Errorf("%v may use it", who)
		}
		if c := v.Current(who[0], who[1], who[2]); c != nil && !c.May(who[0], who[1], who[2]) {
			t.Errorf("the current sandbox of %v is %s, which it may not use", who, c.ID)
		}
	}
	if (*Sandbox)(nil).May("t", "alice", "s-1") || !two.May("t", "alice", "s-1") || v.Current("t", "alice", "s-1") != four || v.Get("u", "sb-2") != nil {
		t.Error("its owner may not use it, or it is not current, or another tenant finds it")
	}
	if v.Over(two, "", 1) || !v.Over(four, "", 1) || v.Over(four, "", 2) || v.Over(three, "", 1) || !v.Over(three, "r-1", 1) || v.Over(four, "r-2", 1) {
		t.Error("limits")
	}
	of := created("t", "sb-0", "r-1", 0)
	of.Data = bytes.Replace(of.Data, []byte(`"session":"s-1"`), []byte(`"session":"mcp.files"`), 1)
	var w View
	w.Apply(1, of)
	w.Apply(2, created("t", "sb-1", "r-1", 1))
	if s := w.Get("t", "sb-1"); !w.Get("t", "sb-0").Server() || s.Server() || w.Over(s, "", 1) || !w.Over(s, "r-1", 1) {
		t.Error("the sandbox of an MCP server")
	}
	v.Apply(6, ended("sb-4", Idle, 4))
	if c := v.Current("t", "alice", "s-1"); c == nil || c.ID != "sb-2" {
		t.Errorf("after the end of the newest sandbox, the current one is %+v", c)
	}
	hour := int(Remember / time.Second)
	v.Apply(7, created("t", "sb-5", "r-1", 4+hour))
	v.Trim()
	if v.Get("t", "sb-1") == nil {
		t.Error("trimmed too early")
	}
	v.Apply(8, created("t", "sb-6", "r-1", 5+hour))
	v.Trim()
	if v.Get("t", "sb-1") != nil || v.Get("t", "sb-2") == nil {
		t.Error("trim")
	}
}

// TestAdopt shows that one instance adopts a sandbox from its holder, that this is not a
// use, that a sandbox which has ended is not adopted, and which sandboxes are open.
func TestAdopt(t *testing.T) {
	s := fold(created("t", "sb-1", "r-1", 0))
	d := s.Adopt("r-1", "r-2")
	if d == nil || s.Adopt("r-3", "r-2") != nil || Evolve(s, 2, ended("sb-1", Life, 60)).Adopt("r-1", "r-2") != nil || (*Sandbox)(nil).Adopt("r-1", "r-2") != nil {
		t.Fatal("the decision")
	}
	got := Evolve(s, 2, fact("t", "sb-1", contract.EventSandboxAdopted, 9, d))
	if got.Holder != "r-2" || !got.Used.Equal(s.Used) || got.Adopt("r-1", "r-3") != nil {
		t.Errorf("%+v", got)
	}
	var v View
	v.Apply(1, created("t", "sb-1", "r-1", 0))
	if v.Open("sb-2") || !v.Open("sb-1") {
		t.Error("open")
	}
	if v.Apply(2, ended("sb-1", Life, 60)); v.Open("sb-1") {
		t.Error("open after its end")
	}
}

// TestAbandoned shows that a sandbox is abandoned once LostAfter has passed since the end of its
// life, unless it has ended.
func TestAbandoned(t *testing.T) {
	s := fold(created("t", "sb-1", "r-1", 0))
	if late := s.Expires().Add(LostAfter); s.Abandoned(late.Add(-time.Millisecond)) || !s.Abandoned(late) || Evolve(s, 2, ended("sb-1", Life, 60)).Abandoned(late) {
		t.Error("abandoned at the wrong time")
	}
}

// TestRing shows that a ring holds the last bytes, that a reader continues from its cursor,
// and is informed of bytes that it missed.
func TestRing(t *testing.T) {
	r := Ring{Max: 4}
	expect := func(at, n int64, data string, next, skipped int64) {
		t.Helper()
		if b, to, lost := r.Read(at, n); string(b) != data || to != next || lost != skipped {
			t.Errorf("%q %d %d, want %q %d %d", b, to, lost, data, next, skipped)
		}
	}
	expect(0, 9, "", 0, 0)
	wake := r.Wake()
	_, _ = r.Write([]byte("abc"))
	<-wake
	expect(0, 2, "ab", 2, 0)
	expect(2, 9, "c", 3, 0)
	expect(9, 9, "", 3, 0)
	_, _ = r.Write([]byte("defgh"))
	expect(3, 9, "efgh", 8, 1)
	expect(6, 1, "g", 7, 0)
	if r.Written() != 8 {
		t.Errorf("%d bytes", r.Written())
	}
}
