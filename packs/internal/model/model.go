// Package model sends requests to models for packs, through the mesh's own API, so that
// each of them is decided, counted and recorded like any request to a model.
package model

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// KeySecret is the name of the secret with the virtual key of the pack. The
// egress-broker adds it to requests unless the pack itself has received it.
const KeySecret = "pack-llm-key"

const maxResponse = 8 << 20

// request sends a request to the mesh at BINNACLE_URL with the virtual key of the pack,
// and decodes the response into out.
func request(ctx context.Context, c *http.Client, secrets map[string]string, method, path string, in, out any) error {
	base, key := os.Getenv("BINNACLE_URL"), secrets[KeySecret]
	if base == "" {
		return &pack.Error{Code: pack.HandlerFailed, Message: "the pack cannot reach a model", Hint: "set BINNACLE_URL in the env of the pack's manifest"}
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(base, "/")+path, bytes.NewReader(body))
	if err != nil {
		return pack.Fail(pack.HandlerFailed, "BINNACLE_URL: %v", err)
	}
	if key != "" { // otherwise the egress-broker adds it
		r.Header.Set("Authorization", "Bearer "+key)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(r)
	if err != nil {
		return pack.Fail(pack.HandlerFailed, "the mesh did not respond: %v", err)
	}
	defer resp.Body.Close()
	if e := pack.Refusal(resp); e != nil {
		return e
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return pack.Fail(pack.HandlerFailed, "the response of the mesh ended early: %v", err)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return pack.Fail(pack.CredentialInvalid, "the mesh refused the secret %s", KeySecret)
	case resp.StatusCode != http.StatusOK:
		var doc struct {
			Error struct{ Code, Message string }
		}
		_ = json.Unmarshal(answer, &doc) // without a JSON body, only the status is reported
		return pack.Fail(pack.HandlerFailed, "the mesh responded with status %d %s: %s", resp.StatusCode, doc.Error.Code, doc.Error.Message)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return pack.Fail(pack.HandlerFailed, "the response of the mesh is not JSON: %v", err)
	}
	return nil
}

// Message is a message of a conversation with a model.
type Message struct {
	Role    string `json:"role"` // system, user or assistant
	Content string `json:"content"`
}

// Complete returns the response of a model to a system prompt and one message of a user.
func Complete(ctx context.Context, c *http.Client, secrets map[string]string, name, system, user string) (string, error) {
	return Chat(ctx, c, secrets, name, []Message{{"system", system}, {"user", user}})
}

// Chat returns the next message of a model in a conversation.
func Chat(ctx context.Context, c *http.Client, secrets map[string]string, name string, messages []Message) (string, error) {
	var doc struct {
		Choices []struct{ Message Message }
	}
	in := map[string]any{"model": name, "messages": messages}
	if err := request(ctx, c, secrets, http.MethodPost, "/v1/chat/completions", in, &doc); err != nil {
		return "", err
	}
	if len(doc.Choices) == 0 || doc.Choices[0].Message.Content == "" {
		return "", pack.Fail(pack.HandlerFailed, "model %s returned no text", name)
	}
	return doc.Choices[0].Message.Content, nil
}

// Tool is a tool of the mesh.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// Tools returns the tools of the mesh that the virtual key may list.
func Tools(ctx context.Context, c *http.Client, secrets map[string]string) (tools []Tool, err error) {
	err = request(ctx, c, secrets, http.MethodGet, "/api/v1/packs", nil, &tools)
	return tools, err
}

// Object decodes the JSON object in a model's text into out. It reads from the first brace
// on, so a code fence and words around the object are permitted. Text before the end of a
// thinking block is ignored.
func Object(text string, out any) error {
	if _, after, ok := strings.Cut(text, "</think>"); ok {
		text = after
	}
	at := strings.Index(text, "{")
	if at < 0 {
		return pack.Fail(pack.HandlerFailed, "the model returned no JSON object")
	}
	if err := json.NewDecoder(strings.NewReader(text[at:])).Decode(out); err != nil {
		return pack.Fail(pack.HandlerFailed, "the model returned a damaged JSON object: %v", err)
	}
	return nil
}
