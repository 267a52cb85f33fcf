package mcpapi_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
)

// message returns the message of JSON-RPC in the text of a response, and removes the members that
// differ between two calls.
func message(t *testing.T, text string) map[string]any {
	t.Helper()
	if _, data, ok := strings.Cut(text, "data: "); ok {
		text = data
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%v: %.300s", err, text)
	}
	if res, ok := doc["result"].(map[string]any); ok {
		if m, ok := res["_meta"].(map[string]any); ok {
			maps.DeleteFunc(m, func(k string, _ any) bool { return strings.HasSuffix(k, "_id") || k == "binnacle/session" })
		}
	}
	return doc
}

// TestPlain checks that a call that the gateway serves without the SDK has the response that the SDK
// gives. The SDK serves it if its parameters have a member that the gateway does not have.
func TestPlain(t *testing.T) {
	w := newWire(t, true)
	executed := 0
	w.Execute = func(c *edgetest.Call) { executed++; c.Succeed(c.Args) }
	for name, params := range map[string]string{
		"a call":             `"name":"a","arguments":{"text":"x"},` + meta,
		"no arguments":       `"name":"a",` + meta,
		"a list":             `"name":"a","arguments":[1],` + meta,
		"a doubled member":   `"name":"a","arguments":{"text":"a","text":"b"},` + meta,
		"wrong arguments":    `"name":"a","arguments":{"text":7},` + meta,
		"no metadata":        `"name":"a","arguments":{}`,
		"no capabilities":    `"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`,
		"another version":    `"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25","io.modelcontextprotocol/clientCapabilities":{}}`,
		"no client":          `"name":"a","arguments":{"text":"x"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`,
		"tasks":              `"name":"a","arguments":{"text":"x"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`,
		"a number as client": `"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":7,"io.modelcontextprotocol/clientCapabilities":{}}`,
	} {
		for _, id := range []string{`1`, `"a b"`, `1.5`, `null`} {
			body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{` + params
			status, plain := w.send(body + `}}`)
			other, by := w.send(body + `,"unused":1}}`)
			if status != other {
				t.Errorf("%s, id %s: status %d, the SDK's %d\n%.300s\n%.300s", name, id, status, other, plain, by)
				continue
			}
			if status == http.StatusOK || strings.HasPrefix(plain, "{") {
				if a, b := message(t, plain), message(t, by); !reflect.DeepEqual(a, b) {
					t.Errorf("%s, id %s:\n%v\nthe SDK's:\n%v", name, id, a, b)
				}
			} else if plain != by {
				t.Errorf("%s, id %s: %.200s, the SDK's: %.200s", name, id, plain, by)
			}
		}
	}
	if executed == 0 {
		t.Error("no call was executed")
	}
}

// TestPlainHeaders checks that a call is refused as the SDK refuses it if its headers differ from
// its body, name a media type that the response cannot have, or another host than this one.
func TestPlainHeaders(t *testing.T) {
	w := newWire(t, true)
	w.Execute = func(c *edgetest.Call) { t.Errorf("executed: %s", c.Args) }
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"text":"x"},` + meta + `}}`
	good := map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "a"}
	for header, value := range map[string]string{"Content-Type": "text/plain", "Accept": "application/json", "Mcp-Method": "tools/list", "Mcp-Name": "b", "MCP-Protocol-Version": "2026-07-29", "Last-Event-ID": "1"} {
		h := maps.Clone(good)
		h[header] = value
		var lines []string
		for k, v := range h {
			lines = append(lines, k+": "+v)
		}
		if r := w.Do("POST", "/mcp", w.who, body, lines...); r.Code < 400 || r.Code >= 500 {
			t.Errorf("%s %s: %d %.200s", header, value, r.Code, r.Body)
		}
	}
}
