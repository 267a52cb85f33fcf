package messages

import (
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// Version is the version of the API that requests name, in the header field
// Anthropic-Version. Source: https://docs.anthropic.com/en/api/versioning
const Version = "2023-06-01"

// API is messages.
var API = &dialect.API{
	Name: "messages", Kind: llm.Messages, Path: dialect.To("/messages"), Header: header,
	Rank: 2, Build: BuildRequest, Parse: parse, Decoder: decoder, Usage: Usage, Fault: fault,
}

// CountTokens counts the tokens of a message without a model's answer.
var CountTokens = &dialect.API{
	Name: "count_tokens", Kind: llm.CountTokens, Path: dialect.To("/messages/count_tokens"), Header: header, Decoder: decoder, Fault: fault,
	Usage: func([]byte) ir.Usage { return ir.Usage{Known: true} }, // counting uses nothing
}

// Caller is messages as callers speak it.
var Caller = &dialect.Caller{
	Kind: llm.Messages, Description: "Anthropic message.", Operation: "chat", IDPrefix: "msg_", Native: API,
	Parse: ParseRequest, Build: func(r *ir.Response, f *dialect.Frame) ([]byte, error) { return BuildResponse(r, f.Model) },
	Encoder: func(f *dialect.Frame) dialect.Encoder { return &Encoder{ID: f.ID, Model: f.Model} },
}

// CountTokensCaller is the counting of tokens as callers speak it.
var CountTokensCaller = &dialect.Caller{Kind: llm.CountTokens, Description: "Counts the tokens of an Anthropic message.", Operation: "chat", Native: CountTokens, Counts: true}

// header names the version and the beta features that the caller opted in to.
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
