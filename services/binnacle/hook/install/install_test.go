package install_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/install"
)

func target(t *testing.T, client string) *install.Target {
	t.Helper()
	return &install.Target{Client: client, Home: t.TempDir(), State: t.TempDir(), Command: "/opt/binnacle hook run " + client, Timeout: 330}
}

// changer installs and uninstalls entries in the files of a client.
type changer interface {
	Install() (*install.Change, error)
	Uninstall() (*install.Change, error)
	Apply(c *install.Change, installed bool) error
}

// apply installs or uninstalls, and returns the change.
func apply(t *testing.T, x changer, installed bool) *install.Change {
	t.Helper()
	compute := x.Uninstall
	if installed {
		compute = x.Install
	}
	c, err := compute()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Apply(c, installed); err != nil {
		t.Fatal(err)
	}
	return c
}

func change(t *testing.T, x *install.Target, installed bool) *install.Change {
	t.Helper()
	c := apply(t, x, installed)
	if is, err := x.Installed(); is != installed || err != nil {
		t.Fatalf("installed: %v %v", is, err)
	}
	return c
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

const odd = "{ \"theme\" :\"dark\",\n\t\"hooks\": {\"PreToolUse\": [ {\"matcher\":\"Bash\", \"hooks\": [{\"type\":\"command\",\"command\":\"mine.sh\"}]} ]}\n , \"n\": 1.0 }"

// readable returns a configuration without the members because of which the client would ignore it.
func readable(client, text string) string {
	if client != "codex" {
		return text
	}
	return strings.NewReplacer(`"theme"`, `"description"`, "\n , \"n\": 1.0", "", `"version":1,`, "", `"n":`, `"description":`).Replace(text)
}

// TestRoundTrip checks that the hooks of each client are added to an existing configuration, and
// that their removal, also after a second installation, restores the file byte for byte with its
// permissions, or removes the file if there was none.
func TestRoundTrip(t *testing.T) {
	for _, client := range install.Clients() {
		for name, text := range map[string]string{"none": "", "odd": odd, "empty object": "{}", "blank": "\n"} {
			if client == "opencode" && name != "none" {
				continue // the file is our own
			}
			text = readable(client, text)
			t.Run(client+" "+name, func(t *testing.T) {
				x := target(t, client)
				if text != "" {
					put(t, x.Path(), text)
				}
				c := change(t, x, true)
				if client != "opencode" && !json.Valid(c.After) {
					t.Fatalf("not JSON: %s", c.After)
				}
				if name == "odd" && (!strings.Contains(string(c.After), "mine.sh") || !strings.Contains(c.Diff(), "+ ")) {
					t.Errorf("%s\n%s", c.After, c.Diff())
				}
				x.Timeout = 600
				change(t, x, true)
				change(t, x, false)
				got, err := os.ReadFile(x.Path())
				if text == "" {
					if !os.IsNotExist(err) {
						t.Errorf("a file remains: %s %v", got, err)
					}
					return
				}
				info, statErr := os.Stat(x.Path())
				if err != nil || statErr != nil || string(got) != text || info.Mode().Perm() != 0o640 {
					t.Errorf("%q, want %q (%v %v)", got, text, err, info.Mode())
				}
			})
		}
	}
}

// TestEditedSince checks that only the installed entries are removed from a
// configuration that was edited after the installation.
func TestEditedSince(t *testing.T) {
	x := target(t, "claude-code")
	put(t, x.Path(), odd)
	c := change(t, x, true)
	put(t, x.Path(), strings.Replace(string(c.After), `"dark"`, `"light"`, 1))
	change(t, x, false)
	got, err := os.ReadFile(x.Path())
	if err != nil || string(got) != strings.Replace(odd, `"dark"`, `"light"`, 1) {
		t.Errorf("%q %v", got, err)
	}
}

// TestEditedMembers checks that the removal of the hooks from a configuration that was edited after
// the installation leaves the members that it had before, also empty ones, and removes those that
// install added, except the version if the edit added a hook. Each case is repeated with a second
// installation and a second edit.
func TestEditedMembers(t *testing.T) {
	for _, c := range []struct{ client, before, add, after string }{
		{"claude-code", `{"n":1,"hooks":{"PreToolUse":[]}}`, "", `{"n":2,"hooks":{"PreToolUse":[]}}`},
		{"claude-code", `{"n":1,"hooks":{}}`, "", `{"n":2,"hooks":{}}`},
		{"claude-code", `{"n":1,"hooks":{"Mine":[],"SessionEnd":[]}}`, "", `{"n":2,"hooks":{"Mine":[],"SessionEnd":[]}}`},
		{"claude-code", `{"n":1}`, "", `{"n":2}`},
		{"gemini-cli", `{ "n":1 , "hooks" : {} }`, "", `{ "n":2 , "hooks" : {} }`},
		{"cursor", `{"n":1}`, "", `{"n":2}`},
		{"cursor", `{"n":1,"hooks":{}}`, "", `{"n":2,"hooks":{}}`},
		{"cursor", `{"n":1,"version":1}`, "", `{"n":2,"version":1}`},
		{"cursor", `{"n":1,"hooks":{"stop":[{"command":"mine"}]}}`, "", `{"n":2,"hooks":{"stop":[{"command":"mine"}]}}`},
		{"cursor", `{"n":1,"hooks":{}}`, `"stop":[{"command":"mine"}],`, `{"n":2,"hooks":{"stop":[{"command":"mine"}]},"version":1}`},
	} {
		for _, again := range []bool{false, true} {
			x := target(t, c.client)
			put(t, x.Path(), c.before)
			installed := string(change(t, x, true).After)
			edited := strings.Replace(installed, `"n":1`, `"n":2`, 1)
			if c.add != "" {
				edited = strings.Replace(edited, `"hooks":{`, `"hooks":{`+c.add, 1)
			}
			if edited == installed {
				t.Fatalf("not edited: %s", installed)
			}
			put(t, x.Path(), edited)
			if again {
				change(t, x, true)
				put(t, x.Path(), strings.Replace(edited, `"n":2`, `"n":3`, 1))
				c.after = strings.Replace(c.after, `"n":2`, `"n":3`, 1)
			}
			if got := string(change(t, x, false).After); got != c.after {
				t.Errorf("%s, installed again %v, %s: %s, want %s", c.client, again, c.before, got, c.after)
			}
		}
	}
}

// TestWithoutRecord checks that without a record of the original, the object hooks is removed if it
// has only our hooks, and the version remains.
func TestWithoutRecord(t *testing.T) {
	x := target(t, "cursor")
	put(t, x.Path(), `{"n":1,"hooks":{}}`)
	change(t, x, true)
	x.State = t.TempDir()
	if got := string(change(t, x, false).After); got != `{"n":1,"version":1}` {
		t.Error(got)
	}
}

// TestMissing checks, for each client, that Missing returns the program of the hooks if it does not
// exist or is not executable, also if the path needs quotes or follows an assignment. An unknown
// client is an error.
func TestMissing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's a folder")
	small := filepath.Join(dir, "binnacle-hook")
	quoted := "'" + strings.ReplaceAll(small, "'", `'\''`) + "'"
	for _, client := range install.Clients() {
		for _, command := range []string{quoted, "A=b " + quoted, `"` + small + `"`} {
			x := target(t, client)
			x.Command = command + " hook run " + client
			missing := func() string {
				t.Helper()
				name, err := x.Missing()
				if err != nil {
					t.Fatal(err)
				}
				return name
			}
			if got := missing(); got != "" {
				t.Errorf("%s: %q is missing without hooks", client, got)
			}
			change(t, x, true)
			if got := missing(); got != small {
				t.Errorf("%s %s: %q is missing, want %q", client, command, got, small)
			}
			put(t, small, "")
			if got := missing(); got != small {
				t.Errorf("%s %s, not executable: %q", client, command, got)
			}
			if err := os.Chmod(small, 0o755); err != nil {
				t.Fatal(err)
			}
			if got := missing(); got != "" {
				t.Errorf("%s %s: %q is missing", client, command, got)
			}
			if err := os.Remove(small); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := target(t, "nosuch").Missing(); err == nil {
		t.Error("unknown client")
	}
}

// TestRefusals checks that a file that is malformed, a file that changed after Install
// has read it, and an unknown client are errors.
func TestRefusals(t *testing.T) {
	x := target(t, "codex")
	for _, text := range []string{"[]", "{", `{"hooks":{"PreToolUse":{}}}`} {
		put(t, x.Path(), text)
		if _, err := x.Install(); err == nil {
			t.Error("accepted:", text)
		}
	}
	put(t, x.Path(), "{}")
	c, err := x.Install()
	if err != nil {
		t.Fatal(err)
	}
	put(t, x.Path(), `{"a":1}`)
	if err := x.Apply(c, true); err == nil {
		t.Error("a change of an older file was applied")
	}
	if _, err := target(t, "nosuch").Install(); err == nil {
		t.Error("unknown client")
	}
}

// TestInstalledAfterEdit checks that a second installation, after the configuration was
// edited, does not make the hooks of the first one part of the original.
func TestInstalledAfterEdit(t *testing.T) {
	x := target(t, "claude-code")
	put(t, x.Path(), odd)
	c := change(t, x, true)
	put(t, x.Path(), strings.Replace(string(c.After), `"dark"`, `"light"`, 1))
	change(t, x, true)
	change(t, x, false)
	got, err := os.ReadFile(x.Path())
	if err != nil || string(got) != strings.Replace(odd, `"dark"`, `"light"`, 1) {
		t.Errorf("%q %v", got, err)
	}
}

// TestIgnoredFile shows that a file that Codex ignores because of a member is not changed, and does
// not count as installed if the member was added later.
func TestIgnoredFile(t *testing.T) {
	x := target(t, "codex")
	put(t, x.Path(), `{"theme":"dark"}`)
	if _, err := x.Install(); err == nil || !strings.Contains(err.Error(), `"theme"`) {
		t.Errorf("install: %v", err)
	}
	put(t, x.Path(), `{"description":"mine"}`)
	change(t, x, true)
	b, err := os.ReadFile(x.Path())
	if err != nil {
		t.Fatal(err)
	}
	put(t, x.Path(), strings.Replace(string(b), `{"description"`, `{"theme":"dark","description"`, 1))
	if is, err := x.Installed(); is || err != nil {
		t.Errorf("with another member: %v %v", is, err)
	}
	change(t, x, false)
}
