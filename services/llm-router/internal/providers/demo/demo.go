// Package demo is the built-in provider "demo". It has one deterministic model, echo,
// which returns the last user message up to the request's limit, so that a new mesh can
// answer calls without a key. The ids of its chat completions contain "demo". It is
// pure.
package demo

import (
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// model is the name of the only model.
const model = "echo"

// Provider describes the demo provider, which runs in the router's process and costs
// nothing.
var Provider = provider.Kind{Name: "demo", Trace: "binnacle.demo", Local: &provider.Local{
	Models: []string{model}, Owner: "binnacle-demo", Output: llm.DefaultOutput, Missing: "the demo has one model, " + llm.DemoModel,
	ID:     func(id string) string { return strings.Replace(id, "-", "-demo-", 1) },
	Answer: answer,
}}

// answer returns the answer to a request, as the events of a stream; id is the id of the
// response. The answer is the last user message, up to r.MaxTokens words of it or, if
// that is 0, llm.DefaultOutput. It counts words as tokens.
func answer(id string, r *ir.Request) []ir.Event {
	text, in := lastOfUser(r)
	bound := r.MaxTokens
	if bound == 0 {
		bound = llm.DefaultOutput
	}
	out := []ir.Event{{Kind: ir.Begin, ID: id}}
	said, finish := int64(0), ir.Stop
	for _, word := range strings.SplitAfter(text, " ") {
		if word == "" {
			continue
		}
		n := int64(len(strings.Fields(word)))
		if said+n > bound {
			finish = ir.Length
			break
		}
		said += n
		out = append(out, ir.Event{Kind: ir.Delta, Part: ir.Part{Type: ir.Text, Text: word}})
	}
	return append(out, ir.Event{Kind: ir.End, Finish: finish}, ir.Event{Kind: ir.Used, Usage: ir.Usage{In: in, Out: said, Known: true}})
}

// lastOfUser returns the text of the last user message, and the number of words in all
// messages.
func lastOfUser(r *ir.Request) (text string, words int64) {
	for _, m := range r.Messages {
		t := ir.PlainText(m.Parts)
		words += int64(len(strings.Fields(t)))
		if m.Role == ir.User {
			text = t
		}
	}
	return text, words
}
