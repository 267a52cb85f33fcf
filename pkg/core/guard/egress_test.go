package guard_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

type rules = []contract.EgressRule

// TestEgressRules shows the rules of an intent: those of the tool, narrowed by the ceilings
// and by each layer, and the calls that are denied because nothing remains or because the
// ceilings do not permit a rule. It also shows that Egress returns these rules, and nil for a
// denied call and for an unknown tool.
func TestEgressRules(t *testing.T) {
	k := key(t, "policy-1")
	token := &contract.EgressCredential{Secret: "token", Header: "Authorization", Format: "Bearer {}"}
	api := contract.EgressRule{Host: "api.a.org", Mode: netrule.Terminate, Methods: []string{"GET", "PUT"}, Paths: []string{"/v1/**"}, Credential: token}
	get := api
	get.Methods = []string{"GET"}
	var nine, ends, begins []string
	for i := range 9 {
		nine, ends, begins = append(nine, fmt.Sprint("/p", i)), append(ends, fmt.Sprintf("/*x%dx", i)), append(begins, fmt.Sprintf("/y%dy*", i))
	}
	for name, c := range map[string]struct {
		set    func(in *guard.Inputs)
		denied bool
		want   rules
	}{
		"no egress": {func(in *guard.Inputs) { in.P1.Egress = []rules{{}} }, false, nil},
		"hosts alone": {func(in *guard.Inputs) {
			in.Tool.Egress, in.P0.EgressHosts = []string{"a.org"}, []string{"*.org", "a.org"}
		}, false, nil},
		"rules": {func(in *guard.Inputs) { in.Tool.EgressRules, in.P0.EgressHosts = rules{api}, []string{"*.a.org"} }, false, rules{api}},
		"any host": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts = rules{{Host: "a.org", Mode: netrule.TCP, Port: 5432}}, []string{"*"}
		}, false, rules{{Host: "a.org", Mode: netrule.TCP, Port: 5432}}},
		"a host of the ceilings is not a port": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts = rules{{Host: "a.org", Mode: netrule.TCP, Port: 5432}}, []string{"a.org"}
		}, true, nil},
		"a host of the ceilings is not opaque": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts = rules{{Host: "a.org", Mode: netrule.Passthrough}}, []string{"a.org"}
		}, true, nil},
		"narrowed by P0": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.Egress = rules{api}, rules{{Host: "*.a.org", Methods: []string{"GET"}}}
		}, false, rules{get}},
		"narrowed by P1": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts = rules{api}, []string{"*"}
			in.P1.Egress = []rules{{{Host: "*", Methods: []string{"GET"}}}}
		}, false, rules{get}},
		"narrowed by P2": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts = rules{api}, []string{"*"}
			in.P2 = []guard.Answer{{Egress: []rules{{{Host: "*.org"}}}}, {Egress: []rules{{{Host: "api.a.org", Methods: []string{"GET"}}}}}}
		}, false, rules{get}},
		"hosts come after rules": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.Tool.Egress, in.P0.EgressHosts = rules{api}, []string{"api.a.org:443"}, []string{"*"}
		}, false, rules{api, {Host: "api.a.org", Mode: netrule.Terminate, Port: 443}, {Host: "api.a.org", Mode: netrule.HTTP, Port: 443}}},
		"nine paths in both lists": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.Egress = rules{{Host: "a.org", Mode: netrule.HTTP, Paths: nine}}, rules{{Host: "*", Paths: nine}}
		}, false, rules{{Host: "a.org", Mode: netrule.HTTP, Paths: nine}}},
		"more paths than the broker accepts": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.Egress = rules{{Host: "a.org", Mode: netrule.HTTP, Paths: ends}}, rules{{Host: "*", Paths: begins}}
		}, true, nil},
		"a longer pattern than the broker accepts": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.Egress = rules{{Host: "a.org", Mode: netrule.HTTP, Paths: []string{"/*" + strings.Repeat("a", 400)}}}, rules{{Host: "*", Paths: []string{"/" + strings.Repeat("b", 400) + "*"}}}
		}, true, nil},
		"hosts narrowed by P1": {func(in *guard.Inputs) {
			in.Tool.Egress, in.P0.EgressHosts = []string{"a.org", "b.org:8080"}, []string{"*"}
			in.P1.Egress = []rules{{{Host: "b.org"}}}
		}, false, rules{{Host: "b.org", Mode: netrule.Terminate, Port: 8080}, {Host: "b.org", Mode: netrule.HTTP, Port: 8080}}},
		"a host that a rule of P0 permits": {func(in *guard.Inputs) {
			in.Tool.Egress, in.P0.Egress = []string{"a.org"}, rules{{Host: "a.org", Mode: netrule.Terminate}}
		}, false, rules{{Host: "a.org", Mode: netrule.Terminate}}},
		"a rule beyond P0": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts = rules{api, {Host: "evil.org", Mode: netrule.HTTP}}, []string{"*.a.org"}
		}, true, nil},
		"a host beyond P0": {func(in *guard.Inputs) { in.Tool.Egress, in.P0.Egress = []string{"evil.org"}, rules{{Host: "a.org"}} }, true, nil},
		"an invalid rule": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts = rules{{Host: "127.1", Mode: netrule.HTTP}}, []string{"*"}
		}, true, nil},
		"nothing left by P1": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts, in.P1.Egress = rules{api}, []string{"*"}, []rules{{}}
		}, true, nil},
		"no host left by P1": {func(in *guard.Inputs) {
			in.Tool.Egress, in.P0.EgressHosts, in.P1.Egress = []string{"a.org"}, []string{"*"}, []rules{{{Host: "b.org"}}}
		}, true, nil},
		"P2 cannot widen P0": {func(in *guard.Inputs) {
			in.Tool.EgressRules, in.P0.EgressHosts, in.P2 = rules{api}, []string{"b.org"}, []guard.Answer{{Egress: []rules{{{Host: "*"}}}}}
		}, true, nil},
		"layers without common": {func(in *guard.Inputs) {
			in.Tool.Egress, in.P0.EgressHosts, in.P1.Egress = []string{"a.org"}, []string{"*"}, []rules{{{Host: "a.org"}}, {{Host: "b.org"}}}
		}, true, nil},
	} {
		in := inputs()
		c.set(&in)
		d := guard.Decide(in, k)
		switch {
		case c.denied:
			if d.Verdict != contract.Deny || d.ReasonCode != contract.ReasonDataEgressBlocked {
				t.Errorf("%s: %s %s", name, d.Verdict, d.ReasonCode)
			}
		case d.Verdict != contract.Allow:
			t.Errorf("%s: %s %s", name, d.Verdict, d.ReasonCode)
		case !slices.EqualFunc(d.Intent.EgressRules, c.want, func(a, b contract.EgressRule) bool { return netrule.Equal(&a, &b) }):
			t.Errorf("%s: %+v", name, d.Intent.EgressRules)
		}
		if again := guard.Egress(in); c.denied && again != nil || !c.denied && !slices.EqualFunc(again, c.want, func(a, b contract.EgressRule) bool { return netrule.Equal(&a, &b) }) {
			t.Errorf("%s: Egress returns %+v", name, again)
		}
	}
	unknown := inputs()
	unknown.Tool = nil
	if got := guard.Egress(unknown); got != nil {
		t.Errorf("of an unknown tool: %+v", got)
	}
}

// TestOverlayEgress shows that an overlay's answer contains its ceiling for egress, and that the
// answer of an overlay without one contains none, which would deny all egress if it were an empty
// list.
func TestOverlayEgress(t *testing.T) {
	for want, egress := range map[string]rules{"[]": nil, "[[a.org]]": {{Host: "a.org"}}} {
		got := [][]string{}
		for _, ceiling := range (&guard.Overlay{Egress: egress}).Answer(&guard.Facts{Kind: "tool.x"}, nil).Egress {
			hosts := []string{}
			for _, r := range ceiling {
				hosts = append(hosts, r.Host)
			}
			got = append(got, hosts)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

// TestHostsOf shows that the hosts for policies are those of the tool and of its rules,
// each once. For a tool without any, they are an empty slice that is not nil.
func TestHostsOf(t *testing.T) {
	tool := &contract.Tool{Egress: []string{"a.org"}, EgressRules: rules{{Host: "b.org"}, {Host: "b.org"}, {Host: "a.org"}}}
	if got := guard.HostsOf(tool); !slices.Equal(got, []string{"a.org", "b.org"}) {
		t.Error(got)
	}
	if got := guard.HostsOf(&contract.Tool{}); got == nil || len(got) != 0 {
		t.Error(got)
	}
}

// TestSecretsOf shows that the secrets for policies include those of credentials, each
// once, and none that are granted by a pattern. For a tool without any, they are an empty
// slice that is not nil.
func TestSecretsOf(t *testing.T) {
	with := func(name string) contract.EgressRule {
		return contract.EgressRule{Credential: &contract.EgressCredential{Secret: name}}
	}
	tool := &contract.Tool{Secrets: []contract.SecretGrant{{Name: "a"}, {Name: "llm.*"}}, EgressRules: rules{{}, with("b"), with("b"), with("a")}}
	if got := guard.SecretsOf(tool); !slices.Equal(got, []string{"a", "b"}) {
		t.Error(got)
	}
	if got := guard.SecretsOf(&contract.Tool{}); got == nil || len(got) != 0 {
		t.Error(got)
	}
}
