package metrics

import (
	"fmt"
	"testing"

	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// TestMetricLabels checks that only the models with the most attempts have labels of
// their own, and that kinds of unknown families share one label value.
func TestMetricLabels(t *testing.T) {
	var stats []llmrouter.ModelStats
	for i := range 1000 {
		stats = append(stats, llmrouter.ModelStats{Provider: "p", Model: fmt.Sprint("m", i), Attempts: int64(i)})
	}
	top := busiest(stats)
	if len(top) != maxModels || !top[[2]string{"p", "m999"}] || top[[2]string{"p", "m1"}] {
		t.Error(len(top), "models have labels of their own")
	}
	for kind, want := range map[string]string{"tool.x": "tool", "llm.chat": "llm", "evil.x": OtherLabel, "": OtherLabel, "tool": "tool"} {
		if got := family(kind); got != want {
			t.Errorf("%q: %s", kind, got)
		}
	}
}
