package harness

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

func (p *Providers) openai(name string, secrets ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "req_"+name)
		ok := len(secrets) == 0
		for _, s := range secrets {
			ok = ok || r.Header.Get("Authorization") == "Bearer "+p.key(s)
		}
		if !ok {
			wireError(w, 401, "Incorrect API key provided: "+r.Header.Get("Authorization"), "invalid_api_key")
			return
		}
		p.openaiCall(w, r, name, "")
	}
}

func (p *Providers) openaiCall(w http.ResponseWriter, r *http.Request, name, deployment string) {
	if strings.HasSuffix(r.URL.Path, "/models") {
		jsonOut(w, 200, map[string]any{"object": "list", "data": []any{map[string]any{"id": "listed-live", "object": "model", "created": 1, "owned_by": name}}})
		return
	}
	body, _ := io.ReadAll(r.Body)
	var q struct {
		Model    string
		Stream   bool
		Input    json.RawMessage
		Prompt   string
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
		Tools []struct {
			Type     string
			Name     string
			Function struct{ Name string }
			Tools    []struct{ Name string }
		}
		Text struct {
			Format struct{ Type string }
		}
		ResponseFormat struct{ Type string } `json:"response_format"`
		StreamOptions  struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
		EncodingFormat string `json:"encoding_format"`
		Unknown        any    `json:"refuse_me"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		wireError(w, 400, "We could not parse the JSON body of your request: "+err.Error(), "invalid_json")
		return
	}
	if deployment != "" {
		q.Model = deployment
	}
	n := p.see(r, name, q.Model, body)
	defer p.finished(r, n)
	if q.Unknown != nil {
		wireError(w, 400, "Unrecognized request argument supplied: refuse_me", "unknown_parameter")
		return
	}
	a := &ask{model: q.Model, stream: q.Stream, schema: q.Text.Format.Type == "json_schema" || q.ResponseFormat.Type == "json_schema", usage: q.StreamOptions.Usage, last: q.Prompt}
	for _, t := range q.Tools {
		switch {
		case t.Type == "namespace":
			for _, in := range t.Tools {
				a.tools = append(a.tools, t.Name+"\x00"+in.Name)
			}
		case t.Function.Name != "":
			a.tools = append(a.tools, t.Function.Name)
		case t.Type == "function" || t.Type == "custom":
			a.tools = append(a.tools, t.Name)
		}
	}
	for _, m := range q.Messages {
		text, images := flatten(m.Content)
		switch m.Role {
		case "user":
			a.last, a.images, a.results = text, images, nil
		case "tool":
			a.results = append(a.results, text)
		}
	}
	if len(q.Input) > 0 {
		a.input(q.Input)
	}
	if p.before(w, r, a, func(status int) {
		code := map[int]string{429: "rate_limit_exceeded", 500: "server_error", 529: "overloaded", 404: "model_not_found"}[status]
		if status == 529 {
			status = 503
		}
		wireError(w, status, "The server says: "+code, code)
	}) {
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/chat/completions"):
		p.chatWire(w, r, a)
	case strings.HasSuffix(r.URL.Path, "/responses"):
		p.responsesWire(w, r, a)
	case strings.HasSuffix(r.URL.Path, "/embeddings"):
		vec := []float32{0.25, -1, 3}
		var e any = vec
		if q.EncodingFormat == "base64" {
			var raw []byte
			for _, f := range vec {
				raw, _ = binary.Append(raw, binary.LittleEndian, f)
			}
			e = base64.StdEncoding.EncodeToString(raw)
		}
		jsonOut(w, 200, map[string]any{"object": "list", "model": q.Model, "data": []any{map[string]any{"object": "embedding", "index": 0, "embedding": e}}, "usage": map[string]int{"prompt_tokens": 3, "total_tokens": 3}})
	case strings.HasSuffix(r.URL.Path, "/completions"):
		re := a.reply()
		if !a.stream {
			jsonOut(w, 200, map[string]any{"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": q.Model,
				"choices": []any{map[string]any{"text": strings.Join(re.words, ""), "index": 0, "logprobs": nil, "finish_reason": "stop"}}, "usage": map[string]int{"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}})
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		s := sseOut{w, r}
		for _, word := range re.words {
			s.send("", map[string]any{"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": q.Model, "choices": []any{map[string]any{"text": word, "index": 0, "logprobs": nil, "finish_reason": nil}}})
		}
		s.send("", map[string]any{"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": q.Model, "choices": []any{map[string]any{"text": "", "index": 0, "logprobs": nil, "finish_reason": "stop"}}})
		fmt.Fprint(w, "data: [DONE]\n\n")
	default:
		wireError(w, 404, "Invalid URL (POST "+r.URL.Path+")", "")
	}
}

// flatten returns the text of a message's content, and the number of images in it.
func flatten(raw json.RawMessage) (string, int) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, 0
	}
	var parts []struct {
		Type, Text string
		Content    json.RawMessage
	}
	_ = json.Unmarshal(raw, &parts)
	images := 0
	for _, p := range parts {
		if strings.Contains(p.Type, "image") {
			images++
		}
		s += p.Text
	}
	return s, images
}

func (a *ask) input(raw json.RawMessage) {
	if json.Unmarshal(raw, &a.last) == nil {
		return
	}
	var items []struct {
		Type, Role      string
		Content, Output json.RawMessage
	}
	_ = json.Unmarshal(raw, &items)
	for _, it := range items {
		switch {
		case it.Role == "user":
			a.last, a.images = flatten(it.Content)
			a.results = nil
		case strings.HasSuffix(it.Type, "call_output"):
			t, _ := flatten(it.Output)
			a.results = append(a.results, t)
		}
	}
}

const toolArgs = `{"text":"x"}`

func (p *Providers) chatWire(w http.ResponseWriter, r *http.Request, a *ask) {
	re := a.reply()
	use := map[string]any{"prompt_tokens": re.in, "completion_tokens": re.out, "total_tokens": re.in + re.out, "prompt_tokens_details": map[string]int{"cached_tokens": 5}, "completion_tokens_details": map[string]int{"reasoning_tokens": len(re.think)}}
	finish := "stop"
	if len(re.calls) > 0 {
		finish = "tool_calls"
	}
	call := func(i int, args string) map[string]any {
		return map[string]any{"id": fmt.Sprint("call_", i+1), "type": "function", "function": map[string]string{"name": re.calls[i], "arguments": args}}
	}
	if !a.stream {
		m := map[string]any{"role": "assistant", "content": strings.Join(re.words, ""), "refusal": nil, "annotations": []any{}}
		if len(re.calls) > 0 {
			m["content"] = nil
			calls := []any{}
			for i := range re.calls {
				calls = append(calls, call(i, a.args()))
			}
			m["tool_calls"] = calls
		}
		if re.think != "" {
			m["reasoning_content"] = re.think
		}
		jsonOut(w, 200, map[string]any{"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": a.model, "service_tier": "default", "system_fingerprint": "fp_1",
			"choices": []any{map[string]any{"index": 0, "message": m, "logprobs": nil, "finish_reason": finish}}, "usage": use})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := sseOut{w, r}
	chunk := func(choices []any, u any) {
		d := map[string]any{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": a.model, "service_tier": "default", "system_fingerprint": "fp_1", "choices": choices}
		if a.usage {
			d["usage"] = u
		}
		s.send("", d)
	}
	delta := func(d map[string]any, fin any) {
		chunk([]any{map[string]any{"index": 0, "delta": d, "logprobs": nil, "finish_reason": fin}}, nil)
	}
	delta(map[string]any{"role": "assistant", "content": "", "refusal": nil}, nil)
	if a.behave() == "early" {
		panic(http.ErrAbortHandler)
	}
	if re.think != "" {
		delta(map[string]any{"reasoning_content": re.think}, nil)
	}
	if b := a.behave(); b == "flood" || b == "endless" {
		word := strings.Repeat("x", 4<<10)
		for n := 0; n < 4<<10 || b == "endless"; n++ {
			if r.Context().Err() != nil {
				return
			}
			delta(map[string]any{"content": word}, nil)
			p.flood.Add(int64(len(word)))
		}
	}
	for i, word := range re.words {
		if s.stopAt(a, i, func() {
			s.send("", map[string]any{"error": map[string]any{"message": "The server had an error while processing your request", "type": "server_error", "param": nil, "code": nil}})
		}) {
			return
		}
		delta(map[string]any{"content": word}, nil)
	}
	var pieces [][]any // the chunks of each tool call
	for i := range re.calls {
		c := call(i, "")
		c["index"] = i
		pieces = append(pieces, []any{c})
		for _, part := range []string{a.args()[:4], a.args()[4:]} {
			pieces = append(pieces, []any{map[string]any{"index": i, "function": map[string]string{"arguments": part}}})
		}
	}
	if n := len(pieces); a.behave() == "braid" {
		braided := make([][]any, 0, n)
		for first := range 3 {
			for i := first; i < n; i += 3 {
				braided = append(braided, pieces[i])
			}
		}
		pieces = braided
	}
	for _, piece := range pieces {
		delta(map[string]any{"tool_calls": piece}, nil)
	}
	delta(map[string]any{}, finish)
	if a.usage {
		chunk([]any{}, use)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (p *Providers) responsesWire(w http.ResponseWriter, r *http.Request, a *ask) {
	re := a.reply()
	var items []map[string]any
	if re.think != "" {
		items = append(items, map[string]any{"type": "reasoning", "id": "rs_1", "summary": []any{map[string]any{"type": "summary_text", "text": re.think}}, "encrypted_content": "sealed"})
	}
	for i, c := range re.calls {
		it := map[string]any{"type": "function_call", "id": fmt.Sprint("fc_", i+1), "call_id": fmt.Sprint("call_", i+1), "name": c, "arguments": toolArgs, "status": "completed"}
		if ns, name, ok := strings.Cut(c, "\x00"); ok {
			it["namespace"], it["name"] = ns, name
		}
		items = append(items, it)
	}
	if len(re.words) > 0 {
		items = append(items, map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": strings.Join(re.words, ""), "annotations": []any{}, "logprobs": []any{}}}})
	}
	id := "resp_fixture"
	if a.behave() == "own" {
		n := p.made.Add(1)
		id = fmt.Sprintf("resp_native_%d", n)
		for _, it := range items {
			it["id"] = fmt.Sprintf("%s_native_%d", it["id"], n)
		}
	}
	doc := func(status string, output any, usage any) map[string]any {
		return map[string]any{"id": id, "object": "response", "created_at": 1700000000, "status": status, "background": false, "error": nil, "incomplete_details": nil, "instructions": nil,
			"max_output_tokens": nil, "model": a.model, "output": output, "parallel_tool_calls": true, "previous_response_id": nil, "reasoning": map[string]any{"effort": nil, "summary": nil},
			"store": true, "temperature": 1, "text": map[string]any{"format": map[string]string{"type": "text"}}, "tool_choice": "auto", "tools": []any{}, "top_p": 1, "truncation": "disabled", "usage": usage, "metadata": map[string]any{}}
	}
	use := map[string]any{"input_tokens": re.in, "input_tokens_details": map[string]int{"cached_tokens": 5}, "output_tokens": re.out, "output_tokens_details": map[string]int{"reasoning_tokens": 0}, "total_tokens": re.in + re.out}
	if !a.stream {
		jsonOut(w, 200, doc("completed", items, use))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := sseOut{w, r}
	seq := 0
	send := func(kind string, d map[string]any) {
		d["type"], d["sequence_number"] = kind, seq
		seq++
		s.send(kind, d)
	}
	send("response.created", map[string]any{"response": doc("in_progress", []any{}, nil)})
	send("response.in_progress", map[string]any{"response": doc("in_progress", []any{}, nil)})
	if a.behave() == "early" {
		panic(http.ErrAbortHandler)
	}
	for i, it := range items {
		begun := map[string]any{}
		for k, v := range it {
			begun[k] = v
		}
		at := func(d map[string]any) map[string]any { d["output_index"], d["item_id"] = i, it["id"]; return d }
		switch it["type"] {
		case "message":
			begun["status"], begun["content"] = "in_progress", []any{}
			send("response.output_item.added", map[string]any{"output_index": i, "item": begun})
			send("response.content_part.added", at(map[string]any{"content_index": 0, "part": map[string]any{"type": "output_text", "text": "", "annotations": []any{}, "logprobs": []any{}}}))
			for n, word := range re.words {
				if s.stopAt(a, n, func() {
					send("response.failed", map[string]any{"response": func() map[string]any {
						d := doc("failed", []any{}, nil)
						d["error"] = map[string]string{"code": "server_error", "message": "The model failed to generate a response."}
						return d
					}()})
				}) {
					return
				}
				send("response.output_text.delta", at(map[string]any{"content_index": 0, "delta": word, "logprobs": []any{}}))
			}
			send("response.output_text.done", at(map[string]any{"content_index": 0, "text": strings.Join(re.words, ""), "logprobs": []any{}}))
			send("response.content_part.done", at(map[string]any{"content_index": 0, "part": it["content"].([]any)[0]}))
		case "function_call":
			begun["status"], begun["arguments"] = "in_progress", ""
			send("response.output_item.added", map[string]any{"output_index": i, "item": begun})
			for _, part := range []string{toolArgs[:4], toolArgs[4:]} {
				send("response.function_call_arguments.delta", at(map[string]any{"delta": part}))
			}
			send("response.function_call_arguments.done", at(map[string]any{"arguments": toolArgs, "name": it["name"]}))
		default:
			send("response.output_item.added", map[string]any{"output_index": i, "item": begun})
		}
		send("response.output_item.done", map[string]any{"output_index": i, "item": it})
	}
	send("response.completed", map[string]any{"response": doc("completed", items, use)})
}

// azure implements the paths below /azure/openai/. If the path contains
// deployments/{deployment}, the deployment is the model.
func (p *Providers) azure(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Api-Key") != p.key("llm.azure") {
		jsonOut(w, 401, map[string]any{"error": map[string]string{"code": "401", "message": "Access denied due to invalid subscription key or wrong API endpoint."}})
		return
	}
	if r.URL.Query().Get("api-version") == "" {
		jsonOut(w, 404, map[string]any{"error": map[string]string{"code": "404", "message": "Resource not found"}})
		return
	}
	w.Header().Set("Apim-Request-Id", "apim-1")
	deployment := ""
	if _, rest, ok := strings.Cut(r.URL.Path, "/deployments/"); ok {
		deployment, _, _ = strings.Cut(rest, "/")
	}
	p.openaiCall(w, r, "azure", deployment)
}
