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

// Limits is the document that policy.set_limits puts in force.
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

// KeyLimit begins the ids of limits that virtual keys bring along.
const KeyLimit = "key_"

// CheckLimits reports limits that could not be enforced.
func CheckLimits(ls []Limit) error {
	seen := map[string]bool{}
	for i, l := range ls {
		at := func(field, want string) error { return fmt.Errorf("limits[%d].%s: %s", i, field, want) }
		switch {
		case !contract.Token(l.ID):
			return at("id", "want 1 to 128 of [A-Za-z0-9_-]")
		case strings.HasPrefix(l.ID, KeyLimit):
			return at("id", "begins with "+KeyLimit+", which belongs to the limits of virtual keys")
		case seen[l.ID]:
			return at("id", "is used twice")
		case !slices.Contains(levels, l.Level):
			return at("level", "want one of "+strings.Join(levels, ", "))
		case !slices.Contains(measures, l.Measure):
			return at("measure", "want one of "+strings.Join(measures, ", "))
		case !slices.Contains(windows, l.Window):
			return at("window", "want one of "+strings.Join(windows, ", "))
		case l.Max < 0 || l.Max > canon.MaxInt:
			return at("max", "want 0 to 2^53-1")
		case l.OnExceed != "" && l.OnExceed != "escalate":
			return at("on_exceed", `want "escalate" or nothing`)
		}
		seen[l.ID] = true
	}
	return nil
}

// Accounts names, for a call, the accounts of a limit that it is charged to, or
// none where the limit speaks of somebody else. A call that is done for another
// principal is charged to both. A session is named by its id or by its owner's
// name for it. A tenant's id flattens organization, project and environment,
// joined by "_".
func (l *Limit) Accounts(f *Facts) []string {
	var out []string
	add := func(subject string, also ...string) {
		if l.Subject == "" || l.Subject == subject || slices.Contains(also, l.Subject) {
			out = append(out, l.ID+"/"+l.Level+":"+subject)
		}
	}
	switch l.Level {
	case "organization", "project":
		parts := strings.SplitN(f.Tenant, "_", 3)
		n := 1
		if l.Level == "project" {
			n = min(2, len(parts))
		}
		add(strings.Join(parts[:n], "_"))
	case "environment":
		add(f.Tenant)
	case "agent":
		add(f.Actor)
		if f.Delegator != nil && f.OnBehalfOf != f.Actor {
			add(f.OnBehalfOf)
		}
	case "session":
		add(f.Session, f.SessionName)
	case "key":
		if f.Key != nil {
			add(f.Key.ID)
		}
	}
	return out
}

// RiskPoints weighs an effect class; an unknown one weighs as E3.
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
