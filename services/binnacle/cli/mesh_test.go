package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/contexts"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring/keyringtest"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/manual"
	"github.com/binnacle-mesh/binnacle/services/binnacle/mesh"
)

// TestMain runs the command line instead of the tests if BINNACLE_TEST_MAIN is set, so
// that a shell can call this program as binnacle.
func TestMain(m *testing.M) {
	if os.Getenv("BINNACLE_TEST_MAIN") != "" {
		os.Exit(Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// invoke runs one command with empty standard input and returns its exit code and
// outputs.
func invoke(t *testing.T, args ...string) (code int, out, errOut string) {
	return invokeWith(t, "", args...)
}

// invokeWith runs one command with in as standard input, and returns its exit code and
// outputs.
func invokeWith(t *testing.T, in string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var b, e bytes.Buffer
	code = execute(t.Context(), args, strings.NewReader(in), &b, &e)
	return code, b.String(), e.String()
}

// answers starts an HTTP server in place of a mesh. docs holds the response for each
// method and path, such as "GET /v1/models"; an error document is sent with status 403,
// and other requests get status 404. The server accepts only the token "good" and
// appends the token of each request to tokens.
func answers(t *testing.T, docs map[string]string) (addr string, tokens *[]string) {
	t.Helper()
	tokens = &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		*tokens = append(*tokens, token)
		doc, ok := docs[r.Method+" "+r.URL.Path]
		switch {
		case token != "good":
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"code":"unauthorized","message":"the token is not accepted"}}`)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		case strings.HasPrefix(doc, `{"error"`):
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, doc)
		default:
			_, _ = io.WriteString(w, doc)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), tokens
}

// alone isolates a test from the user's settings: it clears the variables that name a
// mesh and sets an empty configuration folder.
func alone(t *testing.T) {
	for _, name := range []string{"ADDR", "TOKEN", "OPERATOR_TOKEN", "DATA", "CONTEXT", "CA"} {
		t.Setenv("BINNACLE_"+name, "")
		os.Unsetenv("BINNACLE_" + name)
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
}

const packs = `[{"name":"cmd.upper","version":"v1","description":"Upper case."},{"name":"cmd.spin","version":"v2","description":"Spins."}]`

// TestTables checks that an empty list is printed as nothing by default and in JSON
// Lines, and as a heading line with --output table, and that the command tools prints its list in each format. Each
// command that is named list, runs or schedules has an entry, or a check of its own below.
func TestTables(t *testing.T) {
	alone(t)
	lists := map[string]struct{ path, empty, heading string }{
		"tools":             {"/api/v1/packs", "[]", "NAME "},
		"approvals list":    {"/api/v1/approvals", "[]", "CALL "},
		"key list":          {"/api/v1/keys", "[]", "ID "},
		"principals list":   {"/api/v1/identities", "{}", "PRINCIPAL "},
		"members list":      {"/api/v1/identities", "{}", "ID "},
		"roles list":        {"/api/v1/identities", "{}", "PRINCIPAL "},
		"delegations list":  {"/api/v1/identities", "{}", "ID "},
		"session list":      {"/api/v1/identities", "{}", "SESSION "},
		"break-glass list":  {"/api/v1/identities", "{}", "GRANT "},
		"trust list":        {"/api/v1/trust/keys", "[]", "KID "},
		"tenant list":       {"/api/v1/tenants", "[]", "TENANT "},
		"llm stats":         {"/api/v1/llm/stats", "[]", "MODEL "},
		"llm spend":         {"/api/v1/llm/spend", "[]", "MODEL "},
		"policy show":       {"/api/v1/policies", "[]", "LAYER "},
		"policy limits":     {"/api/v1/limits", "{}", "ID "},
		"events list":       {"/api/v1/events", "", "   SEQ  TIME "},
		"search actor=none": {"/api/v1/search", "", "   SEQ  TIME "},
		"context list":      {"/", "", "IN USE "},

		"artifact list":      {"/api/v1/artifacts", "[]", "ARTIFACT "},
		"job list":           {"/api/v1/calls", "[]", "CALL "},
		"pack list":          {"/api/v1/packs", "[]", "NAME "},
		"pipeline list":      {"/api/v1/pipelines", "[]", "PIPELINE "},
		"pipeline runs":      {"/api/v1/pipelines/runs", "[]", "RUN "},
		"pipeline schedules": {"/api/v1/pipelines/schedules", "[]", "SCHEDULE "},
		"mcp list":           {"", `{"servers":[],"virtual":[]}`, "NAME "},
		"secret list":        {"", `{"secrets":[]}`, "NAME "},
		"sandbox list":       {"", `{"sandboxes":[]}`, "SANDBOX "},
		"image list":         {"", `{"images":[]}`, "DIGEST "},
	}
	checked := map[string]bool{"secret access list": true, "trust operator list": true} // below
	for line := range lists {
		checked[line] = true
	}
	manual.Walk(testRoot(), func(cmd *cobra.Command) {
		_, line, _ := strings.Cut(cmd.CommandPath(), " ")
		if slices.Contains([]string{"list", "runs", "schedules"}, cmd.Name()) && !checked[line] {
			t.Errorf("%s has no entry", line)
		}
	})
	for line, x := range lists {
		docs := map[string]string{"GET " + x.path: x.empty}
		if x.path == "" { // the output of a call
			docs = map[string]string{"POST /api/v1/calls": `{"output":` + x.empty + `,"status":"succeeded"}`}
		}
		addr, _ := answers(t, docs)
		args := append(strings.Fields(line), "--addr", addr, "--token", "good")
		if code, out, errOut := invoke(t, args...); code != exitOK || out != "" {
			t.Errorf("%s: %d %q %s", line, code, out, errOut)
		}
		code, out, errOut := invoke(t, append(args, "--output", "table")...)
		if code != exitOK || !strings.HasPrefix(out, x.heading) || strings.Contains(out, "\x1b") {
			t.Errorf("%s --output table: %d %q %s", line, code, out, errOut)
		}
		if code, out, errOut := invoke(t, append(args, "--output", "jsonl")...); code != exitOK || out != "" && line != "policy limits" { // two lists, one document
			t.Errorf("%s --output jsonl: %d %q %s", line, code, out, errOut)
		}
	}
	addr, _ := answers(t, map[string]string{"POST /api/v1/calls": `{"output":{"default":"deny","entries":[],"listed":[]},"status":"succeeded"}`})
	for form, want := range map[string]string{"": "default  not listed  deny", "table": "ID "} { // the default is always listed
		if code, out, errOut := invoke(t, "secret", "access", "list", "--addr", addr, "--token", "good", "--output="+form); code != exitOK || !strings.HasPrefix(out, want) {
			t.Errorf("secret access list --output=%s: %d %q %s", form, code, out, errOut)
		}
	}
	data := t.TempDir()
	keyringtest.Released(t, filepath.Join(data, "keys"), "default") // the ring of a release without operators
	for form, want := range map[string]string{"": "", "table": "OPERATOR "} {
		if code, out, errOut := invoke(t, "trust", "operator", "list", "--data", data, "--output="+form); code != exitOK || want == "" && out != "" || !strings.HasPrefix(out, want) {
			t.Errorf("trust operator list --output=%s: %d %q %s", form, code, out, errOut)
		}
	}
	addr, _ = answers(t, map[string]string{"GET /api/v1/packs": packs})
	for form, want := range map[string]string{
		"":      "cmd.upper                v1   Upper case.\ncmd.spin                 v2   Spins.\n",
		"table": "NAME                     VERSION  DESCRIPTION\ncmd.upper                v1       Upper case.\ncmd.spin                 v2       Spins.\n",
		"yaml":  "- name: cmd.upper\n  version: v1\n  description: Upper case.\n",
		"jsonl": `{"name":"cmd.upper","version":"v1","description":"Upper case."`,
		"json":  `[{"name":"cmd.upper","version":"v1","description":"Upper case."`,
	} {
		args := []string{"tools", "--addr", addr, "--token", "good"}
		if form != "" {
			args = append(args, "-o", form)
		}
		if code, out, errOut := invoke(t, args...); code != exitOK || !strings.HasPrefix(out, want) {
			t.Errorf("%s: %d\n%s%s", form, code, out, errOut)
		}
	}
}

// TestStreams checks the row of an event that events list prints, that it prints one list in JSON
// and YAML, and one document per line in JSON Lines, and that events tail prints one document per
// event in JSON and YAML.
func TestStreams(t *testing.T) {
	alone(t)
	event := `{"seq":7,"event":{"time":"2026-11-22T00:00:00.000000Z","type":"dev.binnacle.gateway.call_proposed.v1","source":"gw1","session":"s-x1","callid":"c-1","actor":"a"}}`
	addr, _ := answers(t, map[string]string{"GET /api/v1/events": event + "\n" + event + "\n"})
	for _, x := range []struct{ line, want string }{
		{"events list", "     7  2026-11-22T00:00:00.000000Z  gateway.call_proposed.v1"},
		{"events list --session s-mine", " s-mine c-1\n"},
		{"events list --json", "[" + event + "\n," + event + "\n]\n"},
		{"events list -o jsonl", event + "\n" + event + "\n"},
		{"events list -o yaml", "- seq: 7\n  event:\n    time: \"2026-11-22T00:00:00.000000Z\""},
		{"events tail --json", event + "\n" + event + "\n"},
		{"events tail -o yaml", "  actor: a\n---\nseq: 7\n"},
	} {
		code, out, errOut := invoke(t, append(strings.Fields(x.line), "--addr", addr, "--token", "good")...)
		if code != exitOK || !strings.Contains(out, x.want) {
			t.Errorf("%s: %d\n%s%s", x.line, code, out, errOut)
		}
	}
}

// TestDidYouMean checks that the error about an unknown tool or model lists similar
// names, if there are any, in the text and in the JSON document, and that the note about a
// key for models that do not exist does.
func TestDidYouMean(t *testing.T) {
	alone(t)
	addr, _ := answers(t, map[string]string{
		"GET /api/v1/packs":          packs,
		"GET /v1/models":             `{"data":[{"id":"demo/echo"},{"id":"acme/large"}]}`,
		"POST /api/v1/calls":         `{"error":{"code":"denied","reason_code":"UNKNOWN_TOOL","message":"denied by policy: UNKNOWN_TOOL"}}`,
		"POST /api/v1/decide":        `{"error":{"code":"denied","reason_code":"UNKNOWN_TOOL","message":"denied by policy: UNKNOWN_TOOL"}}`,
		"GET /api/v1/packs/cmd.sipn": `{"error":{"code":"not_found","message":"no such tool"}}`,
		"POST /v1/chat/completions":  `{"error":{"code":"model_not_found","message":"no such model"}}`,
		"POST /api/v1/keys":          `{"key":"bk-1"}`,
	})
	for _, x := range []struct {
		line, want string
		code       int
	}{
		{"call cmd.uper", "UNKNOWN_TOOL; did you mean cmd.upper?\n", exitDenied},
		{"call cmd.uper --json", `"did_you_mean":["cmd.upper"]`, exitDenied},
		{"call rm.everything", "UNKNOWN_TOOL\n", exitDenied},
		{"decide tool.cmd.sping", "UNKNOWN_TOOL; did you mean cmd.spin?\n", exitDenied},
		{"policy approve-tool cmd.sipn", "no such tool; did you mean cmd.spin?\n", exitFailed},
		{"chat --model demo/ehco hi", "no such model; did you mean demo/echo?\n", exitFailed},
		{"chat --model unknown/nothing hi", "no such model\n", exitFailed},
		{"conform --level L1 --tool cmd.uper", "gates do not hold; there is no tool cmd.uper; did you mean cmd.upper?\n", exitFailed},
		{"conform --level L1 --model demo/ehco", "gates do not hold; there is no model demo/ehco; did you mean demo/echo?\n", exitFailed},
		{"conform --level L1", "gates do not hold\n", exitFailed},
		{"conform --level L1 --tool rm.everything", "gates do not hold\n", exitFailed},
		{"key create k --model demo/ehco --model acme/*", "note: --model demo/ehco allows no model of the mesh; did you mean demo/echo?\nbk-1\n", exitOK},
		{"key create k --model acm/*", "note: --model acm/* allows no model of the mesh; did you mean acme?\nbk-1\n", exitOK},
		{"key create k --model demo/echo --model */large --model unknown/nothing", "bk-1\n", exitOK},
	} {
		code, out, errOut := invoke(t, append(strings.Fields(x.line), "--addr", addr, "--token", "good")...)
		if code != x.code || !strings.Contains(errOut+out, x.want) || strings.Contains(errOut, "mean") != strings.Contains(x.want, "mean") {
			t.Errorf("%s: %d\n%s%s", x.line, code, out, errOut)
		}
	}
}

// completions returns the completions that a shell would offer.
func completions(t *testing.T, args ...string) []string {
	t.Helper()
	_, out, _ := invoke(t, append([]string{"__complete"}, args...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var words []string
	for _, l := range lines[:len(lines)-1] { // the last line is cobra's directive
		word, _, _ := strings.Cut(l, "\t")
		words = append(words, word)
	}
	return words
}

// TestCompletion checks the completion of commands, flags, fixed values, names of
// contexts, and names from a running mesh. If the mesh does not respond, its names are
// not completed.
func TestCompletion(t *testing.T) {
	alone(t)
	addr, _ := answers(t, map[string]string{
		"GET /api/v1/packs":     packs,
		"GET /v1/models":        `{"data":[{"id":"demo/echo"},{"id":"acme/large"}]}`,
		"GET /api/v1/tenants":   tenantList,
		"GET /api/v1/approvals": `[{"call_id":"c-1","kind":"tool.x","actor":"a"}]`,
	})
	t.Setenv("BINNACLE_ADDR", addr)
	t.Setenv("BINNACLE_TOKEN", "good")
	if code, _, errOut := invoke(t, "context", "set", "prod", "--addr", addr); code != exitOK {
		t.Fatal(errOut)
	}
	for line, want := range map[string]string{
		"cha":                         "chat",
		"pol|":                        "policy",
		"policy act":                  "activate",
		"call |":                      "cmd.upper cmd.spin",
		"call cmd.upper |":            "",
		"call --sess":                 "--session",
		"chat --model |":              "demo/echo acme/large",
		"chat --model de":             "demo/echo",
		"policy approve-tool |":       "cmd.upper cmd.spin",
		"approvals grant |":           "c-1",
		"tools --output |":            "table json jsonl yaml",
		"tools -o j":                  "json jsonl",
		"tools --context |":           "prod",
		"context use |":               "prod",
		"trust add |":                 "approval bundle witness",
		"tenant suspend |":            "acme_shop_prod default",
		"token create --tenant acme":  "acme_shop_prod",
		"trust rotate aud":            "audit",
		"why c-1 --format |":          "text mermaid dot svg",
		"completion z":                "zsh",
		"help pol":                    "policy",
		"help policy expl":            "explain",
		"principals register robot |": "person agent service",
		"token create --scope approv": "approvals:vote",
		"up --capture h":              "hashed",
		"search ver":                  "verdict=",
	} {
		args := strings.Fields(strings.ReplaceAll(line, "|", ""))
		if strings.HasSuffix(line, " |") {
			args = append(args, "")
		}
		if got := strings.Join(completions(t, args...), " "); got != want {
			t.Errorf("%q completes to %q, want %q", line, got, want)
		}
	}
	t.Setenv("BINNACLE_ADDR", "127.0.0.1:1")
	if got := completions(t, "call", ""); len(got) != 0 {
		t.Errorf("without a mesh: %v", got)
	}
}

// TestCompletionScripts checks that each shell has a script that names the program, and
// runs the script of bash: it has no syntax error, and completes a command and the value
// of a flag. Neither zsh nor fish nor PowerShell is among the programs that the tests
// require, so of their scripts only that text is checked.
func TestCompletionScripts(t *testing.T) {
	for shell, want := range map[string]string{"bash": "complete -o default -F __start_binnacle binnacle", "zsh": "#compdef binnacle", "fish": "complete -c binnacle", "powershell": "Register-ArgumentCompleter"} {
		code, out, errOut := invoke(t, "completion", shell)
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%s: %d %s\n%.300s", shell, code, errOut, out)
		}
	}
	_, script, _ := invoke(t, "completion", "bash")
	path := filepath.Join(t.TempDir(), "binnacle.bash")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("bash", "-n", path).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The script needs _get_comp_words_by_ref of the package bash-completion, and compopt,
	// which works in an interactive shell alone; functions take their places. The program
	// that it calls is this test; see TestMain.
	const run = `
_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; }
compopt() { :; }
binnacle() { BINNACLE_TEST_MAIN=1 "$TEST_PROGRAM" "$@"; }
source "$TEST_SCRIPT"
COMP_LINE=$* COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMP_WORDS=("$@") COMP_CWORD=$(($#-1))
__start_binnacle
printf '%s\n' "${COMPREPLY[@]}"
`
	for line, want := range map[string]string{"binnacle compl": "completion", "binnacle tools --output js": "json jsonl", "binnacle context set x --ad": "--addr"} {
		cmd := exec.Command("bash", append([]string{"-c", run, "bash"}, strings.Fields(line)...)...)
		cmd.Env = append(os.Environ(), "TEST_SCRIPT="+path, "TEST_PROGRAM="+os.Args[0])
		out, err := cmd.CombinedOutput()
		if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != want {
			t.Errorf("%q completes to %q, want %q: %v", line, got, want, err)
		}
	}
}

// TestContexts checks that contexts can be added, selected, listed and removed, that unknown
// contexts, missing addresses, and missing, malformed or rejected tokens are errors, and that a
// stored token is never printed.
func TestContexts(t *testing.T) {
	alone(t)
	addr, tokens := answers(t, map[string]string{"GET /api/v1/packs": packs})
	must := func(want string, code int, in string, args ...string) {
		t.Helper()
		got, out, errOut := invokeWith(t, in, args...)
		if got != code || !strings.Contains(out+errOut, want) {
			t.Errorf("%v: %d, want %d with %q\n%s%s", args, got, code, want, out, errOut)
		}
		if strings.Contains(out+errOut, "good") {
			t.Errorf("%v prints the token\n%s%s", args, out, errOut)
		}
	}
	must("logged in to "+addr+"; context default is in use", exitOK, "good\n", "login", "--addr", addr)
	must("cmd.upper", exitOK, "", "tools")
	must("context other is stored", exitOK, "", "context", "set", "other", "--addr", "127.0.0.1:1", "--ca", "")
	must("no mesh responds at 127.0.0.1:1", exitNoMesh, "", "tools", "--context", "other", "--token", "x")
	must(`context "other" has no token`, exitAuth, "", "tools", "--context", "other")
	must(`did you mean other?`, exitUsage, "", "tools", "--context", "ohter")
	must(`did you mean other?`, exitUsage, "", "context", "use", "othr")
	must("context other is in use", exitOK, "", "context", "use", "other")
	must(`context "other" has no token`, exitAuth, "", "tools")
	must("cmd.upper", exitOK, "", "tools", "--context", "default")
	must(`{"name":"other","current":true,"addr":"127.0.0.1:1","token":false}`, exitOK, "", "context", "list", "--json")
	must("*       other             127.0.0.1:1               none\n", exitOK, "", "context", "list", "-o", "table")
	must("the token is not accepted", exitAuth, "bad", "login", "--context", "default")
	must("cmd.upper", exitOK, "", "tools", "--context", "default") // the rejected login has not changed the stored contexts
	must("standard input contains no token", exitAuth, " \n", "login")
	must("standard input contains no token", exitAuth, "a b", "login")
	must("login reads the token from standard input", exitUsage, "good", "login", "--token", "x")
	must("no mesh responds", exitNoMesh, "good", "login", "--context", "third", "--addr", "127.0.0.1:1")
	must("context set requires", exitUsage, "", "context", "set", "third") // the command line names no address
	must("context default is removed", exitOK, "", "context", "remove", "default")
	must("does not exist", exitUsage, "", "context", "remove", "default")
	if slices.Contains(*tokens, "") {
		t.Error("a request without a token was sent")
	}
}

// TestTokenStaysHome checks that a context's token is only sent to the context's
// address, and that the administrator's token is not sent to the address of a context.
func TestTokenStaysHome(t *testing.T) {
	alone(t)
	home, _ := answers(t, map[string]string{"GET /api/v1/packs": packs})
	away, tokens := answers(t, map[string]string{"GET /api/v1/packs": packs})
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "admin.token"), []byte("admins"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errOut := invokeWith(t, "good", "login", "--addr", home); code != exitOK {
		t.Fatal(errOut)
	}
	if code, out, _ := invoke(t, "tools"); code != exitOK || !strings.Contains(out, "cmd.upper") {
		t.Error(code, out)
	}
	for _, set := range []func() []string{
		func() []string { return []string{"tools", "--addr", away, "--data", data} },
		func() []string { t.Setenv("BINNACLE_ADDR", away); return []string{"tools", "--data", data} },
	} {
		if code, _, errOut := invoke(t, set()...); code != exitAuth {
			t.Error(code, errOut)
		}
	}
	if slices.Contains(*tokens, "good") || len(*tokens) != 2 {
		t.Errorf("another mesh received %v", *tokens)
	}
	// A new address removes the token from the context.
	os.Unsetenv("BINNACLE_ADDR")
	if code, _, errOut := invoke(t, "context", "set", "default", "--addr", away); code != exitOK {
		t.Fatal(errOut)
	}
	if code, _, errOut := invoke(t, "tools", "--data", data); code != exitAuth || !strings.Contains(errOut, "has no token") || len(*tokens) != 2 {
		t.Error(code, errOut, *tokens)
	}
}

// TestPrecedence checks that flags take precedence over variables, and variables over
// the current context; a context named on the command line takes precedence over
// variables.
func TestPrecedence(t *testing.T) {
	alone(t)
	path, err := contexts.Path()
	if err != nil {
		t.Fatal(err)
	}
	s := &contexts.Store{Contexts: map[string]contexts.Context{"one": {Addr: "one:1", Token: "t1", CA: "one.pem"}, "two": {Addr: "two:2", Token: "t2"}}, Current: "one"}
	if err := s.Save(path); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		line, env         string
		addr, token, file string
	}{
		{"", "", "one:1", "t1", "one.pem"},
		{"", "BINNACLE_CONTEXT=two", "two:2", "t2", ""},
		{"--context two", "BINNACLE_CONTEXT=one", "two:2", "t2", ""},
		{"", "BINNACLE_ADDR=x:1 BINNACLE_TOKEN=tx", "x:1", "tx", ""},
		{"", "BINNACLE_TOKEN=tx", "one:1", "tx", "one.pem"},
		{"", "BINNACLE_ADDR=one:1", "one:1", "t1", "one.pem"},
		{"--addr y:1 --token ty", "BINNACLE_ADDR=x:1 BINNACLE_TOKEN=tx", "y:1", "ty", ""},
		{"--context two", "BINNACLE_ADDR=x:1 BINNACLE_TOKEN=tx", "two:2", "t2", ""},
		{"--context two --token ty", "", "two:2", "ty", ""},
		{"--addr two:2 --context two", "", "two:2", "t2", ""},
		{"", "BINNACLE_CA=all.pem", "one:1", "t1", "all.pem"},
		{"--context one", "BINNACLE_CA=all.pem", "one:1", "t1", "one.pem"},
		{"--context two", "BINNACLE_CA=all.pem", "two:2", "t2", "all.pem"},
		{"", "BINNACLE_CONTEXT=one BINNACLE_CA=all.pem", "one:1", "t1", "all.pem"},
	} {
		t.Run(x.line+" "+x.env, func(t *testing.T) {
			for _, kv := range strings.Fields(x.env) {
				name, value, _ := strings.Cut(kv, "=")
				t.Setenv(name, value)
			}
			c := &env{out: io.Discard, errOut: io.Discard}
			root := newRoot(c)
			cmd, rest, err := root.Find(append([]string{"tools"}, strings.Fields(x.line)...))
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil {
				err = c.start(cmd.Flags())
			}
			if err != nil {
				t.Fatal(err)
			}
			token, err := c.bearer()
			if err != nil || c.mesh().addr != x.addr || token != x.token || c.mesh().ca != x.file {
				t.Errorf("%s %s %s (%v), want %s %s %s", c.mesh().addr, token, c.mesh().ca, err, x.addr, x.token, x.file)
			}
		})
	}
}

// TestOperatorToken checks the token of an operator's requests: that of --token, of a context that
// the command line names, of BINNACLE_OPERATOR_TOKEN, of BINNACLE_TOKEN, of the context that
// BINNACLE_CONTEXT names, or of a file in DATA. It checks their precedence for some pairs of them,
// and that other requests do not have the operator's token.
func TestOperatorToken(t *testing.T) {
	alone(t)
	path, err := contexts.Path()
	if err != nil {
		t.Fatal(err)
	}
	s := &contexts.Store{Contexts: map[string]contexts.Context{"one": {Addr: "one:1", Token: "t1"}}}
	if err := s.Save(path); err != nil {
		t.Fatal(err)
	}
	both, old := t.TempDir(), t.TempDir()
	write(t, both, map[string]string{mesh.AdminTokenFile: "admin\n", mesh.OperatorTokenFile: "operator\n"})
	write(t, old, map[string]string{mesh.AdminTokenFile: "admin\n"})
	for _, x := range []struct {
		line, env, data string
		operator, usual string
	}{
		{"", "", both, "operator", "admin"},
		{"", "", old, "admin", "admin"},
		{"", "TOKEN=tx", both, "tx", "tx"},
		{"", "OPERATOR_TOKEN=to TOKEN=tx", both, "to", "tx"},
		{"", "OPERATOR_TOKEN=to", both, "to", "admin"},
		{"--token ty", "OPERATOR_TOKEN=to TOKEN=tx", both, "ty", "ty"},
		{"--context one", "OPERATOR_TOKEN=to TOKEN=tx", both, "t1", "t1"},
		{"", "CONTEXT=one OPERATOR_TOKEN=to", both, "to", "t1"},
		{"", "CONTEXT=one", both, "t1", "t1"},
	} {
		t.Run(x.line+" "+x.env, func(t *testing.T) {
			for _, kv := range strings.Fields(x.env) {
				name, value, _ := strings.Cut(kv, "=")
				t.Setenv("BINNACLE_"+name, value)
			}
			for operator, want := range map[bool]string{true: x.operator, false: x.usual} {
				c := &env{out: io.Discard, errOut: io.Discard}
				cmd, rest, err := newRoot(c).Find(append([]string{"tools", "--data", x.data}, strings.Fields(x.line)...))
				if err == nil {
					err = cmd.ParseFlags(rest)
				}
				if err == nil {
					err = c.start(cmd.Flags())
				}
				if err != nil {
					t.Fatal(err)
				}
				c.operator = operator
				if token, err := c.bearer(); err != nil || token != want {
					t.Errorf("operator %t: %s, want %s (%v)", operator, token, want, err)
				}
			}
		})
	}
}

// TestOperatorRequests checks which commands send their first request with an operator's
// token.
func TestOperatorRequests(t *testing.T) {
	alone(t)
	t.Setenv("BINNACLE_TOKEN", "usual")
	t.Setenv("BINNACLE_OPERATOR_TOKEN", "good")
	dir := t.TempDir()
	write(t, dir, map[string]string{"p0.json": `{"max_cents":5}`, "overlay.json": `{"id":"o","rules":[{"kinds":["tool.rm*"],"reason_code":"DENY_X","verdict":"DENY"}],"scope":"agent","subject":"a"}`,
		"seed": strings.Repeat("01", 32), "root.kid": "k-0123456789abcdef0123456789abcdef\n"})
	for line, want := range map[string]string{
		"tenant create a/b/c --admin ann":        "good",
		"tenant list":                            "good",
		"tenant show a_b_c":                      "good",
		"tenant suspend a_b_c --reason x":        "good",
		"tenant resume a_b_c --reason x":         "good",
		"tenant quota a_b_c --quota-in-flight 1": "good",
		"tenant export a_b_c":                    "good",
		"freeze --reason x":                      "good",
		"unfreeze --reason x":                    "good",
		"call policy.freeze {}":                  "good",
		"call tenant.suspend {}":                 "good",
		"call noop {}":                           "usual",
		"policy activate DIR/p0.json":            "good",
		"policy activate DIR/overlay.json":       "usual",
		"policy rollback p0":                     "good",
		"policy rollback p1":                     "usual",
		"policy simulate DIR/overlay.json":       "good",
		"policy explain c-1":                     "usual",
		"why c-1":                                "usual",
		"replay":                                 "good",
		"replay --until 3":                       "good",
		"export --ledger":                        "good",
		"export --session s":                     "usual",
		"archive --to DIR/archive":               "good",
		"witness --name w --key DIR/seed --state DIR/state --root DIR/root.kid --every 0": "good",
		"events list":                "usual",
		"trust list":                 "usual",
		"mcp add x http://x --oauth": "good",
		"mcp login x":                "usual",
		"mcp login x --operator":     "good",
	} {
		addr, tokens := answers(t, nil)
		invoke(t, append(strings.Fields(strings.ReplaceAll(line, "DIR", dir)), "--addr", addr, "--data", dir)...)
		if len(*tokens) == 0 || (*tokens)[0] != want {
			t.Errorf("%s: tokens %q, want %s", line, *tokens, want)
		}
	}
}

// TestBrokenContexts checks that a malformed file of contexts is an error for a command
// that needs a context, and that other commands ignore it.
func TestBrokenContexts(t *testing.T) {
	alone(t)
	addr, _ := answers(t, map[string]string{"GET /api/v1/packs": packs})
	path, err := contexts.Path()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errOut := invoke(t, "tools"); code == exitOK || !strings.Contains(errOut, path) {
		t.Error(code, errOut)
	}
	if code, _, errOut := invoke(t, "version"); code != exitOK {
		t.Error(code, errOut)
	}
	if code, _, errOut := invoke(t, "tools", "--addr", addr, "--token", "good"); code != exitOK {
		t.Error(code, errOut)
	}
}

// TestHelp checks that help, --help, -h and -help print help on standard output and exit with code
// 0, that no line except usage and examples is longer than helpWidth+2 characters, and that --json
// prints the same text in a document.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"--help"}, {"-h"}, {"-help"}, {"help", "policy"}, {"policy", "activate", "--help"}, {"policy", "-h"}, {"call", "-help"}} {
		code, out, errOut := invoke(t, args...)
		if code != exitOK || !strings.Contains(out, "Usage:\n  binnacle") || !strings.Contains(out, "Flags of every command:") || errOut != "" {
			t.Errorf("%v: %d\n%s%s", args, code, out, errOut)
		}
		for _, l := range strings.Split(out, "\n") {
			if n := len([]rune(l)); n > helpWidth+2 && !strings.HasPrefix(l, "  binnacle") {
				t.Errorf("%v: a line has %d characters: %s", args, n, l)
			}
		}
		var doc struct{ Usage string }
		code, js, _ := invoke(t, append(args, "--json")...)
		if err := json.Unmarshal([]byte(js), &doc); code != exitOK || err != nil || doc.Usage != out {
			t.Errorf("%v --json: %d %v\n%s", args, code, err, js)
		}
	}
}
