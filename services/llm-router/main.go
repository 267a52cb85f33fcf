// Command llm-router executes calls to language models. Several instances may run at a
// time; budgets apply to the sum of their calls. The command reads the llm document that
// the configuration contains or names, and starts package llmrouter.
package main

import (
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/llm-router/llmrouter"
)

func main() {
	run.Main(services.LLMRouter, func(_ run.Keys, c *config.Config) (run.Service, error) {
		s := &llmrouter.Service{}
		if d := c.LLMRouter.Document; d.Given() {
			doc, where, err := d.Read("/llm-router/document")
			if err != nil {
				return nil, err
			}
			if s.Config, err = llmrouter.ReadConfig(doc); err != nil {
				return nil, fmt.Errorf("%s: %w", where, err)
			}
		}
		return s, nil
	})
}
