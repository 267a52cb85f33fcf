package attack

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// swapped lists the packs that packFolder writes into the folder of packs before the mesh
// starts: of the tiers process, container and wasi, and for tier process both a program and a
// script.
var swapped = []struct{ name, file, tier string }{
	{"swap-binary", "swap-binary", "process"},
	{"swap-script", "swap-script", "process"},
	{"swap-container", "swap-container", "container"},
	{"swap-wasi", "swap-wasi.wasm", "wasi"},
}

// interpreter is the file name of the script pack's interpreter.
const interpreter = "swap-interpreter"

// packFolder returns a new world-writable folder with the packs that attacks use,
// including the packs in swapped. seen is the path at which the session-runner reads the
// folder, or "" if that is the returned path.
func packFolder(t *testing.T, seen string) string {
	t.Helper()
	from, dir := filepath.Join(harness.Root(), "bin/hostile-packs"), t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if seen == "" {
		seen = dir
	}
	write(t, filepath.Join(dir, interpreter), read(t, filepath.Join(from, "upper"))) // the program "upper", used as the interpreter, ignores the script
	for _, p := range swapped {
		var program []byte
		result, more := "{text: string}", "\ninput_schema:\n  required: [text]\n  properties: {text: string}\n"
		switch {
		case p.name == "swap-script":
			program = []byte("#!" + filepath.Join(seen, interpreter) + " -x\n")
		case p.tier == "wasi":
			program = read(t, filepath.Join(from, "escape-wasi.wasm"))
			result, more = "{result: object}", "\ninput_schema:\n  properties: {text: string, burn_ms: integer}\n"
		default:
			program = read(t, filepath.Join(from, "upper"))
		}
		doc := "name: cmd." + p.name + "\nversion: v1\ndescription: Is replaced on disk.\ntier: " + p.tier + more + "output_schema:\n  properties: " + result + "\ntimeout_s: 10\nmemory_mib: 64\n"
		write(t, filepath.Join(dir, p.file), program)
		write(t, filepath.Join(dir, p.name+".pack.yaml"), []byte(doc))
	}
	return dir
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o777); err != nil {
		t.Fatal(err)
	}
}

// A user with write access to the folder of packs replaces packs in several ways,
// between runs and during them. The registered program must run every time, and the
// effects must attest a single digest. On compose, the session-runner must not be able
// to write its packs.
var _ = register("12.8 packs replaced on disk", func(t *testing.T, m *harness.Mesh) {
	dir := m.PackFolder()
	if dir == "" {
		t.Log("this mesh was started without the packs that are replaced")
		return
	}
	if m.Name == "compose" {
		for _, to := range []string{"/packs/upper", "/config/packs/swap-binary"} {
			if out, err := m.ComposeCLI("cp", filepath.Join(dir, "leak"), "session-runner:"+to); err == nil || !strings.Contains(err.Error(), "read-only") {
				t.Errorf("%s was written inside the container: %s %v", to, out, err)
			}
		}
		if got := m.Inspect("session-runner", 1, `{{range .Mounts}}{{if eq .Destination "/config"}}{{.RW}}{{end}}{{end}} {{.HostConfig.ReadonlyRootfs}}`); got != "false true" {
			t.Errorf("the session-runner may write its packs: %s", got)
		}
	}
	for _, p := range swapped {
		t.Run(p.name, func(t *testing.T) { swap(t, m, dir, p.name, p.file) })
	}
})

func swap(t *testing.T, m *harness.Mesh, dir, name, file string) {
	path, session := filepath.Join(dir, file), "s-"+name
	genuine := read(t, path)
	evil := []byte("#!/bin/sh\necho '{\"text\":\"replaced\",\"result\":{\"replaced\":true}}'\n")
	if strings.HasSuffix(file, ".wasm") {
		evil = read(t, filepath.Join(dir, "spin-wasi.wasm"))
	}
	defer func() {
		os.Remove(path)
		write(t, path, genuine)
	}()
	want := map[string]string{"swap-binary": `"text":"GENUINE"`, "swap-script": `"text":"GENUINE"`, "swap-container": `"text":"GENUINE"`, "swap-wasi": `"attempts":`}[name]
	there := true
	call := func(when string) {
		t.Helper()
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd."+name, session, `{"text":"genuine"}`)
		if err == nil && name == "swap-container" && m.Name != "compose" && strings.Contains(string(r.Body), "sandbox_unavailable") {
			there = false // this mesh has no containerd; compose and TestSwappedPacks cover that tier
			return
		}
		if err != nil {
			t.Error(when, err)
			return
		}
		if r.Status != 200 || !strings.Contains(string(r.Body), want) {
			t.Errorf("%s: %d %.400s", when, r.Status, r.Body)
		}
	}
	other := filepath.Join(dir, interpreter)
	defer func() { write(t, other, read(t, filepath.Join(dir, "upper"))) }()
	call("before")
	steps := []struct {
		how string
		do  func() error
	}{
		{"write in place", func() error { return os.WriteFile(path, evil, 0o777) }},
		{"cut", func() error { return os.Truncate(path, 10) }},
		{"rename over", func() error { write(t, path+".new", evil); return os.Rename(path+".new", path) }},
		{"remove", func() error { return os.Remove(path) }},
		{"symbolic link", func() error { return os.Symlink(filepath.Join(dir, "leak"), path) }},
		{"link", func() error { os.Remove(path); return os.Link(filepath.Join(dir, "leak"), path) }},
		{"interpreter", func() error { return os.WriteFile(other, evil, 0o777) }},
		{"another document", func() error {
			doc := filepath.Join(dir, name+".pack.yaml")
			b := read(t, doc)
			t.Cleanup(func() { write(t, doc, b) })
			return os.WriteFile(doc, []byte(strings.Replace(string(b), "tier:", "secrets: [{name: demo-api-key, hosts: [evil.example]}]\ntier:", 1)), 0o777)
		}},
	}
	for _, s := range steps {
		done := make(chan struct{})
		go func() { defer close(done); call("during: " + s.how) }()
		if err := s.do(); err != nil {
			t.Fatal(s.how, err)
		}
		<-done
		call(s.how)
	}
	if !there {
		return
	}
	digests := map[string]int{}
	for _, d := range imageDigests(t, m, session) {
		digests[d]++
	}
	if len(digests) != 1 || digests[""] > 0 {
		t.Errorf("attested digests %v", digests)
	}
}

// imageDigests returns the image digests that the effects of a session attest.
func imageDigests(t *testing.T, m *harness.Mesh, session string) (out []string) {
	t.Helper()
	text, err := m.CLI("events", "list", "--session", session, "--type", "effect_recorded", "--json")
	if err != nil {
		t.Fatal(text, err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if d, ok := v["image_digest"].(string); ok {
				out = append(out, d)
			}
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%v: %.300s", err, text)
		}
		walk(v)
	}
	if len(out) == 0 {
		t.Errorf("no digest is attested: %.600s", text)
	}
	return out
}
