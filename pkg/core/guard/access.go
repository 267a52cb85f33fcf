package guard

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// The maximum numbers of elements of Entries and Listed in an access list.
const (
	MaxSecretEntries = 256
	MaxListedSecrets = 256
)

// SecretFact is the result of comparing a use of a secret that the tool declares with the
// tenant's access list.
type SecretFact struct {
	Approval bool   `json:"approval,omitempty"` // every entry that permits the use requires approval
	Entry    string `json:"entry,omitempty"`    // id of the entry that permits the use; empty = the use is not allowed, or the default allows it
	Result   string `json:"result"`             // contract.AccessAllowed, AccessDenied, AccessNoMatch or AccessExpired
	Secret   string `json:"secret"`             // as in the tool's document: a name or a pattern
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (s *SecretFact) Canonical(c *canon.Codec) {
	c.OptBool("approval", &s.Approval)
	c.OptStr("entry", &s.Entry)
	c.Str("result", &s.Result)
	c.Str("secret", &s.Secret)
}

// SecretUse is a use of one secret in a call: the executor receives it, or the
// egress-broker adds it to requests.
type SecretUse struct {
	Secret string                // name; or, before the executor has chosen one, the pattern of a contract.SecretGrant
	Hosts  []string              // if the executor receives the secret: hosts for which the tool declares that it needs the secret; empty = not declared
	Rules  []contract.EgressRule // if the secret is added to requests: the rules of these requests; nil = the executor receives it
}

// pattern reports whether the use is of a secret that the executor has not chosen yet.
func (u *SecretUse) pattern() bool {
	return u.Rules == nil && (&contract.SecretGrant{Name: u.Secret}).Pattern()
}

// UsesOf returns one use for each grant, and one for each secret that is a credential of rules,
// with all rules that have this credential.
func UsesOf(grants []contract.SecretGrant, rules []contract.EgressRule) (out []SecretUse) {
	for i := range grants {
		out = append(out, SecretUse{Secret: grants[i].Name, Hosts: grants[i].Hosts})
	}
	own := len(out)
	for _, r := range rules {
		if r.Credential == nil {
			continue
		}
		i := slices.IndexFunc(out[own:], func(u SecretUse) bool { return u.Secret == r.Credential.Secret })
		if i < 0 {
			i = len(out) - own
			out = append(out, SecretUse{Secret: r.Credential.Secret})
		}
		out[own+i].Rules = append(out[own+i].Rules, r)
	}
	return out
}

// SecretFacts compares the uses of secrets that a tool declares with the access list of the
// call's tenant. It returns nil if the list or the tool is nil. A use with a pattern is
// permitted if an entry could permit it for one of the secrets that the pattern matches.
func SecretFacts(l *contract.SecretAccess, f *Facts, t *contract.Tool) (out []SecretFact) {
	if l == nil || t == nil {
		return nil
	}
	for _, u := range UsesOf(t.Secrets, t.EgressRules) {
		fit, result := SecretEntries(l, f, &u)
		x := SecretFact{Result: result, Secret: u.Secret}
		if len(fit) > 0 {
			first := max(slices.IndexFunc(fit, func(e *contract.SecretEntry) bool { return !e.Approval }), 0)
			x.Entry, x.Approval = fit[first].ID, fit[first].Approval
		}
		out = append(out, x)
	}
	return out
}

// SecretEntries returns the entries of an access list, in its order, that permit a use of a
// secret in a call with these facts. Of the facts, it reads Actor, Client, Now, OnBehalfOf and
// Tool. result is contract.AccessAllowed if there is such an entry; it is also
// contract.AccessAllowed, without entries, if the list is nil or its default allows the use. If
// the call is made on behalf of another principal, entries must permit the use to that principal
// too; the returned entries are those for the actor. SecretEntries does not check how often an
// entry was used, nor whether the call was approved.
func SecretEntries(l *contract.SecretAccess, f *Facts, u *SecretUse) (fit []*contract.SecretEntry, result string) {
	if l == nil || !governed(l, u) {
		return nil, contract.AccessAllowed
	}
	if f.OnBehalfOf != "" && f.OnBehalfOf != f.Actor {
		if _, result = entriesFor(l, f, f.OnBehalfOf, u); result != contract.AccessAllowed {
			return nil, result
		}
	}
	return entriesFor(l, f, f.Actor, u)
}

// governed reports whether the list decides about a use. With SecretDefaultIntent, it decides
// only about secrets in Listed. A pattern may also match other secrets, so a use with a pattern
// is compared with the list only when the executor has chosen a secret.
func governed(l *contract.SecretAccess, u *SecretUse) bool {
	if l.Default != contract.SecretDefaultIntent {
		return true
	}
	if u.pattern() {
		return false
	}
	return slices.ContainsFunc(l.Listed, func(p string) bool { return matchSecret(p, u) })
}

// matchSecret reports whether a pattern of an entry matches the secret of a use, or may match
// one of the secrets of a use with a pattern. A pattern that matches the name of a secret also
// matches that of its previous version.
func matchSecret(p string, u *SecretUse) bool {
	if u.pattern() {
		a, b := strings.TrimSuffix(p, "*"), strings.TrimSuffix(u.Secret, "*")
		return strings.HasPrefix(a, b) || p != a && strings.HasPrefix(b, a)
	}
	name, isPrevious := strings.CutSuffix(u.Secret, contract.PreviousSecret)
	return MatchKind(p, u.Secret) || isPrevious && MatchKind(p, name)
}

// entriesFor returns the entries that permit a use by a principal, and the result.
func entriesFor(l *contract.SecretAccess, f *Facts, who string, u *SecretUse) (fit []*contract.SecretEntry, result string) {
	result = contract.AccessNoMatch
	for i := range l.Entries {
		e := &l.Entries[i]
		switch {
		case !isFor(e, f, who, u):
		case e.Expires != "" && f.Now >= e.Expires:
			result = closer(result, contract.AccessExpired)
		case !covers(e, u):
			result = closer(result, contract.AccessDenied)
		default:
			fit, result = append(fit, e), contract.AccessAllowed
		}
	}
	return fit, result
}

// permitsSecret reports whether the pattern of an entry matches the secret of a use, as
// matchSecret does, except that a prefix matches NAME.previous only if it matches NAME: an entry
// for the secrets "NAME.*" does not permit the previous version of the secret NAME.
func permitsSecret(p string, u *SecretUse) bool {
	if name, isPrevious := strings.CutSuffix(u.Secret, contract.PreviousSecret); isPrevious {
		return p == u.Secret || MatchKind(p, name)
	}
	return matchSecret(p, u)
}

// isFor reports whether an entry is for a principal, client, tool and secret.
func isFor(e *contract.SecretEntry, f *Facts, who string, u *SecretUse) bool {
	return permitsSecret(e.Secret, u) && MatchKind(e.Subject, who) && MatchKind(e.Client, f.Client) && MatchKind(e.Tool, f.Tool)
}

// results lists the results from the least to the most decisive.
var results = []string{contract.AccessNoMatch, contract.AccessExpired, contract.AccessDenied, contract.AccessAllowed}

// closer returns the more decisive one of two results.
func closer(a, b string) string {
	return results[max(slices.Index(results, a), slices.Index(results, b))]
}

// covers reports whether an entry permits everything that a secret is used for. If the executor
// receives the secret, an entry with Methods or Paths does not cover the use, and an entry with
// a Host covers it only if the use has Hosts and the entry permits all of them.
func covers(e *contract.SecretEntry, u *SecretUse) bool {
	if !e.Restricts() {
		return true
	}
	ceiling := ceilingOf(e)
	if u.Rules == nil {
		return len(u.Hosts) > 0 && len(e.Methods)+len(e.Paths) == 0 && !slices.ContainsFunc(u.Hosts, func(h string) bool { return !inside(contract.EgressRule{Host: h}, ceiling) })
	}
	return !slices.ContainsFunc(u.Rules, func(r contract.EgressRule) bool { return !inside(r, ceiling) })
}

// inside reports whether the ceiling permits every request that a rule allows.
func inside(r, ceiling contract.EgressRule) bool {
	got := netrule.Intersect([]contract.EgressRule{r}, []contract.EgressRule{ceiling})
	return len(got) == 1 && netrule.Equal(&got[0], &r)
}

// ceilingOf returns the rule of a ceiling that permits the requests that an entry permits.
func ceilingOf(e *contract.SecretEntry) contract.EgressRule {
	host := e.Host
	if host == "" {
		host = "*"
	}
	return contract.EgressRule{Host: host, Methods: e.Methods, Paths: e.Paths}
}

// CheckSecretEntry returns an error unless the entry is valid. The error begins with the
// name of the invalid member.
func CheckSecretEntry(e *contract.SecretEntry) error {
	for _, m := range []struct{ name, pattern string }{{"secret", e.Secret}, {"subject", e.Subject}, {"client", e.Client}, {"tool", e.Tool}} {
		if m.pattern == "" || len(m.pattern) > 128 || strings.Contains(strings.TrimSuffix(m.pattern, "*"), "*") {
			return fmt.Errorf("%s: %q is not possible; write a name, or a prefix that ends in *", m.name, m.pattern)
		}
	}
	if e.MaxUses < 0 {
		return errors.New("max_uses: must not be negative")
	}
	if err := netrule.CheckCeiling([]contract.EgressRule{ceilingOf(e)}); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "egress[0]."))
	}
	if e.Expires == "" {
		return nil
	}
	if _, err := contract.ParseTime(e.Expires); err != nil {
		return fmt.Errorf("expires: %w", err)
	}
	return nil
}

// gateSecrets denies calls that would use a secret that the tenant's access list does not
// permit.
func gateSecrets(f *Facts) string {
	for i := range f.SecretAccess {
		if f.SecretAccess[i].Result != contract.AccessAllowed {
			return contract.ReasonSecretAccessDenied
		}
	}
	return ""
}

// secretApproval returns ESCALATE if the access list permits a use of a secret only with
// approval, and otherwise an Answer without a verdict.
func secretApproval(f *Facts) (a Answer) {
	if slices.ContainsFunc(f.SecretAccess, func(s SecretFact) bool { return s.Approval }) {
		a = Answer{Verdict: contract.Escalate, Reason: contract.ReasonApprovalRequired, Approvals: []contract.ApprovalRule{defaultApproval}}
	}
	return a
}

// ApprovedCall reports whether a call was allowed because of votes or of a break-glass grant.
func ApprovedCall(d *contract.Decision) bool {
	return d.Verdict == contract.Allow && (d.ReasonCode == contract.ReasonApproved || d.ReasonCode == contract.ReasonBreakGlass)
}
