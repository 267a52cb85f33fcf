package llmrouter

import (
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/view"
)

// Views declares the view of attempts. It is compared by its digest, since it grows
// with every attempt.
func Views() []view.Declaration {
	return []view.Declaration{view.Of(services.LLMRouter, services.ViewUsage, attemptsReader, func(*view.Origin) (view.State, error) {
		var u Usage
		return view.Fold(u.Apply, func() []byte { return []byte(u.Digest()) }), nil
	})}
}
