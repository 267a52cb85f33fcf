package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestVirtualKeys shows that the models, the scopes, the rate, the budget, the lifetime
// and the revocation of a virtual key are enforced, that its spend is listed by key and
// model and by tag, and that no file of the mesh contains the key's value or a provider's
// key.
func TestVirtualKeys(t *testing.T) {
	p, doc := harness.NewProviders(t, map[string]any{"prices": map[string]any{"version": "p1", "models": []any{map[string]any{"model": "openai/m-good", "input": 1000000, "output": 1000000}}}})
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{LLM: doc})
			create := func(args ...string) string {
				t.Helper()
				out, err := m.AgreedKey(args[0], args[2], args[3:]...)
				if err != nil {
					t.Fatal(out, err)
				}
				return strings.TrimSpace(out)
			}
			chat := func(key, model string) (int, string) {
				t.Helper()
				r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", map[string]string{"Authorization": "Bearer " + key}, fmt.Sprintf(`{"model":%q,"max_tokens":100,"messages":[{"role":"user","content":"hi"}]}`, model))
				return r.StatusCode, all(t, r)
			}
			key := create("team", "--actor", "robot", "--model", "openai/*", "--model", "demo/echo", "--tag", "prod", "--tag", "eu")
			if status, body := chat(key, "openai/m-good"); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			if status, body := chat(key, "vllm/m-good"); status != 403 || !strings.Contains(body, "MODEL_NOT_ALLOWED") {
				t.Errorf("another model: %d %s", status, body)
			}
			if status, _ := chat("bk-nosuchkey", "openai/m-good"); status != 401 {
				t.Errorf("unknown key: %d", status)
			}
			if r := post(t.Context(), t, "http://"+m.Addr+"/api/v1/packs/cmd.upper", map[string]string{"Authorization": "Bearer " + key}, `{"text":"x"}`); r.StatusCode != 403 {
				t.Errorf("a key without the scope runs packs: %d", r.StatusCode)
			}
			rated := create("rated", "--actor", "robot", "--rate", "2", "--rate-window", "hour")
			for i, want := range []int{200, 200, 429} {
				if status, body := chat(rated, "demo/echo"); status != want {
					t.Errorf("call %d of a key rated 2 an hour: %d %s", i, status, body)
				}
			}
			// Each call costs 34 micro-dollars, but reserves the price of 100 output
			// tokens and its input; the budget covers only a few calls.
			spent := create("small", "--actor", "robot", "--budget", "0.0003")
			ok := 0
			for range 12 {
				status, body := chat(spent, "openai/m-good")
				if status == 200 {
					ok++
				} else if status != 429 || !strings.Contains(body, "BUDGET_EXCEEDED") {
					t.Errorf("budget: %d %s", status, body)
				}
			}
			if ok == 0 || ok > 8 {
				t.Errorf("%d calls of a key with a budget for a few", ok)
			}
			if status, body := chat(spent, "ollama/m-good"); status != 403 || !strings.Contains(body, "PRICE_UNKNOWN") {
				t.Errorf("a model without a price: %d %s", status, body)
			}
			if status, _ := chat(spent, "demo/echo"); status != 200 {
				t.Error("the demo costs nothing")
			}
			// Check the spend by key and model and by tag, and the statistics.
			var rows []struct {
				By    map[string]string `json:"by"`
				Spent int64             `json:"usd_micros"`
				Calls int64             `json:"attempts"`
			}
			eventually(t, "the view has seen the calls", 5*time.Second, func() bool {
				out, err := m.CLI("llm", "spend", "--by", "key,model", "--json")
				if err != nil {
					t.Fatal(out, err)
				}
				if err := json.Unmarshal([]byte(out), &rows); err != nil {
					t.Fatal(err, out)
				}
				for _, r := range rows {
					if r.By["key"] == "small" && r.By["model"] == "openai/m-good" {
						return r.Calls == int64(ok) && r.Spent == int64(ok)*34 // the price of 25 input and 9 output tokens
					}
				}
				return false
			})
			out, err := m.CLI("llm", "spend", "--by", "tag", "--json")
			if err != nil || !strings.Contains(out, `"tag":"prod"`) || !strings.Contains(out, `"tag":"eu"`) {
				t.Errorf("by tag: %s %v", out, err)
			}
			if out, err = m.CLI("llm", "stats"); err != nil || !strings.Contains(out, "openai/m-good") || !strings.Contains(out, "100.0%") {
				t.Errorf("stats: %s %v", out, err)
			}
			short := create("short", "--actor", "robot", "--ttl", "400ms")
			time.Sleep(500 * time.Millisecond)
			if status, body := chat(short, "demo/echo"); status != 401 || !strings.Contains(body, "KEY_INVALID") {
				t.Errorf("expired: %d %s", status, body)
			}
			if out, err := m.CLI("key", "revoke", "team", "--reason", "left"); err != nil {
				t.Fatal(out, err)
			}
			eventually(t, "the revoked key is refused", 2*time.Second, func() bool { s, _ := chat(key, "demo/echo"); return s == 401 })
			if out, err := m.CLI("key", "list"); err != nil || !strings.Contains(out, "revoked: left") {
				t.Errorf("list: %s %v", out, err)
			}
			leaks(t, m, key)
			for _, v := range p.Keys {
				leaks(t, m, v)
			}
			if out, err := m.CLI("replay"); err != nil {
				t.Fatal(out, err)
			}
		})
	}
}

// TestBudgetExact shows that if 64 callers at three gateways share a budget for ten
// calls, exactly ten are allowed, and that a killed gateway leaves no open reservation.
func TestBudgetExact(t *testing.T) {
	_, doc := harness.NewProviders(t, map[string]any{"prices": map[string]any{"version": "p1", "models": []any{map[string]any{"model": "openai/x-pace", "input": 1000000, "output": 1000000}}}})
	m := harness.Processes(t, harness.Options{LLM: doc})
	addrs := []string{m.Addr}
	for _, name := range []string{"gateway-b", "gateway-c"} {
		addrs = append(addrs, m.StartGateway(name))
	}
	const body = `{"model":"openai/x-pace","max_tokens":1000,"stream":true,"messages":[{"role":"user","content":"count"}]}`
	hold := len(body)/3 + 1 + 1000
	out, err := m.AgreedKey("ten", "robot", "--budget", fmt.Sprintf("%.6f", float64(10*hold)/1e6))
	if err != nil {
		t.Fatal(out, err)
	}
	key := map[string]string{"Authorization": "Bearer " + strings.TrimSpace(out)}
	for _, a := range addrs {
		eventually(t, "the key is known at "+a, 5*time.Second, func() bool {
			return post(t.Context(), t, "http://"+a+"/v1/chat/completions", key, `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`).StatusCode == 200
		})
	}
	var admitted, refused atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 64 {
		wg.Go(func() {
			r := post(ctx, t, "http://"+addrs[i%3]+"/v1/chat/completions", key, body)
			if r == nil {
				return
			}
			switch r.StatusCode {
			case 200:
				admitted.Add(1)
				buf := make([]byte, 1024)
				_, _ = r.Body.Read(buf)
			case 429:
				refused.Add(1)
			default:
				t.Errorf("status %d", r.StatusCode)
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 10 || refused.Load() != 54 {
		t.Fatalf("%d admitted, %d refused", admitted.Load(), refused.Load())
	}
	m.Kill("gateway-c") // kill a gateway to which callers were connected
	cancel()
	eventually(t, "nothing stays reserved", 20*time.Second, func() bool {
		out, err := m.CLI("policy", "limits", "--json")
		if err != nil {
			t.Fatal(out, err)
		}
		var doc struct {
			Accounts []struct {
				Account             string
				Reserved, Committed int64
			}
		}
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			t.Fatal(err)
		}
		for _, a := range doc.Accounts {
			if strings.HasPrefix(a.Account, "key_ten_budget") {
				return a.Reserved == 0 && a.Committed > 0 && a.Committed <= int64(10*hold)
			}
		}
		return false
	})
	if out, err := m.CLI("replay"); err != nil {
		t.Fatal(out, err)
	}
}

// TestOverspend shows that a request with a virtual key cannot cost more than the key's
// budget of one cent, even if members of the request understate the cost. For every
// request that a provider received, it computes the greatest number of output tokens
// that the provider can bill.
func TestOverspend(t *testing.T) {
	models := []any{}
	for _, m := range []string{"openai/m-good", "vllm/m-good", "anthropic/claude-opus-4-1-good", "gemini/gemini-2.5-flash-good", "bedrock/claude-3-7-good"} {
		models = append(models, map[string]any{"model": m, "input": 1_000_000, "output": 1_000_000, "max_output": 64_000, "context": 200_000})
	}
	p, doc := harness.NewProviders(t, map[string]any{"prices": map[string]any{"version": "p1", "models": models}})
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{LLM: doc})
			const budget = 10_000 // micro-dollars; also tokens, since a token costs one micro-dollar
			out, err := m.CLI("key", "create", "cent", "--actor", "admin", "--budget", "0.01")
			if err != nil {
				t.Fatal(out, err)
			}
			key := map[string]string{"Authorization": "Bearer " + strings.TrimSpace(out)}
			ask := func(path, body string) int {
				r := post(t.Context(), t, "http://"+m.Addr+path, key, body)
				all(t, r)
				return r.StatusCode
			}
			eventually(t, "the key is known", 5*time.Second, func() bool {
				return ask("/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`) == 200
			})
			before := len(p.Requests(""))
			codes := map[int]int{}
			for _, model := range []string{"openai/m-good", "vllm/m-good", "anthropic/claude-opus-4-1-good", "gemini/gemini-2.5-flash-good", "bedrock/claude-3-7-good"} {
				for _, members := range []string{`"max_output_tokens":1`, `"max_tokens":0`, `"max_tokens":1,"max_completion_tokens":60000`, `"Max_Tokens":1`, `"max_tokens":1,"reasoning_effort":"xhigh"`, `"max_tokens":100,"n":900`,
					`"max_tokens":100,"best_of":900`, `"max_tokens":1,"thinking":{"type":"enabled","budget_tokens":60000}`, `"max_tokens":1,"generationConfig":{"maxOutputTokens":60000}`, `"max_tokens":1,"inferenceConfig":{"maxTokens":60000}`, ``} {
					if members != "" {
						members += ","
					}
					codes[ask("/v1/chat/completions", `{"model":"`+model+`",`+members+`"messages":[{"role":"user","content":"x"}]}`)]++
					codes[ask("/v1/responses", `{"model":"`+model+`",`+members+`"input":"x"}`)]++
					codes[ask("/v1/messages", `{"model":"`+model+`",`+members+`"messages":[{"role":"user","content":"x"}]}`)]++
				}
				codes[ask("/v1/completions", `{"model":"`+model+`","max_tokens":100,"prompt":[`+strings.Repeat(`"a",`, 999)+`"a"]}`)]++
				codes[ask("/v1/completions", `{"model":"`+model+`","max_tokens":100,"best_of":900,"prompt":"a"}`)]++
			}
			if codes[200] == 0 || codes[429] == 0 || codes[400] == 0 {
				t.Errorf("statuses %v: the attacks are not what they should be", codes)
			}
			owed := int64(0)
			for _, r := range p.Requests("")[before:] {
				owed += bill(t, &r, 64_000)
			}
			t.Logf("%v; at most %d of %d owed", codes, owed, budget)
			// After a call, the difference between the reserved and the billed amount is
			// released, so the limit is the budget times the number of calls.
			if most := int64(budget) * int64(codes[200]); owed > most {
				t.Errorf("%d owed for %d calls within a budget of %d each", owed, codes[200], budget)
			}
			for _, r := range p.Requests("")[before:] {
				if one := bill(t, &r, 64_000); one > budget {
					t.Errorf("one request may be billed %d of %d: %s", one, budget, r.Body)
				}
			}
		})
	}
}

// bill returns the greatest number of output tokens that a provider can bill for a
// received request. most is that number for one output without a limit in the request.
func bill(t *testing.T, r *harness.Seen, most int64) int64 {
	var q struct {
		Max      int64           `json:"max_tokens"`
		MaxDone  int64           `json:"max_completion_tokens"`
		MaxOut   int64           `json:"max_output_tokens"`
		N        int64           `json:"n"`
		Best     int64           `json:"best_of"`
		Prompt   json.RawMessage `json:"prompt"`
		Thinking struct {
			Budget int64 `json:"budget_tokens"`
		} `json:"thinking"`
		Generation struct {
			Max      int64 `json:"maxOutputTokens"`
			N        int64 `json:"candidateCount"`
			Thinking struct {
				Budget int64 `json:"thinkingBudget"`
			} `json:"thinkingConfig"`
		} `json:"generationConfig"`
		Inference struct {
			Max int64 `json:"maxTokens"`
		} `json:"inferenceConfig"`
	}
	if err := json.Unmarshal(r.Body, &q); err != nil {
		t.Fatal(err)
	}
	var bound int64
	switch {
	case strings.HasSuffix(r.Path, "/responses"):
		bound = q.MaxOut
	case r.Provider == "gemini":
		bound = q.Generation.Max
	case r.Provider == "bedrock":
		bound = q.Inference.Max
	default:
		bound = max(q.Max, q.MaxDone)
	}
	if bound == 0 {
		bound = most
	}
	if b := max(q.Thinking.Budget, q.Generation.Thinking.Budget); b > bound {
		bound += b
	}
	var prompts []string
	_ = json.Unmarshal(q.Prompt, &prompts)
	return bound * max(1, q.N, q.Best, q.Generation.N) * int64(max(1, len(prompts)))
}
