package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestKeysAtOnce shows that all secrets that are fetched concurrently for one call are
// received. The list of models queries every provider with a key, and a hedged request
// fetches the second key while the first is being fetched. In an earlier version, in
// which the fetches shared an inbox, both failed.
func TestKeysAtOnce(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, doc := harness.NewProviders(t, map[string]any{"hedge_ms": 1, "fallbacks": []any{
				map[string]any{"primary": "gemini/h-slow", "fallbacks": []string{"azure/h-good"}}}})
			m := start(t, harness.Options{LLM: doc})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			r := post(ctx, t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, "s-cold"), `{"model":"gemini/h-slow","messages":[{"role":"user","content":"hi"}]}`)
			if body := all(t, r); r.StatusCode != 200 {
				t.Errorf("a hedge with cold keys: %d %s", r.StatusCode, body)
			}
			attempts := recorded(t, m, "s-cold", "attempt_finished")
			if len(attempts) == 0 {
				t.Error("no attempt is recorded")
			}
			for _, a := range attempts {
				if a["status"] == "failed" {
					t.Errorf("an attempt failed: %v", a)
				}
			}
			began := time.Now()
			list, err := m.Do(ctx, "GET", "/v1/models", "s-models", "")
			if err != nil || list.Status != 200 {
				t.Fatal(err, list)
			}
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("the list of models took %s", took)
			}
			var models struct {
				Data []struct{ ID string }
			}
			if err := json.Unmarshal(list.Body, &models); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"openai/listed-live", "openrouter/listed-live", "twokeys/listed-live"} {
				if !slices.ContainsFunc(models.Data, func(m struct{ ID string }) bool { return m.ID == want }) {
					t.Errorf("%s is not listed: %s", want, strings.TrimSpace(string(list.Body)))
				}
			}
		})
	}
}
