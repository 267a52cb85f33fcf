package pipeline

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Node is a step in a flowchart. The times are in RFC 3339.
type Node struct {
	ID, Pack string
	Needs    []string
	Status   string // empty in the flowchart of a document
	Calls    int64  // number of calls
	Started  string // empty before the first call
	Ended    string // empty before the end of the step
}

// Nodes returns the steps of a document.
func (d *Document) Nodes() (out []Node) {
	for i := range d.Steps {
		out = append(out, Node{ID: d.Steps[i].ID, Pack: d.Steps[i].PackOf(), Needs: d.NeedsOf(i)})
	}
	return out
}

// Took returns the duration between two times in RFC 3339, or "" if one of them is empty or
// malformed.
func Took(from, to string) string {
	a, err := time.Parse(time.RFC3339, from)
	if err != nil {
		return ""
	}
	b, err := time.Parse(time.RFC3339, to)
	if err != nil {
		return ""
	}
	return b.Sub(a).String()
}

// Flowchart returns steps as a flowchart in Mermaid's syntax. Every step in Needs must be in
// steps. The texts are not escaped: they must be those of a document that Validate accepts.
func Flowchart(steps []Node) string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	node := map[string]string{} // by id of a step, which may be a keyword of Mermaid
	for i, s := range steps {
		node[s.ID] = "n" + strconv.Itoa(i)
		label := s.ID + "<br/>" + s.Pack
		if s.Status != "" {
			label += "<br/>" + strings.TrimSpace(s.Status+" "+Took(s.Started, s.Ended))
		}
		if s.Calls > 1 {
			label += fmt.Sprintf("<br/>%d calls", s.Calls)
		}
		fmt.Fprintf(&b, "  %s[\"%s\"]\n", node[s.ID], label)
	}
	for _, s := range steps {
		for _, n := range s.Needs {
			fmt.Fprintf(&b, "  %s --> %s\n", node[n], node[s.ID])
		}
	}
	return b.String()
}
