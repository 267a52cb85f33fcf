// Package providers lists the kinds of providers that the router supports. To add a
// provider, write its package in this folder with one value of type provider.Kind, and
// add that value to All. The shared code of the router names no provider, and the
// reference of the llm document is generated from the list.
package providers

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/anthropic"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/azure"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/bedrock"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/compatible"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/demo"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/gemini"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/ollama"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/openai"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers/openrouter"
)

// All holds every kind of provider. A configured provider without a kind has the last
// kind in the list that is reached over HTTP.
var All = provider.NewRegistry(openai.Provider, anthropic.Provider, gemini.Provider, azure.Provider, bedrock.Provider, openrouter.Provider, ollama.Provider, compatible.Provider, demo.Provider)
