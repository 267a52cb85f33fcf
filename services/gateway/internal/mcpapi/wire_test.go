package mcpapi_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// wire sends bodies to /mcp, in an MCP session or, if modern is set, without one.
type wire struct {
	*edgetest.Mesh
	who     string
	session string
}

// newWire returns a wire of a gateway with the tool a.
func newWire(t testing.TB, modern bool) *wire {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	w := &wire{Mesh: m, who: m.Token("alice", token.Tools)}
	if !modern {
		_, session, status := rpc(m, w.who, "", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
		if status != 200 {
			t.Fatal(status)
		}
		w.session = session
		rpc(m, w.who, session, "notifications/initialized", "")
	}
	return w
}

// send sends a body, and returns the status and the text of the response. With a session, it
// first removes meta from the body; without one, it sets the headers that the body requires.
func (w *wire) send(body string) (status int, text string) {
	headers := []string{"Content-Type: application/json", "Accept: application/json, text/event-stream"}
	if w.session != "" {
		body = strings.NewReplacer(","+meta, "", meta, "").Replace(body) // versions with sessions do not permit them
		headers = append(headers, "Mcp-Session-Id: "+w.session, "MCP-Protocol-Version: 2025-11-25")
	} else {
		var r struct {
			Method string
			Params struct{ Name string }
		}
		_ = json.Unmarshal([]byte(body), &r)
		if strings.ContainsAny(r.Method+r.Params.Name, "\r\n") { // no client can send such a header
			r.Method, r.Params.Name = "", ""
		}
		headers = append(headers, "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: "+r.Method)
		if r.Params.Name != "" {
			headers = append(headers, "Mcp-Name: "+r.Params.Name)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r := w.DoIn(ctx, "POST", "/mcp", w.who, body, headers...)
	return r.Code, r.Body.String()
}

// meta are the members of the parameters that requests without a session must have.
const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

// badInputs are messages that are not valid requests, by their defects.
var badInputs = map[string]string{
	"nothing":              ``,
	"no JSON":              `{`,
	"another value":        `7`,
	"an empty batch":       `[]`,
	"a batch":              `[{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}},{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{` + meta + `}}]`,
	"no version":           `{"id":1,"method":"tools/list","params":{` + meta + `}}`,
	"another version":      `{"jsonrpc":"1.0","id":1,"method":"tools/list","params":{` + meta + `}}`,
	"an unknown method":    `{"jsonrpc":"2.0","id":1,"method":"tools/steal","params":{` + meta + `}}`,
	"an object as id":      `{"jsonrpc":"2.0","id":{},"method":"tools/list","params":{` + meta + `}}`,
	"a list as id":         `{"jsonrpc":"2.0","id":[1],"method":"tools/list","params":{` + meta + `}}`,
	"a boolean as id":      `{"jsonrpc":"2.0","id":true,"method":"tools/list","params":{` + meta + `}}`,
	"a list as parameters": `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[1]}`,
	"a number as name":     `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7,` + meta + `}}`,
	"no name":              `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `}}`,
	"a list as arguments":  `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":[1],` + meta + `}}`,
	"deep arguments":       `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"text":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `},` + meta + `}}`,
	"a doubled member":     `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"text":"a","text":"b"},` + meta + `}}`,
	"an unknown cursor":    `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"none",` + meta + `}}`,
	"no URI":               `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{` + meta + `}}`,
	"an unknown prompt":    `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"none",` + meta + `}}`,
	"an unknown reference": `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"none"},"argument":{"name":"a","value":""},` + meta + `}}`,
}

// TestBadInput checks, for clients of both kinds of protocol versions, that each invalid message
// is refused with an error and proposes nothing, and that the session can be used afterwards.
func TestBadInput(t *testing.T) {
	for name, modern := range map[string]bool{"with a session": false, "without a session": true} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, modern)
			w.Execute = func(c *edgetest.Call) { t.Errorf("proposed: %s %s", c.Kind, c.Args); c.Succeed(c.Args) }
			for what, body := range badInputs {
				status, text := w.send(body)
				refused := strings.Contains(text, `"error"`) || strings.Contains(text, `"isError":true`)
				if status == 0 || status >= 500 || status < 400 && !refused {
					t.Errorf("%s: status %d, %.300s", what, status, text)
				}
			}
			if status, text := w.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`); status != 200 || !strings.Contains(text, `"name":"a"`) {
				t.Errorf("afterwards: %d %.300s", status, text)
			}
		})
	}
}

// TestRequestIDs checks that a response has the id of its request, whether it is a number or
// a string, that an id may be used again, and that a request may be cancelled twice, and
// before it exists.
func TestRequestIDs(t *testing.T) {
	for name, modern := range map[string]bool{"with a session": false, "without a session": true} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, modern)
			for _, id := range []string{`1`, `1`, `0`, `-7`, `9007199254740991`, `"1"`, `"a b"`, `""`} {
				if status, text := w.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/list","params":{` + meta + `}}`); status != 200 || !strings.Contains(text, `"id":`+id+`,`) {
					t.Errorf("id %s: %d %.100s", id, status, text)
				}
				for range 2 {
					if status, text := w.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,` + meta + `}}`); status >= 500 {
						t.Errorf("cancelled %s: %d %s", id, status, text)
					}
				}
			}
		})
	}
}

// FuzzWire checks that no message to /mcp makes the gateway panic or respond with a status of
// 500 or more, and that the gateway lists its tools afterwards.
func FuzzWire(f *testing.F) {
	for _, body := range badInputs {
		f.Add(true, body)
		f.Add(false, body)
	}
	f.Add(true, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"text":"x"},`+meta+`}}`)
	f.Add(false, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"text":"x"}}}`)
	f.Fuzz(func(t *testing.T, modern bool, body string) {
		if strings.Contains(body, "listen") || strings.Contains(body, `\u`) { // a stream of notifications does not end by itself
			return
		}
		w := newWire(t, modern)
		if status, text := w.send(body); status >= 500 {
			t.Errorf("status %d: %.300s", status, text)
		}
		if status, text := w.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`); status != 200 {
			t.Errorf("afterwards: %d %.300s", status, text)
		}
	})
}
