package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// In an earlier version, each of these requests passed to the provider the name of a tool or a
// model that policy had not read: policy read another name, or none. The gateway now rejects the
// requests, and the pointer in the error identifies the invalid member.
var _ = register("12.6 tools hidden from policy", func(t *testing.T, m *harness.Mesh) {
	chat, responses, messages := "/v1/chat/completions", "/v1/responses", "/v1/messages"
	for _, c := range []struct{ path, members, pointer string }{
		{chat, `"tools":[{"type":"function","function":{"name":"rm_rf"},"name":"safe"}]`, "/tools/0"},
		{chat, `"tools":[{"type":"function","Function":{"name":"rm_rf"},"name":"safe"}]`, "/tools/0/Function"},
		{chat, `"tools":[{"type":"function","function":{"Name":"rm_rf","name":"safe"}}]`, "/tools/0/function/Name"},
		{chat, `"tools":[{"type":"function","function":{"name":"safe"}}],"Tools":[{"type":"function","function":{"name":"rm_rf"}}]`, "/Tools"},
		{chat, `"tools":[{"type":"custom","custom":{"name":"safe"},"function":{"name":"rm_rf"}}]`, "/tools/0"},
		{chat, `"tools":[{"type":"function","function":{"name":"safe"},"functionDeclarations":[{"name":"rm_rf"}]}]`, "/tools/0"},
		{chat, `"functions":[{"Name":"rm_rf","name":"safe"}]`, "/functions/0/Name"},
		{chat, `"toolConfig":{"tools":[{"toolSpec":{"name":"rm_rf"}}]}`, "/toolConfig"},
		{chat, `"models":["openai/dear"]`, "/models"},
		{chat, `"tool_choice":{"type":"function","Function":{"name":"rm_rf"}}`, "/tool_choice/Function"},
		{responses, `"tools":[{"type":"namespace","name":"a","tools":[{"type":"namespace","name":"b","tools":[{"type":"function","name":"rm_rf"}]}]}]`, "/tools/0/tools/0"},
		{responses, `"tools":[{"type":"namespace","name":"a","tools":[{"type":"mcp","server_label":"x","server_url":"http://x"}]}]`, "/tools/0/tools/0"},
		{responses, `"tools":[{"type":"mcp","server_url":"http://x"}]`, "/tools/0"},
		{messages, `"tools":[{"name":"safe","NAME":"rm_rf"}]`, "/tools/0/NAME"},
		{messages, `"mcp_servers":[{"type":"url","url":"http://x","Name":"a","name":"b"}]`, "/mcp_servers/0/Name"},
	} {
		said := map[string]string{chat: `"messages":[{"role":"user","content":"x"}]`, responses: `"input":"x"`, messages: `"max_tokens":9,"messages":[{"role":"user","content":"x"}]`}[c.path]
		r, err := m.Do(context.Background(), http.MethodPost, c.path, "s-attack-126", `{"model":"demo/echo",`+c.members+`,`+said+`}`)
		if err != nil {
			t.Fatal(err)
		}
		if r.Status != http.StatusBadRequest || !strings.Contains(string(r.Body), c.pointer+":") {
			t.Errorf("%s: %d %s, want 400 at %s", c.members, r.Status, r.Body, c.pointer)
		}
	}
})

// In an earlier version, any principal that knew the id of a stored response could read,
// continue and delete it, and its owner could still use it after deleting it.
var _ = register("12.10 another's stored response", func(t *testing.T, m *harness.Mesh) {
	eve := mint(t, m, "eve-1210", "llm:call")
	do := func(token, method, path, body string) *harness.Response {
		t.Helper()
		h := map[string]string{}
		if token != "" {
			h["Authorization"] = "Bearer " + token
		}
		r, err := m.DoHeader(context.Background(), method, path, body, h)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := do("", http.MethodPost, "/v1/responses", `{"model":"demo/echo","input":"the secret of Ada"}`)
	var made struct {
		ID     string
		Output []struct{ ID string }
	}
	if err := json.Unmarshal(r.Body, &made); err != nil || r.Status != 200 || len(made.Output) == 0 {
		t.Fatal(r.Status, string(r.Body))
	}
	nobodys := func(what, token string) {
		t.Helper()
		for _, c := range [][3]string{{http.MethodGet, "/" + made.ID}, {http.MethodGet, "/" + made.ID + "/input_items"}, {http.MethodDelete, "/" + made.ID},
			{http.MethodPost, "", `{"model":"demo/echo","previous_response_id":"` + made.ID + `","input":"go on"}`},
			{http.MethodPost, "", `{"model":"demo/echo","previous_response_id":"` + made.ID + `","input":"go on","stream":true}`},
			{http.MethodPost, "", `{"model":"demo/echo","input":[{"type":"item_reference","id":"` + made.Output[0].ID + `"},{"role":"user","content":"x"}]}`},
			{http.MethodPost, "", `{"model":"demo/echo","input":[{"id":"` + made.Output[0].ID + `"}]}`}} {
			if r := do(token, c[0], "/v1/responses"+c[1], c[2]); r.Status != http.StatusNotFound || strings.Contains(string(r.Body), "Ada") {
				t.Errorf("%s: %v: %d %s", what, c, r.Status, r.Body)
			}
		}
	}
	nobodys("another's", eve)
	if r := do("", http.MethodPost, "/v1/responses", `{"model":"demo/echo","previous_response_id":"`+made.ID+`","input":"go on"}`); r.Status != 200 {
		t.Errorf("its maker: %d %s", r.Status, r.Body)
	}
	if r := do("", http.MethodDelete, "/v1/responses/"+made.ID, ""); r.Status != 200 {
		t.Fatal(r.Status, string(r.Body))
	}
	nobodys("deleted", "")
	nobodys("deleted, another's", eve)
	for _, c := range []string{`"conversation":"conv_1","input":"x"`, `"background":true,"input":"x"`} {
		if r := do("", http.MethodPost, "/v1/responses", `{"model":"demo/echo",`+c+`}`); r.Status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", c, r.Status, r.Body)
		}
	}
})

// In an earlier version, the demo provider, which is free of charge, returned more
// tokens than were reserved for the call.
var _ = register("12.7 bound of an answer", func(t *testing.T, m *harness.Mesh) {
	long := strings.Repeat("a ", 12_000)
	for _, c := range []struct {
		members string
		most    int
	}{{`"max_tokens":5,`, 5}, {`"max_completion_tokens":7,`, 7}, {``, 8192}} {
		r, err := m.Do(context.Background(), http.MethodPost, "/v1/chat/completions", "s-attack-127", fmt.Sprintf(`{"model":"demo/echo",%s"messages":[{"role":"user","content":%q}]}`, c.members, long))
		var doc struct {
			Usage struct {
				Out int `json:"completion_tokens"`
			}
			Choices []struct {
				Finish string `json:"finish_reason"`
			}
		}
		if err != nil || json.Unmarshal(r.Body, &doc) != nil || doc.Usage.Out > c.most || doc.Usage.Out == 0 || len(doc.Choices) != 1 || doc.Choices[0].Finish != "length" {
			t.Errorf("%s: %v %.300s", c.members, err, r.Body)
		}
	}
	for _, members := range []string{`"Max_Tokens":5`, `"max_tokens":-1`, `"max_tokens":"5"`, `"max_tokens":1.5`, `"n":"9"`, `"N":9`} {
		if r, err := m.Do(context.Background(), http.MethodPost, "/v1/chat/completions", "s-attack-127", `{"model":"demo/echo",`+members+`,"messages":[{"role":"user","content":"x"}]}`); err != nil || r.Status != http.StatusBadRequest {
			t.Errorf("%s: %v %v", members, r, err)
		}
	}
})
