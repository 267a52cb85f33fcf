package route

import (
	"fmt"
	"testing"
	"time"
)

// models returns the models of targets as one string.
func models(fit []Target) (out string) {
	for _, x := range fit {
		out += x.Model + " "
	}
	return out
}

// TestDrawn shows which target each value of at selects. Each target is selected by as many
// consecutive values as its weight, where a weight below 1 counts as 1. The other targets
// keep their order.
func TestDrawn(t *testing.T) {
	fit := []Target{{Model: "a", Weight: 2}, {Model: "b"}, {Model: "c", Weight: 3}}
	for at, want := range []string{"a b c ", "a b c ", "b a c ", "c a b ", "c a b ", "c a b ", "a b c "} {
		if got := models(drawn(fit, uint64(at))); got != want {
			t.Errorf("%d: %s, want %s", at, got, want)
		}
	}
	if models(fit) != "a b c " || len(drawn(nil, 7)) != 0 {
		t.Error("the argument has changed, or no target became one")
	}
}

// TestOrder shows the order of the strategies order, latency and weighted. A sticky
// virtual model selects the same target for a session whatever the random number is; for
// requests without a session the random number selects the target.
func TestOrder(t *testing.T) {
	targets := []Target{{Model: "p/a"}, {Model: "p/b"}, {Model: "p/c"}}
	latency := func(id string) int64 { return map[string]int64{"p/a": 30, "p/b": 10, "p/c": 20}[id] }
	var table Table
	for _, c := range []struct {
		v    Virtual
		q    Query
		want string
	}{
		{Virtual{Targets: targets}, Query{Chance: 1}, "p/a p/b p/c "},
		{Virtual{Targets: targets, Strategy: "latency"}, Query{Latency: latency}, "p/b p/c p/a "},
		{Virtual{Targets: targets, Strategy: "latency"}, Query{}, "p/a p/b p/c "},
		{Virtual{Targets: targets, Strategy: "weighted"}, Query{Chance: 1, Session: "s"}, "p/b p/a p/c "},
		{Virtual{Targets: targets, Strategy: "weighted", Sticky: true}, Query{Chance: 2}, "p/c p/a p/b "},
	} {
		if got := models(c.v.order(&table, c.q)); got != c.want {
			t.Errorf("%+v: %s, want %s", c.v, got, c.want)
		}
	}
	v, seen := Virtual{Name: "v", Targets: targets, Strategy: "weighted", Sticky: true}, map[string]bool{}
	for i := range 60 {
		session := fmt.Sprint("s-", i)
		first := models(v.order(&table, Query{Session: session}))
		seen[first] = true
		if again := models(v.order(&table, Query{Session: session, Chance: 1})); again != first {
			t.Errorf("%s: %s and %s", session, first, again)
		}
	}
	if len(seen) != 3 {
		t.Errorf("60 sessions have %d first targets", len(seen))
	}
}

// TestOpen shows until when a breaker rejects requests, with its default of five failures
// and ten seconds.
func TestOpen(t *testing.T) {
	now := time.Unix(1e9, 0)
	var b Breaker
	for i := range 5 {
		if !b.Open(now).IsZero() || !b.Allow(now) {
			t.Fatalf("open after %d failures", i)
		}
		b.Failure(now)
	}
	end := now.Add(10 * time.Second)
	if got := b.Open(now); !got.Equal(end) || b.Allow(end.Add(-1)) {
		t.Errorf("open until %v", got)
	}
	if !b.Open(end).IsZero() || !b.Allow(end) || b.Allow(end) {
		t.Error("it does not allow one probe at the end")
	}
}
