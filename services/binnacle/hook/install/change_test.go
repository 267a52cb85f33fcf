package install_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/install"
)

// TestDiff checks that a diff has the lines between the first and the last difference.
func TestDiff(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"", "", ""},
		{"a\n", "a\n", ""},
		{"", "a\n", "+ a\n"},
		{"a\n", "", "- a\n"},
		{"a\nb\nc\n", "a\nx\ny\nc\n", "- b\n+ x\n+ y\n"},
		{"a\nb\n", "x\nb\n", "- a\n+ x\n"},
		{"a\nb\n", "a\nx\n", "- b\n+ x\n"},
		{"a\n", "a\na\n", "+ a\n"},
		{"a\na\n", "a\n", "- a\n"},
		{"a", "a\n", "- a\n+ a\n"},
		{"a\nc", "a\nb\nc", "+ b\n"},
	} {
		x := install.Change{Path: "p", Before: []byte(c.before), After: []byte(c.after)}
		if got := x.Diff(); got != "p\n"+c.want {
			t.Errorf("%q %q: %q", c.before, c.after, got)
		}
	}
}

// records returns the files with the originals in a folder of state.
func records(t *testing.T, state string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(state, "installed", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestRecords checks that the original is stored while the hooks are installed, that Uninstall
// without installed hooks is no error, and that a stored original that cannot be removed or read
// is an error.
func TestRecords(t *testing.T) {
	x := target(t, "claude-code")
	change(t, x, false) // nothing to remove
	change(t, x, true)
	if n := len(records(t, x.State)); n != 1 {
		t.Errorf("%d records", n)
	}
	change(t, x, false)
	if n := len(records(t, x.State)); n != 0 {
		t.Errorf("%d records", n)
	}
	change(t, x, false)

	put(t, x.Path(), "{}")
	change(t, x, true)
	c, err := x.Uninstall()
	if err != nil {
		t.Fatal(err)
	}
	record := records(t, x.State)[0]
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(record, "x"), "")
	if err := x.Apply(c, false); err == nil {
		t.Error("a record remains without an error")
	}
	if _, err := x.Uninstall(); err == nil {
		t.Error("a record that cannot be read is no error")
	}
}

// TestChangedMeanwhile checks that a change is not applied to a file that was made, emptied
// or removed since the change was computed.
func TestChangedMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		before string
		change func(path string) error
	}{
		"made":    {"", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		"emptied": {"{}", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		"removed": {"\n", os.Remove},
	} {
		x := target(t, "codex")
		put(t, x.Path(), c.before)
		if c.before == "" {
			if err := os.Remove(x.Path()); err != nil {
				t.Fatal(err)
			}
		}
		got, err := x.Install()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.change(x.Path()); err != nil {
			t.Fatal(err)
		}
		if err := x.Apply(got, true); err == nil || !strings.Contains(err.Error(), "has changed meanwhile") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHooks checks where the hooks are, the unit of their timeout, and that hooks of other
// programs, and empty lists, stay.
func TestHooks(t *testing.T) {
	for client, want := range map[string]struct{ user, project, event, group string }{
		"claude-code": {".claude/settings.json", ".claude/settings.json", "SessionEnd", `{"hooks":[{"type":"command","command":"/opt/binnacle hook run claude-code","timeout":330}]}`},
		"codex":       {".codex/hooks.json", ".codex/hooks.json", "PreToolUse", `{"matcher":"*","hooks":[{"type":"command","command":"/opt/binnacle hook run codex","timeout":330}]}`},
		"cursor":      {".cursor/hooks.json", ".cursor/hooks.json", "preToolUse", `{"type":"command","command":"/opt/binnacle hook run cursor","timeout":330,"failClosed":true}`},
		"vscode":      {".copilot/hooks/binnacle.json", ".github/hooks/binnacle.json", "PreToolUse", `{"type":"command","command":"/opt/binnacle hook run vscode","timeout":330}`},
		"gemini-cli":  {".gemini/settings.json", ".gemini/settings.json", "BeforeTool", `{"matcher":"*","sequential":true,"hooks":[{"type":"command","command":"/opt/binnacle hook run gemini-cli","timeout":330000}]}`},
		"opencode":    {".config/opencode/plugin/binnacle.js", ".opencode/plugin/binnacle.js", "", ""},
	} {
		x := target(t, client)
		if got := x.Path(); got != filepath.Join(x.Home, want.user) {
			t.Errorf("%s: %s", client, got)
		}
		x.Project = t.TempDir()
		if got := x.Path(); got != filepath.Join(x.Project, want.project) {
			t.Errorf("%s: %s", client, got)
		}
		if want.group == "" {
			continue
		}
		mine := readable(client, `{"version":1,"hooks":{"SessionStart":[{"hooks":[{"command":"binnacle backup"},{"command":"other hook run codex"}]}],"A":[],"B":[],"C":[],"D":[],"E":[]},"n":1}`)
		edited := func(text string) string {
			return strings.NewReplacer(`"n":1`, `"n":2`, `"description":1`, `"description":2`).Replace(text)
		}
		put(t, x.Path(), mine)
		c := change(t, x, true)
		var doc struct{ Hooks map[string][]json.RawMessage }
		if err := json.Unmarshal(c.After, &doc); err != nil {
			t.Fatal(err)
		}
		if list := doc.Hooks[want.event]; len(list) != 1 || string(list[0]) != want.group {
			t.Errorf("%s: %s", client, list)
		}
		put(t, x.Path(), edited(string(c.After)))
		if c := change(t, x, false); string(c.After) != edited(mine) {
			t.Errorf("%s: %s", client, c.After)
		}
	}
}

// TestPluginEdited checks that our plugin is removed also if it was edited, and that another
// file in its place stays.
func TestPluginEdited(t *testing.T) {
	x := target(t, "opencode")
	c := change(t, x, true)
	put(t, x.Path(), string(c.After)+"// edited\n")
	change(t, x, false)
	if _, err := os.Stat(x.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the plugin remains: %v", err)
	}
	put(t, x.Path(), "// mine\n")
	if c := change(t, x, false); string(c.After) != "// mine\n" {
		t.Errorf("%s", c.After)
	}
}

// TestEmptied checks that the entry can be added again if the file was emptied after the first
// installation.
func TestEmptied(t *testing.T) {
	for _, client := range install.MCPClients() {
		x := connection(t, client)
		c := apply(t, x, true)
		first := string(c.After)
		put(t, c.Path, " \n")
		if c := apply(t, x, true); strings.TrimSpace(string(c.After)) != strings.TrimSpace(first) {
			t.Errorf("%s: %s", client, c.After)
		}
	}
}

// TestInput checks that Visual Studio Code has one input for the token, which stays as long
// as a server refers to it.
func TestInput(t *testing.T) {
	const token = `{"id":"binnacle-token"}`
	for _, c := range []struct{ before, inputs, edited, after string }{
		{"", "binnacle-token", "", ""},
		{`{"inputs":[],"n":1}`, "binnacle-token", "", `{"n":2}`},
		{`{"inputs":[{"id":"mine"}],"n":1}`, "mine binnacle-token", "", `{"inputs":[{"id":"mine"}],"n":2}`},
		{`{"inputs":[` + token + `],"n":1}`, "binnacle-token", "", `{"n":2}`},
		{`{"inputs":[` + token + `,{"id":"mine"}],"n":1}`, "binnacle-token mine", "", `{"inputs":[{"id":"mine"}],"n":2}`},
		{`{"inputs":[` + token + `],"servers":{"mine":{"url":"${input:binnacle-token}"}},"n":1}`, "binnacle-token", "", `{"inputs":[` + token + `],"servers":{"mine":{"url":"${input:binnacle-token}"}},"n":2}`},
		{`{"servers":{"mine":{"url":"x"}},"n":1}`, "binnacle-token", "", `{"servers":{"mine":{"url":"x"}},"n":2}`},
	} {
		x := connection(t, "vscode")
		if c.before != "" {
			shown, err := x.Install()
			if err != nil {
				t.Fatal(err)
			}
			put(t, shown.Path, c.before)
		}
		made := apply(t, x, true)
		var doc struct{ Inputs []struct{ ID string } }
		if err := json.Unmarshal(made.After, &doc); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, in := range doc.Inputs {
			ids = append(ids, in.ID)
		}
		if got := strings.Join(ids, " "); got != c.inputs {
			t.Errorf("%s: inputs %s", c.before, got)
		}
		if c.before == "" {
			continue
		}
		put(t, made.Path, strings.Replace(string(made.After), `"n":1`, `"n":2`, 1))
		if got := apply(t, x, false); string(got.After) != c.after {
			t.Errorf("%s: %s", c.before, got.After)
		}
	}
	x := connection(t, "cursor")
	if c := apply(t, x, true); strings.Contains(string(c.After), "inputs") {
		t.Errorf("%s", c.After)
	}
}

// TestTable checks the bytes of a TOML file with the entry, and that an entry which cannot
// be removed alone stays.
func TestTable(t *testing.T) {
	const entry = "[mcp_servers.binnacle]\nurl = \"http://127.0.0.1:8080/mcp\"\nbearer_token_env_var = \"BINNACLE_TOKEN\"\n"
	for before, want := range map[string]string{"": entry, "\n": entry, "a = 1": "a = 1\n\n" + entry, "a = 1\n\n\n": "a = 1\n\n" + entry} {
		x := connection(t, "codex")
		if before != "" {
			shown, err := x.Install()
			if err != nil {
				t.Fatal(err)
			}
			put(t, shown.Path, before)
		}
		if c := apply(t, x, true); string(c.After) != want {
			t.Errorf("%q: %q", before, c.After)
		}
	}
	const none = "-" // the entry cannot be removed alone
	for edited, want := range map[string]string{
		"# mine\n" + entry: "# mine\n",
		"a = 1\n\n" + entry + "\n[mcp_servers.binnacle.env]\nb = 1\n[c]\nd = 1\n": "a = 1\n\n[c]\nd = 1\n",
		"mcp_servers.binnacle.url = \"x\"\n":                                      none,
		"mcp_servers = { binnacle = { url = \"x\" } }\n":                          none,
		"[mcp_servers]\nbinnacle = { url = \"x\" }\n":                             none,
		"a = \"\"\"\n[mcp_servers.binnacle]\n\"\"\"\n" + entry:                    none,
		"[mcp_servers.binnacle]\nurl = \"x\"\n[[a]]\nb = 1\n":                     "[[a]]\nb = 1\n",
		"[mcp_servers.binnacle2]\nurl = \"x\"\n\n" + entry:                        "[mcp_servers.binnacle2]\nurl = \"x\"\n",
		entry + "url2 = 1\n":        "",
		"\n" + entry + "url2 = 1\n": "\n",
		"a = \"\"\"\n[mcp_servers.binnacle]\n[x]\n\"\"\"\n" + entry: none,
	} {
		x := connection(t, "codex")
		c := apply(t, x, true)
		put(t, c.Path, edited)
		got, err := x.Uninstall()
		switch {
		case want == none:
			if err == nil || !strings.Contains(err.Error(), "cannot be removed without changing others") {
				t.Errorf("%q: %v", edited, err)
			}
		case err != nil || string(got.After) != want:
			t.Errorf("%q: %v %q", edited, err, got.After)
		}
	}
}

// TestPlaces checks the paths of the files with the entries, and that Starts is true for Claude
// Desktop only.
func TestPlaces(t *testing.T) {
	for client, want := range map[string][2]string{
		"claude-code":    {".claude.json", ".mcp.json"},
		"claude-desktop": {"config/Claude/claude_desktop_config.json", ""},
		"codex":          {".codex/config.toml", ".codex/config.toml"},
		"cursor":         {".cursor/mcp.json", ".cursor/mcp.json"},
		"gemini-cli":     {".gemini/settings.json", ".gemini/settings.json"},
		"opencode":       {".config/opencode/opencode.json", "opencode.json"},
		"vscode":         {"config/Code/User/mcp.json", ".vscode/mcp.json"},
	} {
		x := connection(t, client)
		if c, err := x.Install(); err != nil || c.Path != filepath.Join(x.Home, want[0]) {
			t.Errorf("%s: %v %v", client, c, err)
		}
		x.Project = t.TempDir()
		if c, err := x.Install(); want[1] != "" && (err != nil || c.Path != filepath.Join(x.Project, want[1])) {
			t.Errorf("%s: %v %v", client, c, err)
		}
		if install.Starts(client) != (client == "claude-desktop") {
			t.Errorf("%s: %v", client, install.Starts(client))
		}
	}
}
