// Package openai speaks to an OpenAI-compatible upstream.
package openai

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Upstream is one provider.
type Upstream struct {
	Name    string
	BaseURL string // ends before /chat/completions
	Key     string
	Client  *http.Client
}

// Error is an upstream's refusal.
type Error struct {
	Code    string // typed, ours
	Status  int    // HTTP status, 0 if none came
	Message string
}

func (e *Error) Error() string { return e.Message }

// Answer is what came back and how long it took.
type Answer struct {
	Body      []byte // the completion; of a stream, put together from its chunks
	Status    int
	FirstByte time.Duration
	InTokens  int64
	OutTokens int64
}

// maxAnswer bounds an answer in bytes.
const maxAnswer = 32 << 20

// Chat sends one request. args is the caller's request with the model id as
// the upstream knows it. onChunk, if not nil, gets each chunk of the stream.
func (u *Upstream) Chat(ctx context.Context, args []byte, onChunk func(json.RawMessage) error) (*Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.BaseURL+"/chat/completions", bytes.NewReader(args))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if u.Key != "" {
		req.Header.Set("Authorization", "Bearer "+u.Key)
	}
	began := time.Now()
	resp, err := u.Client.Do(req)
	if err != nil {
		return nil, &Error{Code: "upstream_unreachable", Message: "provider " + u.Name + " did not answer: " + scrub(err.Error(), u.Key)}
	}
	defer resp.Body.Close()
	a := &Answer{Status: resp.StatusCode, FirstByte: time.Since(began)}
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return a, &Error{Code: codeOf(resp.StatusCode), Status: resp.StatusCode, Message: fmt.Sprintf("provider %s answered %d: %s", u.Name, resp.StatusCode, scrub(message(b), u.Key))}
	}
	if onChunk == nil {
		if a.Body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
			return a, &Error{Code: "upstream_cut", Status: a.Status, Message: "provider " + u.Name + " broke off its answer"}
		}
		a.usage(a.Body)
		return a, nil
	}
	return a, u.stream(resp.Body, a, onChunk)
}

func (u *Upstream) stream(body io.Reader, a *Answer, onChunk func(json.RawMessage) error) error {
	cut := &Error{Code: "upstream_cut", Status: a.Status, Message: "provider " + u.Name + " cut its stream before the end"}
	var asm assembly
	sc := bufio.NewScanner(body)
	sc.Buffer(make([]byte, 64<<10), 4<<20)
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data:")
		if !ok {
			continue
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			var err error
			a.Body, err = asm.completion()
			a.usage(a.Body)
			return err
		}
		if !json.Valid([]byte(data)) {
			return &Error{Code: "upstream_malformed", Status: a.Status, Message: "provider " + u.Name + " sent a chunk that is not JSON"}
		}
		raw := json.RawMessage(data)
		if err := asm.add(raw); err != nil {
			return err
		}
		if err := onChunk(raw); err != nil {
			return err
		}
	}
	return cut
}

func (a *Answer) usage(body []byte) {
	var doc struct {
		Usage struct {
			In  int64 `json:"prompt_tokens"`
			Out int64 `json:"completion_tokens"`
		} `json:"usage"`
	}
	if json.Unmarshal(body, &doc) == nil {
		a.InTokens, a.OutTokens = doc.Usage.In, doc.Usage.Out
	}
}

func codeOf(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limited"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "credential_invalid"
	case status == http.StatusNotFound:
		return "model_not_found"
	case status < 500:
		return "upstream_refused"
	}
	return "upstream_error"
}

func message(b []byte) string {
	var doc struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(b, &doc) == nil && doc.Error.Message != "" {
		return doc.Error.Message
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(b[:min(len(b), 512)])), "\uFFFD")
}

func scrub(s, key string) string {
	if key == "" {
		return s
	}
	return strings.ReplaceAll(s, key, "[secret]")
}

// assembly puts a stream's chunks together into the completion they spell.
type assembly struct {
	doc     map[string]any
	choices map[int]*choice
	order   []int
}

type choice struct {
	message map[string]any
	tools   []map[string]any
	finish  any
}

func (s *assembly) add(raw json.RawMessage) error {
	var c map[string]any
	if err := json.Unmarshal(raw, &c); err != nil {
		return err
	}
	if s.doc == nil {
		s.doc, s.choices = map[string]any{}, map[int]*choice{}
	}
	list, _ := c["choices"].([]any)
	for k, v := range c {
		if k != "choices" && k != "object" && v != nil {
			s.doc[k] = v
		}
	}
	for _, item := range list {
		d, ok := item.(map[string]any)
		if !ok {
			return errors.New("malformed choice")
		}
		index, _ := d["index"].(float64)
		ch := s.choices[int(index)]
		if ch == nil {
			ch = &choice{message: map[string]any{"role": "assistant", "content": nil}}
			s.choices[int(index)] = ch
			s.order = append(s.order, int(index))
		}
		if f := d["finish_reason"]; f != nil {
			ch.finish = f
		}
		delta, _ := d["delta"].(map[string]any)
		ch.merge(delta)
	}
	return nil
}

func (c *choice) merge(delta map[string]any) {
	for k, v := range delta {
		switch t := v.(type) {
		case string:
			if old, ok := c.message[k].(string); ok && k != "role" {
				c.message[k] = old + t
			} else {
				c.message[k] = t
			}
		case []any:
			if k == "tool_calls" {
				c.mergeTools(t)
			} else {
				c.message[k] = t
			}
		case nil:
		default:
			c.message[k] = v
		}
	}
}

func (c *choice) mergeTools(list []any) {
	for _, item := range list {
		d, ok := item.(map[string]any)
		if !ok {
			continue
		}
		index, _ := d["index"].(float64)
		for len(c.tools) <= int(index) && len(c.tools) < 128 {
			c.tools = append(c.tools, map[string]any{"type": "function", "function": map[string]any{"name": "", "arguments": ""}})
		}
		if int(index) >= len(c.tools) {
			continue
		}
		t := c.tools[int(index)]
		if id, ok := d["id"].(string); ok {
			t["id"] = id
		}
		fn, _ := d["function"].(map[string]any)
		have := t["function"].(map[string]any)
		for _, k := range []string{"name", "arguments"} {
			if v, ok := fn[k].(string); ok {
				have[k] = have[k].(string) + v
			}
		}
	}
}

func (s *assembly) completion() ([]byte, error) {
	if s.doc == nil {
		s.doc = map[string]any{}
	}
	choices := []any{}
	for _, i := range s.order {
		c := s.choices[i]
		if len(c.tools) > 0 {
			c.message["tool_calls"] = c.tools
		}
		choices = append(choices, map[string]any{"index": i, "message": c.message, "finish_reason": c.finish})
	}
	s.doc["object"], s.doc["choices"] = "chat.completion", choices
	return json.Marshal(s.doc)
}
