package pack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

func write(t *testing.T, dir, name, body string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(body), mode); err != nil {
		t.Fatal(err)
	}
}

func TestDiscover(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "Upper_Case.sh", "x", 0o755)
	write(t, dir, "upper-case.helmdeck-pack.yaml", "version: v3\ntimeout_s: 5\ninput_schema:\n  required: [text]\n  properties: {text: string}\n", 0o755) // a manifest is not a pack even if the file is executable
	write(t, dir, "plain", "x", 0o755)
	write(t, dir, "notexec", "x", 0o644)
	packs, problems := Discover(dir, nil)
	if len(packs) != 2 || len(problems) != 0 {
		t.Fatal(packs, problems)
	}
	if p := packs[1].Tool; p.Tool != "cmd.upper-case" || p.Version != "v3" || p.Sandbox.WallMS != 5000 ||
		string(p.InputSchema) != `{"properties":{"text":{"type":"string"}},"required":["text"],"type":"object"}` {
		t.Fatalf("%+v %s", p, p.InputSchema)
	}
	if p := packs[0].Tool; string(p.InputSchema) != `{"additionalProperties":true,"type":"object"}` || p.Sandbox.WallMS != 60000 || p.Sandbox.OutputBytes != 16<<20 {
		t.Fatalf("%+v", p)
	}
}

// TestEgress shows that the rules of a manifest are read, with terminate as the mode of a
// rule that names none, and that the error about an invalid host names the valid form.
func TestEgress(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "p", "x", 0o755)
	write(t, dir, "p.pack.yaml", "egress:\n- {host: a.example, methods: [GET], paths: [/v1/**], credential: {secret: k, header: Authorization, format: 'Bearer {}'}}\n- {host: b.example, port: 5432, mode: tcp}\n", 0o644)
	packs, problems := Discover(dir, nil)
	if len(problems) != 0 || len(packs) != 1 {
		t.Fatal(packs, problems)
	}
	want := []contract.EgressRule{{Host: "a.example", Mode: "terminate", Methods: []string{"GET"}, Paths: []string{"/v1/**"}, Credential: &contract.EgressCredential{Secret: "k", Header: "Authorization", Format: "Bearer {}"}},
		{Host: "b.example", Mode: "tcp", Port: 5432}}
	if got := packs[0].Tool.EgressRules; !slices.EqualFunc(got, want, func(a, b contract.EgressRule) bool { return netrule.Equal(&a, &b) }) {
		t.Errorf("%+v", got)
	}
	write(t, dir, "p.pack.yaml", "egress: [{host: A.example}]\n", 0o644)
	if _, problems := Discover(dir, nil); len(problems) != 1 || !strings.Contains(problems[0].Error(), "egress[0].host") || !strings.Contains(problems[0].Error(), `"a.example"`) {
		t.Error(problems)
	}
}

// TestProblems checks that Discover returns an error for each pack with an invalid
// manifest or with two manifests and for packs with the same name, and that it omits the
// packs with an invalid manifest or the same name.
func TestProblems(t *testing.T) {
	for name, manifest := range map[string]string{
		"negative":                             "timeout_s: -1\n",
		"an endless time":                      "timeout_s: 18446744073\n",
		"version":                              "version: 1.0\n",
		"unknown field":                        "time_out: 5\n",
		"bad yaml":                             "a: [\n",
		"bad type":                             "input_schema: {properties: {a: text}}\n",
		"bad env":                              "env: [PATH]\n",
		"bad class":                            "class: E9\n",
		"bad reserve":                          "reserve: {cents: -1}\n",
		"bad tier":                             "tier: moon\n",
		"bad secret":                           "secrets: [{name: 'a b'}]\n",
		"egress of no host":                    "egress: [{host: 127.1}]\n",
		"a host and port in both lists":        "egress_hosts: [b.example, a.example]\negress: [{host: a.example, methods: [GET]}]\n",
		"a host and port in both, in full":     "egress_hosts: ['a.example:8443']\negress: [{host: a.example, port: 8443, mode: passthrough}]\n",
		"egress by ports":                      "egress: [{host: a.example, ports: [1]}]\n",
		"tcp by path":                          "egress: [{host: a.example, port: 1, mode: tcp, paths: [/]}]\n",
		"bad credential":                       "egress: [{host: a.example, credential: {secret: 'a b', header: Authorization}}]\n",
		"credential that the program receives": "secrets: [{name: k}]\negress: [{host: a.example, credential: {secret: k, header: Authorization}}]\n",
	} {
		dir := t.TempDir()
		write(t, dir, "p", "x", 0o755)
		write(t, dir, "p.pack.yaml", manifest, 0o644)
		if packs, problems := Discover(dir, nil); len(packs) != 0 || len(problems) != 1 {
			t.Errorf("%s: %v %v", name, packs, problems)
		}
	}
	dir := t.TempDir()
	write(t, dir, "upper", "x", 0o755)
	write(t, dir, "upper.sh", "x", 0o755)
	if packs, problems := Discover(dir, nil); len(packs) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Error(), "is used by") {
		t.Errorf("collision: %v %v", packs, problems)
	}
	write(t, dir, "one", "x", 0o755)
	write(t, dir, "one.pack.yaml", "version: v1\n", 0o644)
	write(t, dir, "one.helmdeck-pack.yaml", "version: v1\n", 0o644)
	if _, problems := Discover(dir, nil); len(problems) != 2 {
		t.Errorf("two manifests: %v", problems)
	}
}

// TestNamed checks packs whose manifests name their program: they have the stated names
// and one sealed program, and the program itself is no pack. It checks also that the
// manifest is refused if the name or the program is not possible.
func TestNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "tool", "x", 0o755)
	write(t, dir, "web.a.pack.yaml", "name: web.a\nprogram: tool\nenv: [A=1]\nexamples: [{about: x, input: {a: 1}}]\n", 0o644)
	write(t, dir, "b.pack.yaml", "name: web.b\nprogram: tool\n", 0o644)
	packs, problems := Discover(dir, nil)
	if len(packs) != 2 || len(problems) != 0 || packs[0].Tool.Tool != "web.a" || packs[1].Tool.Kind != "tool.web.b" || packs[0].Program != packs[1].Program || packs[0].Env[0] != "A=1" {
		t.Fatalf("%+v %v", packs, problems)
	}
	if _, err := packs[0].Program.Bytes(); err != nil {
		t.Error(err)
	}
	for name, manifest := range map[string]string{
		"no name":          "program: tool\n",
		"reserved":         "name: cmd.tool\nprogram: tool\n",
		"reserved tool":    "name: image.gc\nprogram: tool\n",
		"upper case":       "name: Web.a\nprogram: tool\n",
		"one part":         "name: web\nprogram: tool\n",
		"another folder":   "name: web.a\nprogram: ../tool\n",
		"absent":           "name: web.a\nprogram: other\n",
		"a link":           "name: web.a\nprogram: link\n",
		"unknown member":   "name: web.a\nprogram: tool\nrun: x\n",
		"unreadable":       "program: [\n",
		"the tier of wasm": "name: web.a\nprogram: tool\ntier: wasi\n",
	} {
		dir := t.TempDir()
		write(t, dir, "tool", "x", 0o755)
		if err := os.Symlink("tool", filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "web.a.pack.yaml", manifest, 0o644)
		packs, problems := Discover(dir, nil)
		for _, p := range packs {
			if p.Tool.Tool != "cmd.tool" {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if len(problems) != 1 {
			t.Errorf("%s: %v", name, problems)
		}
	}
}
