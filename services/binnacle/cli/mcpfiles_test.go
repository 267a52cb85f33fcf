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
		{`{"mcpServers":{"B":{"url":"http://b/mcp"},"a":{"command":"npx"}}}`, []listedServer{{"a", "", false, nil}, {"b", "http://b/mcp", false, nil}}, "started as a subprocess"},
		{`{"mcpServers":{"g":{"httpUrl":"http://g/mcp","url":"http://g/sse"}}}`, []listedServer{{"g", "http://g/mcp", false, nil}}, ""},
		{`{"mcpServers":{"s":{"type":"sse","url":"http://s","headers":{"Authorization":"Bearer x"}}}}`, []listedServer{{"s", "http://s", true, []string{"Authorization"}}}, "has headers (Authorization): store their secrets in the vault and add it with --header"},
		{`{"$schema":"https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json","name":"io.github.owner/Weather.v2","version":"1.0.0","remotes":[{"type":"sse","url":"https://w/sse"},{"type":"streamable-http","url":"https://w/mcp","headers":[{"name":"X-Trace"},{"name":"X-Key","isRequired":true,"isSecret":true}]},{"type":"streamable-http","url":"https://other/mcp"}]}`,
			[]listedServer{{"weather-v2", "https://w/mcp", false, []string{"X-Key"}}}, "has headers (X-Key): store their secrets in the vault and add it with --header"},
		{`{"name":"io.github.owner/old","remotes":[{"type":"sse","url":"https://w/sse"}]}`, []listedServer{{"old", "https://w/sse", true, nil}}, ""},
		{`{"name":"io.github.owner/tenants","remotes":[{"type":"streamable-http","url":"https://{tenant}.w/mcp"}]}`, []listedServer{{"tenants", "https://{tenant}.w/mcp", false, nil}}, "its URL https://{tenant}.w/mcp has variables: add it with NAME and URL"},
		{`{"name":"io.github.owner/files","packages":[{"registryType":"npm","identifier":"files"}]}`, []listedServer{{"files", "", false, nil}}, "started as a subprocess"},
	} {
		got, err := readServers([]byte(x.text))
		if err != nil || !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s\n%+v, %v", x.text, got, err)
			continue
		}
		if left := got[0].leaveOut(false); left != x.left {
			t.Errorf("%s\nleft out: %q", x.text, left)
		}
		if len(got[0].headers) > 0 && got[0].leaveOut(true) != "" {
			t.Error(got[0].leaveOut(true))
		}
	}
	for _, text := range []string{"", "[]", "{}", `{"mcpServers":{}}`, `{"mcpServers":[]}`, `{"mcpServers":{"A":{"url":"http://a"},"a":{"url":"http://b"}}}`, `{"remotes":[]}`} {
		if got, err := readServers([]byte(text)); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
