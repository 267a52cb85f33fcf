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
		"transport stdio: ":          func(s *events.ServerAdded) { s.Url = "https://mcp.example/mcp" },
		"headers: a command without": func(s *events.ServerAdded) { s.Headers = []events.Header{{Name: "X", Secret: "mcp.x"}} },
		"headers: a request":         func(s *events.ServerAdded) { s.Hosts, s.Headers = []string{"a.test"}, make([]events.Header, 2) },
		"headers: secret": func(s *events.ServerAdded) {
			s.Hosts, s.Headers = []string{"a.test"}, []events.Header{{Name: "X", Secret: "x"}}
		},
		"hosts: egress":                  func(s *events.ServerAdded) { s.Hosts = []string{"https://a.test"} },
		"hosts: want at most":            func(s *events.ServerAdded) { s.Hosts = make([]string, maxHosts+1) },
		"files: want at most":            func(s *events.ServerAdded) { s.Files = make([]events.File, maxFiles+1) },
		"files: name":                    func(s *events.ServerAdded) { s.Files = []events.File{{Name: "a b", Secret: "mcp.x"}} },
		"files: secret \"x\"":            func(s *events.ServerAdded) { s.Files = []events.File{{Name: "A", Secret: "x"}} },
		"files: secret \"mcp.../x\"":     func(s *events.ServerAdded) { s.Files = []events.File{{Name: "A", Secret: "mcp.../x"}} },
		"files: KEYBOARD has two values": func(s *events.ServerAdded) { s.Files = []events.File{{Name: "KEYBOARD", Secret: "mcp.x"}} },
		"transport http: a server": func(s *events.ServerAdded) {
			*s = events.ServerAdded{Name: "a", Url: "https://a.test", Hosts: []string{"a.test"}}
		},
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

// TestNetworkOfCommand shows that a command with hosts, a header and a file passes the check, also with
// a placeholder in a variable whose name is that of a secret, and that its documents have the rules
// and the secret of the file, and no grant of the header's secret.
func TestNetworkOfCommand(t *testing.T) {
	s := events.ServerAdded{Name: "sky", Command: "node", Image: "tools", Hosts: []string{"a.test", "b.test:8443"}, Headers: []events.Header{{Name: "Authorization", Prefix: "Bearer ", Secret: "mcp.sky"}},
		Env: []events.Variable{{Name: "API_TOKEN", Value: "${vault:mcp.sky}"}}, Files: []events.File{{Name: "KEY_FILE", Secret: "mcp.key"}, {Name: "SAME", Secret: "mcp.key"}}}
	if err := Check(&s); err != nil {
		t.Fatal(err)
	}
	tool := &Listing{Tools: []json.RawMessage{json.RawMessage(`{"name":"read","inputSchema":{"type":"object"}}`)}}
	docs, problems := Documents(&s, tool)
	if len(docs) != 1 || len(problems) > 0 {
		t.Fatal(docs, problems)
	}
	d := docs[0]
	if len(d.Egress) > 0 || len(d.EgressRules) != 4 || d.EgressRules[2].Port != 8443 || d.EgressRules[0].Credential.Format != "Bearer {}" || d.EgressRules[0].Credential.Secret != "mcp.sky" {
		t.Errorf("rules %+v, hosts %v", d.EgressRules, d.Egress)
	}
	if len(d.Secrets) != 1 || d.Secrets[0].Name != "mcp.key" || len(d.Secrets[0].Hosts) > 0 {
		t.Errorf("secrets %+v", d.Secrets)
	}
	s.Headers, s.Env = nil, nil
	if docs, _ = Documents(&s, tool); len(docs) != 1 || len(docs[0].EgressRules) > 0 || len(docs[0].Egress) != 2 {
		t.Errorf("without a header: %+v", docs)
	}
}

// TestDocumentsOfCommand shows that the documents of a server that is a command have the limits of
// a sandbox and no hosts, and that subscriptions are offered unless a process serves one call only.
func TestDocumentsOfCommand(t *testing.T) {
	s := events.ServerAdded{Name: "files", Command: "node", Image: "tools", TimeoutMS: 5000}
	if err := Check(&s); err != nil {
		t.Fatal(err)
	}
	docs, problems := Documents(&s, &Listing{HasResources: true, HasSubscriptions: true, Tools: []json.RawMessage{json.RawMessage(`{"name":"read","inputSchema":{"type":"object"}}`)}})
	if len(docs) != 3 || len(problems) > 0 {
		t.Fatalf("%v %v", docs, problems)
	}
	for _, d := range docs {
		if len(d.Egress) > 0 || d.Sandbox == nil || d.Sandbox.WallMS != 5000 || d.Sandbox.Tier != "container" {
			t.Errorf("%+v", d)
		}
	}
	once := s
	once.Files = []events.File{{Name: "KEY", Secret: "mcp.key"}}
	docs, _ = Documents(&once, &Listing{HasResources: true, HasSubscriptions: true})
	if len(docs) != 1 || docs[0].Kind == mcpdoc.SubscriptionKind("files") {
		t.Errorf("%+v", docs)
	}
}
