package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestUpstream checks responses, errors and recorded content of the llm-router, and a
// score of the judge, with a server that has the OpenAI API.
func TestUpstream(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			llm, doc := harness.NewLLM(t)
			m := start(t, harness.Options{LLM: doc})
			chat := func(session, body string) *harness.Response {
				t.Helper()
				r, err := m.Do(t.Context(), "POST", "/v1/chat/completions", session, body)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			const msg = `,"messages":[{"role":"user","content":"which way"}]`

			r := chat("s-up", `{"model":"fixture/good"`+msg+`}`)
			if r.Status != 200 || !strings.Contains(string(r.Body), `"You said: which way"`) || !strings.Contains(string(r.Body), `"total_tokens":12`) {
				t.Fatalf("plain: %d %s", r.Status, r.Body)
			}
			r = chat("s-up", `{"model":"fixture/good","stream":true`+msg+`}`)
			if text := sseText(t, r.Body); text != "You said: which way" || !strings.HasSuffix(string(r.Body), "data: [DONE]\n\n") {
				t.Fatalf("stream: %q %s", text, r.Body)
			}
			r = chat("s-up", `{"model":"fixture/good","tools":[{"type":"function","function":{"name":"upper"}}]`+msg+`}`)
			if !strings.Contains(string(r.Body), `"finish_reason":"tool_calls"`) {
				t.Fatalf("tools: %s", r.Body)
			}
			// A stream that the upstream truncates, or that contains a chunk that is not
			// JSON, must end with an explicit error, not like a complete one.
			for _, model := range []string{"cut", "garbage"} {
				r = chat("s-up", `{"model":"fixture/`+model+`","stream":true`+msg+`}`)
				if strings.Contains(string(r.Body), "[DONE]") || !strings.Contains(string(r.Body), `"error"`) {
					t.Fatalf("%s: %s", model, r.Body)
				}
			}
			for model, want := range map[string]struct {
				status int
				code   string
			}{"limited": {429, "rate_limit_exceeded"}, "broken": {502, "server_error"}, "missing": {404, "model_not_found"}} {
				r = chat("s-up", `{"model":"fixture/`+model+`"`+msg+`}`)
				if r.Status != want.status || !strings.Contains(string(r.Body), want.code) {
					t.Errorf("%s: %d %s", model, r.Status, r.Body)
				}
			}
			// The ledger holds the text of a response.
			out, err := m.CLI("events", "list", "--session", "s-up", "--type", "effect_recorded", "--json")
			if err != nil || !strings.Contains(out, `You said: which way`) {
				t.Fatal(out, err)
			}
			if out, err = m.CLI("events", "list", "--session", "s-up", "--type", "attempt_finished"); err != nil || strings.Count(out, "attempt_finished") != 9 {
				t.Fatalf("attempts: %s %v", out, err)
			}
			leaks(t, m, llm.Key)
			judged(t, m)
		})
	}
}

// sseText joins the text in the chunks of a chat stream.
func sseText(t *testing.T, body []byte) string {
	var text string
	for line := range strings.Lines(string(body)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var c struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for _, ch := range c.Choices {
			text += ch.Delta.Content
		}
	}
	return text
}

// judged scores the recorded session with the judge, and shows that a score is invalid
// if it cites an event that does not exist.
func judged(t *testing.T, m *harness.Mesh) {
	rubric := func(model string) string {
		path := filepath.Join(t.TempDir(), "rubric.yaml")
		doc := "name: on-course\nmodel: fixture/" + model + "\nmin: 0\nmax: 10\ncriteria:\n  - id: answered\n    description: the question was answered\n"
		if err := os.WriteFile(path, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	out, err := m.CLI("judge", "--session", "s-up", "--rubric", rubric("judge"), "--json")
	if err != nil || !strings.Contains(out, `"valid":true`) || !strings.Contains(out, `"score":8`) || !strings.Contains(out, `"citations":["p-c-`) {
		t.Fatalf("judge: %s %v", out, err)
	}
	var v struct {
		Session string `json:"judge_session"`
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || !strings.HasPrefix(v.Session, "s-judge-") {
		t.Fatalf("judge session: %s", out)
	}
	pack := filepath.Join(t.TempDir(), "p.tar")
	if out, err := m.CLI("export", "--session", v.Session, "--out", pack); err != nil {
		t.Fatal(out, err)
	}
	if out, err := m.CLI("verify", pack); err != nil || !strings.Contains(out, "receipts  1,") {
		t.Fatal(out, err)
	}
	out, err = m.CLI("judge", "--session", "s-up", "--rubric", rubric("liar"), "--json")
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(out, `"valid":false`) || strings.Contains(out, `"score"`) || !strings.Contains(out, "r-c-INVENTED") {
		t.Fatalf("liar: %s %v", out, err)
	}
	if out, err = m.CLI("replay"); err != nil {
		t.Fatal(out, err)
	}
}
