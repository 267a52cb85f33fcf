package cli

import (
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
)

func (s *story) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "call %s\n", s.CallID)
	for _, n := range s.Nodes {
		if n.Seq == 0 {
			continue
		}
		fmt.Fprintf(&b, "  %6d  %s  %-11s %-18s %s\n", n.Seq, n.Time, n.Kind, n.Name, n.Says)
		if n.Name == contract.EventCallProposed {
			for _, r := range s.Rules {
				fmt.Fprintf(&b, "            %-20s %s  %s\n", strings.TrimSpace(r.Part+" "+r.Name), opinion(r), r.At)
			}
		}
	}
	return b.String()
}

func (n *chapter) label() string {
	if n.Seq == 0 {
		return n.ID
	}
	return n.Name + ": " + n.Says
}

// name returns the identifier of a node in a drawing.
func (s *story) name(id string) string {
	return fmt.Sprintf("n%d", slices.IndexFunc(s.Nodes, func(n chapter) bool { return n.ID == id }))
}

func (s *story) mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, "  %s[\"%s\"]\n", s.name(n.ID), strings.NewReplacer(`"`, "#quot;", "<", "#lt;", ">", "#gt;").Replace(n.label()))
	}
	for _, e := range s.Edges {
		fmt.Fprintf(&b, "  %s --> %s\n", s.name(e[0]), s.name(e[1]))
	}
	return b.String()
}

func (s *story) dot() string {
	var b strings.Builder
	b.WriteString("digraph why {\n  node [shape=box]\n")
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, "  %s [label=%q]\n", s.name(n.ID), n.label())
	}
	for _, e := range s.Edges {
		fmt.Fprintf(&b, "  %s -> %s\n", s.name(e[0]), s.name(e[1]))
	}
	return b.String() + "}\n"
}

// svg returns a drawing with the events one below the other in ledger order. Arrows to
// the next event are straight; all other arrows are curved.
func (s *story) svg() string {
	const width, height, gap, left = 760, 34, 26, 60
	var b strings.Builder
	total := len(s.Nodes)*(height+gap) + gap
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="monospace" font-size="12">`+"\n", width+2*left, total)
	b.WriteString(`<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>` + "\n")
	fill := map[string]string{proofgraph.Intent: "#e8f0fe", proofgraph.Effect: "#e6f4ea", proofgraph.Attestation: "#fef7e0", proofgraph.MergeDecision: "#fce8e6", proofgraph.TrustEvent: "#f3e8fd"}
	row := map[string]int{}
	for i, n := range s.Nodes {
		row[n.ID] = i
		y := gap + i*(height+gap)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="%s" stroke="#555"/><text x="%d" y="%d">%s</text>`+"\n", left, y, width, height, fill[n.Kind], left+10, y+21, html.EscapeString(n.label()))
	}
	for _, e := range s.Edges {
		from, to := row[e[0]], row[e[1]]
		y1, y2 := gap+from*(height+gap)+height, gap+to*(height+gap)
		if to == from+1 {
			fmt.Fprintf(&b, `<path d="M%d %dV%d" stroke="#555" fill="none" marker-end="url(#a)"/>`+"\n", left+width/2, y1, y2-1)
			continue
		}
		fmt.Fprintf(&b, `<path d="M%d %dC%d %d %d %d %d %d" stroke="#999" fill="none" marker-end="url(#a)"/>`+"\n", left, y1-height/2, 5, y1-height/2, 5, y2+height/2, left-1, y2+height/2)
	}
	return b.String() + "</svg>\n"
}
