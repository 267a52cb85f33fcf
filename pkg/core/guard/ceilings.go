package guard

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Ceilings is the P0 layer of policy: limits that no other layer can exceed. A root key
// signs it offline, so that it cannot be changed with a stolen credential.
type Ceilings struct {
	Approvals      []KindApproval        `json:"approvals,omitempty"`              // kinds that always need approval
	Egress         []contract.EgressRule `json:"egress,omitempty"`                 // requests that tools may make, beside those to EgressHosts; see netrule.CheckCeiling
	EgressHosts    []string              `json:"egress_hosts,omitempty"`           // hosts that tools may connect to: exact, "*.suffix", or "*"; empty = none
	ExplicitTools  bool                  `json:"explicit_tools,omitempty"`         // a tool that is not policy's own runs only after policy.approve_tool has approved its document; if not set, the first document of each tool counts as approved
	CallerKinds    []string              `json:"forbidden_caller_kinds,omitempty"` // kinds that callers may not execute themselves: exact, or a prefix ending in "*"
	ForbiddenKinds []string              `json:"forbidden_kinds,omitempty"`        // kinds that are always denied: exact, or a prefix ending in "*"
	Limits         []Limit               `json:"limits,omitempty"`                 // always in force, in addition to the limits of policy.set_limits
	MaxCents       int64                 `json:"max_cents_per_call"`
	Sandbox        contract.Sandbox      `json:"sandbox"`
	StartWindowMS  int64                 `json:"start_window_ms"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (c *Ceilings) Canonical(m *canon.Codec) {
	canon.List(m, "approvals", &c.Approvals)
	canon.List(m, "egress", &c.Egress)
	m.OptStrs("egress_hosts", &c.EgressHosts)
	m.OptBool("explicit_tools", &c.ExplicitTools)
	m.OptStrs("forbidden_caller_kinds", &c.CallerKinds)
	m.OptStrs("forbidden_kinds", &c.ForbiddenKinds)
	canon.List(m, "limits", &c.Limits)
	m.Int("max_cents_per_call", &c.MaxCents)
	m.Doc("sandbox", &c.Sandbox)
	m.Int("start_window_ms", &c.StartWindowMS)
}

// KindApproval requires approval for every call whose kind matches one of the
// patterns in Kinds.
type KindApproval struct {
	Kinds []string              `json:"kinds"`
	Rule  contract.ApprovalRule `json:"rule"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (k *KindApproval) Canonical(c *canon.Codec) {
	c.Strs("kinds", &k.Kinds)
	c.Doc("rule", &k.Rule)
}

// MaxApprovalTime is the longest time that a call may wait for votes.
const MaxApprovalTime = 7 * 24 * time.Hour

// CheckRule returns an error unless the rule's quorum is from 1 to 16 and its time to
// vote is from 1 ms to MaxApprovalTime.
func CheckRule(r *contract.ApprovalRule) error {
	switch {
	case r.Quorum < 1 || r.Quorum > 16:
		return errors.New("quorum: want 1 to 16")
	case r.TimeoutMS < 1 || r.TimeoutMS > MaxApprovalTime.Milliseconds():
		return fmt.Errorf("timeout_ms: want 1 to %d", MaxApprovalTime.Milliseconds())
	}
	return nil
}

// Validate returns an error for ceilings that could not be enforced. The error
// begins with the name of the JSON field.
func (c *Ceilings) Validate() error {
	switch {
	case c.StartWindowMS <= 0 || c.StartWindowMS > MaxStartWindow.Milliseconds():
		return fmt.Errorf("start_window_ms: want 1 to %d", MaxStartWindow.Milliseconds())
	case !bounded(&c.Sandbox):
		return errors.New("sandbox: every limit must be above zero")
	}
	if err := checkIsolation(&c.Sandbox); err != nil {
		return err
	}
	if c.MaxCents < 0 {
		return errors.New("max_cents_per_call: want 0 or more")
	}
	if err := netrule.CheckCeiling(c.Egress); err != nil {
		return err
	}
	if err := checkApprovals(c.Approvals); err != nil {
		return err
	}
	return CheckLimits(c.Limits)
}

func checkApprovals(approvals []KindApproval) error {
	for i := range approvals {
		a := &approvals[i]
		if len(a.Kinds) == 0 {
			return fmt.Errorf("approvals[%d].kinds: name at least one", i)
		}
		if err := CheckRule(&a.Rule); err != nil {
			return fmt.Errorf("approvals[%d].rule.%w", i, err)
		}
	}
	return nil
}

// MatchKind reports whether pattern matches kind. A pattern is a kind, or a
// prefix of kinds followed by "*".
func MatchKind(pattern, kind string) bool {
	prefix, wild := strings.CutSuffix(pattern, "*")
	return pattern == kind || wild && strings.HasPrefix(kind, prefix)
}

func matchAny(patterns []string, kind string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return MatchKind(p, kind) })
}

// MatchHost reports whether pattern matches host. A pattern is a host, "*", or
// "*." and a suffix of whole labels: "*.a.org" matches "x.a.org" but not
// "evil-a.org".
func MatchHost(pattern, host string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	return pattern == host || pattern == "*" || wild && strings.HasPrefix(suffix, ".") && strings.HasSuffix(host, suffix)
}

// SignedCeilings is the P0 document in its stored form: the ceilings, and the signature
// of a root key over them and the key's id.
type SignedCeilings struct {
	Ceilings Ceilings `json:"ceilings"`
	KID      string   `json:"kid"` // id of the root key that signed the ceilings
	Sig      string   `json:"sig,omitempty"`
}

// Canonical implements canon.Document. An unset Sig is absent; the signature covers the
// bytes without it.
func (x *SignedCeilings) Canonical(c *canon.Codec) {
	c.Doc("ceilings", &x.Ceilings)
	c.Str("kid", &x.KID)
	c.OptStr("sig", &x.Sig)
}

// SignP0 returns the canonical bytes of the P0 document that holds c, signed with
// the root key. It does not validate c.
func SignP0(root *sign.Key, c Ceilings) []byte {
	s := SignedCeilings{Ceilings: c, KID: root.KID}
	s.Sig = root.Sign(sign.DomainP0, contract.Bytes(&s))
	return contract.Bytes(&s)
}

// OpenP0 verifies and validates a P0 document that comes into force at lamport, and
// returns its ceilings. It returns an error if the document is not in canonical form, if
// its signature does not verify, if the key was not a root key at lamport, or if
// Validate fails; the ceilings must then not be used.
func OpenP0(doc []byte, lamport uint64, root KeyAt) (*Ceilings, error) {
	var s SignedCeilings
	if err := contract.Decode(doc, &s); err != nil {
		return nil, fmt.Errorf("p0: %w", err)
	}
	public, err := root(s.KID, "provision", contract.UseRoot, lamport)
	if err != nil {
		return nil, fmt.Errorf("p0: not signed by a trusted root: %w", err)
	}
	body := s
	body.Sig = ""
	if err := sign.Verify(public, sign.DomainP0, contract.Bytes(&body), s.Sig); err != nil {
		return nil, fmt.Errorf("p0: %w", err)
	}
	return &s.Ceilings, s.Ceilings.Validate()
}
