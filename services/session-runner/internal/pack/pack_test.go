package pack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
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
	packs, problems := Discover(dir, nil, "")
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

// TestStated checks that a pack has the name of its file, also if its manifest states another
// name, and that Stated is that name.
func TestStated(t *testing.T) {
	for stated, want := range map[string]string{"": "", "my-tool": "", "cmd.my-tool": "", "cmd.your-tool": "cmd.your-tool"} {
		dir := t.TempDir()
		write(t, dir, "my_tool.sh", "x", 0o755)
		write(t, dir, "my_tool.pack.yaml", "name: '"+stated+"'\n", 0o644)
		packs, problems := Discover(dir, nil, "")
		if len(packs) != 1 || len(problems) != 0 || packs[0].Tool.Tool != "cmd.my-tool" || packs[0].Stated != want {
			t.Errorf("%q: %+v %v", stated, packs, problems)
		}
	}
}

// TestFormatOfHelmdeck checks that an output may have members that a schema in the format of helmdeck
// does not list, unless the schema forbids them, and that other manifests have closed schemas.
func TestFormatOfHelmdeck(t *testing.T) {
	for _, c := range []struct {
		suffix, more string
		open         bool
	}{{".helmdeck-pack.yaml", "", true}, {".helmdeck-pack.yaml", ", additionalProperties: false", false}, {".pack.yaml", "", false}} {
		dir := t.TempDir()
		write(t, dir, "a", "x", 0o755)
		write(t, dir, "a"+c.suffix, "output_schema: {required: [n], properties: {n: number}"+c.more+"}\n", 0o644)
		packs, problems := Discover(dir, nil, "")
		if len(packs) != 1 || len(problems) != 0 {
			t.Fatal(packs, problems)
		}
		var checker toolschema.Checker
		if err := checker.Output("d", &packs[0].Tool, []byte(`{"n":1,"more":2}`)); (err == nil) != c.open || err != nil && !strings.HasSuffix(err.Error(), "at /more (no such member)") && !strings.HasSuffix(err.Error(), "additionalProperties)") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestEgress shows that the rules of a manifest are read, with terminate as the mode of a
// rule that names none, and that the error about an invalid host names the valid form.
func TestEgress(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "p", "x", 0o755)
	write(t, dir, "p.pack.yaml", "egress:\n- {host: a.example, methods: [GET], paths: [/v1/**], credential: {secret: k, header: Authorization, format: 'Bearer {}'}}\n- {host: b.example, port: 5432, mode: tcp}\n", 0o644)
	packs, problems := Discover(dir, nil, "")
	if len(problems) != 0 || len(packs) != 1 {
		t.Fatal(packs, problems)
	}
	want := []contract.EgressRule{{Host: "a.example", Mode: "terminate", Methods: []string{"GET"}, Paths: []string{"/v1/**"}, Credential: &contract.EgressCredential{Secret: "k", Header: "Authorization", Format: "Bearer {}"}},
		{Host: "b.example", Mode: "tcp", Port: 5432}}
	if got := packs[0].Tool.EgressRules; !slices.EqualFunc(got, want, func(a, b contract.EgressRule) bool { return netrule.Equal(&a, &b) }) {
		t.Errorf("%+v", got)
	}
	write(t, dir, "p.pack.yaml", "egress: [{host: A.example}]\n", 0o644)
	if _, problems := Discover(dir, nil, ""); len(problems) != 1 || !strings.Contains(problems[0].Error(), "egress[0].host") || !strings.Contains(problems[0].Error(), `"a.example"`) {
		t.Error(problems)
	}
}

// TestProblems checks that Discover returns an error for each pack with an invalid
// manifest or with two manifests and for packs with the same name, and that it omits the
// packs with an invalid manifest or the same name.
func TestProblems(t *testing.T) {
	for manifest, want := range map[string]string{
		"timeout_s: -1\n":                           "timeout_s: want 0 to 31536000",
		"timeout_s: 31536001\n":                     "timeout_s: want 0 to",
		"cpu_millis: 1000001\n":                     "cpu_millis: want 0 to",
		"memory_mib: 1073741825\n":                  "memory_mib: want 0 to",
		"disk_mib: 1073741825\n":                    "disk_mib: want 0 to",
		"pids: 1125899906842625\n":                  "pids: want 0 to",
		"max_output_bytes: 1125899906842625\n":      "max_output_bytes: want 0 to",
		"max_output_bytes: -1\n":                    "max_output_bytes: want 0 to",
		"version: 1.0\n":                            "version: ",
		"time_out: 5\n":                             "field time_out not found",
		"a: [\n":                                    "manifest p.pack.yaml: yaml",
		"input_schema: {properties: {a: text}}\n":   `input_schema: property a: type "text"`,
		"output_schema: {properties: {a: text}}\n":  `output_schema: property a: type "text"`,
		"env: [PATH]\n":                             "env: ",
		"env: [=x]\n":                               "env: ",
		"class: E9\n":                               "class: ",
		"reserve: {cents: -1}\n":                    "reserve: ",
		"reserve: {tokens: -1, cents: 1}\n":         "reserve: ",
		"tier: moon\n":                              "tier: ",
		"tier: wasi\n":                              "tier: \"wasi\" cannot run p",
		"secrets: [{name: 'a b'}]\n":                "secrets: name",
		"egress: [{host: 127.1}]\n":                 "egress[0].host: ",
		"egress: [{host: a.example, ports: [1]}]\n": "field ports not found",
		"egress: [{host: a.example, port: 1, mode: tcp, paths: [/]}]\n":                                        "egress[0].",
		"egress_hosts: [b.example, a.example]\negress: [{host: a.example, methods: [GET]}]\n":                  "egress[0].host: a.example is also in egress_hosts",
		"egress_hosts: ['a.example:8443']\negress: [{host: a.example, port: 8443, mode: passthrough}]\n":       "egress[0].host: a.example is also in egress_hosts",
		"egress: [{host: b.example}, {host: a.example, credential: {secret: 'a b', header: Authorization}}]\n": "egress[1].credential.secret: ",
		"secrets: [{name: k}]\negress: [{host: a.example, credential: {secret: k, header: Authorization}}]\n":  "egress[0].credential.secret: k is also in secrets",
	} {
		dir := t.TempDir()
		write(t, dir, "p", "x", 0o755)
		write(t, dir, "p.pack.yaml", manifest, 0o644)
		if packs, problems := Discover(dir, nil, ""); len(packs) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Error(), want) {
			t.Errorf("%s: %v %v, want %s", manifest, packs, problems, want)
		}
	}
	dir := t.TempDir()
	write(t, dir, "upper", "x", 0o755)
	write(t, dir, "upper.sh", "x", 0o755)
	if packs, problems := Discover(dir, nil, ""); len(packs) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Error(), "is used by") {
		t.Errorf("collision: %v %v", packs, problems)
	}
	write(t, dir, "one", "x", 0o755)
	write(t, dir, "one.pack.yaml", "version: v1\n", 0o644)
	write(t, dir, "one.helmdeck-pack.yaml", "version: v1\n", 0o644)
	if _, problems := Discover(dir, nil, ""); len(problems) != 2 {
		t.Errorf("two manifests: %v", problems)
	}
}

// TestNamed checks packs whose manifests name their program: they have the stated names
// and one sealed program, and the program itself is no pack. It also checks that a
// manifest is refused if its name, its program or another member is not valid.
func TestNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "tool", "x", 0o755)
	write(t, dir, "web.a.pack.yaml", "name: web.a\nprogram: tool\nenv: [A=1]\nexamples: [{about: x, input: {a: 1}}]\n", 0o644)
	write(t, dir, "b.pack.yaml", "name: web.b\nprogram: tool\n", 0o644)
	packs, problems := Discover(dir, nil, "")
	if len(packs) != 2 || len(problems) != 0 || packs[0].Tool.Tool != "web.a" || packs[1].Tool.Kind != "tool.web.b" || packs[0].Program != packs[1].Program || packs[0].Env[0] != "A=1" {
		t.Fatalf("%+v %v", packs, problems)
	}
	if _, err := packs[0].Program.Bytes(); err != nil {
		t.Error(err)
	}
	for manifest, want := range map[string]string{
		"program: tool\n":                                            "name: ",
		"name: cmd.tool\nprogram: tool\n":                            "is reserved",
		"name: image.gc\nprogram: tool\n":                            "is reserved",
		"name: Web.a\nprogram: tool\n":                               "name: ",
		"name: web\nprogram: tool\n":                                 "name: ",
		"name: web." + strings.Repeat("a", 61) + "\nprogram: tool\n": "at most 64 characters",
		"name: web.a\nprogram: ../tool\n":                            "program: ",
		"name: web.a\nprogram: other\n":                              "no such file",
		"name: web.a\nprogram: link\n":                               "link",
		"name: web.a\nprogram: tool\nrun: x\n":                       "field run not found",
		"program: [\n":                                               "manifest web.a.pack.yaml",
		"name: web.a\nprogram: tool\ntier: wasi\n":                   "tier: ",
		"name: web.a\nprogram: tool\ntimeout_s: -1\n":                "timeout_s: ",
		"name: web.a\nprogram: tool\nimage: none\n":                  "is not pinned",
		"name: web.a\nprogram: tool\negress: [{host: 127.1}]\n":      "egress[0].host",
		"name: web.a\nprogram: tool\nsecrets: [{name: 'a b'}]\n":     "secrets: name",
	} {
		dir := t.TempDir()
		write(t, dir, "tool", "x", 0o755)
		if err := os.Symlink("tool", filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "web.a.pack.yaml", manifest, 0o644)
		packs, problems := Discover(dir, nil, "")
		for _, p := range packs {
			if p.Tool.Tool != "cmd.tool" {
				t.Errorf("%s: %+v", manifest, p)
			}
		}
		if len(problems) != 1 || !strings.Contains(problems[0].Error(), want) {
			t.Errorf("%s: %v, want %s", manifest, problems, want)
		}
	}
	dir = t.TempDir()
	write(t, dir, "tool", "x", 0o755)
	write(t, dir, "a.pack.yaml", "name: web."+strings.Repeat("a", 60)+"\nprogram: tool\n", 0o644)
	if packs, problems := Discover(dir, nil, ""); len(packs) != 1 || len(problems) != 0 {
		t.Errorf("a name of 64 characters: %v %v", packs, problems)
	}
}

// TestName checks which characters of a file name are part of the name of a pack.
func TestName(t *testing.T) {
	for file, want := range map[string]string{
		"a.sh": "cmd.a", "z": "cmd.z", "A.py": "cmd.a", "Z": "cmd.z", "09": "cmd.09", "-a-b-": "cmd.a-b", "_a_b": "cmd.a-b", "a b.c.d": "cmd.abc",
		"a`{@[/:": "cmd.a", "é": "", "--": "", ".sh": "",
	} {
		if got := Name(file); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}

// TestMaxima checks that the maximum of each limit is permitted.
func TestMaxima(t *testing.T) {
	m := manifest{TimeoutS: maxTimeoutS, MaxOutputBytes: maxAmount, MemoryMiB: maxMemoryMiB, CPUMillis: maxCPUMillis, Pids: maxAmount, DiskMiB: maxMemoryMiB}
	want := m
	if err := m.fill("p", false); err != nil {
		t.Fatal(err)
	}
	if m.TimeoutS != want.TimeoutS || m.MaxOutputBytes != want.MaxOutputBytes || m.MemoryMiB != want.MemoryMiB || m.CPUMillis != want.CPUMillis || m.Pids != want.Pids || m.DiskMiB != want.DiskMiB {
		t.Errorf("%+v", m)
	}
}

// TestDocument checks the members of a tool document that come from a manifest, the
// defaults of the others, and the default tiers of programs without an image and of
// modules. Manifests of modules with egress or tier process, and a folder that does not
// exist, are problems.
func TestDocument(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a", "x", 0o755)
	write(t, dir, "a.pack.yaml", "class: E2\nlabels: [pii]\nrerunnable: true\negress_hosts: [a.example]\nsecrets: [{name: k, hosts: [a.example]}]\nreserve: {cents: 1, compute_ms: 2, egress_bytes: 3, tokens: 4}\ndisk_mib: 5\n", 0o644)
	write(t, dir, "b.wasm", "x", 0o644) // needs no permission to execute
	packs, problems := Discover(dir, nil, "")
	if len(packs) != 2 || len(problems) != 0 {
		t.Fatal(packs, problems)
	}
	a, b := packs[0].Tool, packs[1].Tool
	if a.Class != "E2" || a.Labels[0] != "pii" || !a.Rerunnable || a.Egress[0] != "a.example" || a.DiskMiB != 5 || *a.Reserve != (contract.Amounts{Cents: 1, ComputeMillis: 2, EgressBytes: 3, Tokens: 4}) ||
		len(a.Secrets) != 1 || a.Secrets[0].Name != "k" || a.Secrets[0].Hosts[0] != "a.example" || a.Sandbox.Tier != tierProcess {
		t.Errorf("%+v", a)
	}
	if b.Version != "v1" || b.Description != "Runs b." || b.Reserve != nil || b.DiskMiB != 0 || b.Sandbox.Tier != tierWASI || b.Sandbox.Pids != 64 || b.Sandbox.CPUMillis != 1000 || b.Sandbox.MemoryMiB != 256 {
		t.Errorf("%+v", b)
	}
	write(t, dir, "b.pack.yaml", "egress: [{host: a.example}]\n", 0o644)
	if _, problems := Discover(dir, nil, ""); len(problems) != 1 || !strings.Contains(problems[0].Error(), "tier wasi has no network") {
		t.Error(problems)
	}
	write(t, dir, "b.pack.yaml", "tier: process\n", 0o644)
	if _, problems := Discover(dir, nil, ""); len(problems) != 1 || !strings.Contains(problems[0].Error(), "cannot run b.wasm") {
		t.Error(problems)
	}
	if packs, problems := Discover(filepath.Join(dir, "none"), nil, ""); len(packs) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Error(), "packs directory") {
		t.Error(packs, problems)
	}
}

// TestSchema checks the schemas that the short forms in a manifest stand for, and that
// nesting is permitted up to the limit.
func TestSchema(t *testing.T) {
	nested := func(depth int) map[string]any { // has the given depth
		s := map[string]any{}
		for range depth - 1 {
			s = map[string]any{"not": s}
		}
		return s
	}
	for _, c := range []struct {
		in   map[string]any
		want string // the schema, or the beginning of the error
	}{
		{nil, `{"additionalProperties":true,"type":"object"}`},
		{map[string]any{}, `{"type":"object"}`},
		{map[string]any{"type": "array"}, `{"type":"array"}`},
		{map[string]any{"properties": map[string]any{"a": "object", "b": "integer", "c": map[string]any{"maximum": 1}}},
			`{"properties":{"a":{"additionalProperties":true,"type":"object"},"b":{"type":"integer"},"c":{"maximum":1}},"type":"object"}`},
		{map[string]any{"properties": map[string]any{"a": "null"}}, `property a: type "null"`},
		{nested(canon.MaxDepth - schemaRoom + 1), "nesting deeper than 112"},
		{map[string]any{"a": func() {}}, "json: unsupported type"},
	} {
		raw, err := jsonSchema(c.in)
		got := string(raw)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%v: %s, want %s", c.in, got, c.want)
		}
	}
	if _, err := jsonSchema(nested(canon.MaxDepth - schemaRoom)); err != nil {
		t.Error(err)
	}
}
