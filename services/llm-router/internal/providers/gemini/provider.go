package gemini

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// API describes generateContent and, for streams, streamGenerateContent. The candidates
// of a stream end separately, so it is read to its end.
var API = &dialect.API{
	Name: "gemini", Path: func(model string, stream bool) string {
		if stream {
			return "/models/" + model + ":streamGenerateContent?alt=sse"
		}
		return "/models/" + model + ":generateContent"
	},
	Rank: 3, Build: BuildRequest, Parse: ParseResponse, Decoder: decoder, Fault: fault, Several: true, LogProbs: true, Trails: true,
}

// Embeddings describes batchEmbedContents, Google's API for embeddings.
var Embeddings = &dialect.API{
	Name: "gemini_embed", Path: func(model string, _ bool) string { return "/models/" + model + ":batchEmbedContents" }, Decoder: decoder, Fault: fault,
	Embed: &dialect.Embedding{Build: BuildEmbeddings, Parse: ParseEmbeddings},
}

// Provider describes the Gemini API of Google AI.
var Provider = provider.Kind{
	Name: "gemini", Trace: "gcp.gemini", Base: "https://generativelanguage.googleapis.com/v1beta", APIs: []*dialect.API{API, Embeddings},
	Authorize: provider.KeyIn("X-Goog-Api-Key"), Lists: true,
}

func decoder(callID string) dialect.Decoder { return &Decoder{CallID: callID} }

func fault(status int, _ func(string) string, body []byte) *ir.Fault { return ParseFault(status, body) }
