package harness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// LLM is a local model server with OpenAI's chat and Responses APIs. Its response in the
// chat API depends on the model that the request names:
//
//	good      text, or tool calls if the request offers tools
//	judge     a verdict that cites the transcript's first event
//	liar      a verdict that cites an event that does not exist
//	cut       a stream that breaks off before its end
//	garbage   a stream with a chunk that is not JSON
//	limited   429 with Retry-After
//	broken    500
//	any other 404
type LLM struct {
	*httptest.Server
	Key string
}

// NewLLM starts the server. It returns the server and the path of an llm document that
// lists it as the provider "fixture" and declares the client tool upper.
func NewLLM(t testing.TB) (*LLM, string) {
	l := &LLM{Key: "sk-fixture-0123456789"}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", l.chat)
	mux.HandleFunc("POST /v1/responses", l.responses)
	l.Server = httptest.NewServer(mux)
	t.Cleanup(l.Close)
	dir := t.TempDir()
	doc, err := json.Marshal(map[string]any{"providers": []any{map[string]any{"name": "fixture", "base_url": l.URL + "/v1", "secrets": []string{"llm.fixture"}, "models": []string{"good"}}},
		"client_tools": []any{map[string]any{"type": "function", "class": "E0", "function": map[string]any{"name": "upper", "parameters": map[string]any{"type": "object",
			"properties": map[string]any{"text": map[string]string{"type": "string"}}, "required": []string{"text"}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "llm.json")
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	WriteSecrets(t, path, map[string]string{"llm.fixture": l.Key})
	return l, path
}

// secretsFile returns the path of the file with the values of the secrets that an llm
// document names. A mesh that is started with the document stores them in its vault.
func secretsFile(doc string) string { return doc + ".secrets" }

// WriteSecrets writes the file with the values of the secrets that an llm document
// names.
func WriteSecrets(t testing.TB, doc string, values map[string]string) {
	b, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secretsFile(doc), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

type chatRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
}

func (l *LLM) chat(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+l.Key {
		wireError(w, 401, "Incorrect API key provided: "+r.Header.Get("Authorization"), "invalid_api_key")
		return
	}
	var req chatRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		wireError(w, 400, err.Error(), "invalid_json")
		return
	}
	last := req.Messages[len(req.Messages)-1].Content
	text := "You said: " + last
	switch req.Model {
	case "good", "cut", "garbage":
	case "judge":
		var turns []struct {
			EventID string `json:"event_id"`
		}
		_ = json.Unmarshal([]byte(last), &turns)
		text = fmt.Sprintf(`{"score":8,"justification":"the call did what was requested","citations":[%q]}`, turns[0].EventID)
	case "liar":
		text = `{"score":10,"justification":"trust me","citations":["r-c-INVENTED"]}`
	case "limited":
		w.Header().Set("Retry-After", "7")
		wireError(w, 429, "Rate limit reached", "rate_limit_exceeded")
		return
	case "broken":
		wireError(w, 500, "The server had an error", "server_error")
		return
	default:
		wireError(w, 404, "The model `"+req.Model+"` does not exist", "model_not_found")
		return
	}
	message := map[string]any{"role": "assistant", "content": text, "refusal": nil}
	finish := "stop"
	if len(req.Tools) > 0 {
		message["content"], finish = nil, "tool_calls"
		var calls []any
		for i, t := range req.Tools { // the response calls every tool that the request offers
			calls = append(calls, map[string]any{"id": fmt.Sprint("call_", i+1), "type": "function", "function": map[string]string{"name": t.Function.Name, "arguments": `{"text":"x"}`}})
		}
		message["tool_calls"] = calls
	}
	if !req.Stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": req.Model,
			"choices": []any{map[string]any{"index": 0, "message": message, "logprobs": nil, "finish_reason": finish}},
			"usage":   map[string]int{"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}})
		return
	}
	l.stream(w, req, text, finish)
}

func (l *LLM) stream(w http.ResponseWriter, req chatRequest, text, finish string) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(v any) {
		b, _ := json.Marshal(v)
		fmt.Fprintf(w, "data: %s\n\n", b)
		w.(http.Flusher).Flush()
	}
	chunk := func(delta map[string]any, finish any) {
		send(map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": req.Model,
			"choices": []any{map[string]any{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}}})
	}
	chunk(map[string]any{"role": "assistant", "content": ""}, nil)
	if len(req.Tools) > 0 {
		for i, t := range req.Tools {
			chunk(map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": fmt.Sprint("call_", i+1), "type": "function", "function": map[string]string{"name": t.Function.Name, "arguments": ""}}}}, nil)
			for _, part := range []string{`{"te`, `xt":"x"}`} {
				chunk(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]string{"arguments": part}}}}, nil)
			}
		}
	} else {
		for i, word := range strings.SplitAfter(text, " ") {
			if i == 2 && req.Model == "cut" {
				return
			}
			if i == 2 && req.Model == "garbage" {
				fmt.Fprint(w, "data: {not json\n\n")
				return
			}
			chunk(map[string]any{"content": word}, nil)
			time.Sleep(2 * time.Millisecond)
		}
	}
	chunk(map[string]any{}, finish)
	send(map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": req.Model, "choices": []any{}, "usage": map[string]int{"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}})
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func wireError(w http.ResponseWriter, status int, message, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": "invalid_request_error", "param": nil, "code": code}})
}

// responses implements the Responses API. The response calls every function that the
// request offers, or is a text if it offers none.
func (l *LLM) responses(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+l.Key {
		wireError(w, 401, "Incorrect API key provided", "invalid_api_key")
		return
	}
	var req struct {
		Model, Input string
		Stream       bool
		Tools        []struct{ Name string }
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		wireError(w, 400, err.Error(), "invalid_json")
		return
	}
	items := []any{}
	for i, t := range req.Tools {
		items = append(items, map[string]any{"type": "function_call", "id": fmt.Sprint("fc_", i+1), "call_id": fmt.Sprint("call_", i+1), "name": t.Name, "arguments": `{"text":"x"}`, "status": "completed"})
	}
	if len(items) == 0 {
		items = append(items, map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": "You said: " + req.Input, "annotations": []any{}}}})
	}
	whole := func(status string, output []any) map[string]any {
		return map[string]any{"id": "resp_1", "object": "response", "created_at": 1700000000, "model": req.Model, "status": status, "output": output,
			"tools": []any{}, "parallel_tool_calls": true, "usage": map[string]any{"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}}
	}
	if !req.Stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(whole("completed", items))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	n := 0
	send := func(kind string, doc map[string]any) {
		doc["type"], doc["sequence_number"] = kind, n
		n++
		b, _ := json.Marshal(doc)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, b)
		w.(http.Flusher).Flush()
	}
	send("response.created", map[string]any{"response": whole("in_progress", []any{})})
	for i, it := range items {
		item := it.(map[string]any)
		begun := map[string]any{}
		for k, v := range item {
			begun[k] = v
		}
		begun["status"] = "in_progress"
		id := item["id"]
		if item["type"] == "message" {
			begun["content"] = []any{}
			part := item["content"].([]any)[0].(map[string]any)
			send("response.output_item.added", map[string]any{"output_index": i, "item": begun})
			send("response.content_part.added", map[string]any{"output_index": i, "content_index": 0, "item_id": id, "part": map[string]any{"type": "output_text", "text": "", "annotations": []any{}}})
			send("response.output_text.delta", map[string]any{"output_index": i, "content_index": 0, "item_id": id, "delta": part["text"]})
			send("response.output_text.done", map[string]any{"output_index": i, "content_index": 0, "item_id": id, "text": part["text"]})
			send("response.content_part.done", map[string]any{"output_index": i, "content_index": 0, "item_id": id, "part": part})
		} else {
			begun["arguments"] = ""
			send("response.output_item.added", map[string]any{"output_index": i, "item": begun})
			for _, d := range []string{`{"te`, `xt":"x"}`} {
				send("response.function_call_arguments.delta", map[string]any{"output_index": i, "item_id": id, "delta": d})
			}
			send("response.function_call_arguments.done", map[string]any{"output_index": i, "item_id": id, "arguments": item["arguments"]})
		}
		send("response.output_item.done", map[string]any{"output_index": i, "item": item})
	}
	send("response.completed", map[string]any{"response": whole("completed", items)})
}
