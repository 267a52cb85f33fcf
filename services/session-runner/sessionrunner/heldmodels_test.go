package sessionrunner

import (
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestModelRules checks the rule for an API of models, that a configuration that does not lead to
// one is an error, and which tools it makes available.
func TestModelRules(t *testing.T) {
	for in, want := range map[modelConfig]string{
		{}: "",
		{url: "https://api.anthropic.com", secret: "k", header: "x-api-key"}: `{"credential":{"header":"x-api-key","secret":"k"},"host":"api.anthropic.com","mode":"terminate","paths":["/v1/messages"`,
		{url: "http://127.0.0.1:8080/", secret: "k"}:                         `{"credential":{"format":"Bearer {}","header":"Authorization","secret":"k"},"host":"127.0.0.1","mode":"http","paths":["/v1/messages",`,
		{url: "https://Models.example:8443/api"}:                             `{"host":"models.example","mode":"terminate","paths":["/api/v1/messages",`,
	} {
		c := HeldConfig{ModelURL: in.url, ModelSecret: in.secret, ModelHeader: in.header}
		rules, err := c.modelRules()
		got := ""
		for i := range rules {
			got += string(contract.Bytes(&rules[i]))
		}
		if err != nil || !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%+v: %s %v", in, got, err)
		}
		if offered := slices.ContainsFunc(c.tools(), func(x contract.Tool) bool { return x.Kind == kindEgress && len(x.EgressRules) == 1 }); offered != (want != "") {
			t.Errorf("%+v: the tool is offered: %v", in, offered)
		}
		if slices.ContainsFunc(c.tools(), func(x contract.Tool) bool { return x.Kind == kindRepoFetch }) {
			t.Errorf("%+v: %s is offered", in, kindRepoFetch)
		}
	}
	for _, in := range []HeldConfig{{ModelSecret: "k"}, {ModelHeader: "x-api-key"}, {ModelURL: "https://a.example:x"}, {ModelURL: "https://"}, {ModelURL: "https://a.example", ModelSecret: "k", ModelHeader: "Host"}} {
		if _, err := in.modelRules(); err == nil || !strings.Contains(err.Error(), "model_url") {
			t.Errorf("%+v: %v", in, err)
		}
	}
}

// modelConfig is a configuration of models.
type modelConfig struct{ url, secret, header string }
