package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestStoredOwner shows that a response that a provider stores can be read, continued,
// referred to and deleted only by the principal that created it, and by no caller after
// its deletion: at two gateways, with two llm-routers, and after a restart.
func TestStoredOwner(t *testing.T) {
	p, doc := harness.NewProviders(t, nil)
	m := harness.Processes(t, harness.Options{LLM: doc})
	second := m.StartGateway("gateway-b")
	m.StartService("llm-router-b", "llm-router")
	out, err := m.CLI("token", "create", "--actor", "eve", "--scope", "llm:call")
	if err != nil {
		t.Fatal(out, err)
	}
	eve := strings.TrimSpace(out)
	do := func(addr, token, method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	type made struct{ id, item string }
	create := func(stream bool) made {
		t.Helper()
		status, body := do(m.Addr, m.Token, "POST", "/v1/responses", fmt.Sprintf(`{"model":"openai/m-own","stream":%v,"input":"the secret of Ada"}`, stream))
		if stream {
			_, body, _ = strings.Cut(body, "event: response.completed\ndata: ")
			var e struct{ Response json.RawMessage }
			_ = json.NewDecoder(strings.NewReader(body)).Decode(&e)
			body = string(e.Response)
		}
		var d struct {
			ID     string
			Output []struct{ ID string }
		}
		if err := json.Unmarshal([]byte(body), &d); err != nil || status != 200 || len(d.Output) == 0 {
			t.Fatal(status, body, err)
		}
		return made{d.ID, d.Output[0].ID}
	}
	refused := func(what, token string, r made) {
		t.Helper()
		for _, addr := range []string{m.Addr, second} {
			for range 2 { // twice, so that each of the two llm-routers may receive the request
				for _, stream := range []string{"false", "true"} {
					for _, go_on := range []string{`"previous_response_id":"` + r.id + `","input":"go on"`, `"input":[{"type":"item_reference","id":"` + r.item + `"},{"role":"user","content":"go on"}]`,
						`"input":[{"id":"` + r.item + `"}]`, `"input":[{"type":"reasoning","id":"` + r.item + `","summary":[]},{"role":"user","content":"go on"}]`} {
						before := len(p.Requests("openai/m-own"))
						if status, body := do(addr, token, "POST", "/v1/responses", `{"model":"openai/m-own","stream":`+stream+`,`+go_on+`}`); status != http.StatusNotFound || !strings.Contains(body, "is stored") {
							t.Errorf("%s: %s: %d %s", what, go_on, status, body)
						}
						if len(p.Requests("openai/m-own")) != before {
							t.Errorf("%s: the provider was sent %s", what, go_on)
						}
					}
				}
			}
			for _, c := range [][2]string{{"GET", ""}, {"GET", "/input_items"}, {"DELETE", ""}} {
				if status, body := do(addr, token, c[0], "/v1/responses/"+r.id+c[1], ""); status != http.StatusNotFound || strings.Contains(body, "Ada") {
					t.Errorf("%s: %s %s: %d %s", what, c[0], c[1], status, body)
				}
			}
		}
	}
	plain, streamed := create(false), create(true)
	for _, r := range []made{plain, streamed} {
		refused("another's", eve, r)
		for _, go_on := range []string{`"previous_response_id":"` + r.id + `","input":"go on"`, `"input":[{"type":"item_reference","id":"` + r.item + `"},{"role":"user","content":"go on"}]`} {
			if status, body := do(second, m.Token, "POST", "/v1/responses", `{"model":"openai/m-own",`+go_on+`}`); status != 200 {
				t.Errorf("the maker's own: %d %s", status, body)
			}
		}
	}
	refused("unknown ids", m.Token, made{"resp_elsewhere", "msg_elsewhere"})
	for _, c := range []string{`"conversation":"conv_1","input":"x"`, `"conversation":{"id":"conv_1"}`, `"background":true,"input":"x"`} {
		if status, body := do(m.Addr, m.Token, "POST", "/v1/responses", `{"model":"openai/m-own",`+c+`}`); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", c, status, body)
		}
	}
	// Create a response that continues another one and is not deleted below.
	status, body := do(m.Addr, m.Token, "POST", "/v1/responses", `{"model":"openai/m-own","previous_response_id":"`+plain.id+`","input":"go on","max_output_tokens":10}`)
	var last struct{ ID string }
	if err := json.Unmarshal([]byte(body), &last); err != nil || status != 200 {
		t.Fatal(status, body)
	}
	h := map[string]string{"Authorization": "Bearer " + m.Token, "Idempotency-Key": "once"}
	again := `{"model":"openai/m-own","input":"again"}`
	first := all(t, post(t.Context(), t, "http://"+m.Addr+"/v1/responses", h, again))
	var repeated struct{ ID string }
	if err := json.Unmarshal([]byte(first), &repeated); err != nil {
		t.Fatal(first)
	}
	for _, r := range []made{plain, streamed, {repeated.ID, ""}} {
		if status, body := do(second, m.Token, "DELETE", "/v1/responses/"+r.id, ""); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		if r.item != "" {
			refused("deleted", m.Token, r)
			refused("deleted, another's", eve, r)
		}
	}
	for _, addr := range []string{m.Addr, second} {
		if r := post(t.Context(), t, "http://"+addr+"/v1/responses", h, again); r.StatusCode != http.StatusNotFound {
			t.Errorf("a deleted response comes back under its Idempotency-Key: %d", r.StatusCode)
		}
	}
	for _, n := range []string{"llm-router", "llm-router-b"} {
		m.Kill(n)
		m.Restart(n)
	}
	m.WaitReady()
	eventually(t, "the llm-routers serve again", 20*time.Second, func() bool {
		s, _ := do(m.Addr, m.Token, "POST", "/v1/chat/completions", `{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`)
		return s == 200
	})
	refused("deleted, after a restart", m.Token, plain)
	refused("another's, after a restart", eve, made{last.ID, plain.item})
	if status, _ := do(second, m.Token, "GET", "/v1/responses/"+last.ID, ""); status != 200 {
		t.Errorf("what is not deleted is served: %d", status)
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Fatal(out, err)
	}
}
