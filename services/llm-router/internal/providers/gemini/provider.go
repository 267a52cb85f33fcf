package gemini

import (
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// generate describes generateContent and, for streams, streamGenerateContent. The
// candidates of a stream end separately, so it is read to its end.
var generate = &dialect.API{
	Name: "gemini", Path: func(model string, stream bool) string {
		if stream {
			return "/models/" + model + ":streamGenerateContent?alt=sse"
		}
		return "/models/" + model + ":generateContent"
	},
	Rank: 3, Build: buildRequest, Parse: parseResponse, Decoder: newDecoder, Fault: fault, Several: true, LogProbs: true, Trails: true,
}

// embed describes batchEmbedContents, Google's API for embeddings.
var embed = &dialect.API{
	Name: "gemini_embed", Path: func(model string, _ bool) string { return "/models/" + model + ":batchEmbedContents" }, Decoder: newDecoder, Fault: fault,
	Embed: &dialect.Embedding{Build: buildEmbeddings, Parse: parseEmbeddings},
}

// Provider describes the Gemini API of Google AI.
var Provider = provider.Kind{
	Name: "gemini", Trace: "gcp.gemini", Base: "https://generativelanguage.googleapis.com/v1beta", APIs: []*dialect.API{generate, embed},
	Authorize: provider.KeyIn("X-Goog-Api-Key"), Lists: true,
}

func newDecoder(callID string) dialect.Decoder { return &decoder{CallID: callID} }

func fault(status int, _ func(string) string, body []byte) *ir.Fault { return parseFault(status, body) }
