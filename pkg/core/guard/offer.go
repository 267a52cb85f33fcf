package guard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// The verbs of obligations. An obligation is a duty of the executor during a permitted
// execution: one of these verbs followed by its object.
const (
	ObligeWithhold = "tool.withhold:"  // remove an offered tool from a request
	ObligeFlag     = "content.flag:"   // record where a class of content occurs
	ObligeRedact   = "content.redact:" // remove content of a class
	ObligeBlock    = "content.block:"  // end the call if content of a class occurs
)

// CheckObligation returns an error for an obligation with an unknown verb,
// without an object, or longer than 256 bytes.
func CheckObligation(o string) error {
	for _, verb := range []string{ObligeWithhold, ObligeFlag, ObligeRedact, ObligeBlock} {
		if what, ok := strings.CutPrefix(o, verb); ok && what != "" && len(o) <= 256 {
			return nil
		}
	}
	return fmt.Errorf("obligation %q: want tool.withhold:NAME, or content.flag, content.redact or content.block with a class, pii, secret or all", o)
}

// Offers returns an Answer without a verdict, with the obligations that follow from the
// tools that a request offers to a model: a tool must be withheld if the ceilings forbid
// one of its kinds, if an overlay has a DENY rule with neither classes nor labels for
// one of its kinds, or if an overlay has patterns in Only and none of them matches one
// of its kinds. The kinds of a tool are client.NAME and tool.NAME, where NAME is its
// offered name or the part of it that follows the name of a server; in tool.NAME, the
// first "_" may stand for a ".". A name that ends in ".*" stands for tools that the
// request does not list, such as those of an MCP server or of a stored prompt; it is
// withheld if the kind of any tool could be denied in this way. p0 may be nil.
func Offers(tools []string, p0 *Ceilings, overlays []*Overlay) Answer {
	var a Answer
	for _, t := range tools {
		if ob := ObligeWithhold + t; withheld(t, p0, overlays) && !slices.Contains(a.Obliged, ob) {
			a.Obliged = append(a.Obliged, ob)
		}
	}
	return a
}

// withheld reports whether Offers obliges the executor to withhold the tool.
func withheld(tool string, p0 *Ceilings, overlays []*Overlay) bool {
	kinds, match, listed := kindsOf(tool), matchAny, matchAny
	if strings.HasSuffix(tool, ".*") {
		match, listed = concernTools, coverTools
	}
	denied := func(kind string) bool {
		return p0 != nil && match(p0.ForbiddenKinds, kind) ||
			slices.ContainsFunc(overlays, func(o *Overlay) bool { return o.denies(kind, match) })
	}
	unlisted := func(o *Overlay) bool {
		return len(o.Only) > 0 && !slices.ContainsFunc(kinds, func(kind string) bool { return listed(o.Only, kind) })
	}
	return slices.ContainsFunc(kinds, denied) || slices.ContainsFunc(overlays, unlisted)
}

// coverTools reports whether one of the patterns matches a kind of every tool.
func coverTools(patterns []string, _ string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, wild := strings.CutSuffix(p, "*")
		return wild && (strings.HasPrefix("client.", prefix) || strings.HasPrefix("tool.", prefix))
	})
}

// concernTools reports whether any of the patterns can match the kind of a tool.
func concernTools(patterns []string, _ string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, wild := strings.CutSuffix(p, "*")
		return slices.ContainsFunc([]string{"client.", "tool."}, func(kind string) bool {
			return strings.HasPrefix(p, kind) || wild && strings.HasPrefix(kind, prefix)
		})
	})
}

// kindsOf returns the kinds that a call of the offered tool could have: those of its
// name and, because a name may begin with the name of a server, those of the parts after
// the last "__" and after the last ".".
func kindsOf(tool string) []string {
	names := []string{tool}
	for _, joint := range []string{"__", "."} {
		if i := strings.LastIndex(tool, joint); i >= 0 {
			names = append(names, tool[i+len(joint):])
		}
	}
	var out []string
	for _, n := range names {
		out = append(out, "client."+n, "tool."+n, "tool."+strings.Replace(n, "_", ".", 1))
	}
	return out
}

// denies reports whether the overlay has a rule that denies a kind for every class and
// label.
func (o *Overlay) denies(kind string, match func([]string, string) bool) bool {
	return slices.ContainsFunc(o.Rules, func(r OverlayRule) bool {
		return r.Verdict == contract.Deny && len(r.Classes) == 0 && len(r.Labels) == 0 && match(r.Kinds, kind)
	})
}
