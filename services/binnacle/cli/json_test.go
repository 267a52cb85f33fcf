package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/manual"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// invocation is a command line that the test runs without and with --json. %d in it
// stands for 1 in the first run and for 2 in the second, so that the runs do not change
// the same object.
type invocation struct {
	line string
	in   string
	code int
	// stream: standard output has one document per line.
	stream bool
	// stops: the command runs until its context is cancelled.
	stops bool
}

// invocations has command lines for every command that untried does not list: some that
// succeed, if possible, and for most commands some that fail.
var invocations = []invocation{
	{line: "version"}, {line: "help"}, {line: "call --help"}, {line: "nosuch", code: exitUsage}, {line: "call", code: exitUsage}, {line: "call --nosuch", code: exitUsage},
	{line: "tools"}, {line: "call noop {\"n\":1} --session s-json"}, {line: "call noop not-json", code: exitUsage}, {line: "call no.such", code: exitDenied},
	{line: "call noop --token bad", code: exitAuth}, {line: "call noop --token=", code: exitAuth}, {line: "call noop --addr 127.0.0.1:1", code: exitNoMesh},
	{line: "chat hello --session s-json"}, {line: "chat hello --stream", stream: true}, {line: "chat hello --model no/such", code: exitFailed},
	{line: "decide tool.noop --session s-json --report-within 1h"}, {line: "decide tool.noop --report-within 48h", code: exitUsage}, {line: "decide policy.freeze", code: exitDenied},
	{line: "report i-nosuch --args-digest x", code: exitFailed}, {line: "report i-nosuch", code: exitUsage},
	{line: "report --since 1h"}, {line: "report --since soon", code: exitUsage}, {line: "report --controls soc3", code: exitUsage}, {line: "report --output {}", code: exitUsage},
	{line: "hook policy guard DIR/coding-%d"}, {line: "hook policy lax DIR/lax", code: exitUsage}, {line: "hook nosuch", code: exitUsage}, {line: "hook flush"},
	{line: "secret put json-%d", in: "v"}, {line: "secret put", code: exitUsage}, {line: "secret list"}, {line: "secret show json-1"}, {line: "secret rotate json-rotated"}, {line: "secret delete json-rotated"}, {line: "secret restore json-rotated"}, {line: "secret erase", code: exitUsage}, {line: "erase", code: exitUsage}, {line: "secret rotate-content-key"},
	{line: "secret access grant json-%d ann"}, {line: "secret access list"}, {line: "secret access withdraw sa-none", code: exitFailed}, {line: "secret access default intent"}, {line: "secret access default open", code: exitFailed}, {line: "secret access", code: exitUsage},
	{line: "judge --session s-none --rubric DIR/rubric.yaml", code: exitFailed}, {line: "judge", code: exitUsage},
	{line: "token create --actor a --scope tools:call"}, {line: "token create --actor a --scope nosuch", code: exitUsage}, {line: "token admin"}, {line: "token operator"}, {line: "token revoke json-%d --reason x"},
	{line: "sandbox list", code: exitDenied}, {line: "sandbox create shell", code: exitDenied}, {line: "sandbox exec sb-none true", code: exitDenied}, {line: "sandbox cp a b", code: exitUsage}, {line: "sandbox attach sb-none", code: exitUsage}, {line: "sandbox nosuch", code: exitUsage}, {line: "run --image shell --workspace / true", code: exitFailed}, {line: "run true", code: exitDenied},
	{line: "call noop --async --session s-json"}, {line: "job list"}, {line: "job list --limit 0", code: exitFailed}, {line: "job show c-nosuch", code: exitFailed}, {line: "job wait c-nosuch", code: exitFailed}, {line: "job cancel c-nosuch", code: exitFailed}, {line: "job nosuch", code: exitUsage},
	{line: "artifact put DIR/rubric.yaml --session s-json"}, {line: "artifact list"}, {line: "artifact get nosuch", code: exitFailed}, {line: "artifact info ar-x", code: exitFailed}, {line: "artifact put", code: exitUsage}, {line: "artifact nosuch", code: exitUsage},
	{line: "pipeline list"}, {line: "pipeline validate DIR/pipeline.json"}, {line: "pipeline validate DIR/rubric.yaml", code: exitFailed}, {line: "pipeline run DIR/pipeline.json --session s-json"}, {line: "pipeline run nosuch", code: exitFailed},
	{line: "pipeline runs"}, {line: "pipeline schedules"}, {line: "pipeline schedules c-nosuch", code: exitFailed}, {line: "pipeline show c-nosuch", code: exitFailed}, {line: "pipeline graph DIR/pipeline.json"}, {line: "pipeline graph c-nosuch", code: exitFailed}, {line: "pipeline cancel c-nosuch", code: exitFailed}, {line: "pipeline schedule DIR/pipeline.json --cron @daily --time-limit 5s"}, {line: "pipeline schedule DIR/pipeline.json --cron never", code: exitFailed}, {line: "pipeline nosuch", code: exitUsage},
	{line: "session list"}, {line: "session grant s-json json-%d"}, {line: "session revoke s-json json-%d"}, {line: "session nosuch", code: exitUsage}, {line: "key consent json-c%d --maker bob --scope llm:call"}, {line: "key consent", code: exitUsage},
	{line: "key create json-%d --actor admin"}, {line: "key list"}, {line: "key revoke json-%d --reason over"}, {line: "key revoke nosuch --reason over", code: exitFailed},
	{line: "llm stats"}, {line: "llm spend"}, {line: "llm nosuch", code: exitUsage},
	{line: "policy show"}, {line: "policy validate DIR/good"}, {line: "policy validate DIR/bad", code: exitFailed}, {line: "policy test DIR/good"}, {line: "policy test DIR/none", code: exitFailed},
	{line: "policy build DIR/good --out DIR/good-%d.tar.gz"}, {line: "policy diff DIR/good"}, {line: "policy diff DIR/good DIR/bad"}, {line: "policy simulate DIR/o.json"},
	{line: "policy explain c-nosuch", code: exitFailed}, {line: "policy activate DIR/o.json"}, {line: "policy activate DIR/typo.json", code: exitFailed}, {line: "policy rollback p2 o", code: exitFailed},
	{line: "policy retire p2 nosuch", code: exitFailed}, {line: "policy approve-tool noop"}, {line: "policy limits"}, {line: "policy set-limits DIR/limits.json"},
	{line: "approvals list"}, {line: "approvals show c-nosuch", code: exitFailed}, {line: "approvals grant c-nosuch --reason x", code: exitFailed}, {line: "approvals deny c-nosuch --reason x", code: exitFailed},
	{line: "principals register json-%d agent"}, {line: "principals list"}, {line: "principals suspend json-%d --reason x"},
	{line: "roles grant json-%d clerk"}, {line: "roles list"}, {line: "roles revoke json-%d clerk"}, {line: "roles revoke unknown clerk", code: exitFailed},
	{line: "members map json-%d viewer"}, {line: "members list"}, {line: "members unmap json-%d viewer"}, {line: "members withdraw iv-unknown00 --reason x", code: exitFailed}, {line: "members unlink unknown --reason x", code: exitFailed}, {line: "members invite json-%d --ttl 999999h", code: exitFailed},
	{line: "delegations grant robot tool.noop --ttl 1m"}, {line: "delegations list"}, {line: "delegations revoke g-nosuch", code: exitFailed},
	{line: "break-glass list"}, {line: "break-glass review b-nosuch --reason x", code: exitFailed},
	{line: "trust list"}, {line: "trust add approval json-%d"}, {line: "trust cell"}, {line: "trust operator add json-%d"}, {line: "trust operator remove json-%d"}, {line: "trust operator list"},
	{line: "tenant list"}, {line: "tenant show default"}, {line: "tenant show nosuch", code: exitFailed}, {line: "tenant export default --out DIR/t-%d.jsonl"}, {line: "verify DIR/t-1.jsonl"}, {line: "tenant export nosuch", code: exitFailed}, {line: "tenant create json-%d/shop/prod --admin alice"}, {line: "tenant create json/shop", code: exitUsage},
	{line: "tenant suspend json-%d_shop_prod --reason x"}, {line: "tenant resume json-%d_shop_prod --reason x"}, {line: "tenant quota json-%d_shop_prod --quota-in-flight 9"},
	{line: "tenant erase", code: exitUsage}, {line: "tenant nosuch", code: exitUsage},
	{line: "trust nosuch", code: exitUsage}, {line: "trust retire nosuch", code: exitFailed},
	{line: "events list --session s-json"}, {line: "events list --session s-none"}, {line: "events tail --session s-json", stream: true, stops: true}, {line: "events nosuch", code: exitUsage}, {line: "dev events --since 1h", stream: true, stops: true},
	{line: "search session=s-json"}, {line: "search session=s-none"}, {line: "search nosuch", code: exitUsage},
	{line: "why c-nosuch", code: exitFailed}, {line: "why c-nosuch --format gif", code: exitFailed}, {line: "replay"}, {line: "replay --until 3"}, {line: "replay --until never", code: exitUsage},
	{line: "export --session s-json --out DIR/p-%d.tar"}, {line: "export --session s-none --out DIR/q.tar", code: exitFailed}, {line: "export", code: exitUsage}, {line: "export --session s-json"},
	{line: "verify DIR/p-1.tar"}, {line: "verify DIR/rubric.yaml", code: exitFailed}, {line: "archive --to DIR/archive-%d"}, {line: "archive", code: exitUsage}, {line: "forward --to file:DIR/events-%d --cursor DIR/cursor-%d"}, {line: "forward", code: exitUsage}, {line: "attest pr", code: exitUsage}, {line: "attest pr --base nosuch --out DIR/attestation", code: exitFailed}, {line: "attest verify DIR/none", code: exitFailed}, {line: "attest verify DIR/none --all", code: exitUsage}, {line: "attest nosuch", code: exitUsage},
	{line: "conform --level L1", code: exitFailed}, {line: "conform --level L9", code: exitFailed}, {line: "witness", code: exitUsage}, {line: "mcp nosuch", code: exitUsage}, {line: "mcp list"}, {line: "mcp add x", code: exitUsage}, {line: "mcp inspect nosuch", code: exitFailed}, {line: "mcp config codex --project DIR/mcp --state DIR/mcp-state"}, {line: "mcp config claude-desktop --state DIR/mcp-state", code: exitAuth}, {line: "mcp config nosuch", code: exitUsage}, {line: "mcp login nosuch", code: exitFailed}, {line: "mcp refresh nosuch", code: exitFailed}, {line: "mcp remove nosuch", code: exitFailed}, {line: "mcp publish p", code: exitUsage}, {line: "mcp publish p --tool nosuch --search", code: exitFailed}, {line: "mcp unpublish nosuch", code: exitFailed}, {line: "mcp serve --addr 127.0.0.1:1", code: exitNoMesh},
	{line: "proxy --upstream nosuch", code: exitUsage}, {line: "proxy --upstream http://127.0.0.1:1 --listen 127.0.0.1:0", stops: true}, {line: "recover --reason x --data DIR/none", code: exitFailed},
	{line: "init --data DIR/fresh-%d"}, {line: "provision --keys DIR/none", code: exitFailed}, {line: "provision --print-config --keys DATA/keys"},
	{line: "backup --data DIR/none --out DIR/b", code: exitFailed}, {line: "restore --in DIR/none --data DIR/restored", code: exitFailed}, {line: "up --addr not-an-address --data DIR/up-%d", code: exitUsage},
	{line: "config check DIR/rubric.yaml", code: exitUsage}, {line: "config show --power"}, {line: "doctor --offline"}, {line: "doctor --program nosuch", code: exitUsage}, {line: "doctor --backups DIR/none", code: exitUsage}, {line: "config schema"}, {line: "config nosuch", code: exitUsage},
	{line: "context list"}, {line: "context set json --addr 127.0.0.1:1"}, {line: "context set json", code: exitOK}, {line: "context use json"}, {line: "context use nosuch", code: exitUsage}, {line: "context remove json-%d", code: exitUsage},
	{line: "login", in: "TOKEN"}, {line: "login", in: "bad", code: exitAuth}, {line: "login", code: exitAuth}, {line: "login --token x", in: "x", code: exitUsage}, {line: "login --user nosuch", in: "no such password", code: exitAuth}, {line: "login --user nosuch", code: exitAuth}, {line: "logout --context nosuch", code: exitUsage},
	{line: "password set json-%d", in: "correct horse battery"}, {line: "password set json-%d", in: "short", code: exitUsage}, {line: "password remove json-%d"}, {line: "device approve nosuch", code: exitFailed},
	{line: "image list", code: exitDenied}, {line: "image gc --dry-run", code: exitDenied}, {line: "image import none.tar", code: exitDenied}, {line: "image build x", code: exitUsage}, {line: "image nosuch", code: exitUsage},
	{line: "pack list"}, {line: "pack info noop"}, {line: "pack info nop", code: exitFailed}, {line: "pack run noop {\"n\":1} --session s-json"}, {line: "pack new json-%d --packs DIR/packs"}, {line: "pack new json --language cobol", code: exitUsage},
	{line: "pack validate DIR/good"}, {line: "pack validate DIR/none", code: exitFailed}, {line: "pack test DIR/good"}, {line: "pack test DIR/none", code: exitFailed}, {line: "pack test", code: exitUsage}, {line: "pack nosuch", code: exitUsage},
	{line: "completion bash"}, {line: "completion nosuch", code: exitUsage}, {line: "manual DIR/man-%d"}, {line: "manual", code: exitUsage},
	{line: "freeze --reason drill"}, {line: "unfreeze --reason over"}, {line: "unfreeze --reason over", code: exitFailed},
}

// TestJSON checks that with --json the commands in invocations print only JSON on standard output,
// even on failure, and exit with the same code as without, and that none except token admin prints
// the administrator's token. The commands that succeed, other than report and those that must be
// stopped, are also run with YAML and JSON Lines. Each command must be in invocations or untried.
func TestJSON(t *testing.T) {
	data, dir := t.TempDir(), t.TempDir()
	m, err := mesh.Start(t.Context(), mesh.Config{Dir: data, Addr: "127.0.0.1:0", Noop: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Stop() }()
	for name, text := range map[string]string{
		"good/p.rego":      "package binnacle.p1\n\nimport rego.v1\n\nanswer := {\"verdict\": \"DENY\", \"reason_code\": \"DENY_X\"} if input.kind == \"tool.noop\"\n",
		"good/p_test.rego": "package binnacle.p1\n\nimport rego.v1\n\ntest_x if answer.verdict == \"DENY\" with input as {\"kind\": \"tool.noop\"}\n",
		"bad/p.rego":       "package binnacle.p1\n\nimport rego.v1\n\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_X\"} if input.kind == \"nowhere.x\"\n",
		"o.json":           `{"id":"o","scope":"agent","subject":"admin","rules":[{"kinds":["tool.rm*"],"verdict":"DENY","reason_code":"DENY_X"}]}`,
		"typo.json":        `{"id":"typo","scope":"agent","subject":"unregistered","rules":[{"kinds":["tool.rm*"],"verdict":"DENY","reason_code":"DENY_X"}]}`,
		"limits.json":      `{"limits":[]}`,
		"rubric.yaml":      "name: r\n",
		"pipeline.json":    `{"name":"json","steps":[{"id":"a","pack":"noop","input":{"n":1}}]}`,
	} {
		f := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("BINNACLE_ADDR", m.Addr)
	t.Setenv("BINNACLE_DATA", data)
	t.Setenv("BINNACLE_TOKEN", m.Token)
	t.Setenv("BINNACLE_OPERATOR_TOKEN", m.OperatorToken)
	left := leaves(t)
	run := func(x *invocation, n int, extra ...string) (code int, out string) {
		line := strings.NewReplacer("%d", fmt.Sprint(n), "DIR", dir, "DATA", data).Replace(x.line)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		if x.stops {
			time.AfterFunc(time.Second, stop)
		}
		var b, e bytes.Buffer
		code = execute(ctx, append(strings.Fields(line), extra...), strings.NewReader(strings.Replace(x.in, "TOKEN", m.Token, 1)), &b, &e)
		if strings.Contains(b.String()+e.String(), m.Token) && !strings.HasPrefix(x.line, "token admin") {
			t.Errorf("%s: the token is in what it prints", x.line)
		}
		return code, b.String()
	}
	for i := range invocations {
		x := &invocations[i]
		delete(left, leafOf(x.line))
		plain, _ := run(x, 1)
		if strings.HasPrefix(x.line, "freeze") { // undo the change, so that the command can run again
			run(&invocation{line: "unfreeze --reason again"}, 1)
		}
		if x.line == "unfreeze --reason over" && x.code == exitOK {
			run(&invocation{line: "freeze --reason again"}, 1)
		}
		code, out := run(x, 2, "--json")
		if plain != x.code || code != x.code {
			t.Errorf("%s: exit code %d, with --json %d, want %d\n%s", x.line, plain, code, x.code, out)
		}
		n, err := documents(out)
		if err != nil || n == 0 && !x.stream || n > 1 && !x.stream {
			t.Errorf("%s: %d JSON documents, want one (%v)\n%s", x.line, n, err, out)
		}
		if x.code == exitOK && !x.stops && !strings.HasPrefix(x.line, "report ") { // the flag --output of report is the output of a call
			for n, form := range []output.Format{output.YAML, output.JSONL} {
				if strings.HasPrefix(x.line, "freeze") {
					run(&invocation{line: "unfreeze --reason again"}, 1)
				}
				if strings.HasPrefix(x.line, "unfreeze") {
					run(&invocation{line: "freeze --reason again"}, 1)
				}
				code, out := run(x, 3+n, "--output", string(form))
				if err := parses(form, out); code != exitOK || err != nil {
					t.Errorf("%s --output %s: exit code %d, %v\n%s", x.line, form, code, err, out)
				}
			}
		}
		if x.code == exitOK || x.stream {
			continue
		}
		var doc struct {
			Error struct{ Code, Message string }
		}
		if json.Unmarshal([]byte(out), &doc) == nil && doc.Error.Code == "" && !strings.HasPrefix(x.line, "policy validate") && !strings.HasPrefix(x.line, "conform --level L1") {
			t.Errorf("%s: fails without {error: {code, message}}\n%s", x.line, out)
		}
	}
	for name := range left {
		if _, ok := untried[name]; !ok {
			t.Errorf("%s is not tried", name)
		}
		code, out := run(&invocation{line: name + " --nosuch"}, 1, "--json")
		if n, err := documents(out); code != exitUsage || err != nil || n != 1 {
			t.Errorf("%s with an unknown flag: exit code %d, %d documents, %v\n%s", name, code, n, err, out)
		}
	}
	for name := range untried {
		if !left[name] {
			t.Errorf("%s is tried, or does not exist: it needs no exception", name)
		}
	}
}

// untried lists the commands without a line in invocations, with the reason. Of these, TestJSON
// tries only an unknown flag.
var untried = map[string]string{
	"artifact delete": hasScript, "artifact hold": hasScript, "artifact link": hasScript, "artifact release": hasScript,
	"break-glass open": needsObject, "hook doctor": needsHost, "hook install": needsHost, "hook run": needsHost, "hook status": needsHost, "hook uninstall": needsHost,
	"image pull": needsSandbox, "key withdraw": needsObject, "pack approve": needsObject, "pack archive": needsObject, "pack install": needsObject,
	"pack key": needsObject, "pack uninstall": needsObject, "principals resume": needsObject, "provision health": needsHost,
	"sandbox keep-alive": needsSandbox, "sandbox logs": needsSandbox, "sandbox terminate": needsSandbox, "secret destroy-content-key": endsMesh,
	"trust init": endsMesh, "trust public": needsObject, "trust revoke": endsMesh, "trust rotate": endsMesh, "trust sign": needsObject,
}

// The reasons in untried.
const (
	needsObject  = "needs an object that no other line makes"
	needsHost    = "changes or reads the settings of programs on the host"
	needsSandbox = "needs an executor that this mesh does not run"
	endsMesh     = "the mesh cannot go on with its other lines"
	hasScript    = "needs an artifact whose id another line prints"
)

// leaves returns the commands without subcommands, by their path without the name of the
// program.
func leaves(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	manual.Walk(testRoot(), func(cmd *cobra.Command) {
		if _, path, below := strings.Cut(cmd.CommandPath(), " "); below && !cmd.HasSubCommands() {
			out[path] = true
		}
	})
	if len(out) < 100 {
		t.Errorf("only %d commands", len(out))
	}
	return out
}

// leafOf returns the path of the command that a line runs, without the name of the program, or ""
// if there is no such command.
func leafOf(line string) string {
	cmd, _, err := testRoot().Find(strings.Fields(line))
	if err != nil {
		return ""
	}
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	return path
}

// parses returns an error unless text is at least one YAML document or, for JSON Lines, only
// lines that are one JSON document each.
func parses(form output.Format, text string) error {
	if form == output.JSONL {
		for line := range strings.Lines(text) {
			if !json.Valid([]byte(line)) {
				return fmt.Errorf("not JSON: %q", line)
			}
		}
		return nil
	}
	for n, d := 0, yaml.NewDecoder(strings.NewReader(text)); ; n++ {
		var v any
		switch err := d.Decode(&v); {
		case errors.Is(err, io.EOF) && n > 0:
			return nil
		case err != nil:
			return err
		}
	}
}

// documents returns the number of JSON documents in a text.
func documents(text string) (n int, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	for {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		n++
	}
}

// TestToken checks that help texts contain no secret of the environment, that an empty
// BINNACLE_TOKEN is an error, and that the variable need not be set if DATA/admin.token exists.
func TestToken(t *testing.T) {
	t.Setenv("BINNACLE_TOKEN", "secret-of-mine")
	t.Setenv("BINNACLE_APPROVAL_WEBHOOK", "http://hook.example/secret-of-mine")
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		var out, errOut bytes.Buffer
		code := execute(t.Context(), []string{name, "--help"}, strings.NewReader(""), &out, &errOut)
		if text := out.String() + errOut.String(); code != exitOK || strings.Contains(text, "secret-of-mine") || !strings.Contains(text, "-token") {
			t.Errorf("%s --help: %d\n%s", name, code, text)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "admin.token"), []byte("admins"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, empty := range []string{"", " \n"} {
		t.Setenv("BINNACLE_TOKEN", empty)
		var out, errOut bytes.Buffer
		if code := execute(t.Context(), []string{"tools", "--data", dir, "--addr", "127.0.0.1:1"}, nil, &out, &errOut); code != exitAuth || !strings.Contains(errOut.String(), "BINNACLE_TOKEN is empty") {
			t.Errorf("%q: %d %s", empty, code, errOut.String())
		}
	}
	os.Unsetenv("BINNACLE_TOKEN")
	var out, errOut bytes.Buffer
	if code := execute(t.Context(), []string{"tools", "--data", dir, "--addr", "127.0.0.1:1"}, nil, &out, &errOut); code != exitNoMesh {
		t.Errorf("unset: %d %s", code, errOut.String())
	}
}
