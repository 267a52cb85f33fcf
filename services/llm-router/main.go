// Command llm-router takes chat calls to their provider.
package main

import (
	"fmt"
	"os"

	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
)

// Environment: BINNACLE_LLM (JSON file naming providers; optional; else llm.json
// of the configuration folder).
func main() {
	run.Main("llm-router", func(run.Keys) (run.Service, error) {
		s := &llmrouter.Service{}
		if f := run.ConfigFile("BINNACLE_LLM", "llm.json"); f != "" {
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			if s.Config, err = llmrouter.ReadConfig(b); err != nil {
				return nil, fmt.Errorf("%s: %w", f, err)
			}
		}
		return s, nil
	})
}
