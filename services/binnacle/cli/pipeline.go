package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newPipelineCmd returns the command pipeline, which checks and runs pipelines.
func newPipelineCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "pipeline COMMAND",
		Short: "Check, run and show pipelines of packs",
		Long: `Check, run and show pipelines. A pipeline is a JSON document with steps, each of which
calls a pack with the outputs of earlier steps. A run goes on after a restart of the
mesh; each of its steps is decided by policy and has a receipt.`,
		Example: "  binnacle pipeline list\n  binnacle pipeline validate report.json\n  binnacle pipeline run report.json --input topic=tides --session s-report",
	}, newPipelineListCmd(c), newPipelineValidateCmd(c), newPipelineRunCmd(c), newPipelineRunsCmd(c), newPipelineShowCmd(c), newPipelineGraphCmd(c))
}

// builtInPipeline is a built-in pipeline, as pipeline.list describes it.
type builtInPipeline struct {
	Description string   `json:"description"`
	Digest      string   `json:"digest"`
	Lacking     []string `json:"lacking"`
	Name        string   `json:"name"`
	Required    []string `json:"required"`
	Steps       []string `json:"steps"`
}

// builtInPipelines returns the built-in pipelines of the mesh.
func builtInPipelines(ctx context.Context, c *env) ([]builtInPipeline, error) {
	var doc struct {
		Pipelines []builtInPipeline `json:"pipelines"`
	}
	_, err := sandboxCall(ctx, c, "", "pipeline.list", map[string]any{}, &doc)
	return doc.Pipelines, err
}

func newPipelineListCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the built-in pipelines", Long: "List the built-in pipelines, with the inputs that they require and the packs that the mesh\nlacks for them.",
		Example: "  binnacle pipeline list", Args: takes(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := builtInPipelines(cmd.Context(), c)
			if err != nil {
				return err
			}
			return c.table(all, []output.Column{{Heading: "PIPELINE", Min: 28}, {Heading: "REQUIRES", Min: 20}, {Heading: "LACKING PACKS", Min: 14}, {Heading: "ABOUT"}}, func(g *output.Grid) {
				for _, p := range all {
					g.Add(p.Name, strings.Join(p.Required, ","), strings.Join(p.Lacking, ","), p.Description)
				}
			})
		},
	}
}

// readPipeline returns the document in a file, or on standard input for -.
func readPipeline(c *env, path string) (json.RawMessage, error) {
	var raw []byte
	var err error
	if path == "-" {
		raw, err = io.ReadAll(io.LimitReader(c.in, pipeline.MaxBytes+1))
	} else {
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fail(exitUsage, "the pipeline cannot be read: %v", err)
	}
	return raw, nil
}

func newPipelineValidateCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use: "validate FILE", Short: "Check a pipeline against the packs of the mesh", Long: "Check a pipeline against the packs of the mesh. Each problem is printed with the JSON\npointer of its place; with one, the exit code is 1.",
		Example: "  binnacle pipeline validate report.json", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, pos []string) error {
			raw, err := readPipeline(c, pos[0])
			if err != nil {
				return err
			}
			doc, err := pipeline.Parse(raw)
			var problems []pipeline.Problem
			if p := (pipeline.Problem{}); errors.As(err, &p) {
				problems = append(problems, p)
			} else {
				tools, err := listTools(cmd.Context(), c)
				if err != nil {
					return err
				}
				problems = doc.Validate(func(pack, version string) bool {
					return slices.ContainsFunc(tools, func(t tool) bool { return t.Name == pack && (version == "" || t.Version == version) })
				})
			}
			for _, p := range problems {
				fmt.Fprintln(c.errOut, p.Error())
			}
			if n := len(problems); n > 0 {
				return fail(exitFailed, "%s has %d problems", pos[0], n)
			}
			return c.print(map[string]any{"name": doc.Name, "steps": len(doc.Steps), "valid": true}, func() { fmt.Fprintf(c.out, "%s is valid: %d steps\n", doc.Name, len(doc.Steps)) })
		},
	}
}

// pipelineInputs returns the inputs that flags NAME=VALUE state. A value that is JSON counts
// as such, any other as text.
func pipelineInputs(pairs []string) (map[string]any, error) {
	out := map[string]any{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, fail(exitUsage, "--input %s: want NAME=VALUE", p)
		}
		if json.Valid([]byte(value)) {
			out[name] = json.RawMessage(value)
			continue
		}
		out[name] = value
	}
	return out, nil
}

// pipelineOptions are the flags of pipeline run.
type pipelineOptions struct {
	inputs  []string
	session string
	timeout time.Duration
	async   bool
}

func newPipelineRunCmd(c *env) *cobra.Command {
	var o pipelineOptions
	cmd := &cobra.Command{
		Use: "run FILE|NAME", Short: "Run a pipeline and print its output",
		Long: `Run a pipeline, from a file or a built-in one, and print its output. With --async the id
of the run is printed instead if it takes more than a second. The same pipeline with the
same inputs runs once at a time: another run prints the id of the one in progress.`,
		Example: "  binnacle pipeline run report.json --input topic=tides --session s-report\n  binnacle pipeline run scrape-deck --input url=https://example.com/tides --async",
		Args:    takes(1, 1),
		RunE:    func(cmd *cobra.Command, pos []string) error { return runPipeline(cmd.Context(), c, &o, pos[0]) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.inputs, "input", nil, "input `NAME=VALUE`, as JSON or text; may be repeated")
	f.StringVar(&o.session, "session", "", "`NAME` of the session (s-…), or its id")
	f.DurationVar(&o.timeout, "time-limit", time.Hour, "time limit of the run, at most 24h")
	f.BoolVar(&o.async, "async", false, "return after a second if the run goes on; 'binnacle job' follows it")
	return cmd
}

// runPipeline starts a run and prints its output or id.
func runPipeline(ctx context.Context, c *env, o *pipelineOptions, name string) error {
	inputs, err := pipelineInputs(o.inputs)
	if err != nil {
		return err
	}
	args := map[string]any{"inputs": inputs}
	if _, err := os.Stat(name); err == nil || name == "-" || strings.ContainsAny(name, "/") {
		raw, err := readPipeline(c, name)
		if err != nil {
			return err
		}
		if !json.Valid(raw) {
			return fail(exitUsage, "%s is not JSON", name)
		}
		args["document"] = raw
	} else {
		all, err := builtInPipelines(ctx, c)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(p builtInPipeline) bool { return p.Name == name })
		if i < 0 {
			return fail(exitFailed, "there is no file and no built-in pipeline %s: 'binnacle pipeline list' lists them", name)
		}
		args["pipeline"], args["digest"] = name, all[i].Digest
	}
	h := session(o.session)
	if h == nil {
		h = http.Header{}
	}
	h.Set("X-Binnacle-Timeout", strconv.Itoa(int(o.timeout.Seconds())))
	return startRun(ctx, c, o, args, h)
}

// startRun starts a run and prints its output. With the option async it does not wait for
// the outcome, and prints the id of the run if there is no outcome yet. If the pipeline
// runs already with the same inputs, it prints the id of that run. If the call waits for
// approval, it returns an error with exit code 7.
func startRun(ctx context.Context, c *env, o *pipelineOptions, args map[string]any, h http.Header) error {
	if o.async {
		h.Set("Prefer", "respond-async")
	}
	var doc struct {
		Output struct {
			Coalesced bool            `json:"coalesced"`
			Output    json.RawMessage `json:"output"`
			Run       string          `json:"run"`
		} `json:"output"`
		ReceiptID string `json:"receipt_id"`
		Status    string `json:"status"`
		CallID    string `json:"call_id"`
	}
	raw, err := c.post(ctx, "/api/v1/calls", map[string]any{"kind": "tool." + pipeline.RunPack, "tool": pipeline.RunPack, "args": args}, h, &doc)
	if err != nil {
		return err
	}
	switch {
	case doc.Status == "pending_approval":
		if err := c.printRaw(raw, func() {}); err != nil {
			return err
		}
		return fail(exitPending, "call %s waits for approval; `binnacle approvals list` shows it", doc.CallID)
	case doc.ReceiptID == "":
		return c.printRaw(raw, func() {
			fmt.Fprintln(c.out, doc.CallID)
			fmt.Fprintf(c.errOut, "the run goes on; `binnacle job wait %s` waits for its outcome\n", doc.CallID)
		})
	case doc.Output.Coalesced:
		return c.printRaw(raw, func() {
			fmt.Fprintln(c.out, doc.Output.Run)
			fmt.Fprintf(c.errOut, "the pipeline runs already with these inputs; `binnacle job wait %s` waits for its outcome\n", doc.Output.Run)
		})
	}
	return c.printRaw(raw, func() {
		fmt.Fprintln(c.out, indent(doc.Output.Output))
		fmt.Fprintf(c.errOut, "run %s  receipt %s\n", doc.CallID, doc.ReceiptID)
	})
}

// pipelineRun is a run, as pipeline.show describes it.
type pipelineRun struct {
	Actor     string         `json:"actor"`
	Ended     string         `json:"ended"`
	ErrorCode string         `json:"error_code"`
	Pipeline  string         `json:"pipeline"`
	Run       string         `json:"run"`
	Started   string         `json:"started"`
	Status    string         `json:"status"`
	Steps     []pipelineStep `json:"steps"`
}

// pipelineStep is a step of a run.
type pipelineStep struct {
	Attempts  int      `json:"attempts"`
	CallID    string   `json:"call_id"`
	Ended     string   `json:"ended"`
	ErrorCode string   `json:"error_code"`
	ID        string   `json:"id"`
	Items     int      `json:"items"`
	Needs     []string `json:"needs"`
	Pack      string   `json:"pack"`
	Started   string   `json:"started"`
	Status    string   `json:"status"`
}

// took returns the time between two times of events, or "" without both.
func took(from, to string) string {
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

func newPipelineRunsCmd(c *env) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "runs", Short: "List the newest runs of pipelines", Example: "  binnacle pipeline runs --limit 10", Args: takes(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var doc struct {
				Runs []pipelineRun `json:"runs"`
			}
			if _, err := sandboxCall(cmd.Context(), c, "", "pipeline.runs", map[string]any{"limit": limit}, &doc); err != nil {
				return err
			}
			return c.table(doc.Runs, []output.Column{{Heading: "RUN", Min: 28}, {Heading: "PIPELINE", Min: 20}, {Heading: "STATUS", Min: 10}, {Heading: "STARTED", Min: 24}, {Heading: "TOOK"}}, func(g *output.Grid) {
				for _, r := range doc.Runs {
					g.Add(r.Run, r.Pipeline, r.Status, r.Started, took(r.Started, r.Ended))
				}
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "greatest `NUMBER` of runs")
	return cmd
}

func newPipelineShowCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use: "show RUN", Short: "Show the steps of a run with their states and times", Example: "  binnacle pipeline show c-ABC", Args: takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			var r pipelineRun
			raw, err := sandboxCall(cmd.Context(), c, "", "pipeline.show", map[string]any{"run": pos[0]}, &r)
			if err != nil {
				return err
			}
			if c.structured() {
				return c.print(raw, func() {})
			}
			fmt.Fprintf(c.out, "%s  %s  %s %s\n", r.Pipeline, r.Status, took(r.Started, r.Ended), r.ErrorCode)
			return c.table(r.Steps, []output.Column{{Heading: "STEP", Min: 16}, {Heading: "PACK", Min: 20}, {Heading: "STATUS", Min: 10}, {Heading: "CALLS", Min: 5}, {Heading: "TOOK", Min: 10}, {Heading: "NEWEST CALL"}}, func(g *output.Grid) {
				for _, s := range r.Steps {
					g.Add(s.ID, s.Pack, strings.TrimSpace(s.Status+" "+s.ErrorCode), strconv.Itoa(s.Attempts), took(s.Started, s.Ended), s.CallID)
				}
			})
		},
	}
}

func newPipelineGraphCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use: "graph RUN|FILE", Short: "Print a run or a document as a Mermaid flowchart", Long: "Print a run, with states and times, or a document as a flowchart in Mermaid's syntax.",
		Example: "  binnacle pipeline graph c-ABC\n  binnacle pipeline graph report.json", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, pos []string) error {
			var steps []pipelineStep
			if _, err := os.Stat(pos[0]); err == nil || pos[0] == "-" {
				raw, err := readPipeline(c, pos[0])
				if err != nil {
					return err
				}
				doc, err := pipeline.Parse(raw)
				if err != nil {
					return fail(exitFailed, "%s: %v", pos[0], err)
				}
				for i := range doc.Steps {
					steps = append(steps, pipelineStep{ID: doc.Steps[i].ID, Pack: doc.Steps[i].PackOf(), Needs: doc.NeedsOf(i)})
				}
			} else {
				var r pipelineRun
				if _, err := sandboxCall(cmd.Context(), c, "", "pipeline.show", map[string]any{"run": pos[0]}, &r); err != nil {
					return err
				}
				steps = r.Steps
			}
			text := flowchart(steps)
			return c.print(map[string]any{"mermaid": text}, func() { fmt.Fprint(c.out, text) })
		},
	}
}

// flowchart returns steps as a flowchart in Mermaid's syntax.
func flowchart(steps []pipelineStep) string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	node := map[string]string{} // ids of steps may be words of the syntax
	for i, s := range steps {
		node[s.ID] = "n" + strconv.Itoa(i)
		label := s.ID + "<br/>" + s.Pack
		if s.Status != "" {
			label += "<br/>" + strings.TrimSpace(s.Status+" "+took(s.Started, s.Ended))
		}
		if s.Attempts > 1 {
			label += fmt.Sprintf("<br/>%d calls", s.Attempts)
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
