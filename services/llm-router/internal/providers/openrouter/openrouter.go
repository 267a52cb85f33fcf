// Package openrouter describes the provider OpenRouter, which offers chat completions
// with the models of many providers.
package openrouter

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// Provider describes OpenRouter.
var Provider = provider.Kind{Name: "openrouter", Trace: "openrouter", Base: "https://openrouter.ai/api/v1", APIs: []*dialect.API{chat.API, chat.Completions, chat.Embeddings}, Lists: true}
