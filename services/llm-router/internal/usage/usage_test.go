package usage

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

func attempt(at time.Time, a events.AttemptFinished) *contract.Event {
	return &contract.Event{Name: events.AttemptFinishedName, Source: "llm-router/llm-router-1", Tenant: "t", Actor: "alice", CallID: "c-" + a.ResponseID, Time: contract.Time(at), Data: contract.Bytes(&a)}
}

func TestView(t *testing.T) {
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	var s, again State
	for i := range 1000 {
		a := events.AttemptFinished{Provider: "p", Model: "m", Status: "succeeded", LatencyMS: int64(i + 1), FirstByteMS: 5, InputTokens: 10, OutputTokens: 2, USDMicros: 3, Key: "k", Tags: []string{"y", "x"}, ResponseID: fmt.Sprint("r", i)}
		if i%10 == 0 {
			a.Status, a.ErrorCode = "failed", "upstream_error"
		}
		if i%50 == 1 {
			a.Status = "cancelled"
		}
		e := attempt(noon.Add(time.Duration(i)*time.Second), a)
		if err := s.Apply(e); err != nil {
			t.Fatal(err)
		}
		if err := again.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	if string(s.Dump()) != string(again.Dump()) || len(s.Dump()) == 0 {
		t.Fatal("folding again gives something else")
	}
	st := s.Stats("t", time.Time{}, time.Time{})[0]
	if st.Attempts != 1000 || st.Errors["upstream_error"] != 100 || st.Cancelled != 20 || st.Succeeded != 880 || math.Abs(st.SuccessRate-880.0/980) > 1e-9 {
		t.Errorf("%+v", st)
	}
	for want, got := range map[float64]int64{500: st.LatencyMS.P50, 950: st.LatencyMS.P95, 990: st.LatencyMS.P99, 5: st.FirstByteMS.P50} {
		if math.Abs(float64(got)-want) > want*0.04+1 {
			t.Errorf("quantile %d, want about %v", got, want)
		}
	}
	if st := s.Stats("t", noon.Add(time.Minute), noon.Add(2*time.Minute))[0]; st.Attempts != 60 {
		t.Errorf("one minute of a call a second: %d", st.Attempts)
	}
	rows, err := s.Spend("t", time.Time{}, time.Time{}, []string{"tag"})
	if err != nil || len(rows) != 2 || rows[0].By["tag"] != "x" || rows[0].USDMicros != 3000 || rows[1].InputTokens != 10000 {
		t.Errorf("%+v %v", rows, err)
	}
	if _, err := s.Spend("t", time.Time{}, time.Time{}, []string{"colour"}); err == nil {
		t.Error("an unknown dimension is taken")
	}
	if s.Answer("t", "r5").Call != "c-r5" || s.Answer("t", "r0").Call != "" {
		t.Error("answers are not found by their id, or failed ones are")
	}
	deletion := func(actor string) *contract.Event {
		return &contract.Event{Name: events.ResponseDeletedName, Source: "llm-router/llm-router-1", Tenant: "t", Actor: actor, Time: contract.Time(noon), Data: contract.Bytes(&events.ResponseDeleted{ResponseCall: "c-r5", ResponseID: "r5"})}
	}
	for _, d := range []struct{ actor, left string }{{"somebody-else", "c-r5"}, {"alice", ""}} {
		if err := s.Apply(deletion(d.actor)); err != nil || s.Answer("t", "r5").Call != d.left {
			t.Errorf("deleted by %s: %q is left, want %q (%v)", d.actor, s.Answer("t", "r5").Call, d.left, err)
		}
	}
}

// TestThinning shows that merging old periods changes neither the number of attempts nor
// the sums of old days, that it limits the number of periods that are stored, and that
// the same events give the same state. The attempts of the last 70 minutes are still
// counted by minute.
func TestThinning(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var s, again State
	const days = 100
	for m := 0; m < days*24*60; m += 7 {
		e := attempt(start.Add(time.Duration(m)*time.Minute), events.AttemptFinished{Provider: "p", Model: "m", Status: "succeeded", LatencyMS: 10, USDMicros: 3})
		if m%91 == 0 && m > 70*24*60 { // an attempt whose time is at least 70 days before that of the preceding attempt
			e.Time = contract.Time(start)
		}
		for _, v := range []*State{&s, &again} {
			if err := v.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if string(s.Dump()) != string(again.Dump()) {
		t.Error("folding again gives something else")
	}
	if most := 48*60/7 + 61*24 + 40 + 60; len(s.cells) > most {
		t.Errorf("%d cells, want at most %d", len(s.cells), most)
	}
	rows, err := s.Spend("t", start.AddDate(0, 0, 3), start.AddDate(0, 0, 98), []string{"day"})
	if err != nil || len(rows) != 95 {
		t.Fatalf("%d days, %v", len(rows), err)
	}
	for _, r := range rows {
		if r.By["day"] < "2026-03-10" && (r.Attempts < 205 || r.Attempts > 206 || r.USDMicros != 3*r.Attempts) {
			t.Errorf("%+v", r)
		}
	}
	if all := s.Stats("t", time.Time{}, time.Time{})[0]; all.Attempts != (days*24*60+6)/7 {
		t.Errorf("%d attempts", all.Attempts)
	}
	end := start.AddDate(0, 0, days)
	if st := s.Stats("t", end.Add(-70*time.Minute), end); st[0].Attempts > 10 || st[0].Attempts < 8 {
		t.Errorf("the last 70 minutes: %d", st[0].Attempts)
	}
}

// TestOwners shows that an id can be used by its first owner only, and by no caller
// after it was deleted or used for another principal, even if a later response has the
// same id.
func TestOwners(t *testing.T) {
	made := func(actor, call, response string, items ...string) *contract.Event {
		return &contract.Event{Name: events.AttemptFinishedName, Source: "llm-router/llm-router-1", Tenant: "t", Actor: actor, CallID: call, Time: contract.Time(time.Unix(1e9, 0)),
			Data: contract.Bytes(&events.AttemptFinished{API: llm.Responses, Attempt: 1, Provider: "p", Model: "m", Status: "succeeded", ResponseID: response, ItemIds: items, InputTokens: 30, OutputTokens: 12})}
	}
	var s State
	for _, e := range []*contract.Event{made("alice", "c-1", "r1", "msg_1", "rs_1"), made("alice", "c-2", "r2", "msg_2"), made("bob", "c-3", "r3", "msg_2"), made("bob", "c-4", "r2", "msg_4"), made("bob", "c-5", "r2", "msg_2"),
		{Name: events.ResponseDeletedName, Source: "llm-router/llm-router-1", Tenant: "t", Actor: "alice", Time: contract.Time(time.Unix(1e9, 0)), Data: contract.Bytes(&events.ResponseDeleted{ResponseCall: "c-1", ResponseID: "r1"})}, made("alice", "c-6", "r1", "rs_1")} {
		if id := e.CallID; id == "c-2" {
			if a := s.Answer("t", "r1"); a.Actor != "alice" || a.Tokens != 42 || s.Item("t", "rs_1").Actor != "alice" || s.Item("t", "r1").Actor != "" {
				t.Errorf("%+v", a)
			}
		}
		if err := s.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	for id, a := range map[string]Answer{"r1": s.Answer("t", "r1"), "msg_1": s.Item("t", "msg_1"), "rs_1": s.Item("t", "rs_1"), "r2": s.Answer("t", "r2"), "msg_2": s.Item("t", "msg_2")} {
		if a.Actor != "" || a.Call != "" || !a.Deleted {
			t.Errorf("%s is still %+v", id, a)
		}
	}
	if a := s.Item("t", "msg_4"); a.Actor != "bob" {
		t.Errorf("%+v", a)
	}
	if a := s.Answer("t", "r3"); a.Actor != "bob" {
		t.Errorf("%+v", a)
	}
}

// TestTwoTenants shows that tenants whose providers choose the same ids, and whose
// callers have the same names, neither see nor delete one another's responses, and that
// statistics and spending are those of the given tenant, or of all tenants if the given
// id is empty.
func TestTwoTenants(t *testing.T) {
	of := func(tenant, response string) *contract.Event {
		e := attempt(time.Unix(1e9, 0), events.AttemptFinished{API: llm.Responses, Attempt: 1, Provider: "p", Model: "m", Status: "succeeded", ResponseID: response, ItemIds: []string{"msg_1"}, USDMicros: 3})
		e.Tenant, e.CallID = tenant, "c-"+tenant
		return e
	}
	var s State
	apply := func(e *contract.Event) {
		t.Helper()
		if err := s.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	apply(of("a", "r1"))
	apply(of("b", "r1"))
	apply(of("b", "r2"))
	if a, b := s.Answer("a", "r1"), s.Answer("b", "r1"); a.Call != "c-a" || b.Call != "c-b" || s.Item("a", "msg_1").Call != "c-a" || s.Answer("a", "r2").Call != "" || s.Answer("c", "r1").Call != "" {
		t.Errorf("%+v %+v", a, b)
	}
	deletion := &contract.Event{Name: events.ResponseDeletedName, Source: "llm-router/llm-router-1", Tenant: "b", Actor: "alice", Time: contract.Time(time.Unix(1e9, 0)), Data: contract.Bytes(&events.ResponseDeleted{ResponseCall: "c-b", ResponseID: "r1"})}
	apply(deletion)
	if a, b := s.Answer("a", "r1"), s.Answer("b", "r1"); a.Deleted || s.Item("a", "msg_1").Deleted || !b.Deleted || !s.Item("b", "msg_1").Deleted {
		t.Errorf("after the deletion in b: %+v %+v", a, b)
	}
	for tenant, want := range map[string]int64{"a": 1, "b": 2, "": 3, "c": 0} {
		attempts, micros := int64(0), int64(0)
		for _, st := range s.Stats(tenant, time.Time{}, time.Time{}) {
			attempts += st.Attempts
		}
		rows, err := s.Spend(tenant, time.Time{}, time.Time{}, []string{"actor"})
		for _, r := range rows {
			micros += r.USDMicros
		}
		if err != nil || attempts != want || micros != 3*want {
			t.Errorf("tenant %q: %d attempts, %d micro-dollars, %v; want %d attempts", tenant, attempts, micros, err, want)
		}
	}
}

// TestEviction shows that the oldest ids of a tenant with very many ids are removed, and
// not the ids of a tenant with few.
func TestEviction(t *testing.T) {
	var s State
	s.put("quiet", "r1", Answer{Call: "c-1", Actor: "alice"})
	for i := range keepIDs {
		s.put("noisy", fmt.Sprint("r", i), Answer{Call: "c", Actor: "alice"})
	}
	s.put("quiet", "r2", Answer{Call: "c-2", Actor: "alice"})
	if s.Answer("quiet", "r1").Call != "c-1" || s.Answer("quiet", "r2").Call != "c-2" || s.Answer("noisy", "r0").Call != "" || s.Answer("noisy", "r2").Call == "" || s.stored != keepIDs {
		t.Errorf("%d are stored: %+v %+v %+v", s.stored, s.Answer("quiet", "r1"), s.Answer("quiet", "r2"), s.Answer("noisy", "r1"))
	}
}

// TestEvict shows from which tenant an entry is removed: the one with the most entries, and
// among several of them the one that has just stored an entry, or else the first by name.
func TestEvict(t *testing.T) {
	for _, c := range []struct {
		counts    map[string]int
		own, want string
	}{
		{map[string]int{"a": 2, "b": 3, "c": 1}, "a", "b"}, {map[string]int{"a": 2, "b": 3, "c": 3}, "a", "b"}, {map[string]int{"a": 1, "b": 2, "c": 3, "d": 3}, "b", "c"},
		{map[string]int{"a": 3, "b": 3, "c": 3}, "c", "c"}, {map[string]int{"a": 3, "b": 3}, "a", "a"}, {map[string]int{"a": 1}, "a", "a"},
	} {
		for range 20 { // the order of a map differs each time
			var s State
			for tenant, n := range c.counts {
				for i := range n {
					s.put(tenant, fmt.Sprint("r", i), Answer{Actor: "alice"})
				}
			}
			before := s.stored
			s.evict(s.own(c.own))
			for tenant, n := range c.counts {
				if tenant == c.want {
					n--
				}
				if own := s.own(tenant); len(own.order) != n || len(own.by) != n || s.stored != before-1 {
					t.Fatalf("%v by %s: %s has %d, want %d", c.counts, c.own, tenant, len(own.order), n)
				}
			}
			if _, ok := s.own(c.want).by["r0"]; ok {
				t.Fatalf("%v by %s: the oldest entry is stored", c.counts, c.own)
			}
		}
	}
}

// TestPutAgain shows that the owner of an id can store it again, and that no principal
// can after another one has stored it.
func TestPutAgain(t *testing.T) {
	var s State
	for _, c := range []struct {
		actor, call string
		deleted     bool
	}{{"alice", "c-1", false}, {"alice", "c-2", false}, {"bob", "", true}, {"alice", "", true}} {
		s.put("t", "r1", Answer{Actor: c.actor, Call: c.call})
		if a := s.Answer("t", "r1"); a.Call != c.call || a.Deleted != c.deleted || s.stored != 1 {
			t.Errorf("%+v: %+v, %d stored", c, a, s.stored)
		}
	}
}

// TestHist shows the first buckets and the percentiles at the edges of buckets.
func TestHist(t *testing.T) {
	for ms, want := range map[int64]int{-1: 0, 0: 0, 1: 1, 2: 15, 1000: 142} {
		if got := bucket(ms); got != want {
			t.Errorf("%d ms are in bucket %d, want %d", ms, got, want)
		}
	}
	h := hist{0: 1, 10: 1, 142: 2}
	for part, want := range map[float64]int64{0.25: 0, 0.26: 2, 0.5: 2, 0.51: 996, 1: 996} {
		if got := h.at(part); got != want {
			t.Errorf("%v: %d, want %d", part, got, want)
		}
	}
	if got := (hist{}).at(.5); got != 0 {
		t.Errorf("empty: %d", got)
	}
}

// TestPeriods shows that attempts are counted by minute for two days, by hour for sixty
// days and by day after that.
func TestPeriods(t *testing.T) {
	now := time.Date(2026, 3, 31, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		ago   time.Duration
		begin string
	}{
		{47 * time.Hour, "2026-03-29T13:30"}, {49 * time.Hour, "2026-03-29T11:00"}, {58 * 24 * time.Hour, "2026-02-01T12:00"}, {62 * 24 * time.Hour, "2026-01-28T00:00"},
	} {
		var s State
		for _, at := range []time.Time{now.Add(-c.ago).Add(30 * time.Minute), now} {
			if err := s.Apply(attempt(at, events.AttemptFinished{Provider: "p", Model: "m", Status: "succeeded"})); err != nil {
				t.Fatal(err)
			}
		}
		if _, ok := s.cells[c.begin]; !ok || len(s.cells) != 2 {
			t.Errorf("%s ago: %v, want a period at %s", c.ago, s.cells, c.begin)
		}
	}
}

// TestCounts shows that an attempt with two tags counts once unless spending is grouped by
// tag, and that the success rate of cancelled attempts alone is 0.
func TestCounts(t *testing.T) {
	var s State
	if err := s.Apply(attempt(time.Unix(1e9, 0), events.AttemptFinished{Provider: "p", Model: "m", Status: "cancelled", USDMicros: 3, Tags: []string{"x", "y"}})); err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Spend("t", time.Time{}, time.Time{}, []string{"actor"}); err != nil || len(rows) != 1 || rows[0].Attempts != 1 || rows[0].USDMicros != 3 {
		t.Errorf("%+v %v", rows, err)
	}
	if rows, err := s.Spend("t", time.Time{}, time.Time{}, []string{"tag"}); err != nil || len(rows) != 2 {
		t.Errorf("%+v %v", rows, err)
	}
	if st := s.Stats("t", time.Time{}, time.Time{}); len(st) != 1 || st[0].SuccessRate != 0 {
		t.Errorf("%+v", st)
	}
}
