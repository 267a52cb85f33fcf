package usage

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// TestSave shows that a saved state loads as an equal state, that later events change
// both in the same way, and that deleted responses remain deleted. A malformed state
// changes nothing.
func TestSave(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var s, loaded State
	apply := func(from, to int, states ...*State) {
		t.Helper()
		for i := from; i < to; i++ {
			a := events.AttemptFinished{Provider: "p", Model: fmt.Sprint("m", i%3), Status: "succeeded", LatencyMS: int64(i), FirstByteMS: 1, InputTokens: 2, OutputTokens: 3, CachedTokens: 4, ReasoningTokens: 5, USDMicros: 6,
				Key: "k", Tags: []string{"x", "y"}, ResponseID: fmt.Sprint("r", i), ItemIds: []string{fmt.Sprint("i", i)}}
			if i%7 == 0 {
				a.Status, a.ErrorCode = "failed", "upstream_error"
			}
			e := attempt(start.Add(time.Duration(i)*time.Hour), a)
			if i%5 == 1 {
				e.Tenant = "u"
			}
			for _, st := range states {
				if err := st.Apply(e); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	apply(0, 500, &s)
	deletion := &contract.Event{Name: events.ResponseDeletedName, Source: "llm-router/llm-router-1", Tenant: "t", Actor: "alice", Time: contract.Time(start), Data: contract.Bytes(&events.ResponseDeleted{ResponseCall: "c-r5", ResponseID: "r5"})}
	if err := s.Apply(deletion); err != nil {
		t.Fatal(err)
	}
	b, err := s.Save()
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Load(b); err != nil {
		t.Fatal(err)
	}
	if loaded.stored != s.stored {
		t.Errorf("%d responses are loaded, want %d", loaded.stored, s.stored)
	}
	apply(500, 3000, &s, &loaded) // until the oldest cells of an hour are merged into cells of a day
	if !bytes.Equal(s.Dump(), loaded.Dump()) || !loaded.Answer("t", "r5").Deleted || !loaded.Item("t", "i5").Deleted {
		t.Error("the loaded state differs after later events")
	}
	again, err := loaded.Save()
	if err != nil {
		t.Fatal(err)
	}
	if own, err := s.Save(); err != nil || !bytes.Equal(own, again) {
		t.Errorf("equal states are saved as different bytes: %v", err)
	}
	before := loaded.Dump()
	twice := strings.Replace(string(b), `"answers":[`, `"answers":[{"tenant":"t","id":"r8"},`, 1)
	for _, bad := range []string{`{`, `{"newest":"noon"}`, twice} {
		if err := loaded.Load([]byte(bad)); err == nil || !bytes.Equal(loaded.Dump(), before) {
			t.Errorf("%.40s: %v, or the state has changed", bad, err)
		}
	}
}
