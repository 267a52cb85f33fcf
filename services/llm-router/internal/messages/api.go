package messages

import (
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// Version is the API version in the header field Anthropic-Version of requests. Source:
// https://docs.anthropic.com/en/api/versioning
const Version = "2023-06-01"

// API describes Anthropic's messages API.
var API = &dialect.API{
	Name: "messages", Kind: llm.Messages, Path: dialect.To("/messages"), Header: header,
	Rank: 2, Build: BuildRequest, Parse: parse, Decoder: decoder, Usage: Usage, Fault: fault,
}

// CountTokens describes the API that counts the tokens of a message without calling a
// model.
var CountTokens = &dialect.API{
	Name: "count_tokens", Kind: llm.CountTokens, Path: dialect.To("/messages/count_tokens"), Header: header, Decoder: decoder, Fault: fault,
	Usage: func([]byte) ir.Usage { return ir.Usage{Known: true} }, // counting uses no tokens
}

// Caller describes the messages API as callers use it.
var Caller = &dialect.Caller{
	Kind: llm.Messages, Description: "Anthropic message.", Operation: "chat", IDPrefix: "msg_", Native: API,
	Parse: ParseRequest, Build: func(r *ir.Response, f *dialect.Frame) ([]byte, error) { return BuildResponse(r, f.Model) },
	Encoder: func(f *dialect.Frame) dialect.Encoder { return &Encoder{ID: f.ID, Model: f.Model} },
}

// CountTokensCaller describes the token counting API as callers use it.
var CountTokensCaller = &dialect.Caller{Kind: llm.CountTokens, Description: "Counts the tokens of an Anthropic message.", Operation: "chat", Native: CountTokens, Counts: true}

// header returns the header fields with the API version and the beta features that the
// caller opted in to.
func header(beta []string) map[string]string {
	h := map[string]string{"Anthropic-Version": Version}
	if len(beta) > 0 {
		h["Anthropic-Beta"] = strings.Join(beta, ",")
	}
	return h
}

func parse(body []byte, _ string) (*ir.Response, error) { return ParseResponse(body) }

func decoder(string) dialect.Decoder { return &Decoder{} }

func fault(status int, _ func(string) string, body []byte) *ir.Fault { return ParseFault(status, body) }
