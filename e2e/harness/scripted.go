package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Step is one tool call that a Scripted model makes.
type Step struct {
	Tool  string
	Input map[string]any
}

// Scripted is a local server with the APIs of Anthropic (Messages) and OpenAI (Responses
// and chat completions). Its model makes the tool calls of a script, one for each request
// that offers tools, and then answers with text. It keeps the results that a client sends
// back.
type Scripted struct {
	*httptest.Server
	steps []Step

	mu      sync.Mutex
	results map[int]string // by index of the step
	bodies  []string       // requests that offered tools
}

// NewScripted starts the server.
func NewScripted(t testing.TB, steps ...Step) *Scripted {
	s := &Scripted{steps: steps, results: map[int]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// Result returns the result of a step that the client sent back, or "" if it sent none.
func (s *Scripted) Result(step int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.results[step]
}

// Requests returns the bodies of the requests that offered tools.
func (s *Scripted) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.bodies...)
}

// callID returns the id of the call of a step, as clients send it back.
func callID(step int) string { return fmt.Sprintf("call_step%d", step) }

// take records a request that offers tools, and the results in it. It returns the index of the next
// step, or -1 if the answer is text.
func (s *Scripted) take(body []byte) int {
	var q struct {
		Tools    []json.RawMessage
		Messages []json.RawMessage
		Input    json.RawMessage
	}
	if json.Unmarshal(body, &q) != nil || len(q.Tools) == 0 {
		return -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies = append(s.bodies, string(body))
	var items []json.RawMessage
	if json.Unmarshal(q.Input, &items) != nil {
		items = q.Messages
	}
	next := 0
	for _, m := range items {
		for i := range s.steps {
			if text := string(m); strings.Contains(text, callID(i)) && (strings.Contains(text, "tool_result") || strings.Contains(text, "_output") || strings.Contains(text, `"role":"tool"`)) {
				s.results[i] = text
				next = max(next, i+1)
			}
		}
	}
	if next == len(s.steps) {
		return -1
	}
	return next
}

func (s *Scripted) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/count_tokens"):
		jsonOut(w, 200, map[string]int{"input_tokens": 42})
	case strings.HasSuffix(r.URL.Path, "/messages"):
		s.messages(w, r, body)
	case strings.HasSuffix(r.URL.Path, "/responses"):
		s.responses(w, r, body)
	case strings.HasSuffix(r.URL.Path, "/chat/completions"):
		s.chat(w, r, body)
	default:
		jsonOut(w, 404, map[string]any{"error": map[string]string{"message": "no such path", "type": "not_found_error"}})
	}
}

// block returns the content block of a step, or that of the final text if step is negative,
// and the reason for which the response stops.
func (s *Scripted) block(step int) (block map[string]any, stop string) {
	if step < 0 {
		return map[string]any{"type": "text", "text": "finished"}, "end_turn"
	}
	return map[string]any{"type": "tool_use", "id": callID(step), "name": s.steps[step].Tool, "input": s.steps[step].Input}, "tool_use"
}

func (s *Scripted) messages(w http.ResponseWriter, r *http.Request, body []byte) {
	block, stop := s.block(s.take(body))
	usage := map[string]int{"input_tokens": 3, "output_tokens": 3}
	var q struct{ Stream bool }
	_ = json.Unmarshal(body, &q)
	message := map[string]any{"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": []any{block}, "stop_reason": stop, "stop_sequence": nil, "usage": usage}
	if !q.Stream {
		jsonOut(w, 200, message)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := sseOut{w, r}
	message["content"], message["stop_reason"] = []any{}, nil
	out.send("message_start", map[string]any{"type": "message_start", "message": message})
	start, delta := map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": block["text"]}
	if block["type"] == "tool_use" {
		input, _ := json.Marshal(block["input"])
		start, delta = map[string]any{"type": "tool_use", "id": block["id"], "name": block["name"], "input": map[string]any{}}, map[string]any{"type": "input_json_delta", "partial_json": string(input)}
	}
	out.send("content_block_start", map[string]any{"type": "content_block_start", "index": 0, "content_block": start})
	out.send("content_block_delta", map[string]any{"type": "content_block_delta", "index": 0, "delta": delta})
	out.send("content_block_stop", map[string]any{"type": "content_block_stop", "index": 0})
	out.send("message_delta", map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": usage})
	out.send("message_stop", map[string]any{"type": "message_stop"})
}

func (s *Scripted) responses(w http.ResponseWriter, r *http.Request, body []byte) {
	item := map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []any{map[string]any{"type": "output_text", "text": "finished", "annotations": []any{}}}}
	if step := s.take(body); step >= 0 {
		args, _ := json.Marshal(s.steps[step].Input)
		item = map[string]any{"type": "function_call", "id": fmt.Sprint("fc_", step), "call_id": callID(step), "name": s.steps[step].Tool, "arguments": string(args), "status": "completed"}
		if text, ok := s.steps[step].Input["custom"].(string); ok {
			item = map[string]any{"type": "custom_tool_call", "id": fmt.Sprint("ctc_", step), "call_id": callID(step), "name": s.steps[step].Tool, "input": text, "status": "completed"}
		}
	}
	doc := map[string]any{"id": "resp_1", "object": "response", "created_at": 1700000000, "model": "scripted", "status": "completed", "output": []any{item}, "usage": map[string]any{"input_tokens": 3, "output_tokens": 3, "total_tokens": 6, "input_tokens_details": map[string]int{"cached_tokens": 0}, "output_tokens_details": map[string]int{"reasoning_tokens": 0}}}
	w.Header().Set("Content-Type", "text/event-stream")
	out := sseOut{w, r}
	started := map[string]any{"id": "resp_1", "object": "response", "created_at": 1700000000, "model": "scripted", "status": "in_progress", "output": []any{}}
	out.send("response.created", map[string]any{"type": "response.created", "sequence_number": 0, "response": started})
	out.send("response.output_item.added", map[string]any{"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item})
	out.send("response.output_item.done", map[string]any{"type": "response.output_item.done", "sequence_number": 2, "output_index": 0, "item": item})
	out.send("response.completed", map[string]any{"type": "response.completed", "sequence_number": 3, "response": doc})
}

func (s *Scripted) chat(w http.ResponseWriter, r *http.Request, body []byte) {
	delta, finish := map[string]any{"role": "assistant", "content": "finished"}, "stop"
	if step := s.take(body); step >= 0 {
		args, _ := json.Marshal(s.steps[step].Input)
		delta = map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{"index": 0, "id": callID(step), "type": "function", "function": map[string]string{"name": s.steps[step].Tool, "arguments": string(args)}}}}
		finish = "tool_calls"
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := sseOut{w, r}
	chunk := func(delta map[string]any, fin any) {
		out.send("", map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "scripted", "choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": fin}}})
	}
	chunk(delta, nil)
	chunk(map[string]any{}, finish)
	fmt.Fprint(w, "data: [DONE]\n\n")
}
