// Package demo is the built-in provider "demo": one deterministic model,
// echo, that answers with the last user message. It is there so that a fresh
// mesh answers without any key, and is called a demo wherever it shows.
package demo

import (
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// Provider is its name.
const Provider = "demo"

// Model is the only model.
const Model = "echo"

// Fingerprint marks every answer.
const Fingerprint = "binnacle-demo"

// Answer computes the reply to a request as a stream of events. Words stand in
// for tokens.
func Answer(id string, r *ir.Request) []ir.Event {
	var text string
	in := int64(0)
	for _, m := range r.Messages {
		t := ir.PlainText(m.Parts)
		in += int64(len(strings.Fields(t)))
		if m.Role == ir.User {
			text = t
		}
	}
	out := []ir.Event{{Kind: ir.Begin, ID: id}}
	bound, said, finish := r.MaxTokens, int64(0), ir.Stop
	if bound == 0 {
		bound = llm.DefaultOutput
	}
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
