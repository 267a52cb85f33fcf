// Package demo is the built-in provider "demo": one deterministic model,
// echo, that answers with the last user message. It is there so that a fresh
// mesh answers without any key, and is called a demo wherever it shows.
package demo

import (
	"encoding/json"
	"strings"
)

// Model is the only model.
const Model = "echo"

// Fingerprint marks every answer.
const Fingerprint = "binnacle-demo"

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// Reply is the echo of a chat request.
type Reply struct {
	ID      string
	Created int64
	Text    string
	In, Out int64 // words, standing in for tokens
}

// Answer computes the reply; created is seconds since the epoch.
func Answer(id string, created int64, args []byte) (*Reply, error) {
	var req struct {
		Messages []message `json:"messages"`
	}
	if err := json.Unmarshal(args, &req); err != nil {
		return nil, err
	}
	r := &Reply{ID: "chatcmpl-demo-" + id, Created: created}
	for _, m := range req.Messages {
		t := text(m.Content)
		r.In += int64(len(strings.Fields(t)))
		if m.Role == "user" {
			r.Text = t
		}
	}
	r.Out = int64(len(strings.Fields(r.Text)))
	return r, nil
}

// text is a message's text: a string, or the text parts of a list.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(raw, &parts)
	for _, p := range parts {
		s += p.Text
	}
	return s
}

// Completion is the answer as one chat.completion.
func (r *Reply) Completion() ([]byte, error) {
	return json.Marshal(map[string]any{
		"id": r.ID, "object": "chat.completion", "created": r.Created, "model": "demo/" + Model, "system_fingerprint": Fingerprint,
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "logprobs": nil,
			"message": map[string]any{"role": "assistant", "content": r.Text, "refusal": nil}}},
		"usage": r.usage(),
	})
}

func (r *Reply) usage() map[string]any {
	return map[string]any{"prompt_tokens": r.In, "completion_tokens": r.Out, "total_tokens": r.In + r.Out}
}

// Chunks is the answer as a stream: role, words, finish.
func (r *Reply) Chunks(withUsage bool) ([]json.RawMessage, error) {
	var out []json.RawMessage
	chunk := func(choices []any, usage any) error {
		doc := map[string]any{"id": r.ID, "object": "chat.completion.chunk", "created": r.Created, "model": "demo/" + Model, "system_fingerprint": Fingerprint, "choices": choices}
		if withUsage {
			doc["usage"] = usage
		}
		b, err := json.Marshal(doc)
		out = append(out, b)
		return err
	}
	delta := func(d map[string]any, finish any) error {
		return chunk([]any{map[string]any{"index": 0, "delta": d, "logprobs": nil, "finish_reason": finish}}, nil)
	}
	if err := delta(map[string]any{"role": "assistant", "content": ""}, nil); err != nil {
		return nil, err
	}
	for _, word := range strings.SplitAfter(r.Text, " ") {
		if word == "" {
			continue
		}
		if err := delta(map[string]any{"content": word}, nil); err != nil {
			return nil, err
		}
	}
	if err := delta(map[string]any{}, "stop"); err != nil {
		return nil, err
	}
	if withUsage {
		if err := chunk([]any{}, r.usage()); err != nil {
			return nil, err
		}
	}
	return out, nil
}
