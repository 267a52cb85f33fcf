package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

func (p *Providers) anthropic(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Request-Id", "req_anthropic")
	fail := func(status int, kind, message string) {
		jsonOut(w, status, map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": message}, "request_id": "req_anthropic"})
	}
	if r.Header.Get("X-Api-Key") != p.key("llm.anthropic") {
		fail(401, "authentication_error", "invalid x-api-key")
		return
	}
	if r.Header.Get("Anthropic-Version") == "" {
		fail(400, "invalid_request_error", "anthropic-version: header is required")
		return
	}
	if strings.HasSuffix(r.URL.Path, "/models") {
		jsonOut(w, 200, map[string]any{"data": []any{map[string]any{"type": "model", "id": "claude-listed", "display_name": "x"}}, "has_more": false})
		return
	}
	body, _ := io.ReadAll(r.Body)
	type msg struct {
		Role    string
		Content json.RawMessage
	}
	var q struct {
		Model    string
		Stream   bool
		Max      int `json:"max_tokens"`
		Messages []msg
		Tools    []struct {
			Name   string
			Schema json.RawMessage `json:"input_schema"`
		}
		Output      struct{ Format *struct{ Type string } } `json:"output_config"`
		Thinking    struct{ Type, Display string }
		Temperature *float64
		TopP        *float64 `json:"top_p"`
		TopK        *int64   `json:"top_k"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		fail(400, "invalid_request_error", err.Error())
		return
	}
	n := p.see(r, "anthropic", q.Model, body)
	defer p.finished(r, n)
	if strings.HasSuffix(r.URL.Path, "/count_tokens") {
		jsonOut(w, 200, map[string]int{"input_tokens": 42})
		return
	}
	if bad := known(body, "model", "messages", "max_tokens", "system", "stream", "temperature", "top_p", "top_k", "stop_sequences", "tools", "tool_choice", "thinking", "metadata", "service_tier", "output_config", "context_management", "container", "mcp_servers"); bad != "" {
		fail(400, "invalid_request_error", bad)
		return
	}
	if q.Max <= 0 || len(q.Messages) == 0 {
		fail(400, "invalid_request_error", "max_tokens: Field required")
		return
	}
	newest := strings.Contains(q.Model, "claude-opus-5-5")
	if newest && (q.Temperature != nil || q.TopP != nil || q.TopK != nil) {
		fail(400, "invalid_request_error", "temperature, top_p and top_k are not supported by this model")
		return
	}
	if newest && q.Thinking.Type != "" && q.Thinking.Type != "adaptive" {
		fail(400, "invalid_request_error", "thinking.type: this model supports 'adaptive' alone")
		return
	}
	a := &ask{model: q.Model, stream: q.Stream, schema: q.Output.Format != nil}
	for _, t := range q.Tools {
		a.tools = append(a.tools, t.Name)
	}
	calls := map[string]bool{}
	for i, m := range q.Messages {
		if m.Role != "user" && m.Role != "assistant" {
			fail(400, "invalid_request_error", fmt.Sprintf("messages.%d.role: Input should be 'user' or 'assistant'", i))
			return
		}
		var blocks []struct {
			Type, Text, ID string
			ToolUseID      string `json:"tool_use_id"`
			Content        json.RawMessage
			Input          json.RawMessage
			Signature      string
			Source         *struct{ Type, MediaType, Data, URL string }
		}
		var text string
		if json.Unmarshal(m.Content, &text) != nil {
			if err := json.Unmarshal(m.Content, &blocks); err != nil {
				fail(400, "invalid_request_error", err.Error())
				return
			}
		}
		if m.Role == "user" {
			a.last, a.images, a.results = text, 0, nil
		}
		for _, b := range blocks {
			switch b.Type {
			case "text":
				if b.Text == "" {
					fail(400, "invalid_request_error", "messages: text content blocks must be non-empty")
					return
				}
				if m.Role == "user" {
					a.last += b.Text
				}
			case "image":
				a.images++
			case "tool_use":
				if len(b.Input) == 0 || b.Input[0] != '{' {
					fail(400, "invalid_request_error", "tool_use.input: Input should be a valid dictionary")
					return
				}
				calls[b.ID] = true
			case "tool_result":
				if !calls[b.ToolUseID] {
					fail(400, "invalid_request_error", "messages: unexpected `tool_use_id` found in `tool_result` blocks: "+b.ToolUseID)
					return
				}
				t, _ := flatten(b.Content)
				a.results = append(a.results, t)
			case "thinking":
				if b.Signature == "" {
					fail(400, "invalid_request_error", "messages: thinking.signature: Field required")
					return
				}
			}
		}
	}
	if p.before(w, r, a, func(status int) {
		kind := map[int]string{429: "rate_limit_error", 500: "api_error", 529: "overloaded_error", 404: "not_found_error"}[status]
		w.Header().Set("Anthropic-Ratelimit-Requests-Remaining", "0")
		fail(status, kind, "Anthropic says: "+kind)
	}) {
		return
	}
	re := a.reply()
	details := map[string]int{"thinking_tokens": len(re.think)}
	if newest && q.Thinking.Display != "summarized" {
		re.think = ""
	}
	use := map[string]any{"input_tokens": re.in - 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 5, "output_tokens": re.out, "output_tokens_details": details}
	stop := "end_turn"
	if len(re.calls) > 0 {
		stop = "tool_use"
	}
	message := func(content any, stop any, u any) map[string]any {
		return map[string]any{"id": "msg_fixture", "type": "message", "role": "assistant", "model": q.Model, "content": content, "stop_reason": stop, "stop_sequence": nil, "usage": u}
	}
	if !a.stream {
		content := []any{}
		if re.think != "" {
			content = append(content, map[string]string{"type": "thinking", "thinking": re.think, "signature": "sig-anthropic"})
		}
		if len(re.words) > 0 {
			content = append(content, map[string]string{"type": "text", "text": strings.Join(re.words, "")})
		}
		for i, c := range re.calls {
			content = append(content, map[string]any{"type": "tool_use", "id": fmt.Sprint("toolu_", i+1), "name": c, "input": json.RawMessage(toolArgs)})
		}
		jsonOut(w, 200, message(content, stop, use))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := sseOut{w, r}
	send := func(kind string, d map[string]any) { d["type"] = kind; s.send(kind, d) }
	first := map[string]int{"input_tokens": re.in - 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 5, "output_tokens": 1}
	send("message_start", map[string]any{"message": message([]any{}, nil, first)})
	send("ping", map[string]any{})
	if a.behave() == "early" {
		panic(http.ErrAbortHandler)
	}
	index := 0
	block := func(begin map[string]any, deltas ...map[string]any) {
		send("content_block_start", map[string]any{"index": index, "content_block": begin})
		for _, d := range deltas {
			send("content_block_delta", map[string]any{"index": index, "delta": d})
		}
		send("content_block_stop", map[string]any{"index": index})
		index++
	}
	if re.think != "" {
		block(map[string]any{"type": "thinking", "thinking": "", "signature": ""}, map[string]any{"type": "thinking_delta", "thinking": re.think}, map[string]any{"type": "signature_delta", "signature": "sig-anthropic"})
	}
	if len(re.words) > 0 {
		send("content_block_start", map[string]any{"index": index, "content_block": map[string]any{"type": "text", "text": ""}})
		for i, word := range re.words {
			if s.stopAt(a, i, func() {
				send("error", map[string]any{"error": map[string]string{"type": "overloaded_error", "message": "Overloaded"}})
			}) {
				return
			}
			send("content_block_delta", map[string]any{"index": index, "delta": map[string]any{"type": "text_delta", "text": word}})
		}
		send("content_block_stop", map[string]any{"index": index})
		index++
	}
	for i, c := range re.calls {
		block(map[string]any{"type": "tool_use", "id": fmt.Sprint("toolu_", i+1), "name": c, "input": map[string]any{}},
			map[string]any{"type": "input_json_delta", "partial_json": ""}, map[string]any{"type": "input_json_delta", "partial_json": toolArgs[:4]}, map[string]any{"type": "input_json_delta", "partial_json": toolArgs[4:]})
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": map[string]any{"output_tokens": re.out, "output_tokens_details": details}})
	send("message_stop", map[string]any{})
}
