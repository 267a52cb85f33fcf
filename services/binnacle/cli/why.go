package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

// story is a call from intent to effect, as the ledger tells it.
type story struct {
	CallID string       `json:"call_id"`
	Nodes  []chapter    `json:"nodes"` // in ledger order
	Edges  [][2]string  `json:"edges"` // from parent to child, by event id
	Rules  []guard.Step `json:"rules"` // what each layer said to the last decision
}

// chapter is one event of it.
type chapter struct {
	Seq     uint64 `json:"seq"`
	ID      string `json:"id"`
	Kind    string `json:"kind"` // INTENT, ATTESTATION, EFFECT, TRUST_EVENT
	Name    string `json:"name"`
	Source  string `json:"source"`
	Lamport uint64 `json:"lamport"`
	Time    string `json:"time"`
	Says    string `json:"says"`
}

// why tells how a call came to its end.
func why(ctx context.Context, c *env) error {
	form := c.fs.String("format", "text", "text, mermaid, dot or svg")
	pos, err := c.parse(1, 1, "CALL [--format text|mermaid|dot|svg]")
	if err != nil {
		return err
	}
	s, err := c.tell(ctx, pos[0])
	if err != nil {
		return err
	}
	render := map[string]func(*story) string{"text": (*story).text, "mermaid": (*story).mermaid, "dot": (*story).dot, "svg": (*story).svg}[*form]
	if render == nil {
		return fail(exitUsage, "--format %q: want text, mermaid, dot or svg", *form)
	}
	return c.print(s, func() { fmt.Fprint(c.out, render(s)) })
}

func (c *env) tell(ctx context.Context, call string) (*story, error) {
	var state struct {
		Session string `json:"session_id"`
	}
	if err := c.get(ctx, "/api/v1/calls/"+url.PathEscape(call), &state); err != nil {
		return nil, err
	}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/events?session="+url.QueryEscape(state.Session), nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	s := &story{CallID: call, Edges: [][2]string{}}
	in := map[string]bool{}
	graph := proofgraph.Graph{Version: 2}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		var line struct {
			Seq   uint64          `json:"seq"`
			Event json.RawMessage `json:"event"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, err
		}
		e, err := contract.DecodeEvent(line.Event)
		if err != nil {
			continue // audit's alarm, not ours
		}
		graph.Add(e, line.Event)
		if e.CallID != call {
			continue
		}
		n := graph.Nodes[len(graph.Nodes)-1]
		s.Nodes = append(s.Nodes, chapter{line.Seq, e.ID, n.Kind, e.Name, e.Source, e.Lamport, e.Time, says(e)})
		in[e.ID] = true
		for _, p := range n.Parents {
			if !in[p] { // outside the call: named, not told
				in[p] = true
				s.Nodes = append([]chapter{{ID: p, Kind: proofgraph.Attestation, Name: "before", Says: "before this call"}}, s.Nodes...)
			}
			s.Edges = append(s.Edges, [2]string{p, e.ID})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	_, err = c.decisions(ctx, func(st *policy.State, e *contract.Event, d *contract.Decision, args []byte) (err error) {
		if d.CallID == call {
			s.Rules, err = st.Explain(ctx, e, d, args)
		}
		return err
	})
	return s, err
}

// says is an event in a few words.
func says(e *contract.Event) string {
	switch e.Name {
	case "call_proposed":
		var x contract.Call
		if contract.Decode(e.Data, &x) == nil {
			return fmt.Sprintf("%s asks for %s", e.Actor, x.Kind)
		}
	case "allowed":
		var x contract.Allowed
		if contract.Decode(e.Data, &x) == nil {
			return fmt.Sprintf("%s %s, for %s until %s", x.Decision.Verdict, x.Decision.ReasonCode, x.Decision.Intent.Executor, x.Decision.Intent.Expires)
		}
	case "escalated":
		var x contract.Escalated
		if contract.Decode(e.Data, &x) == nil {
			return fmt.Sprintf("ESCALATE %s, waits until %s", x.Decision.ReasonCode, x.Expires)
		}
	case "approval_recorded":
		var x contract.Approval
		if contract.Decode(e.Data, &x) == nil {
			return strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", x.Approver, x.Vote, x.Resolved, x.Reason))
		}
	case "effect_started":
		var x contract.Started
		if contract.Decode(e.Data, &x) == nil && x.ExecutedBy == contract.Caller {
			return e.Source + " claims it, handed out to the caller"
		}
		return e.Source + " claims it"
	case "outcome_reported":
		return "the caller reports an outcome, too late"
	case "start_expired":
		return "nobody started in time"
	case "effect_recorded":
		var x contract.Recorded
		if contract.Decode(e.Data, &x) == nil {
			return strings.TrimSpace(fmt.Sprintf("%s %s, receipt %d of the session, %s %s", x.Effect.Status, x.Effect.ErrorCode, x.Receipt.Index, x.Receipt.Verdict, x.Receipt.ReasonCode))
		}
	}
	return strings.ReplaceAll(e.Name, "_", " ")
}

func (s *story) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "call %s\n", s.CallID)
	for _, n := range s.Nodes {
		if n.Seq == 0 {
			continue
		}
		fmt.Fprintf(&b, "  %6d  %s  %-11s %-18s %s\n", n.Seq, n.Time, n.Kind, n.Name, n.Says)
		if n.Name == "call_proposed" {
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

// name is a node's name in a drawing.
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

// svg draws the events one below the other, in ledger order; arrows to the
// next one are straight, others go around.
func (s *story) svg() string {
	const width, height, gap, left = 760, 34, 26, 60
	var b strings.Builder
	total := len(s.Nodes)*(height+gap) + gap
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="monospace" font-size="12">`+"\n", width+2*left, total)
	b.WriteString(`<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>` + "\n")
	fill := map[string]string{proofgraph.Intent: "#e8f0fe", proofgraph.Effect: "#e6f4ea", proofgraph.Attestation: "#fef7e0", proofgraph.TrustEvent: "#f3e8fd"}
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
