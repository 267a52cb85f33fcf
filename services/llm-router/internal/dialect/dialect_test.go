package dialect

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/ir"
)

func extra(names ...string) map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	for _, n := range names {
		m[n] = json.RawMessage("1")
	}
	return m
}

// TestFit shows that Fit rejects a request that the API cannot express, with an error
// that names the member, and that it rejects a member in binding, however the name is
// written.
func TestFit(t *testing.T) {
	yes, no := true, false
	small, big := &API{}, &API{Several: true, LogProbs: true, Hints: true}
	for name, c := range map[string]struct {
		api  *API
		r    ir.Request
		want string // beginning of the error; empty if the request is accepted
	}{
		"nothing":             {small, ir.Request{}, ""},
		"one answer":          {small, ir.Request{N: 1}, ""},
		"several answers":     {small, ir.Request{N: 2}, "n: "},
		"several, supported":  {big, ir.Request{N: 2}, ""},
		"no probabilities":    {small, ir.Request{LogProbs: &no}, ""},
		"probabilities":       {small, ir.Request{LogProbs: &yes}, "logprobs: "},
		"probabilities, some": {big, ir.Request{LogProbs: &yes}, ""},
		"unknown member":      {small, ir.Request{Extra: extra("x_odd")}, ""},
		"another's bound":     {big, ir.Request{Extra: extra("max_new_tokens")}, "max_new_tokens: "},
		"in camel case":       {small, ir.Request{Extra: extra("maxOutputTokens")}, "maxOutputTokens: "},
		"in another case":     {small, ir.Request{Extra: extra("Thinking_Config")}, "Thinking_Config: "},
		"with hyphens":        {small, ir.Request{Extra: extra("mcp-servers")}, "mcp-servers: "},
		"a named tool":        {small, ir.Request{Tools: []ir.ToolDef{{Name: "a"}}}, ""},
		"a nameless tool":     {small, ir.Request{Tools: []ir.ToolDef{{Name: "a"}, {}}}, "tools: "},
		"a provider's tool":   {small, ir.Request{Tools: []ir.ToolDef{{Hosted: json.RawMessage(`{}`)}}}, ""},
	} {
		err := c.api.Fit(&c.r)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestHints shows that the members in hints are kept in requests to APIs that accept
// them, and removed from requests to other APIs; that an unknown member is kept; and that
// Request returns an error for a request that Fit rejects.
func TestHints(t *testing.T) {
	for _, defined := range []bool{true, false} {
		r := &ir.Request{Extra: extra(append(slices.Clone(hints), "x_odd")...)}
		a := &API{Hints: defined, Build: func(r *ir.Request) ([]byte, error) { return json.Marshal(r.Extra) }}
		doc, err := a.Request(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range hints {
			if strings.Contains(string(doc), m) != defined {
				t.Errorf("defined %v: %s in %s", defined, m, doc)
			}
		}
		if !strings.Contains(string(doc), "x_odd") {
			t.Errorf("a member that says nothing here is lost: %s", doc)
		}
	}
	if _, err := (&API{}).Request(&ir.Request{N: 2}); err == nil {
		t.Error("a request that does not fit is written")
	}
}

func TestTo(t *testing.T) {
	if got := To("/a")("model", true); got != "/a" {
		t.Error(got)
	}
}
