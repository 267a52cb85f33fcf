package cli

import (
	"reflect"
	"testing"
)

// TestReadServers checks which servers are read from configurations of clients and from a
// server.json, and which of them cannot be added.
func TestReadServers(t *testing.T) {
	for _, x := range []struct {
		text string
		want []listedServer
		left string // why the first server is left out without --header
	}{
		{`{"mcpServers":{"B":{"url":"http://b/mcp"},"a":{"command":"npx","args":["-y","x"],"env":{"B":"2","A":"1"}}}}`,
			[]listedServer{{name: "a", command: "npx", args: []string{"-y", "x"}, env: []string{"A=1", "B=2"}}, {name: "b", url: "http://b/mcp"}}, "started as a subprocess: name the image that contains npx with --image"},
		{`{"mcpServers":{"g":{"httpUrl":"http://g/mcp","url":"http://g/sse"}}}`, []listedServer{{name: "g", url: "http://g/mcp", sse: false, headers: nil}}, ""},
		{`{"mcpServers":{"s":{"type":"sse","url":"http://s","headers":{"Authorization":"Bearer x"}}}}`, []listedServer{{name: "s", url: "http://s", sse: true, headers: []string{"Authorization"}}}, "has headers (Authorization): store their secrets in the vault and add it with --header"},
		{`{"$schema":"https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json","name":"io.github.owner/Weather.v2","version":"1.0.0","remotes":[{"type":"sse","url":"https://w/sse"},{"type":"streamable-http","url":"https://w/mcp","headers":[{"name":"X-Trace"},{"name":"X-Key","isRequired":true,"isSecret":true}]},{"type":"streamable-http","url":"https://other/mcp"}]}`,
			[]listedServer{{name: "weather-v2", url: "https://w/mcp", sse: false, headers: []string{"X-Key"}}}, "has headers (X-Key): store their secrets in the vault and add it with --header"},
		{`{"name":"io.github.owner/old","remotes":[{"type":"sse","url":"https://w/sse"}]}`, []listedServer{{name: "old", url: "https://w/sse", sse: true, headers: nil}}, ""},
		{`{"name":"io.github.owner/tenants","remotes":[{"type":"streamable-http","url":"https://{tenant}.w/mcp"}]}`, []listedServer{{name: "tenants", url: "https://{tenant}.w/mcp", sse: false, headers: nil}}, "its URL https://{tenant}.w/mcp has variables: add it with NAME and URL"},
		{`{"name":"io.github.owner/files","packages":[{"registryType":"npm","identifier":"files"}]}`, []listedServer{{name: "files", url: "", sse: false, headers: nil}}, "started as a subprocess"},
	} {
		got, err := readServers([]byte(x.text))
		if err != nil || !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s\n%+v, %v", x.text, got, err)
			continue
		}
		if left := got[0].leaveOut(false, false); left != x.left {
			t.Errorf("%s\nleft out: %q", x.text, left)
		}
		if got[0].command != "" && got[0].leaveOut(false, true) != "" {
			t.Error(got[0].leaveOut(false, true))
		}
		if len(got[0].headers) > 0 && got[0].leaveOut(true, false) != "" {
			t.Error(got[0].leaveOut(true, false))
		}
	}
	for _, text := range []string{"", "[]", "{}", `{"mcpServers":{}}`, `{"mcpServers":[]}`, `{"mcpServers":{"A":{"url":"http://a"},"a":{"url":"http://b"}}}`, `{"remotes":[]}`} {
		if got, err := readServers([]byte(text)); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
