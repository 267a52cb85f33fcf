package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
)

// chatPath is the path of the requests to language models. They use the provider demo of the
// llm-router, which needs no network.
const chatPath = "/v1/chat/completions"

// chat returns a request to the model of the provider demo, for a document or for a stream.
func chat(r *rand.Rand, n int) request {
	doc := map[string]any{"model": llm.DemoModel, "messages": []map[string]string{{"role": "user", "content": textOf(n) + strings.Repeat(" again", r.IntN(4))}}}
	if r.IntN(2) == 0 {
		doc["stream"] = true
	}
	if r.IntN(3) > 0 { // without a limit, the call holds more than a third of the tokens of tokenLimit
		doc["max_tokens"] = 8
	}
	return request{path: chatPath, body: encoded(doc)}
}

// textOf returns the text of request n to a model, which the model returns.
func textOf(n int) string { return fmt.Sprintf("text-%d.", n) }

// chatted checks the successful response to a request to a model. It reports whether the
// response is complete: a stream that broke is not.
func (w *world) chatted(c *call, a *answer) bool {
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") && !strings.Contains(string(a.body), "data: [DONE]") {
		return false
	}
	if !strings.Contains(string(a.body), textOf(c.n)) {
		w.violate("the response to client %d is another request's: %s", c.n, a.body)
	}
	return true
}

// attempts are the recorded attempts of a call to a model.
type attempts struct {
	succeeded int
	tokens    int64 // of all attempts
}

// attempted applies attempt_finished. It returns an error unless the call is one to a model
// that was claimed, and only one attempt succeeds.
func (c *checker) attempted(f *fate, e *contract.Event) error {
	var a events.AttemptFinished
	if err := contract.Decode(e.Data, &a); err != nil {
		return err
	}
	f.attempts.tokens += a.InputTokens + a.OutputTokens
	if a.Status == contract.Succeeded {
		f.attempts.succeeded++
	}
	switch {
	case f.kind != llm.Chat || f.claimed == 0 || f.claimer != e.Service():
		return fmt.Errorf("call %s of kind %s has an attempt at a provider without a claim", e.CallID, f.kind)
	case f.attempts.succeeded > 1:
		return fmt.Errorf("call %s has %d successful attempts", e.CallID, f.attempts.succeeded)
	case c.void[e.CallID]:
		return fmt.Errorf("call %s has an attempt although its draws are void", e.CallID)
	}
	return nil
}

// used returns how much of an amount that a call held of an account remains charged after the
// outcome of the call: nothing of what limits calls at a time and of a call that never began,
// and of tokens the ones that the outcome reports, unless nothing is known about the effect.
func used(account, window string, amount int64, eff *contract.Effect) int64 {
	switch {
	case eff.Status == contract.Expired || window == "concurrent":
		return 0
	case account == tokenLimit && eff.Status != contract.Unknown && eff.Status != contract.DeadLettered:
		if eff.Usage == nil {
			return 0
		}
		return eff.Usage.InputTokens + eff.Usage.OutputTokens
	}
	return amount
}

// tokenLimit is the id of the limit of tokens.
const tokenLimit = "tokens"

// attempted checks that each call to a model which succeeded has one successful attempt, and that
// its outcome reports the tokens of its attempts.
func (w *world) attempted() {
	for id, f := range w.events.calls {
		if f.kind != llm.Chat || f.status != contract.Succeeded {
			continue
		}
		if f.attempts.succeeded != 1 || f.attempts.tokens == 0 || f.attempts.tokens != f.tokens {
			w.violate("call %s to a model has the attempts %+v and reports %d tokens", id, f.attempts, f.tokens)
		}
	}
}
