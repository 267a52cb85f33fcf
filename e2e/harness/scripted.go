package harness

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Step is one tool call that a Scripted model makes.
type Step struct {
	Tool   string // for the Responses API NAMESPACE/NAME, or a name without a namespace
	Input  map[string]any
	Before func() // called before the server answers the first request with the step; may be nil
}

// Prompt is the prompt of a first conversation; see Scripted.Add.
const Prompt = "Do the work."

// Scripted is a local server with the APIs of Anthropic (Messages), OpenAI (Responses and chat
// completions) and Google (generateContent). Its model makes the tool calls of a script, one for each request
// that offers tools, and then answers with text. It keeps the results that a client sends
// back.
type Scripted struct {
	*httptest.Server
	scripts []script

	mu      sync.Mutex
	offered map[string]bool // names of the tools that conversations with Prompt offer at their beginning
	results map[at]string
	begun   map[at]bool // steps whose Before was called
}

// script has the steps of the conversations with a prompt.
type script struct {
	prompt string
	steps  []Step
}

// at is the place of a step: the index of its script, and its index in the script.
type at struct{ script, step int }

// NewScripted starts the server.
func NewScripted(t testing.TB) *Scripted {
	s := &Scripted{offered: map[string]bool{}, results: map[at]string{}, begun: map[at]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// Add adds the steps of conversations with the prompt. In a conversation that also contains
// Prompt, the model makes the steps of Prompt instead. Add must be called before the first
// request.
func (s *Scripted) Add(prompt string, steps ...Step) {
	s.scripts = append(s.scripts, script{prompt, steps})
}

// Result returns the result that the client sent back for a step of the script of a prompt, or
// "" if it sent none.
func (s *Scripted) Result(prompt string, step int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.results[at{slices.IndexFunc(s.scripts, func(x script) bool { return x.prompt == prompt }), step}]
}

// callID returns the id of the call of a step, as clients send it back.
func (a at) callID() string { return fmt.Sprintf("call_%d_%d_step", a.script, a.step) }

// scriptOf returns the index of the script for a request, or -1 if there is none.
func (s *Scripted) scriptOf(body string) int {
	is := func(x script) bool { return strings.Contains(body, x.prompt) }
	if strings.Contains(body, Prompt) {
		is = func(x script) bool { return x.prompt == Prompt }
	}
	return slices.IndexFunc(s.scripts, is)
}

// take records a request that offers tools, and the results in it. It returns the next step, or nil
// if the answer is text.
func (s *Scripted) take(body []byte) (next *Step, id string) {
	var q struct {
		Tools    []json.RawMessage
		Messages []json.RawMessage
		Contents []json.RawMessage
		Input    json.RawMessage
	}
	if json.Unmarshal(body, &q) != nil || len(q.Tools) == 0 {
		return nil, ""
	}
	var items []json.RawMessage
	if json.Unmarshal(q.Input, &items) != nil {
		items = slices.Concat(q.Messages, q.Contents)
	}
	which := s.scriptOf(string(body))
	if which < 0 {
		return nil, ""
	}
	steps := s.scripts[which].steps
	here := at{which, s.record(items, which)}
	if s.scripts[which].prompt == Prompt && here.step == 0 {
		s.mu.Lock()
		offer(s.offered, "", q.Tools)
		s.mu.Unlock()
	}
	if here.step == len(steps) {
		return nil, ""
	}
	s.mu.Lock()
	first := !s.begun[here]
	s.begun[here] = true
	s.mu.Unlock()
	next = &steps[here.step]
	if first && next.Before != nil {
		next.Before()
	}
	return next, here.callID()
}

// Offered returns the names of the tools that clients have offered to the model at the beginning of conversations
// with Prompt, sorted. The name of a
// tool in a namespace is NAMESPACE/NAME, and that of a tool which the provider executes its type.
func (s *Scripted) Offered() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.offered))
}

// offer adds the names of the tools in a request.
func offer(names map[string]bool, prefix string, tools []json.RawMessage) {
	for _, raw := range tools {
		var tool struct {
			Type, Name string
			Function   struct{ Name string }
			Tools      []json.RawMessage
			Declared   []json.RawMessage `json:"functionDeclarations"`
		}
		_ = json.Unmarshal(raw, &tool)
		switch name := cmp.Or(tool.Name, tool.Function.Name, tool.Type); {
		case len(tool.Tools) > 0:
			offer(names, name+"/", tool.Tools)
		case len(tool.Declared) > 0:
			offer(names, prefix, tool.Declared)
		default:
			names[prefix+name] = true
		}
	}
}

// record stores the results of the steps of a script that a request has among its items. It returns
// the index after that of the last step that has a result.
func (s *Scripted) record(items []json.RawMessage, which int) (next int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []json.RawMessage
	for _, m := range items {
		var blocks struct{ Content, Parts []json.RawMessage }
		if json.Unmarshal(m, &blocks) == nil && !strings.Contains(string(m), `"role":"tool"`) && len(blocks.Content)+len(blocks.Parts) > 0 {
			parts = slices.Concat(parts, blocks.Content, blocks.Parts)
		} else {
			parts = append(parts, m)
		}
	}
	for _, m := range parts {
		for i := range s.scripts[which].steps {
			if text := string(m); strings.Contains(text, at{which, i}.callID()) && (strings.Contains(text, "tool_result") || strings.Contains(text, "_output") || strings.Contains(text, "functionResponse") || strings.Contains(text, `"role":"tool"`)) {
				s.results[at{which, i}] = text
				next = max(next, i+1)
			}
		}
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
	case strings.HasSuffix(r.URL.Path, ":streamGenerateContent"):
		s.generate(w, r, body)
	case strings.HasSuffix(r.URL.Path, ":generateContent"): // a request of a tool of Gemini CLI
		jsonOut(w, 200, generated(map[string]any{"text": "finished"}))
	default:
		jsonOut(w, 404, map[string]any{"error": map[string]string{"message": "no such path", "type": "not_found_error"}})
	}
}

// block returns the content block of a step, or that of the final text if step is nil,
// and the reason for which the response stops.
func block(step *Step, id string) (block map[string]any, stop string) {
	if step == nil {
		return map[string]any{"type": "text", "text": "finished"}, "end_turn"
	}
	return map[string]any{"type": "tool_use", "id": id, "name": step.Tool, "input": step.Input}, "tool_use"
}

func (s *Scripted) messages(w http.ResponseWriter, r *http.Request, body []byte) {
	block, stop := block(s.take(body))
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
	if step, id := s.take(body); step != nil {
		args, _ := json.Marshal(step.Input)
		namespace, name, ok := strings.Cut(step.Tool, "/")
		if !ok {
			namespace, name = "", step.Tool
		}
		item = map[string]any{"type": "function_call", "id": "fc_" + id, "call_id": id, "name": name, "arguments": string(args), "status": "completed"}
		if namespace != "" {
			item["namespace"] = namespace
		}
		if text, ok := step.Input["custom"].(string); ok {
			item = map[string]any{"type": "custom_tool_call", "id": "ctc_" + id, "call_id": id, "name": step.Tool, "input": text, "status": "completed"}
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
	if step, id := s.take(body); step != nil {
		args, _ := json.Marshal(step.Input)
		delta = map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{"index": 0, "id": id, "type": "function", "function": map[string]string{"name": step.Tool, "arguments": string(args)}}}}
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

func (s *Scripted) generate(w http.ResponseWriter, r *http.Request, body []byte) {
	part := map[string]any{"text": "finished"}
	if step, id := s.take(body); step != nil {
		part = map[string]any{"functionCall": map[string]any{"id": id, "name": step.Tool, "args": step.Input}}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	sseOut{w, r}.send("", generated(part))
}

// generated returns a response of the API of Google with one part.
func generated(part map[string]any) map[string]any {
	return map[string]any{"candidates": []any{map[string]any{"content": map[string]any{"role": "model", "parts": []any{part}}, "finishReason": "STOP", "index": 0}},
		"usageMetadata": map[string]int{"promptTokenCount": 3, "candidatesTokenCount": 3, "totalTokenCount": 6}}
}
