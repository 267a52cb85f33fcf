package chat

import (
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// API describes OpenAI's chat completions API, which most model servers offer.
var API = &dialect.API{
	Name: "chat", Kind: llm.Chat, Path: dialect.To("/chat/completions"),
	Rank: 1, Build: BuildRequest, Parse: parse, Decoder: decoder, Usage: Usage, Fault: fault,
	Several: true, LogProbs: true, Hints: true, AskUsage: "stream_options.include_usage", OldBound: "max_tokens",
}

// Completions describes OpenAI's older API for text completions. No requests are
// translated into it. The decoder of chat completions also reads its stream.
var Completions = &dialect.API{Name: "completions", Kind: llm.Completions, Path: dialect.To("/completions"), Decoder: decoder, Usage: Usage, Fault: fault}

// Embeddings describes OpenAI's embeddings API.
var Embeddings = &dialect.API{Name: "embeddings", Kind: llm.Embeddings, Path: dialect.To("/embeddings"), Decoder: decoder, Usage: Usage, Fault: fault}

// Caller describes the chat completions API as callers use it.
var Caller = &dialect.Caller{
	Kind: llm.Chat, Description: "OpenAI chat completion. The args summarize the request, which is the call's body.", Operation: "chat", IDPrefix: "chatcmpl-", Native: API, Joined: true,
	Parse: ParseRequest, Build: build,
	Encoder: func(f *dialect.Frame) dialect.Encoder {
		return &Encoder{ID: f.ID, Model: f.Model, Created: f.Created, Usage: f.Usage}
	},
}

// CompletionsCaller describes the text completions API as callers use it. Requests are
// forwarded only to providers that offer the same API; a stream is recorded as one
// document.
var CompletionsCaller = &dialect.Caller{Kind: llm.Completions, Description: "OpenAI text completion.", Operation: "text_completion", IDPrefix: "cmpl-", Native: Completions, Build: build}

// EmbeddingsCaller describes the embeddings API as callers use it.
var EmbeddingsCaller = &dialect.Caller{Kind: llm.Embeddings, Description: "OpenAI embeddings.", Operation: "embeddings", Native: Embeddings, Embeds: true}

func parse(body []byte, _ string) (*ir.Response, error) { return ParseResponse(body) }

func decoder(string) dialect.Decoder { return &Decoder{} }

func fault(status int, _ func(string) string, body []byte) *ir.Fault { return ParseFault(status, body) }

func build(r *ir.Response, f *dialect.Frame) ([]byte, error) { return BuildResponse(r, f.Model) }
