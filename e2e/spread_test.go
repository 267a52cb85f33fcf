package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// spread starts further instances of policy and llm-router, and checks that each
// instance handles at least a tenth of 600 calls.
func spread(t *testing.T, m *harness.Mesh) {
	m.Scale("policy=3", "llm-router=2")
	m.WaitReady()
	var wg sync.WaitGroup
	for w := range 12 {
		wg.Go(func() {
			for range 50 {
				r, err := m.Do(t.Context(), "POST", "/v1/chat/completions", fmt.Sprintf("s-spread-%d", w), `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`)
				if err != nil || r.Status != 200 {
					t.Errorf("call: %v %+v", err, r)
					return
				}
			}
		})
	}
	wg.Wait()
	by := map[string]int{}
	for w := range 12 {
		r, err := m.Do(t.Context(), "GET", fmt.Sprintf("/api/v1/events?session=s-spread-%d", w), "", "")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(r.Body)) {
			var doc struct {
				Event struct {
					Type   string `json:"type"`
					Source string `json:"source"`
				} `json:"event"`
			}
			if err := json.Unmarshal([]byte(line), &doc); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(doc.Event.Type, ".allowed.") || strings.Contains(doc.Event.Type, ".effect_recorded.") {
				by[doc.Event.Source]++
			}
		}
	}
	t.Log(by)
	for _, want := range []string{"policy/policy-1", "policy/policy-2", "policy/policy-3", "llm-router/llm-router-1", "llm-router/llm-router-2"} {
		if by[want] < 60 {
			t.Errorf("%s did %d of 600 calls, want at least 60", want, by[want])
		}
	}
}
