package harness

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

func (p *Providers) gemini(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, kind, message string, details ...any) {
		jsonOut(w, status, map[string]any{"error": map[string]any{"code": status, "message": message, "status": kind, "details": details}})
	}
	if r.Header.Get("X-Goog-Api-Key") != p.key("llm.gemini") {
		fail(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.")
		return
	}
	if strings.HasSuffix(r.URL.Path, "/models") {
		jsonOut(w, 200, map[string]any{"models": []any{map[string]any{"name": "models/gemini-listed"}}})
		return
	}
	_, rest, _ := strings.Cut(r.URL.Path, "/models/")
	model, verb, _ := strings.Cut(rest, ":")
	body, _ := io.ReadAll(r.Body)
	n := p.see(r, "gemini", model, body)
	defer p.finished(r, n)
	if verb == "batchEmbedContents" {
		jsonOut(w, 200, map[string]any{"embeddings": []any{map[string]any{"values": []float32{0.25, -1, 3}}}})
		return
	}
	if bad := known(body, "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent"); bad != "" {
		fail(400, "INVALID_ARGUMENT", "Invalid JSON payload received. Unknown name: "+bad)
		return
	}
	var q struct {
		Contents []struct {
			Role  string
			Parts []struct {
				Text             *string
				InlineData       *struct{ MimeType, Data string }
				FunctionCall     *struct{ Name string }
				FunctionResponse *struct {
					Name     string
					Response json.RawMessage
				}
				ThoughtSignature string
			}
		}
		Tools []struct {
			FunctionDeclarations []struct{ Name string }
		}
		GenerationConfig struct {
			ResponseMimeType string
			ResponseLogprobs bool
			ThinkingConfig   struct {
				ThinkingBudget *int
				ThinkingLevel  string
			}
		}
	}
	if err := json.Unmarshal(body, &q); err != nil {
		fail(400, "INVALID_ARGUMENT", err.Error())
		return
	}
	third, thinks := strings.Contains(model, "gemini-3"), q.GenerationConfig.ThinkingConfig
	if third && thinks.ThinkingBudget != nil || !third && thinks.ThinkingLevel != "" {
		fail(400, "INVALID_ARGUMENT", "Thinking level is not supported for this model, or thinking budget is not")
		return
	}
	a := &ask{model: model, stream: verb == "streamGenerateContent", schema: q.GenerationConfig.ResponseMimeType == "application/json"}
	for _, t := range q.Tools {
		for _, f := range t.FunctionDeclarations {
			a.tools = append(a.tools, f.Name)
		}
	}
	for _, c := range q.Contents {
		if c.Role == "user" {
			a.last, a.images, a.results = "", 0, nil
		}
		signed := !third
		for _, part := range c.Parts {
			if part.FunctionCall != nil {
				if signed = signed || part.ThoughtSignature == "sig-gemini" || part.ThoughtSignature == "skip_thought_signature_validator"; !signed {
					fail(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature in functionCall parts.")
					return
				}
			}
			switch {
			case part.FunctionResponse != nil:
				if part.FunctionResponse.Name == "" || part.FunctionResponse.Response[0] != '{' {
					fail(400, "INVALID_ARGUMENT", "function_response.name: cannot be empty")
					return
				}
				var o struct{ Output string }
				_ = json.Unmarshal(part.FunctionResponse.Response, &o)
				if o.Output == "" {
					o.Output = string(part.FunctionResponse.Response)
				}
				a.results = append(a.results, o.Output)
			case part.FunctionCall != nil && !third && a.behave() == "think" && part.ThoughtSignature != "sig-gemini":
				fail(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature")
				return
			case part.InlineData != nil:
				a.images++
			case part.Text != nil && c.Role == "user":
				a.last += *part.Text
			}
		}
	}
	if p.before(w, r, a, func(status int) {
		switch status {
		case 429:
			w.Header().Del("Retry-After") // Gemini reports the retry delay in the body
			fail(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota", map[string]any{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"})
		case 529:
			fail(503, "UNAVAILABLE", "The model is overloaded. Please try again later.")
		case 404:
			fail(404, "NOT_FOUND", "models/"+model+" is not found")
		default:
			fail(status, "INTERNAL", "An internal error has occurred.")
		}
	}) {
		return
	}
	re := a.reply()
	use := map[string]int{"promptTokenCount": re.in, "candidatesTokenCount": re.out - len(re.think), "thoughtsTokenCount": len(re.think), "cachedContentTokenCount": 5, "totalTokenCount": re.in + re.out}
	if re.out < len(re.think) {
		use["candidatesTokenCount"], use["thoughtsTokenCount"] = re.out, 0
	}
	chunk := func(parts []any, fin string) map[string]any {
		c := map[string]any{"content": map[string]any{"role": "model", "parts": parts}, "index": 0}
		if fin != "" {
			c["finishReason"] = fin
		}
		if q.GenerationConfig.ResponseLogprobs {
			t := map[string]any{"token": "Hi", "tokenId": 7, "logProbability": -0.25}
			c["logprobsResult"] = map[string]any{"chosenCandidates": []any{t}, "topCandidates": []any{map[string]any{"candidates": []any{t}}}}
		}
		return map[string]any{"candidates": []any{c}, "usageMetadata": use, "modelVersion": model, "responseId": "gem-1"}
	}
	var parts []any
	if re.think != "" {
		parts = append(parts, map[string]any{"text": re.think, "thought": true})
	}
	for _, c := range re.calls {
		part := map[string]any{"functionCall": map[string]any{"name": c, "args": json.RawMessage(toolArgs)}}
		if re.think != "" {
			part["thoughtSignature"] = "sig-gemini"
		}
		parts = append(parts, part)
	}
	if !a.stream {
		if len(re.words) > 0 {
			parts = append(parts, map[string]any{"text": strings.Join(re.words, "")})
		}
		jsonOut(w, 200, chunk(parts, "STOP"))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	s := sseOut{w, r}
	if a.behave() == "early" {
		s.send("", chunk([]any{}, ""))
		panic(http.ErrAbortHandler)
	}
	if len(parts) > 0 {
		s.send("", chunk(parts, ""))
	}
	for i, word := range re.words {
		if s.stopAt(a, i, func() {
			s.send("", map[string]any{"error": map[string]any{"code": 503, "message": "The service is currently unavailable.", "status": "UNAVAILABLE"}})
		}) {
			return
		}
		s.send("", chunk([]any{map[string]any{"text": word}}, ""))
	}
	s.send("", chunk([]any{map[string]any{"text": ""}}, "STOP"))
}
