package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// write writes files to a folder, by name and content.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		f := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOfflinePolicy checks that policies can be checked, tested, compared and built
// without a mesh, that invalid policies and arguments are errors, and that a built
// bundle has mode 0600.
func TestOfflinePolicy(t *testing.T) {
	alone(t)
	dir := t.TempDir()
	rule := func(kind, verdict string) string {
		return "package binnacle.p1\n\nimport rego.v1\n\nanswer := {\"verdict\": \"" + verdict + "\", \"reason_code\": \"" + map[string]string{"DENY": "DENY_X", "ALLOW": "RULE_X"}[verdict] + "\"} if input.kind == \"" + kind + "\"\n"
	}
	check := func(verdict string) string {
		return "package binnacle.p1\n\nimport rego.v1\n\ntest_x if answer.verdict == \"" + verdict + "\" with input as {\"kind\": \"tool.noop\"}\n"
	}
	write(t, dir, map[string]string{
		"good/p.rego": rule("tool.noop", "DENY"), "good/p_test.rego": check("DENY"),
		"wrong/p.rego": rule("tool.noop", "DENY"), "wrong/p_test.rego": check("ALLOW"),
		"other/p.rego": rule("tool.spin", "DENY"), "unknown/p.rego": rule("nowhere.x", "ALLOW"),
		"broken/p.rego": "package", "overlay.json": `{"id":"o","scope":"agent","subject":"a","rules":[{"kinds":["tool.rm*"],"verdict":"DENY","reason_code":"DENY_X"}]}`,
		"surplus.json": `{"id":"o","surplus":1}`,
	})
	for _, x := range []struct {
		line        string
		code        int
		out, errOut string
	}{
		{"policy validate good", exitOK, `consistent\n$`, ""},
		{"policy validate good overlay.json", exitOK, `consistent\n$`, ""},
		{"policy validate unknown", exitFailed, `nowhere`, "the stack is not consistent"},
		{"policy validate broken", exitFailed, `^$`, "rego_parse_error"},
		{"policy validate surplus.json", exitFailed, `^$`, "expected member"},
		{"policy validate nosuch", exitFailed, `^$`, "nosuch"},
		{"policy test good", exitOK, `^ok   .*p_test.rego.* test_x`, ""},
		{"policy test wrong", exitFailed, `^FAIL .* test_x`, "1 of 1 tests failed"},
		{"policy test other", exitFailed, `^$`, "contains no test_… rule"},
		{"policy diff good other", exitOK, `(?m)^- .*tool.noop(.|\n)*^\+ .*tool.spin`, ""},
		{"policy diff good good", exitOK, `^$`, ""},
		{"policy diff good other --json", exitOK, `^\{"added":\[.*tool.spin.*\],"removed":\[.*tool.noop.*\]\}\n$`, ""},
		{"policy build good", exitUsage, `^$`, "policy build requires --out"},
		{"policy build good --out b.tar.gz", exitOK, `^wrote b.tar.gz\nsha256:[0-9a-f]{64}\n$`, ""},
		{"policy validate b.tar.gz", exitOK, `consistent`, ""},
		{"policy build good --out b.tar.gz --sign nosuch", exitFailed, `^$`, "nosuch"},
		{"policy build broken --out c.tar.gz", exitFailed, `^$`, "rego_parse_error"},
		{"policy set-limits overlay.json", exitUsage, `^$`, `want {"limits"`},
		{"policy activate", exitUsage, `^$`, "requires a PATH, --url or --object"},
	} {
		t.Run(x.line, func(t *testing.T) {
			t.Chdir(dir)
			code, out, errOut := invoke(t, strings.Fields(x.line)...)
			if code != x.code || !regexp.MustCompile(x.out).MatchString(out) || !strings.Contains(errOut, x.errOut) {
				t.Errorf("%d, want %d\n%s%s", code, x.code, out, errOut)
			}
		})
	}
	if i, err := os.Stat(filepath.Join(dir, "b.tar.gz")); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", i, err)
	}
}

// TestOfflineKeys checks that, without a mesh, tokens can be made, keys can be made,
// added, rotated, revoked and distributed, and operators can be added, removed and
// listed; that no command prints a seed of the ring; and that invalid arguments of these
// and other commands result in the expected errors.
func TestOfflineKeys(t *testing.T) {
	alone(t)
	data, to := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(to, "policy"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, data, map[string]string{"seed": strings.Repeat("01", 32), "short": "01", "ceilings.json": "{}", "wrong.json": `{"surplus":1}`})
	var kid string
	for _, x := range []struct {
		line        string
		code        int
		out, errOut string
	}{
		{"trust rotate policy", exitFailed, `^$`, ""}, // the folder has no key ring yet
		{"token create --actor a --scope tools:call", exitFailed, `^$`, "tokens are minted where the mesh's keys are"},
		{"init", exitOK, `^keys are in .*/keys\nroot k-[0-9a-f]{32}\n$`, ""},
		{"init --json", exitOK, `^\{"data":".*","root":"k-[0-9a-f]{32}"\}\n$`, ""},
		{"trust init", exitOK, `^keys are in`, ""},
		{"token create --actor a --scope tools:call", exitOK, `^\S{100,}\n$`, ""},
		{"token create --actor a --scope tools:call --json", exitOK, `^\{"id":"[A-Z2-7]{26}","token":".*"\}`, ""},
		{"token create --actor a", exitUsage, `^$`, "at least one --scope"},
		{"token create --actor a --scope nosuch", exitUsage, `^$`, "nosuch"},
		{"token admin", exitOK, `^\S{100,}\n$`, ""},
		{"trust add approval carol", exitOK, `^k-[0-9a-f]{32}\n$`, ""},
		{"trust add witness w1 --public nonsense", exitUsage, `^$`, ""},
		{"trust add nosuch x", exitFailed, `^$`, "nosuch"},
		{"trust public DATA/seed", exitOK, `^[A-Za-z0-9+/]{43}=\n$`, ""},
		{"trust public DATA/short", exitFailed, `^$`, ""},
		{"trust rotate policy", exitOK, `^k-[0-9a-f]{32}\n$`, ""},
		{"trust rotate nosuch", exitFailed, `^$`, "nosuch"},
		{"trust revoke KID", exitOK, `^k-[0-9a-f]{32}\n$`, ""},
		{"trust revoke k-nosuch", exitFailed, `^$`, "k-nosuch"},
		{"trust sign DATA/ceilings.json", exitOK, `^signed .*p0.json\nsha256:`, ""},
		{"trust sign DATA/wrong.json", exitUsage, `^$`, "surplus"},
		{"trust rotate root", exitOK, `^k-[0-9a-f]{32}\n$`, ""},
		{"init --tenant ignored", exitOK, `^keys are in`, ""},
		{"init --tenant _x --data OTHER", exitUsage, `^$`, `--tenant: tenant "_x": want a name`},
		{"token operator", exitOK, `^\S{100,}\n$`, ""},
		{"token create --actor a --scope tools:call --tenant a.b", exitUsage, `^$`, "--tenant"},
		{"trust add approval carol --tenant acme_shop_prod", exitOK, `^k-[0-9a-f]{32}\n$`, ""},
		{"trust add witness w2 --tenant acme_shop_prod", exitFailed, `^$`, "belongs to the whole mesh"},
		{"trust cell", exitOK, `^the cell of log _cell is signed; its original tenant is default\n`, ""},
		{"trust operator add ann --for 8h", exitOK, `^ann operator until \d{4}-`, ""},
		{"trust operator add ann --for -8h", exitUsage, `^$`, "--for"},
		{"trust operator add bob --json", exitOK, `^\{"issued":".*","principal":"bob","sig":"`, ""},
		{"trust operator remove bob", exitOK, `^bob withdrawn\n$`, ""},
		{"trust operator remove bob", exitFailed, `^$`, `"bob" is not an operator`},
		{"trust operator list", exitOK, `^ann +\S+ +operator until \S+\nbob +\S+ +withdrawn\noperator +\S+ +operator\n$`, ""},
		{"tenant create acme/shop", exitUsage, `^$`, "ORGANIZATION/PROJECT/ENVIRONMENT"},
		{"tenant create acme/shop/prod", exitUsage, `^$`, "--admin"},
		{"tenant create acme/Shop/prod --admin a", exitUsage, `^$`, `project "Shop"`},
		{"tenant quota acme_shop_prod", exitUsage, `^$`, "at least one of --quota-artifact-bytes"},
		{"tenant export a --mint-token --token x", exitUsage, `^$`, "contradict"},
		{"provision --print-config --nats-listen 127.0.0.1:1", exitOK, `127.0.0.1:1`, ""},
		{"verify DATA/nosuch.tar --root DATA/nosuch", exitUsage, `^$`, "no trusted root"},
		{"verify DATA/nosuch.tar", exitFailed, `^$`, "no such file"},
		{"verify DATA/seed", exitFailed, `^$`, "FAILED"},
		{"verify DATA/seed --witnesses DATA/seed", exitUsage, `^$`, "--witnesses"},
		{"verify DATA/seed --kept DATA/nosuch", exitUsage, `^$`, "--kept"},
		{"witness --name w", exitUsage, `^$`, "requires --name, --key and --state"},
		{"recover --reason x --nats=", exitFailed, `^$`, "does not exist: audit misses nothing"},
		{"recover", exitUsage, `^$`, "requires --reason"},
		{"backup", exitUsage, `^$`, "backup requires --out"},
		{"restore", exitUsage, `^$`, "restore requires --in"},
		{"archive", exitUsage, `^$`, "archive requires --to"},
		{"archive --to x --mirror nats://x --witnessed 1", exitUsage, `^$`, "--witnessed is for the mesh"},
	} {
		line := strings.NewReplacer("DATA", data, "KID", kid, "OTHER", t.TempDir()).Replace(x.line)
		args := strings.Fields(line)
		if !strings.Contains(line, "--data") {
			args = append(args, "--data", data)
		}
		code, out, errOut := invoke(t, args...)
		if code != x.code || !regexp.MustCompile(x.out).MatchString(out) || !strings.Contains(errOut, x.errOut) {
			t.Errorf("%s: %d, want %d\n%s%s", x.line, code, x.code, out, errOut)
		}
		if x.line == "trust add approval carol" {
			kid = strings.TrimSpace(out)
		}
		seeds, err := filepath.Glob(filepath.Join(data, "keys", "*.seed"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range seeds {
			if b, err := os.ReadFile(f); err != nil || len(b) > 30 && strings.Contains(out+errOut, strings.TrimSpace(string(b))) {
				t.Errorf("%s prints %s (%v)", x.line, f, err)
			}
		}
	}
	if code, _, errOut := invoke(t, "trust", "rotate", "audit", "--data", data, "--distribute", to); code != exitOK {
		t.Error(errOut)
	}
	if files, err := os.ReadDir(filepath.Join(to, "policy")); err != nil || len(files) == 0 {
		t.Errorf("policy received nothing (%v)", err)
	}
}

// TestMeshConfig checks that the flags of up, their variables and the configuration
// file, in this order of precedence, set the configuration of a mesh, and that invalid
// values and missing files are errors.
func TestMeshConfig(t *testing.T) {
	alone(t)
	for _, name := range []string{"PACKS", "CONTAINERD", "LLM", "CAPTURE", "DURABILITY", "TLS_CERT", "TLS_KEY", "NATS_TLS_CERT", "NATS_TLS_KEY", "MIRROR", "APPROVAL_WEBHOOK", "APPROVAL_PAGE", "JOB_WEBHOOK", "VAULT_KEK", "VAULT_KEK_FILE", "CONFIG_FILE", "NOOP", "POLICY", "LOG"} {
		t.Setenv("BINNACLE_"+name, "")
	}
	llm := filepath.Join(t.TempDir(), "llm.json")
	write(t, filepath.Dir(llm), map[string]string{"llm.json": `{"surplus":1}`, "kek": strings.Repeat("00", 32) + "\n", "mesh.yaml": "data: /f\ngateway: {capture: hashed}\nnats: {max_store: 64MiB}\n"})
	file := filepath.Join(filepath.Dir(llm), "mesh.yaml")
	base := mesh.Config{Dir: "data", Addr: "127.0.0.1:8080", Capture: "plain", MaxStore: 1e12, ClientCerts: "off", ACME: config.ACME{Directory: "https://acme-v02.api.letsencrypt.org/directory", Challenge: "tls-alpn-01", HTTPListen: "0.0.0.0:80"}, ArtifactQuota: 1e11, Warm: 4, EgressHosts: []string{"*"}, OIDC: config.OIDC{Scopes: []string{"openid"}, Groups: "groups"}, Sandboxes: sessionrunner.HeldConfig{Max: 8, PerTenant: 4}}
	with := func(change func(*mesh.Config)) mesh.Config { c := base; change(&c); return c }
	base.Runs, base.Queue = 16, 256
	for _, x := range []struct {
		line, env string
		want      mesh.Config
		fails     string
	}{
		{"", "", base, ""},
		{"--addr a:1 --data d", "BINNACLE_ADDR=b:2 BINNACLE_DATA=e", with(func(c *mesh.Config) { c.Addr, c.Dir = "a:1", "d" }), ""},
		{"", "BINNACLE_ADDR=b:2 BINNACLE_DATA=e", with(func(c *mesh.Config) { c.Addr, c.Dir = "b:2", "e" }), ""},
		{"--packs p --containerd s --capture off --nats-listen n:1 --approval-webhook http://w --job-webhook http://j --noop", "BINNACLE_PACKS=q BINNACLE_APPROVAL_WEBHOOK=http://v", with(func(c *mesh.Config) {
			c.Packs, c.Containerd, c.Capture, c.NATSListen, c.Webhook, c.JobWebhook, c.Noop = "p", "s", "off", "n:1", "http://w", "http://j", true
		}), ""},
		{"", "BINNACLE_PACKS=q BINNACLE_CAPTURE=hashed BINNACLE_APPROVAL_WEBHOOK=http://v BINNACLE_CONTAINERD=s", with(func(c *mesh.Config) {
			c.Packs, c.Capture, c.Webhook, c.Containerd = "q", "hashed", "http://v", "s"
		}), ""},
		{"--tls-cert a --tls-key b --nats-tls-cert c --nats-tls-key d", "", with(func(c *mesh.Config) { c.TLSCert, c.TLSKey, c.NATSCert, c.NATSKey = "a", "b", "c", "d" }), ""},
		{"", "BINNACLE_TLS_CERT=a BINNACLE_TLS_KEY=b BINNACLE_NATS_TLS_CERT=c BINNACLE_NATS_TLS_KEY=d", with(func(c *mesh.Config) { c.TLSCert, c.TLSKey, c.NATSCert, c.NATSKey = "a", "b", "c", "d" }), ""},
		{"--power --mirror", "", with(func(c *mesh.Config) { c.Power, c.Mirror = true, true }), ""},
		{"", "BINNACLE_DURABILITY=power BINNACLE_MIRROR=1", with(func(c *mesh.Config) { c.Power, c.Mirror = true, true }), ""},
		{"--power=false --mirror=false", "BINNACLE_DURABILITY=power BINNACLE_MIRROR=1", base, ""},
		{"", "BINNACLE_DURABILITY=process", base, ""},
		{"--policy a --policy b,c", "", with(func(c *mesh.Config) { c.Policies = []string{"a", "b,c"} }), ""},
		{"", "BINNACLE_VAULT_KEK_FILE=" + filepath.Join(filepath.Dir(llm), "kek"), with(func(c *mesh.Config) { c.VaultKEK = make([]byte, 32) }), ""},
		{"", "BINNACLE_VAULT_KEK_FILE=" + llm, base, llm},
		{"", "BINNACLE_VAULT_KEK=" + strings.Repeat("00", 32), base, "BINNACLE_VAULT_KEK is now BINNACLE_VAULT_KEK_FILE"},
		{"--config " + file, "", with(func(c *mesh.Config) { c.Dir, c.Capture, c.MaxStore = "/f", "hashed", 64<<20 }), ""},
		{"--data g --capture off", "BINNACLE_CONFIG_FILE=" + file, with(func(c *mesh.Config) { c.Dir, c.Capture, c.MaxStore = "g", "off", 64<<20 }), ""},
		{"--config " + file, "BINNACLE_DURABILITY=replicated", base, "/durability"},
		{"--config nosuch.yaml", "", base, "nosuch.yaml"},
		{"--llm " + llm, "", base, "surplus"},
		{"--llm nosuch.json", "", base, "nosuch.json"},
	} {
		t.Run(x.line+" "+x.env, func(t *testing.T) {
			for _, kv := range strings.Fields(x.env) {
				name, value, _ := strings.Cut(kv, "=")
				t.Setenv(name, value)
			}
			c := &env{out: &bytes.Buffer{}, errOut: &bytes.Buffer{}}
			cmd := newUpCmd(c)
			var o meshOptions
			cmd.ResetFlags()
			o.declare(cmd)
			globalFlags(c, cmd.Flags())
			if err := cmd.ParseFlags(strings.Fields(x.line)); err != nil {
				t.Fatal(err)
			}
			if err := c.start(cmd.Flags()); err != nil {
				t.Fatal(err)
			}
			got, err := o.config(c)
			if (err != nil) != (x.fails != "") || err != nil && !strings.Contains(err.Error(), x.fails) {
				t.Fatal(err)
			}
			if err == nil && !reflect.DeepEqual(got, x.want) {
				t.Errorf("%+v, want\n%+v", got, x.want)
			}
		})
	}
}

// TestStory checks that each format shows an event of a story, that Mermaid, DOT and SVG
// escape reserved characters, that Mermaid and DOT show the edges from causes, and that the
// text omits events before the call.
func TestStory(t *testing.T) {
	s := &story{CallID: "c-1", Nodes: []chapter{
		{ID: "e-0", Name: "before", Says: "before this call"},
		{Seq: 1, ID: "e-1", Kind: "INTENT", Name: "call_proposed", Time: "t1", Says: `a proposed "x" <b>`},
		{Seq: 2, ID: "e-2", Kind: "EFFECT", Name: "effect_recorded", Time: "t2", Says: "succeeded"},
		{Seq: 3, ID: "e-3", Kind: "TRUST_EVENT", Name: "key_published", Time: "t3", Says: "k"},
	}, Edges: [][2]string{{"e-0", "e-1"}, {"e-1", "e-2"}, {"e-1", "e-3"}}}
	for form, want := range map[string][]string{
		"text":    {"call c-1\n", "       1  t1  INTENT      call_proposed      a proposed \"x\" <b>\n"},
		"mermaid": {"flowchart TD\n", `  n1["call_proposed: a proposed #quot;x#quot; #lt;b#gt;"]`, "  n0 --> n1\n", "  n1 --> n3\n", `n0["e-0"]`},
		"dot":     {"digraph why {\n", `n1 [label="call_proposed: a proposed \"x\" <b>"]`, "  n1 -> n2\n"},
		"svg":     {"<svg ", "call_proposed: a proposed &#34;x&#34; &lt;b&gt;", `fill="#e8f0fe"`, "</svg>\n"},
	} {
		text := drawings[form](s)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not hold %q\n%s", form, w, text)
			}
		}
	}
	if strings.Contains((*story).text(s), "before") {
		t.Error("the text contains an event before the call")
	}
}

// TestReplayReport checks that the report about a view that differs contains the first
// differing line, that the report states why a view was not compared, and that it lists at
// most maxDifferences differences of decisions.
func TestReplayReport(t *testing.T) {
	for _, x := range []struct{ live, rebuilt, where string }{
		{"a\nb\n", "a\nb\n", ""},
		{"a\nb\n", "a\nc\n", "line 2: live b, rebuilt c"},
		{"a\n", "a\nb\n", "line 2: live , rebuilt b"},
		{"a\nb", "a", "line 2: live b, rebuilt (nothing)"},
		{"", "", ""},
	} {
		r := &replayer{}
		r.compare("v", 7, []byte(x.live), []byte(x.rebuilt))
		if v := r.rep.Views[0]; v.Where != x.where || v.Equal != (x.where == "") || v.Position != 7 {
			t.Errorf("%q %q: %+v", x.live, x.rebuilt, v)
		}
	}
	var out bytes.Buffer
	r := &replayer{c: &env{out: &out}}
	for range maxDifferences + 5 {
		r.differ("decision %s", "d")
	}
	r.rep.Views = []viewResult{{Name: "a", Equal: true}, {Name: "b", Where: "line 1"}, {Name: "c", NotCompared: "down", Equal: true}}
	r.print()
	text := out.String()
	for _, want := range []string{"view a ", "equal\n", "DIFFERS at line 1\n", "not compared: down\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Count(text, "  DIFFERS decision d\n") != maxDifferences || strings.HasSuffix(text, "\nequal\n") {
		t.Error(text)
	}
	if b, err := json.Marshal(r.rep); err != nil || !strings.Contains(string(b), `"not_compared":"down"`) {
		t.Errorf("%v %s", err, b)
	}
}

// TestEpochOf checks that epochOf splits an origin into its base and the number of its
// epoch, which is 1 if it has none. If the number is invalid, the base is the whole
// origin and the number 0.
func TestEpochOf(t *testing.T) {
	for origin, want := range map[string]struct {
		base  string
		epoch int64
	}{
		"binnacle/k-1/default":          {"binnacle/k-1/default", 1},
		"binnacle/k-1/default/epoch-2":  {"binnacle/k-1/default", 2},
		"binnacle/k-1/default/epoch-1":  {"binnacle/k-1/default/epoch-1", 0},
		"binnacle/k-1/default/epoch-02": {"binnacle/k-1/default/epoch-02", 0},
		"x/epoch-":                      {"x/epoch-", 0},
		"x/epoch-9999999999999999999":   {"x/epoch-9999999999999999999", 0},
	} {
		if base, epoch := epochOf(origin); base != want.base || epoch != want.epoch {
			t.Errorf("%s: %s %d", origin, base, epoch)
		}
	}
}
