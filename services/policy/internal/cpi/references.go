package cpi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// Known is the set of names that exist in the mesh and that policies can refer to, with
// the document that is to be activated. Unless Lenient is set, every name in that document
// must exist, except sessions and functions of clients (client.*). A missing name in
// another document, which is in force already, is only a warning, since it may have been
// removed later.
type Known struct {
	Layer, Name string // layer (p0, p1, p2 or limits) and name of the document to activate
	Lenient     bool   // missing names are warnings in every document

	Now                                              string // current time (contract.TimeFormat)
	Executors, Hosts, Keys, Kinds, Principals, Roles []string
	Secrets                                          []string
	Tenant                                           string
	// Actor reports whether a principal that is not in Principals has ever acted; nil
	// means that none has. Session reports whether a session was opened; nil means that
	// every session was.
	Actor, Session func(string) bool
}

// Reference is a constant string that a bundle compares with a part of its input for
// equality or inequality, or whose membership in that part it tests.
type Reference struct {
	At    string // place in the bundle, as file:line
	Path  string // path in the input, such as input.actor
	Value string
}

// classes lists the effect classes, from read-only to irreversible.
var classes = []string{"E0", "E1", "E2", "E3", "E4"}

// named is one name that a document refers to.
type named struct {
	layer, name    string // layer and name of the document that refers to the name
	where, pointer string
	what, value    string
}

// pathOf maps a path in a bundle's input to the type of name that it holds.
var pathOf = map[string]string{
	"input.kind": "kind", "input.tool": "tool", "input.actor": "principal", "input.on_behalf_of": "principal", "input.session": "session",
	"input.tenant": "tenant", "input.roles": "role", "input.key.id": "key", "input.about.executor": "executor", "input.about.class": "class",
	"input.about.secrets": "secret", "input.about.egress_hosts": "host",
}

// references adds a finding for each name in the stack that does not exist, if the
// existing names are known. It skips patterns of kinds, which the method kind checks.
func (c *checker) references() {
	if c.s.Known == nil {
		return
	}
	for _, n := range c.s.names() {
		if n.value == "" || strings.HasSuffix(n.value, "*") && n.what == "kind" {
			continue
		}
		exists, there := c.s.Known.has(n.what, n.value)
		if exists {
			continue
		}
		severity := "warning"
		// A session exists only after its first call, and functions of clients are in no
		// catalog, so a policy about them may be activated before they exist.
		open := n.what == "session" || strings.HasPrefix(n.value, "client.") && (n.what == "kind" || n.what == "tool")
		if k := c.s.Known; !open && n.layer == k.Layer && n.name == k.Name && !k.Lenient {
			severity = "error"
		}
		c.out = append(c.out, Finding{Severity: severity, Check: "reference", Where: n.where, Pointer: n.pointer,
			Message: fmt.Sprintf("%s %q does not exist%s", n.what, n.value, suggestion(n.value, there))})
	}
}

// names returns the names in the documents of a stack, for the method references to look
// up. The value of a subject may be empty.
func (s *Stack) names() []named {
	var out []named
	add := func(layer, name, where, pointer, what string, values ...string) {
		for i, v := range values {
			at := pointer
			if strings.HasSuffix(pointer, "/") {
				at = fmt.Sprint(pointer, i)
			}
			out = append(out, named{layer, name, where, at, what, v})
		}
	}
	if p := s.P0; p != nil {
		add("p0", "", "p0", "/ceilings/forbidden_kinds/", "kind", p.ForbiddenKinds...)
		add("p0", "", "p0", "/ceilings/forbidden_caller_kinds/", "kind", p.CallerKinds...)
		for i := range p.Approvals {
			add("p0", "", "p0", fmt.Sprintf("/ceilings/approvals/%d/kinds/", i), "kind", p.Approvals[i].Kinds...)
			add("p0", "", "p0", fmt.Sprintf("/ceilings/approvals/%d/rule/roles/", i), "role", p.Approvals[i].Rule.Roles...)
		}
		for i := range p.Limits {
			add("p0", "", "p0", fmt.Sprintf("/ceilings/limits/%d/subject", i), subjectOf(p.Limits[i].Level), p.Limits[i].Subject)
		}
	}
	for _, b := range s.Bundles {
		for _, r := range b.References {
			if what := pathOf[r.Path]; what != "" {
				add("p1", b.Name, "p1 "+b.Name+" "+r.At, "", what, r.Value)
			}
		}
	}
	for i := range s.Overlays {
		o := &s.Overlays[i]
		where := "p2 " + o.ID
		add("p2", o.ID, where, "/subject", subjectOf(o.Scope), o.Subject)
		add("p2", o.ID, where, "/only_kinds/", "kind", o.Only...)
		for j := range o.Rules {
			r := &o.Rules[j]
			add("p2", o.ID, where, fmt.Sprintf("/rules/%d/kinds/", j), "kind", r.Kinds...)
			add("p2", o.ID, where, fmt.Sprintf("/rules/%d/classes/", j), "class", r.Classes...)
			if r.Approval != nil {
				add("p2", o.ID, where, fmt.Sprintf("/rules/%d/approval/roles/", j), "role", r.Approval.Roles...)
			}
		}
	}
	for i := range s.Limits {
		add("limits", "", "limits "+s.Limits[i].ID, fmt.Sprintf("/limits/%d/subject", i), subjectOf(s.Limits[i].Level), s.Limits[i].Subject)
	}
	return out
}

// subjectOf returns the type of name that is the subject of a scope or limit at this
// level, such as "principal" for the level "agent".
func subjectOf(level string) string {
	if level == "agent" {
		return "principal"
	}
	return level
}

// has reports whether a name exists. It also returns the existing names of its type, or
// nil for sessions. If the mesh has no list for a type, has returns true for every name
// of that type.
func (k *Known) has(what, value string) (exists bool, there []string) {
	switch what {
	case "principal":
		there = k.Principals
		if k.Actor != nil && !slices.Contains(there, value) {
			return k.Actor(value), there
		}
	case "session":
		return k.Session == nil || k.Session(value), nil
	default:
		list := sorts[what]
		if list == nil {
			return true, nil
		}
		there = list(k)
	}
	return slices.Contains(there, value), there
}

// sorts maps a type of name to the function that returns the existing names of the type.
var sorts = map[string]func(*Known) []string{
	"kind": func(k *Known) []string { return k.Kinds },
	"tool": func(k *Known) (tools []string) {
		for _, kind := range k.Kinds {
			tools = append(tools, strings.TrimPrefix(kind, "tool."))
		}
		return tools
	},
	"role":         func(k *Known) []string { return append([]string{guard.DefaultRole}, k.Roles...) },
	"key":          func(k *Known) []string { return k.Keys },
	"executor":     func(k *Known) []string { return k.Executors },
	"class":        func(*Known) []string { return classes },
	"secret":       func(k *Known) []string { return k.Secrets },
	"host":         func(k *Known) []string { return k.Hosts },
	"tenant":       func(k *Known) []string { return []string{k.Tenant} },
	"environment":  func(k *Known) []string { return []string{k.Tenant} },
	"project":      project,
	"organization": organization,
}

// organization returns the organization of a tenant, or none for the cell's tenant.
func organization(k *Known) []string {
	if o, _ := contract.TenantParts(k.Tenant); o != "" {
		return []string{o}
	}
	return nil
}

// project returns the project of a tenant, or none for the cell's tenant.
func project(k *Known) []string {
	if _, p := contract.TenantParts(k.Tenant); p != "" {
		return []string{p}
	}
	return nil
}

// maxNamed is the greatest number of existing names that a finding lists.
const maxNamed = 8

// suggestion returns, as the end of a message, the existing name that is most similar to
// value or, if none is similar, the first maxNamed existing names and the number of
// further ones. It returns "" if there are no existing names.
func suggestion(value string, there []string) string {
	best, at := "", len(value)/3+2
	for _, x := range there {
		if d := distance(value, x); d < at {
			best, at = x, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %q?", best)
	case len(there) == 0:
		return ""
	case len(there) > maxNamed:
		return fmt.Sprintf("; there are %s and %d more", strings.Join(there[:maxNamed], ", "), len(there)-maxNamed)
	}
	return "; there is " + strings.Join(there, ", ")
}

// distance returns the Levenshtein distance of a and b in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := prev
			if a[i] != b[j] {
				d++
			}
			prev, row[j+1] = row[j+1], min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
