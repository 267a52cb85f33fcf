package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestGuards shows that findings in prompts and responses are recorded or removed or end
// the call, even if they are split over several chunks, that tools that policy denies
// are removed from the request to the model, and that policy can deny a request because
// of its tools, members, parameters or files.
func TestGuards(t *testing.T) {
	p, doc := harness.NewProviders(t, map[string]any{"guards": map[string]any{"prompt": map[string]string{"secret": "redact", "email": "flag", "us_ssn": "block"}, "output": map[string]string{"phone": "redact", "iban": "block"}}})
	rego := filepath.Join(t.TempDir(), "p.rego")
	if err := os.WriteFile(rego, []byte(`package binnacle.p1
import rego.v1
answer := {"verdict": "DENY", "reason_code": "DENY_DANGEROUS_OFFER"} if {
	"format_disk" in input.args.tools
} else := {"verdict": "DENY", "reason_code": "DENY_FIELD"} if {
	"logit_bias" in input.args.fields
} else := {"verdict": "DENY", "reason_code": "DENY_HOT"} if {
	input.args.params.temperature > 1.5
} else := {"verdict": "DENY", "reason_code": "DENY_FILES"} if {
	input.session == "s-nofiles"
	"user_file" in input.labels
} else := {"verdict": "ALLOW", "reason_code": "RULE_STRICT", "obligations": ["content.redact:credit_card", "tool.withhold:lower"]} if {
	input.session == "s-strict"
} else := {"verdict": "ALLOW", "reason_code": "RULE_OK"}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{LLM: doc, Policies: []string{rego}})
			ask := func(session, model, text, more string, stream bool) (int, string, string) {
				t.Helper()
				n := len(p.Requests(model))
				r := post(t.Context(), t, "http://"+m.Addr+"/v1/chat/completions", bearer(m, session), fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":%q}]%s}`, model, stream, text, more))
				body := all(t, r)
				got := ""
				if seen := p.Requests(model); len(seen) > n {
					got = string(seen[len(seen)-1].Body)
				}
				if stream && r.StatusCode == 200 && !strings.Contains(body, `"error"`) {
					body = sseText(t, []byte(body))
				}
				return r.StatusCode, body, got
			}
			const key = "AKIAIOSFODNN7EXAMPLE"
			for _, stream := range []bool{false, true} {
				session := fmt.Sprintf("s-guard-%v", stream)
				status, body, got := ask(session, "openai/g-good", "my key is "+key+" and I am ada@example.org", "", stream)
				if status != 200 || strings.Contains(got, key) || !strings.Contains(got, "[redacted:aws_key]") || !strings.Contains(got, "ada@example.org") {
					t.Errorf("redact: %d %s, the provider got %s", status, body, got)
				}
				if a := recorded(t, m, session, "attempt_finished")[0]; fmt.Sprint(a["findings"]) != "[prompt.aws_key:1 prompt.email:1]" {
					t.Errorf("findings %v", a["findings"])
				}
				if status, body, got := ask(session, "openai/g-good", "ssn 078-05-1120", "", stream); status != 400 || got != "" || !strings.Contains(body, "content_blocked") || strings.Contains(body, "078") {
					t.Errorf("block: %d %s %s", status, body, got)
				}
				// In a stream, the test's provider sends each word of the prompt in a
				// chunk of its own.
				for _, model := range []string{"openai/g-good", "anthropic/g-good", "gemini/g-good"} {
					if status, body, _ := ask(session, model, "call +49 30 901820 55 now", "", stream); status != 200 || strings.Contains(body, "901820") || !strings.Contains(body, "You said: call [redacted:phone] now") {
						t.Errorf("%s: output redact: %d %s", model, status, body)
					}
					status, body, _ := ask(session, model, "pay DE89 3704 0044 0532 0130 00 now", "", stream)
					if strings.Contains(body, "0532") || !strings.Contains(body, "content_blocked") || strings.Contains(body, "[DONE]") {
						t.Errorf("%s: output block: %d %s", model, status, body)
					}
				}
			}
			const tools = `,"tools":[{"type":"function","function":{"name":"upper"}},{"type":"function","function":{"name":"lower"}}]`
			if status, body, got := ask("s-strict", "openai/g-good", "card 4111 1111 1111 1111", tools, false); status != 200 || strings.Contains(got, "lower") || !strings.Contains(got, "upper") || strings.Contains(got, "4111") {
				t.Errorf("obligations: %d %s %s", status, body, got)
			}
			if status, body, _ := ask("s-x", "openai/g-good", "x", strings.Replace(tools, "lower", "format_disk", 1), false); status != 403 || !strings.Contains(body, "DENY_DANGEROUS_OFFER") {
				t.Errorf("an offer refused: %d %s", status, body)
			}
			if status, body, _ := ask("s-x", "openai/g-good", "x", `,"logit_bias":{}`, false); status != 403 || !strings.Contains(body, "DENY_FIELD") {
				t.Errorf("a field refused: %d %s", status, body)
			}
			if status, body, _ := ask("s-x", "openai/g-good", "x", `,"temperature":1.9`, false); status != 403 || !strings.Contains(body, "DENY_HOT") {
				t.Errorf("a parameter refused: %d %s", status, body)
			}
			r := post(t.Context(), t, "http://"+m.Addr+"/v1/messages", bearer(m, "s-nofiles"), `{"model":"anthropic/g-good","max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":"https://example.org/x.pdf"}}]}]}`)
			if body := all(t, r); r.StatusCode != 403 || !strings.Contains(body, "DENY_FILES") || !strings.Contains(body, `"permission_error"`) {
				t.Errorf("files: %d %s", r.StatusCode, body)
			}
			// The members of a response that repeat the request, such as instructions,
			// are not scanned as part of the response.
			for _, model := range []string{"anthropic/g-good", "openai/g-good"} {
				for _, stream := range []bool{false, true} {
					r := post(t.Context(), t, "http://"+m.Addr+"/v1/responses", bearer(m, "s-echo"), fmt.Sprintf(`{"model":%q,"stream":%v,"instructions":"pay DE89 3704 0044 0532 0130 00","input":"call +49 30 901820 55 now"}`, model, stream))
					if body := all(t, r); r.StatusCode != 200 || strings.Contains(body, "901820") || !strings.Contains(body, "You said: call [redacted:phone] now") || strings.Contains(body, "content_blocked") {
						t.Errorf("%s %v: guarded response: %d %s", model, stream, r.StatusCode, body)
					}
				}
			}
			// If an overlay denies the kind client.upper, the tool upper is removed from
			// the request.
			overlay := filepath.Join(t.TempDir(), "o.json")
			if err := os.WriteFile(overlay, []byte(`{"id":"no-upper","scope":"session","subject":"s-overlay","rules":[{"kinds":["client.upper"],"verdict":"DENY","reason_code":"DENY_X"}]}`), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := m.CLI("policy", "activate", overlay); err != nil {
				t.Fatal(out, err)
			}
			if status, body, got := ask("s-overlay", "openai/g-good", "x", tools, false); status != 200 || strings.Contains(got, "upper") || !strings.Contains(got, "lower") {
				t.Errorf("overlay: %d %s %s", status, body, got)
			}
			if out, err := m.CLI("replay"); err != nil {
				t.Fatal(out, err)
			}
		})
	}
}
