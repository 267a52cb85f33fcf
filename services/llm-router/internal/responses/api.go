package responses

import (
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/chat"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// API describes OpenAI's responses API. It is the last choice for translated requests:
// its storage of conversations is no advantage here, because the ledger stores the
// conversations that the mesh continues.
var API = &dialect.API{
	Name: "responses", Kind: llm.Responses, Path: dialect.To("/responses"),
	Rank: 5, Build: BuildRequest, Parse: func(body []byte, _ string) (*ir.Response, error) { return ParseResponse(body) },
	Decoder: func(string) dialect.Decoder { return &Decoder{} }, Usage: Usage,
	Fault:    func(status int, _ func(string) string, body []byte) *ir.Fault { return chat.ParseFault(status, body) }, // all OpenAI APIs have the same error format
	LogProbs: true, Hints: true, Items: true, Final: []string{"response.completed", "response.incomplete"},
}

// Caller describes the responses API as callers use it. A response repeats members of
// its request. The mesh assigns the id of a translated response. A later request can
// continue a response by its id.
var Caller = &dialect.Caller{
	Kind: llm.Responses, Description: "OpenAI response.", Operation: "chat", IDPrefix: "resp_", Native: API, OwnID: true, Said: "output",
	Parse: ParseRequest,
	Build: func(r *ir.Response, f *dialect.Frame) ([]byte, error) {
		own := frame(f)
		return BuildResponse(r, &own)
	},
	Encoder: func(f *dialect.Frame) dialect.Encoder { return &Encoder{Frame: frame(f)} },
}

// frame returns f in the form that BuildResponse requires, with the members of the
// caller's request.
func frame(f *dialect.Frame) Frame {
	said, _ := ir.Split(f.Body)
	return Frame{ID: f.ID, Model: f.Model, Created: f.Created, Request: f.Request, Said: said, Previous: f.Previous, Store: f.Store}
}
