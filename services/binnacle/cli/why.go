package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/proofgraph"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// story is the recorded history of a call, from proposal to outcome.
type story struct {
	CallID string       `json:"call_id"`
	Nodes  []chapter    `json:"nodes"` // in ledger order, after the causes outside the call
	Edges  [][2]string  `json:"edges"` // pairs of ids of events: a cause and the event that it caused
	Rules  []guard.Step `json:"rules"` // the steps of the last decision on the call
}

// chapter is one event in the history of a call, or a cause outside the call; of a
// cause, only ID, Kind, Name and Says are set.
type chapter struct {
	Seq     uint64 `json:"seq"`
	ID      string `json:"id"`
	Kind    string `json:"kind"` // kind of the node in the proof graph, such as INTENT, EFFECT or MERGE_DECISION
	Name    string `json:"name"`
	Source  string `json:"source"`
	Lamport uint64 `json:"lamport"`
	Time    string `json:"time"`
	Says    string `json:"says"`
}

// newWhyCmd returns the command why, which explains the outcome of a call.
func newWhyCmd(c *env) *cobra.Command {
	var form string
	cmd := &cobra.Command{
		Use:   "why CALL",
		Short: "Explain how a call came to its end, from intent to effect",
		Long: `Explain how a call came to its end: its events from intent to effect, in ledger order,
with the answer of each layer of policy. The other formats draw the proof graph.`,
		Example: `  binnacle why c-0123456789
  binnacle why c-0123456789 --format svg > call.svg`,
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, args []string) error { return runWhy(cmd.Context(), c, args[0], form) },
	}
	cmd.Flags().StringVar(&form, "format", "text", "`FORMAT`: text, mermaid, dot or svg")
	flagWords(cmd, "format", "text", "mermaid", "dot", "svg")
	return cmd
}

// drawings holds the functions that render a story, by format.
var drawings = map[string]func(*story) string{"text": (*story).text, "mermaid": (*story).mermaid, "dot": (*story).dot, "svg": (*story).svg}

func runWhy(ctx context.Context, c *env, call, form string) error {
	s, err := tellStory(ctx, c, call)
	if err != nil {
		return err
	}
	draw, ok := drawings[form]
	if !ok {
		return fail(exitUsage, "--format %q: want text, mermaid, dot or svg", form)
	}
	return c.print(s, func() { fmt.Fprint(c.out, draw(s)) })
}

// tellStory reads the events of a call, their causes, and the steps of its last decision
// from the mesh. Of the session it reads the events during the call.
func tellStory(ctx context.Context, c *env, call string) (*story, error) {
	x, err := explain(ctx, c, call)
	if err != nil {
		return nil, err
	}
	s := &story{CallID: call, Edges: [][2]string{}}
	if n := len(x.Decisions); n > 0 {
		s.Rules = x.Decisions[n-1].Steps
	}
	resp, err := c.request(ctx, http.MethodGet, fmt.Sprintf("/api/v1/events?session=%s&from=%d&to=%d", url.QueryEscape(x.Session), x.From, x.To), nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	first, err := s.read(resp.Body)
	if err != nil || first < 2 {
		return s, err
	}
	var before []struct {
		CallID string `json:"call_id"`
	}
	err = c.get(ctx, fmt.Sprintf("/api/v1/proofgraph/sessions/%s/receipts?offset=%d&limit=1", url.PathEscape(x.Session), first-2), &before)
	if err == nil && len(before) == 1 {
		s.edge(contract.IDReceipt+before[0].CallID, contract.IDReceipt+call)
	}
	return s, err
}

// read adds the call's events to the story. r has the events of its session during the call as
// lines of the form {event, seq}. If the first outcome among them is that of the call, read returns
// the index of the call's receipt, and otherwise 0.
func (s *story) read(r io.Reader) (first int64, err error) {
	graph := proofgraph.Graph{Version: 2}
	outcomes := 0
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		var line struct {
			Seq   uint64          `json:"seq"`
			Event json.RawMessage `json:"event"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return 0, err
		}
		e, err := eventlog.OpenBytes(line.Event, eventlog.Every)
		if err != nil {
			continue // not a valid event; audit's view records an alarm about the entry
		}
		graph.Add(e, line.Event)
		if e.CallID == s.CallID {
			s.add(e, &graph.Nodes[len(graph.Nodes)-1], line.Seq)
		}
		if e.Name != contract.EventEffectRecorded {
			continue
		}
		var x contract.Recorded
		if outcomes++; outcomes == 1 && e.CallID == s.CallID && contract.Decode(e.Data, &x) == nil {
			first = x.Receipt.Index
		}
	}
	return first, lines.Err()
}

// add adds an event and its causes.
func (s *story) add(e *contract.Event, n *proofgraph.Node, seq uint64) {
	s.Nodes = append(s.Nodes, chapter{seq, e.ID, n.Kind, e.Name, e.Source, e.Lamport, e.Time, says(e)})
	for _, p := range n.Parents {
		s.edge(p, e.ID)
	}
}

// edge adds an edge from a cause to an event of the call. A cause outside the call becomes
// a node without a sequence: the text omits it, and the other formats show only its id.
func (s *story) edge(cause, id string) {
	if !slices.ContainsFunc(s.Nodes, func(n chapter) bool { return n.ID == cause }) {
		s.Nodes = slices.Insert(s.Nodes, 0, chapter{ID: cause, Kind: proofgraph.Attestation, Name: "before", Says: "before this call"})
	}
	s.Edges = append(s.Edges, [2]string{cause, id})
}

// sayings holds functions that return a short description of an event, by the event's
// name. They may return "" for an event that cannot be decoded.
var sayings = map[string]func(e *contract.Event) string{
	contract.EventCallProposed: decoded(func(e *contract.Event, x *contract.Call) string {
		return fmt.Sprintf("%s proposed %s", e.Actor, x.Kind)
	}),
	contract.EventAllowed: decoded(func(_ *contract.Event, x *contract.Allowed) string {
		d := &x.Decision
		return fmt.Sprintf("%s %s, for %s until %s", d.Verdict, d.ReasonCode, d.Intent.Executor, d.Intent.Expires)
	}),
	contract.EventEscalated: decoded(func(_ *contract.Event, x *contract.Escalated) string {
		return fmt.Sprintf("ESCALATE %s, waits until %s", x.Decision.ReasonCode, x.Expires)
	}),
	contract.EventApprovalRecorded: decoded(func(_ *contract.Event, x *contract.Approval) string {
		return strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", x.Approver, x.Vote, x.Resolved, x.Reason))
	}),
	contract.EventEffectStarted: func(e *contract.Event) string {
		var x contract.Started
		if contract.Decode(e.Data, &x) == nil && x.ExecutedBy == contract.Caller {
			return e.Source + " claims it, handed out to the caller"
		}
		return e.Source + " claims it"
	},
	contract.EventCallDeferred:    func(*contract.Event) string { return "the request is answered before the outcome; the call is a job" },
	contract.EventJobNotified:     func(*contract.Event) string { return "the webhook of jobs was notified of the outcome" },
	contract.EventOutcomeReported: func(*contract.Event) string { return "the caller reports an outcome, too late" },
	contract.EventStartExpired:    func(*contract.Event) string { return "no executor started it in time" },
	contract.EventEffectRecorded: decoded(func(_ *contract.Event, x *contract.Recorded) string {
		return strings.TrimSpace(fmt.Sprintf("%s %s, receipt %d of the session, %s %s", x.Effect.Status, x.Effect.ErrorCode, x.Receipt.Index, x.Receipt.Verdict, x.Receipt.ReasonCode))
	}),
}

// decoded returns a function for sayings that decodes an event's data as a T and passes
// it to say.
func decoded[T any, D interface {
	*T
	canon.Document
}](say func(*contract.Event, *T) string) func(*contract.Event) string {
	return func(e *contract.Event) string {
		var x T
		if contract.Decode(e.Data, D(&x)) != nil {
			return ""
		}
		return say(e, &x)
	}
}

// says returns a short description of an event, by default its name.
func says(e *contract.Event) string {
	if say, ok := sayings[e.Name]; ok {
		if words := say(e); words != "" {
			return words
		}
	}
	return strings.ReplaceAll(e.Name, "_", " ")
}
