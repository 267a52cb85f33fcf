package guard

import (
	"slices"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestOffers shows that a denied tool is withheld under each name that a call of it can
// have. A name that ends in ".*" is withheld if any tool is denied, or if only_kinds
// does not cover every tool. Another tool is also withheld if only_kinds lists none of
// its kinds. Rules with classes or labels, and rules that escalate, withhold nothing.
func TestOffers(t *testing.T) {
	deny := func(kinds ...string) []*Overlay {
		return []*Overlay{{Rules: []OverlayRule{{Kinds: kinds, Verdict: contract.Deny}}}}
	}
	only := func(kinds ...string) []*Overlay { return []*Overlay{{Only: []string{"*"}}, {Only: kinds}} }
	for _, c := range []struct {
		tools    []string
		overlays []*Overlay
		p0       *Ceilings
		want     []string
	}{
		{[]string{"rm_rf", "safe"}, deny("client.rm_rf"), nil, []string{"rm_rf"}},
		{[]string{"ns.rm_rf", "mcp.gh.rm_rf", "srv__rm_rf"}, deny("client.rm_rf"), nil, []string{"ns.rm_rf", "mcp.gh.rm_rf", "srv__rm_rf"}},
		{[]string{"bash_20250124", "bash"}, deny("client.bash_*"), nil, []string{"bash_20250124"}},
		{[]string{"mcp.gh.*", "prompt.p.*", "safe"}, deny("client.rm_rf"), nil, []string{"mcp.gh.*", "prompt.p.*"}},
		{[]string{"mcp.gh.*"}, nil, &Ceilings{ForbiddenKinds: []string{"tool.rm*"}}, []string{"mcp.gh.*"}},
		{[]string{"mcp.gh.*"}, deny("c*"), nil, []string{"mcp.gh.*"}},
		{[]string{"mcp.gh.*", "safe"}, deny("vault.*", "llm.chat"), nil, nil},
		{[]string{"__rm_rf", ".rm_rf"}, deny("client.rm_rf"), nil, []string{"__rm_rf", ".rm_rf"}},
		{[]string{"rm_rf", "rm_rf"}, deny("client.rm_rf"), nil, []string{"rm_rf"}},
		{[]string{"rm_rf"}, []*Overlay{{Rules: []OverlayRule{{Classes: []string{"E4"}, Kinds: []string{"*"}, Verdict: contract.Deny}}}}, nil, nil},
		{[]string{"rm_rf"}, []*Overlay{{Rules: []OverlayRule{{Labels: []string{"web"}, Kinds: []string{"*"}, Verdict: contract.Deny}}}}, nil, nil},
		{[]string{"rm_rf"}, []*Overlay{{Rules: []OverlayRule{{Kinds: []string{"*"}, Verdict: contract.Escalate}}}}, nil, nil},
		{[]string{"rm_rf", "safe"}, only("llm.*", "client.safe"), nil, []string{"rm_rf"}},
		{[]string{"rm_rf", "gh_read"}, only("llm.*", "tool.gh.*"), nil, []string{"rm_rf"}},
		{[]string{"srv__safe", "ns.safe", "srv__rm_rf"}, only("client.safe"), nil, []string{"srv__rm_rf"}},
		{[]string{"rm_rf", "mcp.gh.*"}, only("llm.*"), nil, []string{"rm_rf", "mcp.gh.*"}},
		{[]string{"rm_rf", "mcp.gh.*"}, only("llm.*", "client.rm_rf"), nil, []string{"mcp.gh.*"}},
		{[]string{"rm_rf", "mcp.gh.*"}, only("client.*"), nil, nil},
		{[]string{"rm_rf", "mcp.gh.*"}, only("t*"), nil, nil},
		{[]string{"rm_rf", "mcp.gh.*"}, only("*"), nil, nil},
	} {
		var want []string
		for _, n := range c.want {
			want = append(want, ObligeWithhold+n)
		}
		if got := Offers(c.tools, c.p0, c.overlays).Obliged; !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", c.tools, got, want)
		}
	}
}
