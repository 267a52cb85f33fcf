package llmrouter

import (
	"context"
	"encoding/json"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

// request returns the body for the provider: the caller's own with the model's name
// replaced, or its translation. It returns an error if the request cannot be read or
// translated, and the errors of history.
func (a *attempt) request(ctx context.Context) ([]byte, error) {
	switch {
	case a.native():
		return a.passed()
	case a.api.Embed != nil:
		return embeddings(a.api, a.c.body, a.cand.Model)
	}
	r, err := a.parsed(ctx)
	if err != nil {
		return nil, err
	}
	r.Model = a.cand.Model
	body, err := a.api.Request(r)
	if bound := a.api.OldBound; err == nil && bound != "" && r.MaxTokens > 0 && a.up.OldBound() {
		body, err = sjson.SetBytes(body, bound, r.MaxTokens) // many servers read the limit on output tokens from this older member only
	}
	return body, err
}

// passed returns the caller's own body with the candidate's model. If the API reports
// the usage of a stream only on request, and the caller did not request it, passed
// requests it, because cost is computed from reported usage.
func (a *attempt) passed() ([]byte, error) {
	body, err := rename(a.c.body, a.cand.Model)
	if ask := a.api.AskUsage; err == nil && ask != "" && a.c.args.Stream && !a.c.args.Usage {
		a.inject = true
		body, err = sjson.SetBytes(body, ask, true)
	}
	return body, err
}

// parsed returns the decoded request, with the conversation that it continues before its
// own messages, and prepares a.ans for it. Its errors are those of the parser and of
// history.
func (a *attempt) parsed(ctx context.Context) (*ir.Request, error) {
	c := a.c
	r, err := c.api.Parse(c.body)
	if err != nil {
		return nil, err
	}
	if err := c.history(ctx, r); err != nil {
		return nil, err
	}
	store := gjson.GetBytes(c.body, "store")
	a.ans.Request, a.ans.Previous, a.ans.Store = r, c.args.Previous, !store.Exists() || store.Bool()
	return r, nil
}

// rename returns body with the value of member model replaced and all other bytes
// unchanged. It adds the member if it is absent.
func rename(body []byte, model string) ([]byte, error) {
	at := gjson.GetBytes(body, "model")
	if at.Index == 0 {
		return sjson.SetBytes(body, "model", model)
	}
	name, err := json.Marshal(model)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(body)+len(name)+64)
	out = append(append(out, body[:at.Index]...), name...)
	return append(out, body[at.Index+len(at.Raw):]...), nil
}
