package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigCheck checks that config check prints the digest of a valid file, and that
// it exits with 2 and reports every problem of an invalid file, as text and as a
// document. The llm document is checked, too.
func TestConfigCheck(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"good.yaml":   "gateway: {capture: hashed}\nllm-router: {document: llm.json}\n",
		"llm.json":    `{"providers":[]}`,
		"bad.yaml":    "gateway:\n  capture: all\n  lissten: x\n",
		"inline.yaml": "llm-router: {document: {providers: [{nam: x}]}}\n",
		"named.yaml":  "llm-router: {document: bad.json}\n",
		"bad.json":    `{"surplus":1}`,
		"gone.yaml":   "llm-router: {document: gone.json}\n",
	})
	for file, want := range map[string]struct {
		code  int
		words []string
	}{
		"good.yaml":   {exitOK, []string{"good.yaml is valid; its digest is sha256:"}},
		"bad.yaml":    {exitUsage, []string{`bad.yaml:2: /gateway/capture: "all": want one of plain`, "bad.yaml:3: /gateway/lissten: unknown member; known here are listen"}},
		"inline.yaml": {exitUsage, []string{"/llm-router/document/providers/0/nam: unknown member; known are"}},
		"named.yaml":  {exitUsage, []string{"bad.json: /surplus: unknown member"}},
		"gone.yaml":   {exitUsage, []string{"gone.json: no such file"}},
		"none.yaml":   {exitUsage, []string{"none.yaml: no such file"}},
	} {
		code, out, errOut := invoke(t, "config", "check", filepath.Join(dir, file))
		for _, w := range want.words {
			if code != want.code || !strings.Contains(out+errOut, w) {
				t.Errorf("%s: %d %s%s, want %d %s", file, code, out, errOut, want.code, w)
			}
		}
	}
	_, out, _ := invoke(t, "config", "check", filepath.Join(dir, "bad.yaml"), "--output", "json")
	var doc struct {
		Error struct {
			Problems []struct {
				File, Pointer, Value, Message string
				Line                          int
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Error.Problems) != 2 || doc.Error.Problems[0].Pointer != "/gateway/capture" || doc.Error.Problems[0].Value != "all" || doc.Error.Problems[1].Line != 3 {
		t.Errorf("%v %s", err, out)
	}
}

// TestConfigShow checks that config show lists members with their value and origin,
// shows no secret, and suggests a name for an unknown program, and that config schema
// prints a JSON document.
func TestConfigShow(t *testing.T) {
	alone(t)
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, filepath.Dir(file), map[string]string{"mesh.yaml": "gateway: {capture: hashed, approval_webhook: 'https://chat.example/hush'}\n"})
	t.Setenv("BINNACLE_VAULT_KEK_FILE", "/run/kek")
	t.Setenv("BINNACLE_LOG", "warn")
	code, out, errOut := invoke(t, "config", "show", "--config", file, "--power", "--addr", "127.0.0.1:1", "--output", "json")
	var doc struct {
		Program, File, Digest string
		Settings              []settingRow
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitOK || doc.Program != "up" || doc.File != file || !strings.HasPrefix(doc.Digest, "sha256:") {
		t.Fatal(code, err, out, errOut)
	}
	got := map[string]settingRow{}
	for _, s := range doc.Settings {
		got[s.Pointer] = s
	}
	for pointer, want := range map[string][2]string{
		"/gateway/capture":          {"hashed", "file " + file + ":1"},
		"/durability":               {"power", "flag --power"},
		"/gateway/listen":           {"127.0.0.1:1", "flag --addr"},
		"/log/level":                {"warn", "variable BINNACLE_LOG"},
		"/tenant":                   {"", "default"},
		"/nats/max_store":           {"1TB", "default"},
		"/gateway/approval_webhook": {"https://chat.example/…", "file " + file + ":1"},
	} {
		value, _ := got[pointer].Value.(string)
		if value != want[0] || got[pointer].Origin != want[1] {
			t.Errorf("%s: %+v, want %v", pointer, got[pointer], want)
		}
	}
	if strings.Contains(out, "hush") || !strings.Contains(out, "/run/kek") {
		t.Errorf("the secret, or not its place, is shown: %s", out)
	}
	if code, out, _ := invoke(t, "config", "show", "--config", file, "--program", "gateway", "--output", "table"); code != exitOK || !strings.HasPrefix(out, "SETTING") || !strings.Contains(out, "/keys") {
		t.Error(code, out)
	}
	if code, _, errOut := invoke(t, "config", "show", "--program", "gatway"); code != exitUsage || !strings.Contains(errOut, "did you mean gateway?") {
		t.Error(code, errOut)
	}
	if code, out, _ := invoke(t, "config", "schema"); code != exitOK || !json.Valid([]byte(out)) || !strings.Contains(out, "urn:binnacle:config:v1") {
		t.Error(code, out)
	}
}
