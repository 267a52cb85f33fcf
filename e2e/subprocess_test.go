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
	write := func(name, body string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), mode); err != nil {
			t.Fatal(err)
		}
	}
	script := func(name, body string) { write(name, "#!/bin/busybox sh\n"+body, 0o755) }
	manifest := func(name, body string) { // with an executable bit, which does not make it a pack
		write(name+".helmdeck-pack.yaml", body, 0o755)
	}
	script("My_Tool.sh", `read -r line; printf '%s' "$line"; echo ignored >&2`)
	manifest("my-tool", "name: anything\nversion: v3\nauthor: someone\ndescription: Returns its input.\ninput_schema:\n  required: [text]\n  properties: {text: string, n: number, b: boolean, o: object, a: array}\noutput_schema:\n  required: [text]\n  properties: {text: string}\ntimeout_s: 5\nmax_output_bytes: 100\n")
	script("Plain_Name.py", `printf '{}'`)
	manifest("Plain_Name", "description: Has a manifest with the name of its file.\n")
	script("bare", `printf '\n {"ok":true}\n'`)
	script("environment", `printf '{"env":"'; export -p | while read -r line; do printf '%s ' "$line"; done; printf '"}'`)
	manifest("environment", "env: [GREETING=hello world]\n")
	script("defaults", `printf '{"env":"'; export -p | while read -r line; do printf '%s ' "$line"; done; printf '"}'`)
	manifest("defaults", "timeout_s: 0\nmax_output_bytes: 0\n")
	script("fails", `echo why it failed >&2; exit 7`)
	script("verbose", `i=0; while [ $i -lt 1000 ]; do echo 0123456789 >&2; i=$((i+1)); done; exit 3`)
	script("silent", ``)
	script("text", `echo not json`)
	script("cut", `printf '{"a":'`)
	script("list", `printf '[1]'`)
	script("wrong", `printf '{"n":"x"}'`)
	manifest("wrong", "output_schema:\n  properties: {n: number}\n")
	script("more", `printf '{"n":1,"more":2}'`)
	manifest("more", "output_schema:\n  properties: {n: number}\n")
	script("slow", `while :; do :; done & while :; do :; done`)
	manifest("slow", "timeout_s: 1\n")
	script("typed", `printf '{"_error":{"code":"schema_mismatch","message":"the branch moved","pointer":"/branch","hint":"fetch it again"}}'; exit 1`)
	write("absent", "#!/usr/bin/no-such-interpreter\n", 0o755)
	for name, body := range map[string]string{
		"negative": "timeout_s: -1\n", "negative-output": "max_output_bytes: -1\n", "unknown-type": "input_schema:\n  properties: {a: text}\n", "no-yaml": "a: [\n", "version": "version: one\n", "unknown-member": "timeout: 5\n",
	} {
		script(name, `:`)
		manifest(name, body)
	}
	script("twice", `:`)
	script("twice.sh", `:`)
	script("--", `:`)
	write("not-executable", "#!/bin/busybox sh\nprintf '{}'\n", 0o644)
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// subprocessRows are the rows of the reference's description of subprocess packs: how packs are
// discovered, the protocol, the members of a manifest, and the situations that it lists. A row is shown
// by calls of packs of subprocessPacks; want is a part of the response. Where the reference degrades
// silently (an output above the limit is cut, the last of two packs with one name wins), the mesh
// returns an error or omits both. TestChangedPacks shows that a pack is loaded, replaced and removed
// while the mesh runs, and TestCancelStops that a client that leaves ends its pack earlier than its
// timeout.
var subprocessRows = []struct {
	row        string
	pack, args string
	status     int
	want       string
}{
	{"discovery: a file with an executable bit is a pack", "bare", `{}`, 200, `"output":{"ok":true}`},
	{"discovery: a file without an executable bit is none", "not-executable", `{}`, 403, `UNKNOWN_TOOL`},
	{"discovery: a folder is none", "folder", `{}`, 403, `UNKNOWN_TOOL`},
	{"discovery: the name is made of the file's", "my-tool", `{"text":"fair"}`, 200, `"tool":"cmd.my-tool"`},
	{"discovery: a manifest is named after the pack", "my-tool", `{}`, 400, `"code":"invalid_input"`},
	{"discovery: a manifest is named after the file", "plain-name", `{}`, 200, `"output":{}`},
	{"discovery: a manifest with an executable bit is no pack", "my-toolhelmdeck-pack", `{}`, 403, `UNKNOWN_TOOL`},
	{"discovery: of two packs with one name, both are omitted", "twice", `{}`, 403, `UNKNOWN_TOOL`},
	{"protocol: stdin is the input", "my-tool", `{"text":"fair"}`, 200, `"output":{"text":"fair"}`},
	{"protocol: stdin is the input", "my-tool", `{"a":[1],"b":true,"n":1.5,"o":{"p":null},"text":"fair"}`, 200, `"output":{"a":[1],"b":true,"n":1.5,"o":{"p":null},"text":"fair"}`},
	{"protocol: stdout is one JSON value, and white space around it is ignored", "bare", `{}`, 200, `"output":{"ok":true}`},
	{"protocol: stderr is part of the error", "fails", `{}`, 502, `exit 7: why it failed`},
	{"protocol: stderr is cut", "verbose", `{}`, 502, `exit 3: 0123456789`},
	{"protocol: another exit code than 0 is a failure", "fails", `{}`, 502, `"code":"handler_failed"`},
	{"protocol: a typed error, which the reference has not", "typed", `{"branch":"main"}`, 409, `branch: the branch moved; hint: fetch it again`},
	{"protocol: a typed error, which the reference has not", "typed", `{"branch":"main"}`, 409, `"hint":"fetch it again"`},
	{"protocol: a typed error, which the reference has not", "typed", `{"branch":"main"}`, 409, `"code":"schema_mismatch"`},
	{"manifest: name does not rename the pack", "anything", `{}`, 403, `UNKNOWN_TOOL`},
	{"manifest: version is v1, v2, …", "version", `{}`, 403, `UNKNOWN_TOOL`},
	{"manifest: input_schema", "my-tool", `{"text":5}`, 400, `"pointer":"/args/text"`},
	{"manifest: output_schema", "wrong", `{}`, 502, `invalid_output`},
	{"manifest: output_schema permits members that it does not list", "more", `{}`, 200, `"output":{"more":2,"n":1}`},
	{"manifest: timeout_s", "slow", `{}`, 504, `"code":"timeout"`}, // although a process that it started has its output open
	{"manifest: timeout_s below 0", "negative", `{}`, 403, `UNKNOWN_TOOL`},
	{"manifest: max_output_bytes", "my-tool", `{"text":"` + strings.Repeat("x", 200) + `"}`, 502, `more than max_output_bytes (100)`},
	{"manifest: max_output_bytes below 0", "negative-output", `{}`, 403, `UNKNOWN_TOOL`},
	{"manifest: env", "environment", `{}`, 200, `"env":"export GREETING='hello world' export HOME='/work' export`},
	{"manifest: without env, nothing is inherited", "defaults", `{}`, 200, `"env":"export HOME='/work' export`},
	{"manifest: an unknown member", "unknown-member", `{}`, 403, `UNKNOWN_TOOL`},
	{"situation: no manifest", "bare", `{"any":{"thing":[1]}}`, 200, `"output":{"ok":true}`},
	{"situation: a manifest that is no YAML", "no-yaml", `{}`, 403, `UNKNOWN_TOOL`},
	{"situation: a manifest with an unknown type", "unknown-type", `{}`, 403, `UNKNOWN_TOOL`},
	{"situation: the program cannot be started", "absent", `{}`, 502, `no-such-interpreter`},
	{"situation: the deadline is exceeded", "slow", `{}`, 504, `stopped after 1000 ms`},
	{"situation: no output", "silent", `{}`, 502, `invalid_output`},
	{"situation: output that is no JSON", "text", `{}`, 502, `not one JSON document`},
	{"situation: truncated JSON", "cut", `{}`, 502, `invalid_output`},
	{"situation: output that is no object", "list", `{}`, 502, `invalid_output`},
	{"situation: output that violates the schema", "wrong", `{}`, 502, `/n`},
	{"situation: a required argument is missing", "my-tool", `{}`, 400, `"pointer":"/args/text"`},
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

// TestSubprocessPacks runs subprocessRows on one process and with one process per service. It checks
// that the log names each pack that is omitted, with the reason, and the pack whose manifest states
// another name, and that a mesh whose folder of packs does not exist starts.
func TestSubprocessPacks(t *testing.T) {
	if _, err := os.Stat("/bin/busybox"); err != nil {
		t.Fatal("install the Debian package busybox-static")
	}
	t.Setenv("SECRET_OF_THE_HOST", "hunter2")
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Packs: subprocessPacks(t)})
			for _, c := range subprocessRows {
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd."+c.pack, "s-subprocess", c.args)
				if err != nil {
					t.Fatal(err)
				}
				if body := string(r.Body); r.Status != c.status || !strings.Contains(body, c.want) || strings.Contains(body, "hunter2") || strings.Contains(body, "ignored") || len(body) > 8<<10 {
					t.Errorf("%s: %s %.60s: %d %s, want %d %s", c.row, c.pack, c.args, r.Status, r.Body, c.status, c.want)
				}
			}
			out := cli(t, m, "pack", "list")
			for _, want := range []string{"cmd.my-tool", "v3", "Returns its input.", "Runs bare."} {
				if !strings.Contains(out, want) {
					t.Errorf("the list of packs has no %q: %s", want, out)
				}
			}
			if strings.Contains(out, "helmdeck") {
				t.Error(out)
			}
			log := m.Log()
			for _, want := range []string{
				"timeout_s: want 0 to", "max_output_bytes: want 0 to", "property a: type", `version: \"one\" is not v1`, "no-yaml.helmdeck-pack.yaml", "field timeout not found",
				"pack name cmd.twice is used by", "no ASCII letter or digit", "states another name than the file",
			} {
				if !strings.Contains(log, want) {
					t.Errorf("the log has no %q", want)
				}
			}
		})
	}
	t.Run("no folder", func(t *testing.T) {
		m := harness.One(t, harness.Options{Packs: filepath.Join(t.TempDir(), "absent")})
		if out := cli(t, m, "pack", "list"); strings.Contains(out, "cmd.") || !strings.Contains(m.Log(), "packs directory") {
			t.Error(out)
		}
	})
}
