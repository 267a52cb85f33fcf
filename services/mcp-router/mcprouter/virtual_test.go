package mcprouter

import (
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
)

// catalogOf returns a service whose catalog has the tools, each registered by its executor.
func catalogOf(t *testing.T, tools ...contract.Tool) *Service {
	t.Helper()
	s := &Service{view: newView(nil)}
	for i := range tools {
		x := &tools[i]
		x.Version, x.InputSchema = "v1", contract.Raw(`{"type":"object"}`)
		if x.OutputSchema == nil {
			x.OutputSchema = contract.Raw(`{"type":"object"}`)
		}
		e := &contract.Event{Source: x.Executor + "/" + x.Executor + "-1", Name: contract.EventToolRegistered, Tenant: "c", Data: contract.Bytes(x)}
		if err := s.view.catalog.Catalog.Apply("c", e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// offerOf returns the document of a kind of a server.
func offerOf(t *testing.T, kind, server string) contract.Tool {
	t.Helper()
	schema, err := (&mcpdoc.Offer{Server: server}).Schema()
	if err != nil {
		t.Fatal(err)
	}
	return contract.Tool{Kind: kind, Tool: strings.TrimPrefix(kind, mcpdoc.ToolPrefix), Executor: Name, OutputSchema: schema}
}

// TestPublished checks that a member of a virtual server which matches nothing is refused
// with an error that names its list and index, and what a virtual server offers: the approved
// tools that it names.
func TestPublished(t *testing.T) {
	one, pack := offerOf(t, "tool.a.one", "a"), contract.Tool{Kind: "tool.cmd.upper", Tool: "cmd.upper", Executor: "session-runner"}
	changed := offerOf(t, "tool.a.two", "a")
	later := changed
	later.Description = "changed"
	schema, err := (&mcpdoc.Virtual{Tools: []string{"a.*"}}).Schema()
	if err != nil {
		t.Fatal(err)
	}
	small := contract.Tool{Kind: mcpdoc.VirtualKind("small"), Tool: mcpdoc.VirtualKind("small"), Executor: Name, OutputSchema: schema}
	s := catalogOf(t, one, pack, changed, later, offerOf(t, "resource.a", "a"), offerOf(t, "resource.a.subscribe", "a"), offerOf(t, "prompt.a.greet", "a"), small)
	for want, v := range map[string]*mcpdoc.Virtual{
		"":             {Tools: []string{"a.*", "cmd.upper"}, Prompts: []string{"a.greet"}, Resources: []string{"a"}},
		"tools: ":      {},
		"tools[1]":     {Tools: []string{"a.one", "b.*"}},
		"prompts[0]":   {Tools: []string{"a.one"}, Prompts: []string{"greet"}},
		"resources[0]": {Tools: []string{"a.one"}, Resources: []string{"a*"}},
		"resources[1]": {Tools: []string{"a.one"}, Resources: []string{"a", "b"}},
	} {
		if err := s.exist(v); want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%+v: %v, want %s", v, err, want)
		}
	}
	all := s.allPublished(s.view.catalog.In("t"))
	if len(all) != 1 || all[0].Name != "small" || !all[0].Approved || !slices.Equal(all[0].Offers, []string{"a.one"}) {
		t.Errorf("%+v", all)
	}
}
