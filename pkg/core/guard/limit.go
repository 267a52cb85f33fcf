package guard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Limit bounds one measure per window, separately for every subject of a level.
// Windows are calendar windows in UTC. The window "concurrent" counts the amounts
// that are reserved and not yet settled; "total" is never reset.
type Limit struct {
	ID       string `json:"id"`
	Level    string `json:"level"` // organization, project, environment, agent, session or key
	Max      int64  `json:"max"`
	Measure  string `json:"measure"`             // calls, cents, compute_ms, egress_bytes, risk_points, tokens or usd_micros
	OnExceed string `json:"on_exceed,omitempty"` // "escalate", or empty to deny
	Subject  string `json:"subject,omitempty"`   // the only subject that the limit is for; empty = every subject
	Window   string `json:"window"`              // second, minute, hour, day, month, total or concurrent
}

// Canonical implements canon.Document. It lists the members in the order of their
// JSON names, in which they are stored, hashed and signed.
func (l *Limit) Canonical(c *canon.Codec) {
	c.Str("id", &l.ID)
	c.Str("level", &l.Level)
	c.Int("max", &l.Max)
	c.Str("measure", &l.Measure)
	c.OptStr("on_exceed", &l.OnExceed)
	c.OptStr("subject", &l.Subject)
	c.Str("window", &l.Window)
}

// Limits is the document that a call of policy.set_limits holds. It replaces all
// limits that were set before.
type Limits struct {
	Limits []Limit `json:"limits,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their
// JSON names, in which they are stored, hashed and signed.
func (l *Limits) Canonical(c *canon.Codec) { canon.List(c, "limits", &l.Limits) }

var (
	levels   = []string{"organization", "project", "environment", "agent", "session", "key"}
	measures = []string{"calls", "cents", "compute_ms", "egress_bytes", "risk_points", "tokens", "usd_micros"}
	windows  = []string{"second", "minute", "hour", "day", "month", "total", "concurrent"}
)

// KeyLimit is the prefix of the ids of limits that belong to virtual keys. Other
// limits may not use it.
const KeyLimit = "key_"

// CeilingLimit is the prefix that policy adds to the ids of the ceilings' limits, so that
// they have accounts of their own. policy.set_limits may not use it. CheckLimits accepts
// it, because releases up to 0.5 recorded such limits.
const CeilingLimit = "p0-"

// CheckLimits returns an error for the first limit that has an invalid field, an id with
// the prefix KeyLimit, or the id of an earlier limit. The error names the limit's index
// and the field.
func CheckLimits(ls []Limit) error {
	seen := map[string]bool{}
	for i := range ls {
		l := &ls[i]
		field, want := l.checkID(seen)
		if field == "" {
			field, want = l.checkTerms()
		}
		if field != "" {
			return fmt.Errorf("limits[%d].%s: %s", i, field, want)
		}
		seen[l.ID] = true
	}
	return nil
}

// checkID returns "id" and the reason why the id cannot be used, or empty strings. seen
// holds the ids of earlier limits.
func (l *Limit) checkID(seen map[string]bool) (field, want string) {
	switch {
	case !contract.Token(l.ID):
		return "id", "want 1 to 128 of [A-Za-z0-9_-]"
	case strings.HasPrefix(l.ID, KeyLimit):
		return "id", "begins with " + KeyLimit + ", which belongs to the limits of virtual keys"
	case seen[l.ID]:
		return "id", "is used twice"
	}
	return "", ""
}

// checkTerms checks the fields other than the id. It returns the first invalid field and
// its permitted values, or empty strings.
func (l *Limit) checkTerms() (field, want string) {
	switch {
	case !slices.Contains(levels, l.Level):
		return "level", "want one of " + strings.Join(levels, ", ")
	case !slices.Contains(measures, l.Measure):
		return "measure", "want one of " + strings.Join(measures, ", ")
	case !slices.Contains(windows, l.Window):
		return "window", "want one of " + strings.Join(windows, ", ")
	case l.Max < 0 || l.Max > canon.MaxInt:
		return "max", "want 0 to 2^53-1"
	case l.OnExceed != "" && l.OnExceed != "escalate":
		return "on_exceed", `want "escalate" or nothing`
	}
	return "", ""
}

// Accounts returns the accounts of the limit that a call is charged to,
// "<limit>/<level>:<subject>", or none if the limit does not apply to the call. At the
// level agent, a call under a valid delegation is charged to the actor and to the
// principal it acts for. Limit.Subject may name a session by its id or by its owner's
// name for it; the account always has the id.
func (l *Limit) Accounts(f *Facts) []string {
	switch l.Level {
	case "organization", "project":
		return l.tenantAccount(f.Tenant)
	case "environment":
		return l.account(nil, f.Tenant)
	case "agent":
		out := l.account(nil, f.Actor)
		if f.Delegator != nil && f.OnBehalfOf != f.Actor {
			out = l.account(out, f.OnBehalfOf)
		}
		return out
	case "session":
		return l.account(nil, f.Session, f.SessionName)
	case "key":
		if f.Key != nil {
			return l.account(nil, f.Key.ID)
		}
	}
	return nil
}

// tenantAccount returns the account of the organization or project, by the limit's level,
// that the tenant belongs to, or none if it belongs to none.
func (l *Limit) tenantAccount(tenant string) []string {
	subject, project := contract.TenantParts(tenant)
	if l.Level == "project" {
		subject = project
	}
	if subject == "" {
		return nil
	}
	return l.account(nil, subject)
}

// account appends the account of subject if the limit is for every subject, or
// for subject under its own or one of its other names.
func (l *Limit) account(out []string, subject string, names ...string) []string {
	if l.Subject == "" || l.Subject == subject || slices.Contains(names, l.Subject) {
		return append(out, l.ID+"/"+l.Level+":"+subject)
	}
	return out
}

// RiskPoints returns the weight of an effect class, E0 to E4, in limits by
// risk_points. An unknown class has the weight of E3.
func RiskPoints(class string) int64 {
	switch class {
	case "E0":
		return 0
	case "E1":
		return 1
	case "E2":
		return 2
	case "E4":
		return 10
	}
	return 5
}
