package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// TestCheckCommand checks the defaults of a server that is a command, and that each invalid
// setting, also one with a secret, is refused with its name and without its value.
func TestCheckCommand(t *testing.T) {
	fresh := func() events.ServerAdded {
		return events.ServerAdded{Name: "files", Command: "node", Image: "tools", Args: []string{"/srv/files.js", "/work"},
			Env: []events.Variable{{Name: "MEMORY_FILE_PATH", Value: "/work/m.json"}, {Name: "KEYBOARD", Value: "us"}, {Name: "API_KEY"}}}
	}
	ok := fresh()
	if err := Check(&ok); err != nil || ok.Transport != Stdio || ok.Concurrency != 1 || ok.Url != "" {
		t.Fatalf("%v %+v", err, ok)
	}
	with := func(name, value string) func(*events.ServerAdded) {
		return func(s *events.ServerAdded) { s.Env = []events.Variable{{Name: name, Value: value}} }
	}
	const key = "sk-abcdefghij0123456789"
	for want, change := range map[string]func(*events.ServerAdded){
		"transport stdio: ":              func(s *events.ServerAdded) { s.Url = "https://mcp.example/mcp" },
		"transport stdio: a":             func(s *events.ServerAdded) { s.Headers = []events.Header{{Name: "X", Secret: "mcp.x"}} },
		"transport http: ":               func(s *events.ServerAdded) { s.Transport, s.Url = HTTP, "https://mcp.example/mcp" },
		"command: ":                      func(s *events.ServerAdded) { s.Command = "" },
		"image: ":                        func(s *events.ServerAdded) { s.Image = "" },
		"args and env: ":                 func(s *events.ServerAdded) { s.Args = make([]string, 129) },
		"args: argument 1 has":           func(s *events.ServerAdded) { s.Args = []string{"a\x00b"} },
		"args: argument 2 looks":         func(s *events.ServerAdded) { s.Args = []string{"--key", key} },
		"env: name":                      with("a b", "x"),
		"env: A has more":                with("A", strings.Repeat("x", 4097)),
		"env: the placeholder in A":      with("A", "${vault:mcp.x}"),
		"env: GITHUB_TOKEN looks":        with("GITHUB_TOKEN", "x"),
		"env: github_apikey looks":       with("github_apikey", "x"),
		"env: PASSWORD looks":            with("PASSWORD", "x"),
		"env: A looks":                   with("A", key),
		"env: B looks":                   with("B", "postgres://me:open-sesame@db/x"),
		"env: C looks":                   with("C", "ghp_"+strings.Repeat("a1", 12)),
		"env: D looks":                   with("D", "-----BEGIN RSA PRIVATE KEY-----"),
		"env: E has two values":          func(s *events.ServerAdded) { s.Env = []events.Variable{{Name: "E"}, {Name: "E"}} },
		"transport \"pipe\": want http,": func(s *events.ServerAdded) { s.Transport = "pipe" },
	} {
		s := fresh()
		change(&s)
		if err := Check(&s); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), key) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestDocumentsOfCommand shows that the documents of a server that is a command have the limits of
// a sandbox and no hosts, and that subscriptions are not offered.
func TestDocumentsOfCommand(t *testing.T) {
	s := events.ServerAdded{Name: "files", Command: "node", Image: "tools", TimeoutMS: 5000}
	if err := Check(&s); err != nil {
		t.Fatal(err)
	}
	docs, problems := Documents(&s, &Listing{HasResources: true, HasSubscriptions: true, Tools: []json.RawMessage{json.RawMessage(`{"name":"read","inputSchema":{"type":"object"}}`)}})
	if len(docs) != 2 || len(problems) > 0 {
		t.Fatalf("%v %v", docs, problems)
	}
	for _, d := range docs {
		if d.Kind == mcpdoc.SubscriptionKind("files") || len(d.Egress) > 0 || d.Sandbox == nil || d.Sandbox.WallMS != 5000 || d.Sandbox.Tier != "container" {
			t.Errorf("%+v", d)
		}
	}
}
