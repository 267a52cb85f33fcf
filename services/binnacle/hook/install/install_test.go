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

// apply installs or uninstalls, and returns what changed.
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

// TestRoundTrip checks that the hooks of each client are added to what is there, and that
// their removal, also after a second installation, restores the file byte for byte with
// its permissions, or removes the file if there was none.
func TestRoundTrip(t *testing.T) {
	for _, client := range install.Clients() {
		for name, text := range map[string]string{"none": "", "odd": odd, "empty object": "{}", "blank": "\n"} {
			if client == "opencode" && name != "none" {
				continue // the file is our own
			}
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
