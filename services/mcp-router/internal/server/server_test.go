package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// TestCheck checks that each invalid setting is refused with its name, and the defaults.
func TestCheck(t *testing.T) {
	ok := events.ServerAdded{Name: "calc", Url: "https://mcp.example:8443/mcp"}
	if err := Check(&ok); err != nil {
		t.Fatal(err)
	}
	if ok.Class != "E3" || ok.Names != Prefixed || ok.Sessions != Shared || ok.Transport != HTTP || ok.Concurrency != 16 || ok.TimeoutMS != 60_000 {
		t.Errorf("%+v", ok)
	}
	for want, change := range map[string]func(*events.ServerAdded){
		"name ":          func(s *events.ServerAdded) { s.Name = "a.b" },
		"url: want":      func(s *events.ServerAdded) { s.Url = "file:///etc/passwd" },
		"url: it must":   func(s *events.ServerAdded) { s.Url = "https://user:pass@mcp.example" },
		"transport ":     func(s *events.ServerAdded) { s.Transport = "stdio" },
		"names ":         func(s *events.ServerAdded) { s.Names = "none" },
		"sessions ":      func(s *events.ServerAdded) { s.Sessions = "one" },
		"class ":         func(s *events.ServerAdded) { s.Class = "E5" },
		"concurrency ":   func(s *events.ServerAdded) { s.Concurrency = 257 },
		"timeout_ms ":    func(s *events.ServerAdded) { s.TimeoutMS = -1 },
		"headers: name":  func(s *events.ServerAdded) { s.Headers = []events.Header{{Name: "a b", Secret: "mcp.x"}} },
		"headers: Host":  func(s *events.ServerAdded) { s.Headers = []events.Header{{Name: "Host", Secret: "mcp.x"}} },
		"headers: sec":   func(s *events.ServerAdded) { s.Headers = []events.Header{{Name: "X", Secret: "llm.key"}} },
		"headers: prefi": func(s *events.ServerAdded) { s.Headers = []events.Header{{Name: "X", Prefix: "a\nb", Secret: "mcp.x"}} },
	} {
		s := events.ServerAdded{Name: "calc", Url: "https://mcp.example/mcp"}
		change(&s)
		if err := Check(&s); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestDocuments checks the documents of a listing, which tools are left out, the bare
// name of a tool, and that a changed title changes the digest.
func TestDocuments(t *testing.T) {
	raw := func(s ...string) (out []json.RawMessage) {
		for _, x := range s {
			out = append(out, json.RawMessage(x))
		}
		return out
	}
	s := events.ServerAdded{Name: "calc", Url: "https://mcp.example/mcp", Exclude: []string{"hidden"}, Headers: []events.Header{{Name: "X", Secret: "mcp.x"}, {Name: "Y", Secret: "mcp.x"}},
		Descriptions: []events.Description{{Tool: "add", Text: "Adds."}}}
	if err := Check(&s); err != nil {
		t.Fatal(err)
	}
	l := &Listing{HasResources: true, HasCompletions: true,
		Tools: raw(`{"name":"add","title":"Sum","description":"old","inputSchema":{"type":"object","$defs":{"n":{}}},"outputSchema":{"type":"object"},"icons":[{"src":"i"}]}`,
			`{"name":"hidden","inputSchema":{"type":"object"}}`, `{"name":"no spaces","inputSchema":{"type":"object"}}`, `{"name":"list","inputSchema":[]}`,
			`{"name":"a.b","inputSchema":{"type":"object"}}`, `{"name":"a-b","inputSchema":{"type":"object"}}`, `{"name":7}`,
			`{"name":"huge","description":"`+strings.Repeat("x", maxDocument)+`","inputSchema":{"type":"object"}}`),
		Resources: raw(`{"uri":"note://a","name":"a"}`), Prompts: raw(`{"name":"greet","description":"Greets.","arguments":[{"name":"city"}]}`, `{"name":""}`)}
	docs, problems := Documents(&s, l)
	var kinds []string
	by := map[string]*contract.Tool{}
	for i := range docs {
		kinds = append(kinds, docs[i].Kind)
		by[docs[i].Kind] = &docs[i]
	}
	if got := strings.Join(kinds, " "); got != "completion.calc prompt.calc.greet resource.calc tool.calc.a.b tool.calc.add" {
		t.Errorf("kinds %s", got)
	}
	if len(problems) != 6 {
		t.Errorf("%d problems: %v", len(problems), problems)
	}
	add := by["tool.calc.add"]
	o := mcpdoc.Of(add)
	if o == nil || o.Name != "add" || o.Server != "calc" || string(o.Tool["title"]) != `"Sum"` || o.Tool["icons"] == nil || o.Tool["name"] != nil || o.Tool["inputSchema"] != nil {
		t.Fatalf("%+v", o)
	}
	if add.Description != "Adds." || string(add.InputSchema) != `{"$defs":{"n":{}},"type":"object"}` || len(add.Egress) != 1 || add.Egress[0] != "mcp.example" ||
		len(add.Secrets) != 1 || add.Secrets[0].Name != "mcp.x" || add.Executor != "mcp-router" || add.Tool != "calc.add" {
		t.Errorf("%+v", add)
	}
	if o := mcpdoc.Of(by["resource.calc"]); o == nil || len(o.Resources) != 1 || by["resource.calc"].Class != "E0" {
		t.Errorf("%+v", o)
	}
	s.Names = Bare
	if docs, _ = Documents(&s, l); docs[len(docs)-1].Tool != "add" {
		t.Errorf("bare name %s", docs[len(docs)-1].Tool)
	}
	other := l.Tools[0]
	l.Tools = raw(strings.Replace(string(other), "Sum", "Total", 1))
	changed, _ := Documents(&s, l)
	l.Tools = []json.RawMessage{other}
	same, _ := Documents(&s, l)
	if contract.Digest(&changed[3]) == contract.Digest(&same[3]) {
		t.Error("a changed title does not change the digest")
	}
}

// FuzzDocuments checks that no listing makes Documents panic or return a document that
// cannot be read again.
func FuzzDocuments(f *testing.F) {
	f.Add(`{"name":"add","inputSchema":{"type":"object"}}`)
	f.Add(`{"name":"a","inputSchema":{"type":"object"},"outputSchema":7}`)
	f.Fuzz(func(t *testing.T, tool string) {
		s := events.ServerAdded{Name: "calc", Url: "https://mcp.example/mcp"}
		if err := Check(&s); err != nil {
			t.Fatal(err)
		}
		docs, _ := Documents(&s, &Listing{Tools: []json.RawMessage{json.RawMessage(tool)}, Prompts: []json.RawMessage{json.RawMessage(tool)}})
		for i := range docs {
			var again contract.Tool
			if err := contract.Decode(contract.Bytes(&docs[i]), &again); err != nil || mcpdoc.Of(&again) == nil {
				t.Errorf("%s: %v", contract.Bytes(&docs[i]), err)
			}
		}
	})
}
