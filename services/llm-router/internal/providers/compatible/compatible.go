// Package compatible describes servers that offer OpenAI's API, such as vLLM, llama.cpp
// and LM Studio. A configured provider without a kind is of this kind.
package compatible

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// Provider describes a server with OpenAI's API. Traces contain its configured name.
var Provider = provider.Kind{Name: "compatible", APIs: []*dialect.API{chat.API, chat.Embeddings, chat.Completions}, Needs: "base_url", Lists: true}
