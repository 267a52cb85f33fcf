package guard

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// declaresEgress reports whether the tool declares hosts or rules for requests through the
// egress-broker.
func declaresEgress(t *contract.Tool) bool { return len(t.Egress) > 0 || len(t.EgressRules) > 0 }

// forbidsEgress reports whether the ceilings permit no request to a host that
// the tool declares, or no request that one of its rules allows, or whether
// its rules are invalid.
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

// egress returns the rules of the ceilings: first those for EgressHosts, which permit
// HTTP and HTTPS on the ports that a tool with the same host reaches (see
// netrule.OfHosts), and then Egress. If one of the hosts is "*", it returns only a rule
// that permits every request.
func (c *Ceilings) egress() []contract.EgressRule {
	if slices.Contains(c.EgressHosts, "*") {
		return []contract.EgressRule{{Host: "*"}}
	}
	return append(netrule.OfHosts(c.EgressHosts), c.Egress...)
}

// PermitsEgress reports whether the ceilings permit the host, mode, port, methods and paths that
// a rule of another layer states. A member that the rule leaves empty is not compared; see
// netrule.Within.
func (c *Ceilings) PermitsEgress(r *contract.EgressRule) bool { return netrule.Within(r, c.egress()) }

// egressOf returns the rules of the intent: those of the tool that the ceilings and the
// other layers permit. It returns nil if the tool declares neither hosts nor rules. It
// also returns nil if the tool declares only hosts, and neither the ceilings nor another
// layer has rules: as in earlier releases, the rules then follow from the hosts of the
// intent (see netrule.OfIntent). If the result exceeds the limits of a list
// (netrule.Exceeds), it is incomplete, and reaches returns false.
func egressOf(in *Inputs, v Answer) []contract.EgressRule {
	t := in.Tool
	if !declaresEgress(t) || len(t.EgressRules)+len(v.Egress)+len(in.P0.Egress) == 0 {
		return nil
	}
	rules := slices.Concat(t.EgressRules, netrule.OfHosts(t.Egress)) // the tool's rules come first: the first match counts, and the rules of hosts have no restrictions
	for _, ceiling := range append([][]contract.EgressRule{in.P0.egress()}, v.Egress...) {
		if rules = netrule.Intersect(rules, ceiling); netrule.Exceeds(rules) {
			break // reaches denies the call
		}
	}
	return rules
}

// reaches reports whether the layers permit at least one of the requests that the tool
// declares, in a list of rules that the egress-broker can enforce. It returns true if
// egressOf returns nil.
func reaches(in *Inputs, v Answer) bool {
	rules := egressOf(in, v)
	if rules == nil {
		return true
	}
	_, err := netrule.Compile(rules)
	return err == nil && len(rules) > 0
}

// HostsOf returns the hosts that the tool declares, for rules of policies: those in
// Egress, and then the hosts of its rules that are not among them, each once.
func HostsOf(t *contract.Tool) []string {
	out := append([]string{}, t.Egress...)
	for i := range t.EgressRules {
		if h := t.EgressRules[i].Host; !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	return out
}

// SecretsOf returns the names of the secrets that calls of the tool use, for rules of policies:
// those that the tool receives, and then the others that the egress-broker adds to its requests.
// It omits secrets that are granted by a pattern, which only the executor uses.
func SecretsOf(t *contract.Tool) []string {
	out := []string{}
	for i := range t.Secrets {
		if !t.Secrets[i].Pattern() {
			out = append(out, t.Secrets[i].Name)
		}
	}
	for i := range t.EgressRules {
		if c := t.EgressRules[i].Credential; c != nil && !slices.Contains(out, c.Secret) {
			out = append(out, c.Secret)
		}
	}
	return out
}
