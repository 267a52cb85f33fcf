package install_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/install"
)

const secret = "eyJ.no-file-contains-this"

func connection(t *testing.T, client string) *install.Connection {
	t.Helper()
	t.Setenv(install.Variable, secret)
	home := t.TempDir()
	return &install.Connection{Client: client, Name: "binnacle", Home: home, Config: filepath.Join(home, "config"), State: t.TempDir(),
		URL: "http://127.0.0.1:8080/mcp", Command: []string{"/opt/binnacle", "mcp", "serve", "--context", "prod"}}
}

// others are configurations with values of the user.
var others = map[string]string{
	"claude-code":    "{ \"numStartups\" : 3,\n\t\"mcpServers\": {\"mine\": {\"command\":\"a\",\"args\":[1.0]}} }",
	"claude-desktop": "{\"mcpServers\": {  }, \"n\": 1e3}",
	"codex":          "# mine\nmodel = \"m\"\n\n[mcp_servers.mine]\ncommand = 'a'   # b\n\n\n[profiles.x]\nn = 1\n\n\n",
	"cursor":         "{}",
	"gemini-cli":     "{\"theme\": \"dark\"\n }\n\n",
	"opencode":       "{\"$schema\": \"https://opencode.ai/config.json\", \"mcp\": {\"mine\": {\"type\":\"local\",\"command\":[\"a\"]}}}",
	"vscode":         "{\"inputs\": [{\"id\":\"mine\",\"type\":\"promptString\"}],\n \"servers\": {\"mine\": {\"type\":\"http\",\"url\":\"http://x/${input:mine}\"}}}",
}

// want are the entries, in the client's documented format.
var want = map[string]string{
	"claude-code":    `{"headers":{"Authorization":"Bearer ${BINNACLE_TOKEN}"},"type":"http","url":"http://127.0.0.1:8080/mcp"}`,
	"claude-desktop": `{"args":["mcp","serve","--context","prod"],"command":"/opt/binnacle"}`,
	"codex":          `{"bearer_token_env_var":"BINNACLE_TOKEN","url":"http://127.0.0.1:8080/mcp"}`,
	"cursor":         `{"headers":{"Authorization":"Bearer ${env:BINNACLE_TOKEN}"},"url":"http://127.0.0.1:8080/mcp"}`,
	"gemini-cli":     `{"headers":{"Authorization":"Bearer ${BINNACLE_TOKEN}"},"httpUrl":"http://127.0.0.1:8080/mcp"}`,
	"opencode":       `{"enabled":true,"headers":{"Authorization":"Bearer {env:BINNACLE_TOKEN}"},"oauth":false,"type":"remote","url":"http://127.0.0.1:8080/mcp"}`,
	"vscode":         `{"headers":{"Authorization":"Bearer ${input:binnacle-token}"},"type":"http","url":"http://127.0.0.1:8080/mcp"}`,
}

// parse returns the document, and its entries of servers.
func parse(t *testing.T, client string, b []byte) (doc, servers map[string]any) {
	t.Helper()
	key, decode := "mcpServers", json.Unmarshal
	switch client {
	case "codex":
		key, decode = "mcp_servers", func(b []byte, v any) error { return toml.Unmarshal(b, v) }
	case "opencode":
		key = "mcp"
	case "vscode":
		key = "servers"
	}
	if err := decode(b, &doc); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	servers, _ = doc[key].(map[string]any)
	return doc, servers
}

func canonical(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(b))
}

// TestConnections checks for each client that the entry has the documented format, that it is added
// to an existing configuration, that the file does not contain the token, that a new file can be
// read by its user alone, and that its removal, also after a second installation, restores the file
// byte for byte.
func TestConnections(t *testing.T) {
	if len(install.MCPClients()) != len(want) {
		t.Fatalf("clients %q", install.MCPClients())
	}
	for _, client := range install.MCPClients() {
		for name, text := range map[string]string{"none": "", "blank": " \n", "other": others[client]} {
			t.Run(client+" "+name, func(t *testing.T) {
				x := connection(t, client)
				shown, err := x.Install()
				if err != nil {
					t.Fatal(err)
				}
				if text != "" {
					put(t, shown.Path, text)
				}
				c := apply(t, x, true)
				_, servers := parse(t, client, c.After)
				if got := canonical(t, servers["binnacle"]); got != want[client] {
					t.Errorf("%s", got)
				}
				if name == "other" && strings.Contains(text, "mine") && servers["mine"] == nil {
					t.Errorf("the user's server is lost:\n%s", c.After)
				}
				if strings.Contains(string(c.After), secret) || !strings.Contains(c.Diff(), "+ ") {
					t.Error(c.Diff())
				}
				mode := os.FileMode(0o640)
				if text == "" {
					mode = 0o600
				}
				if info, err := os.Stat(c.Path); err != nil || info.Mode().Perm() != mode {
					t.Errorf("%v %v", info.Mode(), err)
				}
				x.URL = "https://other.example/mcp"
				apply(t, x, true)
				apply(t, x, false)
				got, err := os.ReadFile(c.Path)
				if text == "" && !os.IsNotExist(err) || text != "" && (err != nil || string(got) != text) {
					t.Errorf("%q, want %q (%v)", got, text, err)
				}
			})
		}
	}
}

// TestConnectionEdited checks that a configuration that was edited after the entry was
// added, and to which the entry may have been added again, loses only the entry.
func TestConnectionEdited(t *testing.T) {
	for _, client := range install.MCPClients() {
		for _, again := range []bool{false, true} {
			x := connection(t, client)
			c, err := x.Install()
			if err != nil {
				t.Fatal(err)
			}
			put(t, c.Path, others[client])
			c = apply(t, x, true)
			edited := append([]byte("\n"), c.After...)
			if client == "codex" {
				edited = append(edited, "\n[mcp_servers.binnacle.http_headers]\nA = \"b\"\n\n[tui]\nn = 2\n"...)
			}
			put(t, c.Path, string(edited))
			if again {
				apply(t, x, true)
			}
			apply(t, x, false)
			got, err := os.ReadFile(c.Path)
			if err != nil {
				t.Fatal(err)
			}
			before, _ := parse(t, client, []byte(others[client]))
			after, _ := parse(t, client, got)
			if client == "codex" {
				before["tui"] = map[string]any{"n": 2}
			}
			if client == "claude-desktop" {
				delete(before, "mcpServers") // an object that became empty
			}
			if canonical(t, before) != canonical(t, after) {
				t.Errorf("%s: %s, want %s", client, canonical(t, after), canonical(t, before))
			}
		}
	}
}

// TestConnectionBesideHooks checks that hooks and the entry in the same file are removed
// in any order.
func TestConnectionBesideHooks(t *testing.T) {
	for _, first := range []string{"hooks", "entry"} {
		x := connection(t, "gemini-cli")
		h := &install.Target{Client: "gemini-cli", Home: x.Home, State: x.State, Command: "/opt/binnacle hook run gemini-cli", Timeout: 330}
		put(t, h.Path(), others["gemini-cli"])
		change(t, h, true)
		apply(t, x, true)
		if first == "hooks" {
			change(t, h, false)
			apply(t, x, false)
		} else {
			apply(t, x, false)
			change(t, h, false)
		}
		got, err := os.ReadFile(h.Path())
		if before, _ := parse(t, "gemini-cli", []byte(others["gemini-cli"])); err != nil || canonical(t, before) != func() string { d, _ := parse(t, "gemini-cli", got); return canonical(t, d) }() {
			t.Errorf("%s removed first: %q %v", first, got, err)
		}
		if first == "entry" && string(got) != others["gemini-cli"] {
			t.Errorf("%q", got)
		}
	}
}

// TestConnectionRefusals checks that malformed configurations, an entry of the same name
// that Install has not added, an unknown client, a project for a client without
// projects, and invalid names are errors. It also checks that Uninstall changes none of
// these configurations.
func TestConnectionRefusals(t *testing.T) {
	for client, texts := range map[string][]string{
		"cursor": {"[]", "{", "{} // comment", `{"mcpServers":[]}`, `{"mcpServers":{"binnacle":{}}}`},
		"vscode": {`{"inputs":{}}`, `{"servers":"x"}`},
		"codex":  {"x", "mcp_servers = {}\n", "mcp_servers = { mine = { command = 'a' } }\n", "[mcp_servers.binnacle]\n", "mcp_servers.binnacle.url = 'x'\n"},
	} {
		for _, text := range texts {
			x := connection(t, client)
			c, err := x.Install()
			if err != nil {
				t.Fatal(err)
			}
			put(t, c.Path, text)
			if c, err := x.Install(); err == nil {
				t.Errorf("%s accepted %s\n%s", client, text, c.After)
			}
			if c, err := x.Uninstall(); err != nil || string(c.After) != text {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	x := connection(t, "nosuch")
	if _, err := x.Install(); !errors.Is(err, install.ErrUnknown) {
		t.Error(err)
	}
	x = connection(t, "claude-desktop")
	x.Project = t.TempDir()
	if _, err := x.Install(); !errors.Is(err, install.ErrInvalid) {
		t.Error(err)
	}
	x = connection(t, "codex")
	for _, name := range []string{"", "a.b", "0", "A", "x]"} {
		x.Name = name
		if _, err := x.Install(); !errors.Is(err, install.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
