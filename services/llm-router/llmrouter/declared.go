package llmrouter

import (
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/usage"
)

// Views returns the declaration of the view of attempts. Replay compares its digest,
// since its content may be large.
func Views() []view.Declaration {
	return []view.Declaration{view.Of(services.LLMRouter, services.ViewUsage, attemptsReader, func(*view.Origin) (view.State, error) {
		var u Usage
		return view.FoldLoad(u.Apply, func() []byte { return []byte(u.Digest()) }, u.LoadSnapshot), nil
	}).At(usage.Version)}
}
