package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// subprocessPacks returns a folder of packs in the format of helmdeck: shell scripts, with
// manifests named NAME.helmdeck-pack.yaml or none.
func subprocessPacks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := func(name, body string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/busybox sh\n"+body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	manifest := func(name, body string) { // with an executable bit, which does not make it a pack
		if err := os.WriteFile(filepath.Join(dir, name+".helmdeck-pack.yaml"), []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script("My_Tool.sh", `read -r line; printf '%s' "$line"`)
	manifest("my-tool", "name: anything\nversion: v3\nauthor: someone\ndescription: Returns its input.\ninput_schema:\n  required: [text]\n  properties: {text: string, n: number, b: boolean, o: object, a: array}\noutput_schema:\n  required: [text]\n  properties: {text: string}\ntimeout_s: 5\nmax_output_bytes: 100\n")
	script("bare", `printf '\n {"ok":true}\n'`)
	script("environment", `printf '{"env":"'; export -p | while read -r line; do printf '%s ' "$line"; done; printf '"}'`)
	manifest("environment", "env: [GREETING=hello world]\n")
	script("fails", `echo why it failed >&2; exit 7`)
	script("silent", ``)
	script("text", `echo not json`)
	script("cut", `printf '{"a":'`)
	script("list", `printf '[1]'`)
	script("wrong", `printf '{"n":"x"}'`)
	manifest("wrong", "output_schema:\n  properties: {n: number}\n")
	script("slow", `while :; do :; done & while :; do :; done`)
	manifest("slow", "timeout_s: 1\n")
	script("typed", `printf '{"_error":{"code":"schema_mismatch","message":"the branch moved","pointer":"/branch","hint":"fetch it again"}}'; exit 1`)
	script("negative", `:`)
	manifest("negative", "timeout_s: -1\n")
	script("unknown-type", `:`)
	manifest("unknown-type", "input_schema:\n  properties: {a: text}\n")
	return dir
}

// howToPack writes a pack as the how-to of helmdeck does, an executable and its manifest, to a folder
// that a mesh reads: a shell script without an image, which passes its input to jq.
func howToPack(t *testing.T, dir string) {
	t.Helper()
	for name, body := range map[string]string{
		"upper.helmdeck-pack.yaml": `name: cmd.upper
version: v1
description: Returns a text in upper case.
author: "A user"
input_schema:
  required: [text]
  properties:
    text: string
output_schema:
  required: [text]
  properties:
    text: string
timeout_s: 30
max_output_bytes: 1048576
env:
  - PYTHONUNBUFFERED=1
`,
		"upper": "#!/bin/sh\nset -e\nwords=\"$(jq -r .text)\"\njq -n --arg words \"$words\" '{text: ($words | ascii_upcase)}'\n",
	} {
		temporary := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(temporary, []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShellPack shows, on one process and with one process per service, that a shell script with
// the interpreter and the programs of a distribution becomes a pack of a running mesh, without an
// image with those of the host, and with containerd in the image that the configuration names.
func TestShellPack(t *testing.T) {
	images := workImages(t)
	for name, start := range harness.Topologies {
		for place, o := range map[string]harness.Options{
			"host":  {Env: []string{"BINNACLE_SCRIPTS=host"}},
			"image": {Containerd: containerdSocket, Env: []string{"BINNACLE_SCRIPTS=shell", "BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0"}},
		} {
			t.Run(name+"/"+place, func(t *testing.T) {
				o.Packs = t.TempDir()
				m := start(t, o)
				howToPack(t, o.Packs)
				var r *harness.Response
				eventually(t, "the pack can be called", time.Minute, func() (ok bool) {
					var err error
					r, err = m.Do(t.Context(), "POST", "/api/v1/packs/cmd.upper", "s-shell", `{"text":"hello"}`)
					if err != nil || r.Status != http.StatusOK && r.Status != http.StatusForbidden {
						t.Fatalf("%v %d %s", err, r.Status, r.Body)
					}
					return r.Status == http.StatusOK
				})
				want := map[string]string{"host": `"programs:host"`, "image": `"image:sha256:`}[place]
				if !strings.Contains(string(r.Body), `"text":"HELLO"`) || !strings.Contains(string(r.Body), want) {
					t.Errorf("%s", r.Body)
				}
				if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.upper", "s-shell", `{}`); err != nil || r.Status != http.StatusBadRequest || !strings.Contains(string(r.Body), `"pointer":"/args/text"`) {
					t.Errorf("%v %d %s", err, r.Status, r.Body)
				}
			})
		}
	}
}

// TestSubprocessPacks checks packs in the format of helmdeck, on one process and with one process
// per service: their names, manifests and protocol, and the results of several kinds of failures.
func TestSubprocessPacks(t *testing.T) {
	if _, err := os.Stat("/bin/busybox"); err != nil {
		t.Fatal("install the Debian package busybox-static")
	}
	t.Setenv("SECRET_OF_THE_HOST", "hunter2")
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Packs: subprocessPacks(t)})
			for _, c := range []struct {
				pack, args string
				status     int
				want       string
			}{
				{"my-tool", `{"text":"fair"}`, 200, `"output":{"text":"fair"}`},
				{"my-tool", `{}`, 400, `"code":"invalid_input"`}, // nothing has run
				{"my-tool", `{"text":5}`, 400, ``},
				{"my-tool", `{"text":"` + strings.Repeat("x", 200) + `"}`, 502, `more than max_output_bytes (100)`},
				{"bare", `{}`, 200, `"output":{"ok":true}`}, // white space before the document
				{"environment", `{}`, 200, `"env":"export GREETING='hello world' export HOME='/work' export`},
				{"fails", `{}`, 502, `exit 7: why it failed`},
				{"silent", `{}`, 502, `invalid_output`},
				{"text", `{}`, 502, `invalid_output`},
				{"cut", `{}`, 502, `invalid_output`},
				{"list", `{}`, 502, `invalid_output`},
				{"wrong", `{}`, 502, `invalid_output`},
				{"slow", `{}`, 504, `"code":"timeout"`}, // although a process that it started has its output open
				{"typed", `{"branch":"main"}`, 409, `branch: the branch moved; hint: fetch it again`},
				{"typed", `{"branch":"main"}`, 409, `"hint":"fetch it again"`},
				{"typed", `{"branch":"main"}`, 409, `"code":"schema_mismatch"`},
				{"negative", `{}`, 403, `UNKNOWN_TOOL`}, // the pack is omitted, not run with other limits
				{"unknown-type", `{}`, 403, `UNKNOWN_TOOL`},
			} {
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd."+c.pack, "s-subprocess", c.args)
				if err != nil {
					t.Fatal(err)
				}
				if r.Status != c.status || !strings.Contains(string(r.Body), c.want) || strings.Contains(string(r.Body), "hunter2") {
					t.Errorf("%s %.60s: %d %s, want %d %s", c.pack, c.args, r.Status, r.Body, c.status, c.want)
				}
			}
			if out := cli(t, m, "pack", "list"); !strings.Contains(out, "cmd.my-tool") || !strings.Contains(out, "v3") || strings.Contains(out, "helmdeck") {
				t.Error(out)
			}
		})
	}
}
