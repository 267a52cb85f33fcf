package cli

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/manual"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// TestNormalize checks that command lines in the form of earlier releases are rewritten
// to the form that cobra parses.
func TestNormalize(t *testing.T) {
	for _, x := range []struct{ in, want string }{
		{"up -addr x -power", "up --addr x --power"},
		{"up -v", "up -v"},
		{"up --v", "up -v"},
		{"call noop {} -session s -json", "call noop {} --session s --json"},
		{"call -session=s noop", "call --session=s noop"},
		{"call noop -o yaml", "call noop -o yaml"},
		{"call noop -o=yaml", "call noop -o=yaml"},
		{"-json call noop", "call --json noop"},
		{"--addr call call noop", "call --addr call noop"},
		{"policy -name x activate p", "policy activate --name x p"},
		{"policy --precedence 1 simulate p --json", "policy simulate --precedence 1 p --json"},
		{"key --cache create k", "key create --cache k"},
		{"freeze -reason -x", "freeze --reason -x"},
		{"freeze --reason -reason", "freeze --reason -reason"},
		{"call noop -- -session s", "call noop -- -session s"},
		{"search actor=policy policy", "search actor=policy policy"},
		{"provision -nats u health", "provision health --nats u"},
		{"call policy show", "call policy show"},
		{"call - -", "call - -"},
		{"call --nosuch x", "call --nosuch x"},
		{"call -nosuch x", "call --nosuch x"},
		{"call noop --session", "call noop --session"},
		{"nosuch call", "nosuch call"},
		{"__complete call -s", "__complete call -s"},
		{"", ""},
	} {
		got := strings.Join(normalize(testRoot(), strings.Fields(x.in)), " ")
		if got != x.want {
			t.Errorf("%q became %q, want %q", x.in, got, x.want)
		}
	}
}

func TestFormatOf(t *testing.T) {
	for line, want := range map[string]output.Format{
		"":                            output.Table,
		"call --json":                 output.JSON,
		"call -json":                  output.JSON,
		"call --json=true":            output.JSON,
		"call --json=false":           output.Table,
		"call json":                   output.Table,
		"call --output yaml":          output.YAML,
		"call -o jsonl":               output.JSONL,
		"call --output=json":          output.JSON,
		"call -o=nosuch":              output.Table,
		"call --output":               output.Table,
		`report i --output {} --json`: output.JSON,
		"call -- --json":              output.Table,
	} {
		if got := formatOf(strings.Fields(line)); got != want {
			t.Errorf("%q: %s, want %s", line, got, want)
		}
	}
}

// TestUsage checks that a wrong command line results in exit code 2 and an error that
// names the mistake or the correct form, and that without a command the help is printed,
// with exit code 2.
func TestUsage(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for line, want := range map[string]string{
		"chta":                           `unknown command "chta"; did you mean chat?; 'binnacle help' lists them`,
		"nosuchthing":                    `unknown command "nosuchthing"; 'binnacle help' lists them`,
		"policy activte x":               `unknown command "activte" of binnacle policy; did you mean activate?; 'binnacle help policy' lists them`,
		"policy":                         "usage: binnacle policy validate|test|build",
		"help nosuch":                    `unknown command "nosuch"`,
		"help policy actvate":            "did you mean activate?",
		"call --sesion s":                "unknown flag: --sesion; did you mean --session?; 'binnacle call --help' lists the flags",
		"call noop -sesion s":            "unknown flag: --sesion; did you mean --session?",
		"call -z noop":                   "unknown shorthand flag: 'z' in -z",
		"call":                           "usage: binnacle call TOOL|KIND [ARGS-JSON]; 'binnacle call --help' explains it",
		"tools surplus":                  "usage: binnacle tools;",
		"tools --output xml":             `--output: output format "xml" is none of table, json, jsonl, yaml`,
		"tools --json --output yaml":     "--json and --output yaml contradict each other",
		"token revoke":                   "usage: binnacle token revoke",
		"token revoke t-1 --principal x": "usage: binnacle token revoke",
		"key create k --ttl soon":        `invalid argument "soon" for "--ttl" flag`,
		"completion bsh":                 "did you mean bash",
		"context use nosuch":             `context "nosuch" does not exist`,
		"tools --context nosuch":         `context "nosuch" does not exist`,
		"export":                         "export requires --session or --ledger",
		"decide":                         "name a kind or a call, not both",
		"decide tool.x --call c":         "name a kind or a call, not both",
	} {
		code, out, errOut := invoke(t, strings.Fields(line)...)
		if code != exitUsage || out != "" && !strings.Contains(line, "--json") || !strings.HasPrefix(errOut, "binnacle: ") || !strings.Contains(errOut, want) {
			t.Errorf("%s: %d\n%s%s\nwant %s", line, code, out, errOut, want)
		}
	}
	if code, out, _ := invoke(t); code != exitUsage || !strings.Contains(out, "Run a mesh:") {
		t.Errorf("without a command: %d\n%s", code, out)
	}
}

// TestErrorForms checks that an error is written to standard output as a document in the
// requested structured format, and that nothing is written there in the table format.
func TestErrorForms(t *testing.T) {
	for form, want := range map[string]string{
		"json":  `{"error":{"code":"usage","message":`,
		"jsonl": `{"error":{"code":"usage","message":`,
		"yaml":  "error:\n  code: usage\n  message: 'unknown flag",
		"table": "",
	} {
		code, out, _ := invoke(t, "call", "--nosuch", "--output", form)
		if code != exitUsage || !strings.HasPrefix(out, want) || want == "" && out != "" {
			t.Errorf("%s: %d\n%s", form, code, out)
		}
	}
}

// TestEnvironment checks that a variable that is not empty sets a flag's value if the
// command line does not, that the flag's help names the variable and still shows the
// default, and that the error about an invalid value names the variable.
func TestEnvironment(t *testing.T) {
	for _, x := range []struct {
		line, env, want string
		fails           bool
	}{{"", "a", "a", false}, {"--name b", "a", "b", false}, {"--name=", "a", "", false}, {"", "", "default", false}} {
		t.Setenv("BINNACLE_TEST_NAME", x.env)
		cmd := &cobra.Command{Use: "x"}
		name := cmd.Flags().String("name", "default", "a `NAME`")
		variable(cmd.Flags(), "name", "BINNACLE_TEST_NAME")
		if err := cmd.ParseFlags(strings.Fields(x.line)); err != nil {
			t.Fatal(err)
		}
		if err := fromEnvironment(cmd.Flags()); err != nil || *name != x.want {
			t.Errorf("%q with %q: %q %v", x.line, x.env, *name, err)
		}
		if cmd.Flags().Lookup("name").DefValue != "default" || !strings.Contains(cmd.Flags().FlagUsages(), "(BINNACLE_TEST_NAME)") {
			t.Error(cmd.Flags().FlagUsages())
		}
	}
	cmd := &cobra.Command{Use: "x"}
	cmd.Flags().Int("n", 0, "number")
	variable(cmd.Flags(), "n", "BINNACLE_TEST_NAME")
	t.Setenv("BINNACLE_TEST_NAME", "many")
	var x *exitError
	if err := fromEnvironment(cmd.Flags()); !errors.As(err, &x) || x.code != exitUsage || !strings.Contains(err.Error(), "BINNACLE_TEST_NAME") {
		t.Error(err)
	}
}

// TestSpellings checks that each command and flag in testdata/spellings.txt is accepted, also
// if it is hidden now, and that the file has a line for each that the manual describes. A line
// may be added to the file, but not removed.
func TestSpellings(t *testing.T) {
	b, err := os.ReadFile("testdata/spellings.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		known[line] = true
		command, flag, _ := strings.Cut(line, " --")
		cmd, rest, err := testRoot().Find(strings.Fields(command)[1:])
		if err != nil || len(rest) > 0 || flag != "" && flagOf(cmd, flag) == nil {
			t.Errorf("%s is not accepted: %v", line, err)
		}
	}
	manual.Walk(testRoot(), func(cmd *cobra.Command) {
		lines := []string{cmd.CommandPath()}
		for _, f := range manual.Flags(cmd) {
			lines = append(lines, cmd.CommandPath()+" --"+f.Name)
		}
		for _, line := range lines {
			if !known[line] {
				t.Errorf("testdata/spellings.txt has no line %s", line)
			}
		}
	})
}

// TestOldSpellings checks that the verbs and flags of releases before 0.6.0 still exist.
func TestOldSpellings(t *testing.T) {
	old := map[string][]string{
		"up":               {"addr", "listen", "v", "packs", "containerd", "llm", "capture", "power", "noop", "nats-listen", "tls-cert", "tls-key", "nats-tls-cert", "nats-tls-key", "mirror", "approval-webhook", "job-webhook", "policy"},
		"init":             {"distribute"},
		"provision":        {"print-config", "nats", "store", "nats-listen", "monitor", "power", "replicas", "mirror", "keys", "cluster-server", "cluster-listen", "cluster-route", "nats-tls-cert", "nats-tls-key"},
		"provision health": {}, "backup": {"nats", "keys", "vault", "audit", "out"}, "restore": {"nats", "keys", "vault", "audit", "in"},
		"call": {"session", "async", "on-behalf-of", "delegation"}, "decide": {"session", "report-within", "call", "idempotency-key", "async"},
		"report": {"status", "args-digest", "output", "error-code", "error", "usage", "since", "until", "format", "out", "limit", "controls"}, "chat": {"session", "model", "stream"}, "tools": {},
		"secret put": {}, "secret rotate-content-key": {}, "secret destroy-content-key": {}, "mcp serve": {"session"},
		"proxy": {"upstream", "listen", "session", "embedded", "packs", "llm"}, "judge": {"session", "rubric"},
		"token create": {"actor", "client", "ttl", "scope"}, "token admin": {}, "token revoke": {"principal", "reason"},
		"key create": {"actor", "scope", "model", "tag", "budget", "window", "rate", "rate-window", "concurrent", "cache", "ttl"}, "key list": {}, "key revoke": {"reason"},
		"key consent": {"maker", "scope", "ttl"}, "key withdraw": {}, "session grant": {"ttl"}, "session revoke": {}, "session list": {},
		"llm stats": {"since"}, "llm spend": {"since", "by"},
		"policy validate": {}, "policy test": {}, "policy diff": {}, "policy build": {"out", "sign"}, "policy show": {},
		"policy activate": {"layer", "name", "precedence", "url", "object", "size"}, "policy simulate": {"name", "precedence"}, "policy explain": {},
		"policy rollback": {}, "policy retire": {}, "policy approve-tool": {}, "policy limits": {}, "policy set-limits": {},
		"approvals list": {}, "approvals show": {}, "approvals grant": {"reason", "key", "as"}, "approvals deny": {"reason", "key", "as"},
		"freeze": {"reason"}, "unfreeze": {"reason"}, "principals list": {"at"}, "principals register": {}, "principals suspend": {"reason"}, "principals resume": {"reason"},
		"roles list": {"at"}, "roles grant": {"ttl"}, "roles revoke": {}, "delegations list": {"at"}, "delegations grant": {"ttl"}, "delegations revoke": {},
		"break-glass open": {"reason", "ttl"}, "break-glass review": {"reason", "verdict"}, "break-glass list": {},
		"trust init": {"distribute"}, "trust sign": {"keys", "distribute"}, "trust list": {"at"}, "trust add": {"public", "keys"}, "trust rotate": {"keys"}, "trust revoke": {"keys"}, "trust public": {},
		"events list": {"session", "owner", "type", "since"}, "events tail": {"session", "owner", "type", "since"}, "search": {"limit", "since", "until", "before"},
		"why": {"format"}, "replay": {"until"}, "export": {"session", "owner", "out", "kept", "redact", "disclose", "ledger", "mirror", "keys", "witnessed"},
		"archive": {"to", "segment", "mirror", "keys", "witnessed"}, "verify": {"root", "witnesses", "kept"},
		"conform": {"level", "endpoint", "root", "tool", "args", "model"}, "recover": {"checkpoint", "reason", "nats"},
		"witness": {"name", "key", "state", "root", "every"}, "version": {},
	}
	for verb, flags := range old {
		root := testRoot()
		cmd, rest, err := root.Find(strings.Fields(verb))
		if err != nil || len(rest) > 0 || cmd.RunE == nil {
			t.Errorf("%s: %v", verb, err)
			continue
		}
		for _, flag := range append(slices.Clone(flags), "addr", "token", "data", "json") {
			if flagOf(cmd, flag) == nil {
				t.Errorf("%s does not take --%s", verb, flag)
			}
		}
	}
}
