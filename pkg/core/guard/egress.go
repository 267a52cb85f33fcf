package guard

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// declaresEgress reports whether the tool may make requests through the egress-broker.
func declaresEgress(t *contract.Tool) bool { return len(t.Egress) > 0 || len(t.EgressRules) > 0 }

// forbidsEgress reports whether the tool declares a host, or has a rule, of which the
// ceilings permit no request, or whether its rules are invalid.
func (c *Ceilings) forbidsEgress(t *contract.Tool) bool {
	if slices.ContainsFunc(t.Egress, c.forbidsHost) {
		return true
	}
	if len(t.EgressRules) == 0 {
		return false
	}
	if _, err := netrule.Compile(t.EgressRules); err != nil {
		return true
	}
	ceiling := c.egress()
	return slices.ContainsFunc(t.EgressRules, func(r contract.EgressRule) bool { return !netrule.Overlap(&r, ceiling) })
}

// forbidsHost reports whether no pattern of EgressHosts matches host, and no rule of Egress
// permits a request to it.
func (c *Ceilings) forbidsHost(host string) bool {
	return !slices.ContainsFunc(c.EgressHosts, func(p string) bool { return MatchHost(p, host) }) &&
		!slices.ContainsFunc(netrule.OfHosts([]string{host}), func(r contract.EgressRule) bool { return netrule.Overlap(&r, c.Egress) })
}

// egress returns the rules of the ceilings, with those that their hosts stand for: every
// request for "*", and otherwise HTTP and HTTPS on the ports that a tool with the same
// host reaches.
func (c *Ceilings) egress() []contract.EgressRule {
	if slices.Contains(c.EgressHosts, "*") {
		return []contract.EgressRule{{Host: "*"}}
	}
	return append(netrule.OfHosts(c.EgressHosts), c.Egress...)
}

// PermitsEgress reports whether the ceilings permit every request that a rule of another
// layer names.
func (c *Ceilings) PermitsEgress(r *contract.EgressRule) bool { return netrule.Within(r, c.egress()) }

// egressOf returns the rules of the intent: those of the tool that the ceilings and the
// other layers permit. It returns nil if the tool has no rules and no layer limits its
// requests, because the hosts of the intent stand for its rules then; this gives intents of
// earlier releases their recorded form.
func egressOf(in *Inputs, v Answer) []contract.EgressRule {
	t := in.Tool
	if !declaresEgress(t) || len(t.EgressRules)+len(v.Egress)+len(in.P0.Egress) == 0 {
		return nil
	}
	rules := netrule.Intersect(append(netrule.OfHosts(t.Egress), t.EgressRules...), in.P0.egress())
	for _, ceiling := range v.Egress {
		rules = netrule.Intersect(rules, ceiling)
	}
	return rules
}

// reaches reports whether the layers permit at least one of the requests that the tool
// declares, in a list of rules that the egress-broker can enforce.
func reaches(in *Inputs, v Answer) bool {
	rules := egressOf(in, v)
	return rules == nil || len(rules) > 0 && len(rules) <= netrule.MaxRules
}

// HostsOf returns the hosts that the tool declares, for rules of policies: those in Egress
// and those of its rules, without duplicates.
func HostsOf(t *contract.Tool) []string {
	out := append([]string{}, t.Egress...)
	for i := range t.EgressRules {
		if h := t.EgressRules[i].Host; !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	return out
}
