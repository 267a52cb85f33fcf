package guard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Limit bounds one measure for every subject of a level, per window. Windows
// are calendar windows in UTC; "concurrent" counts what is reserved and not
// yet settled; "total" never resets.
type Limit struct {
	ID       string `json:"id"`
	Level    string `json:"level"` // organization, project, environment, agent, session, key
	Max      int64  `json:"max"`
	Measure  string `json:"measure"`             // calls, cents, compute_ms, egress_bytes, risk_points, tokens, usd_micros
	OnExceed string `json:"on_exceed,omitempty"` // "escalate"; empty = deny
	Subject  string `json:"subject,omitempty"`   // only this one; empty = each by itself
	Window   string `json:"window"`              // second, minute, hour, day, month, total, concurrent
}

// Canonical implements canon.Document.
func (l *Limit) Canonical(c *canon.Codec) {
	c.Str("id", &l.ID)
	c.Str("level", &l.Level)
	c.Int("max", &l.Max)
	c.Str("measure", &l.Measure)
	c.OptStr("on_exceed", &l.OnExceed)
	c.OptStr("subject", &l.Subject)
	c.Str("window", &l.Window)
}

// Limits is the document of policy.set_limits.
type Limits struct {
	Limits []Limit `json:"limits,omitempty"`
}

// Canonical implements canon.Document.
func (l *Limits) Canonical(c *canon.Codec) { canon.List(c, "limits", &l.Limits) }

var (
	levels   = []string{"organization", "project", "environment", "agent", "session", "key"}
	measures = []string{"calls", "cents", "compute_ms", "egress_bytes", "risk_points", "tokens", "usd_micros"}
	windows  = []string{"second", "minute", "hour", "day", "month", "total", "concurrent"}
)

// KeyLimit is the prefix of the ids of limits that belong to virtual keys.
const KeyLimit = "key_"

// CheckLimits returns an error for limits that could not be enforced, or that
// share an id. The error names the limit's place and field.
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

// checkID returns "id" and why the id cannot be used, or nothing.
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

// checkTerms returns the first of the other fields that is wrong, and what it
// should be.
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

// Accounts returns the names of the accounts of the limit that a call is charged
// to, "<limit>/<level>:<subject>", or none where the limit is for another
// subject. A call on behalf of another principal is charged to both. A session
// is named by its id or by its owner's name for it.
func (l *Limit) Accounts(f *Facts) []string {
	switch l.Level {
	case "organization":
		return l.account(nil, tenantPart(f.Tenant, 1))
	case "project":
		return l.account(nil, tenantPart(f.Tenant, 2))
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

// account appends the subject's account if the limit is for it, under this name
// or another.
func (l *Limit) account(out []string, subject string, names ...string) []string {
	if l.Subject == "" || l.Subject == subject || slices.Contains(names, l.Subject) {
		return append(out, l.ID+"/"+l.Level+":"+subject)
	}
	return out
}

// tenantPart is the first n parts of a tenant's id, which are organization,
// project and environment, joined by "_"; of an id with fewer, all of it.
func tenantPart(tenant string, n int) string {
	parts := strings.SplitN(tenant, "_", 3)
	return strings.Join(parts[:min(n, len(parts))], "_")
}

// RiskPoints is the weight of an effect class (E0 to E4) in limits by
// risk_points. An unknown class has that of E3.
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
