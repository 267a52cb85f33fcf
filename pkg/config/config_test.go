package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// write writes a configuration file to a temporary folder and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "binnacle.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pointers returns the JSON pointers of the fields of a type, below the pointer at.
func pointers(t reflect.Type, at string) (out []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		p := at + "/" + f.Tag.Get("json")
		if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[Secret]() && f.Type != reflect.TypeFor[Document]() {
			out = append(out, pointers(f.Type, p)...)
			continue
		}
		out = append(out, p)
	}
	return out
}

// TestSettingsAreTheFields shows that Settings and Config have the same
// members, each once, that each has a description and a kind with a check and
// a schema, and that every default is valid.
func TestSettingsAreTheFields(t *testing.T) {
	fields := map[string]bool{}
	for _, p := range pointers(reflect.TypeFor[Config](), "") {
		fields[p] = true
	}
	for i := range Settings {
		x := &Settings[i]
		if !fields[x.Pointer] {
			t.Errorf("%s is no field, or is described twice", x.Pointer)
		}
		delete(fields, x.Pointer)
		for _, program := range Programs() {
			if _, err := parse(x, x.standard(program), "default"); err != nil {
				t.Error(err)
			}
		}
		if x.About == "" || strings.HasSuffix(x.About, ".") || x.Kind.check == nil || x.Kind.schema == nil {
			t.Errorf("%s is not described", x.Pointer)
		}
	}
	for p := range fields {
		t.Errorf("field %s is not described", p)
	}
}

// TestPrecedence shows that a flag takes precedence over a variable, a variable over the
// file, and the file and the configuration folder over the default, and that each value
// has its origin. A flag without text leaves its member unset.
func TestPrecedence(t *testing.T) {
	file := write(t, "gateway:\n  capture: hashed\n  listen: 127.0.0.1:1\n")
	folder := t.TempDir()
	packs := filepath.Join(folder, "packs")
	if err := os.Mkdir(packs, 0o700); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	s := Source{Program: Up, Getenv: func(k string) string { return env[k] }, Flags: map[string]Flag{}}
	check := func(pointer, value, origin string) {
		t.Helper()
		l, err := Load(s)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(l.Values, func(v Value) bool { return v.Pointer == pointer })
		if i < 0 {
			t.Fatalf("%s has no value", pointer)
		}
		if v := l.Values[i]; v.Text() != value || v.Origin != origin {
			t.Errorf("%s is %q of %q, want %q of %q", pointer, v.Text(), v.Origin, value, origin)
		}
	}
	check("/gateway/capture", "plain", "default")
	check("/session-runner/packs", "", "default")
	s.Folder = folder
	check("/session-runner/packs", packs, "folder "+folder)
	s.File = file
	check("/gateway/capture", "hashed", "file "+file+":2")
	check("/gateway/listen", "127.0.0.1:1", "file "+file+":3")
	env["BINNACLE_CAPTURE"] = "off"
	check("/gateway/capture", "off", "variable BINNACLE_CAPTURE")
	s.Flags["/gateway/capture"] = Flag{Name: "--capture", Text: "encrypted"}
	check("/gateway/capture", "encrypted", "flag --capture")
	s.Flags["/gateway/capture"] = Flag{Name: "--capture"}
	check("/gateway/capture", "", "flag --capture")
	s.Flags["/policy/bundles"] = Flag{Name: "--policy", List: []string{"a", "b,c"}}
	check("/policy/bundles", `["a","b,c"]`, "flag --policy")
}

// TestValues shows that values of most kinds are decoded into their Go types, that
// relative paths are resolved against the file's folder, and that a program gets only
// the members that it reads.
func TestValues(t *testing.T) {
	file := write(t, `
reload: {interval: 1m30s}
nats: {max_store: 64MiB, mirror: true}
log:
gateway: {listen: ":0", tls: {cert: c.pem, key: /k.pem}}
policy: {bundles: [a.rego, /b.tar.gz]}
session-runner: {containerd: auto, packs: packs}
vault-broker: {kek: {file: kek}}
llm-router:
  document: {providers: [{name: x}]}
`)
	l, err := Load(Source{Program: Up, File: file})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(file)
	c := l.Config
	if time.Duration(c.Reload.Interval) != 90*time.Second || c.NATS.MaxStore != 64<<20 || !c.NATS.Mirror || c.Log.Level != "info" ||
		c.Gateway.Listen != ":0" || c.Gateway.TLS != (GatewayTLS{filepath.Join(dir, "c.pem"), "/k.pem", "", "off"}) || c.Policy.Bundles[0] != filepath.Join(dir, "a.rego") || c.Policy.Bundles[1] != "/b.tar.gz" ||
		c.SessionRunner.Containerd != "auto" || c.SessionRunner.Packs != filepath.Join(dir, "packs") || c.VaultBroker.KEK.File != filepath.Join(dir, "kek") ||
		string(c.LLMRouter.Document.Inline) != `{"providers":[{"name":"x"}]}` {
		t.Errorf("%+v", c)
	}
	if l, err = Load(Source{Program: "judge", File: file}); err != nil || l.Config.NATS.MaxStore != 0 || l.Config.NATS.URL == "" {
		t.Errorf("a service reads what is not its own, or not what is: %+v %v", l, err)
	}
}

// TestProblems shows that one error reports every invalid member of a file, with
// pointer, value and expected form where they are known, and that malformed YAML, an
// invalid flag and a missing file are errors.
func TestProblems(t *testing.T) {
	for text, want := range map[string][]string{
		"gatway: {}":                     {"1: /gatway: unknown member; known here are data, keys, tenant"},
		"gateway:\n  approvalWebhook: x": {"2: /gateway/approvalWebhook: unknown member; write approval_webhook"},
		"gateway: 3":                     {"1: /gateway: want an object with some of the members listen, address_file, tls"},
		"gateway:\n  capture: all\nlog:\n  level: loud\n": {`2: /gateway/capture: "all": want one of plain, encrypted, hashed, off`, `4: /log/level: "loud": want one of debug`},
		"reload: {interval: 30}":                          {`1: /reload/interval: "30": want a duration with a unit`},
		"reload: {interval: -3s}":                         {`1: /reload/interval: "-3s": want a duration with a unit`},
		"admin: {listen: 9464}":                           {`1: /admin/listen: "9464": want host:port`},
		"nats: {max_store: 1G}":                           {`1: /nats/max_store: "1G": want a size with a unit`},
		"nats: {replicas: 0}":                             {`/nats/replicas: "0": want a whole number above 0`},
		"nats: {mirror: 'yes'}":                           {`/nats/mirror: "yes": want true or false, without`},
		"gateway: {listen: 8080}":                         {`/gateway/listen: "8080": want host:port`},
		"gateway: {listen: 'a:99999'}":                    {`/gateway/listen: "a:99999": want host:port`},
		"gateway: {expect: [a, 3]}":                       {`/gateway/expect: "[\"a\",3]": want a list of texts`},
		"vault-broker: {kek: 00ff}":                       {"/vault-broker/kek: want {file: PATH} or {descriptor: NUMBER}"},
		"vault-broker: {kek: {file: a, variable: b}}":     {"/vault-broker/kek: want {file: PATH}"},
		"gateway: {approval_webhook: 'ftp://u:secret@x'}": {"/gateway/approval_webhook: want a URL that begins with https://"},
		"log: {level: info, level: warn}":                 {"/log/level: occurs twice"},
		"log: &a {level: info}":                           {"/log: anchors and aliases are not supported"},
		"tenant: !!binary aGk=":                           {"/tenant: tag !!binary is not supported"},
		"- a":                                             {"1: want an object"},
		"a: {":                                            {"line 1"},
		"log: {}\n---\nlog: {}":                           {"the file holds more than one document"},
		"1: {}":                                           {"names of members must be strings"},
		strings.Repeat("{a: ", 70) + "1" + strings.Repeat("}", 70): {"is nested deeper than 64"},
	} {
		_, err := Check(write(t, text))
		if err == nil {
			t.Errorf("%q is accepted", text)
			continue
		}
		found := Problems(err)
		if len(found) != len(want) {
			t.Errorf("%q: %d problems, want %d: %v", text, len(found), len(want), err)
			continue
		}
		for i, p := range found {
			if got := p.Error(); !strings.Contains(got, "binnacle.yaml:"+want[i]) && !strings.Contains(got, want[i]) || strings.Contains(got, "secret@") || strings.Contains(got, "00ff") {
				t.Errorf("%q: %q, want %q", text, got, want[i])
			}
		}
	}
	_, err := Load(Source{Program: Up, Flags: map[string]Flag{"/durability": {Name: "--durability", Text: "fast"}}})
	if err == nil || err.Error() != `/durability: "fast": want one of process, power, replicated (flag --durability)` {
		t.Error(err)
	}
	if _, err := Load(Source{Program: Up, File: "/no/such"}); err == nil {
		t.Error("a file that is not there is accepted")
	}
}

// TestSecretsAreNotShown shows that listings contain the path of a secret's file and not the
// secret, and neither the user nor the path and query of a private URL.
func TestSecretsAreNotShown(t *testing.T) {
	file := write(t, "gateway: {approval_webhook: 'https://user:hush@chat.example/hooks/hush?t=hush'}")
	l, err := Load(Source{Program: Up, File: file, Getenv: func(k string) string { return map[string]string{"BINNACLE_VAULT_KEK_FILE": "/run/kek"}[k] }})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, v := range l.Values {
		if strings.Contains(v.Text(), "hush") {
			t.Errorf("%s shows %s", v.Pointer, v.Text())
		}
		if v.Text() == "https://chat.example/…" || v.Text() == `{"file":"/run/kek"}` {
			seen++
		}
	}
	if seen != 2 || l.Config.Gateway.ApprovalWebhook != "https://user:hush@chat.example/hooks/hush?t=hush" {
		t.Errorf("%d %+v", seen, l.Values)
	}
	file = write(t, "nats: {url: 'nats://user:hush@a:4222,tls://hush@b'}\ntracing: {endpoint: 'https://user:hush@collector.example:4318'}")
	audit, err := Load(Source{Program: "audit", File: file})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range audit.Values {
		if want := map[string]string{"/nats/url": "nats://a:4222,tls://b", "/tracing/endpoint": "https://collector.example:4318"}[v.Pointer]; want != "" && (v.Text() != want || v.Shown() != want) {
			t.Errorf("%s shows %s, want %s", v.Pointer, v.Text(), want)
		}
	}
	if audit.Config.NATS.URL != "nats://user:hush@a:4222,tls://hush@b" {
		t.Error(audit.Config.NATS.URL)
	}
}

// TestSecretsAreNotInErrors shows that errors about a member that may hold a secret do
// not contain its value, whether it is from a variable, a flag or the file.
func TestSecretsAreNotInErrors(t *testing.T) {
	const bad = "chat.example/hooks/hush"
	variable := func(k string) string { return map[string]string{"BINNACLE_APPROVAL_WEBHOOK": bad}[k] }
	for name, s := range map[string]Source{
		"variable": {Program: Up, Getenv: variable},
		"service":  {Program: "gateway", Getenv: variable},
		"flag":     {Program: Up, Flags: map[string]Flag{"/gateway/approval_webhook": {Name: "--approval-webhook", Text: bad}}},
		"list":     {Program: Up, File: write(t, "gateway: {approval_webhook: ["+bad+"]}")},
		"file":     {Program: Up, File: write(t, "gateway: {approval_webhook: "+bad+"}")},
		"tagged":   {Program: Up, File: write(t, "gateway: {approval_webhook: !!bool "+bad+"}")},
		"nats":     {Program: "audit", File: write(t, "nats: {url: 'http://user:hush@h'}")},
		"tracing":  {Program: Up, File: write(t, "tracing: {endpoint: 'nats://user:hush@h'}")},
		"secret":   {Program: Up, Flags: map[string]Flag{"/vault-broker/kek": {Name: "--kek", Text: "hush"}}},
	} {
		_, err := Load(s)
		names := func(pointer string) bool { return err != nil && strings.Contains(err.Error(), pointer) }
		if err == nil || strings.Contains(err.Error(), "hush") || !slices.ContainsFunc([]string{"/gateway/approval_webhook", "/vault-broker/kek", "/nats/url", "/tracing/endpoint"}, names) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWithoutPath shows that only scheme, host and port of a private URL are listed.
func TestWithoutPath(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "hush": "…", "//": "…", "hush:x": "…", "https://h:1": "https://h:1", "https://h/": "https://h", "https://u:hush@h": "https://h", "HTTPS://h/hush": "https://h/…",
		"https://h?t=hush": "https://h/…", "https://h?t=a@hush": "https://h/…", "https://h#a@hush": "https://h/…", "https://h?t=a@hush/b": "https://h/…", "https://[::1]:8/hush": "https://[::1]:8/…",
		"nats://u:hush@a:1,tls://hush@b,nats://c:2": "nats://a:1,tls://b,nats://c:2", "https://u:1,hush@h": "https://h", "https://h/a,https://hush@h": "https://h/…",
	} {
		if got := withoutPath(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestDigest shows that values change a document's digest, that comments and
// the order of members do not, and that an empty file has the digest of an
// empty document.
func TestDigest(t *testing.T) {
	digest := func(text string) string {
		d, err := Check(write(t, text))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	a := digest("log: {level: info}\ntenant: a\n")
	if b := digest("# said otherwise\ntenant: a\nlog:\n  level: info\n"); a != b {
		t.Error(a, b)
	}
	if b := digest("log: {level: warn}\ntenant: a\n"); a == b {
		t.Error("a value does not count")
	}
	if digest("") != digest("{}") {
		t.Error("an empty file is not an empty document")
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{"0B": 0, "1kB": 1000, "1KiB": 1024, "3TiB": 3 << 40, "12MB": 12e6} {
		if got, err := ParseSize(text); got != want || err != nil {
			t.Errorf("%s: %d %v", text, got, err)
		}
	}
	for _, text := range []string{"", "12", "1K", "1mb", "-1B", "1.5GB", "9999999TiB", "GB", "1GBB", "+5GB", "-0B"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}

// TestSchemaIsPublished shows that the schema file in the repository equals Schema's
// result.
func TestSchemaIsPublished(t *testing.T) {
	want, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../schemas/config/binnacle.v1.json")
	if err != nil || string(got) != string(want) {
		t.Errorf("schemas/config/binnacle.v1.json is not what Schema makes; run make gen (%v)", err)
	}
	if !json.Valid(want) {
		t.Error("not JSON")
	}
}
