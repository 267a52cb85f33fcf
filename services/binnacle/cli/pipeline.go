package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newPipelineCmd returns the command pipeline, whose subcommands list, check, run, schedule,
// show and cancel pipelines.
func newPipelineCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "pipeline COMMAND",
		Short: "Check, run, schedule, show and cancel pipelines of packs",
		Long: `Check, run and show pipelines. A pipeline is a JSON document with steps, each of which
calls a pack with the outputs of earlier steps. A run goes on after a restart of the
mesh; each of its steps is decided by policy and has a receipt.`,
		Example: "  binnacle pipeline list\n  binnacle pipeline validate report.json\n  binnacle pipeline run report.json --input topic=tides --session s-report",
	}, newPipelineListCmd(c), newPipelineValidateCmd(c), newPipelineRunCmd(c), newPipelineRunsCmd(c), newPipelineShowCmd(c), newPipelineGraphCmd(c), newPipelineCancelCmd(c), newPipelineScheduleCmd(c), newPipelineSchedulesCmd(c))
}

// The paths of pipelines, their runs and their schedules.
const (
	pipelinesPath = "/api/v1/pipelines"
	runsPath      = pipelinesPath + "/runs"
	schedulesPath = pipelinesPath + "/schedules"
)

// builtInPipelines returns the built-in pipelines of the mesh.
func builtInPipelines(ctx context.Context, c *env) (all []pipeline.Description, err error) {
	return all, c.get(ctx, pipelinesPath, &all)
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
			if !json.Valid(raw) {
				return fail(exitFailed, "%s is not JSON", pos[0])
			}
			var doc struct {
				Name     string             `json:"name"`
				Problems []pipeline.Problem `json:"problems"`
				Steps    int                `json:"steps"`
			}
			if _, err := c.post(cmd.Context(), pipelinesPath+"/validate", json.RawMessage(raw), nil, &doc); err != nil {
				return err
			}
			for _, p := range doc.Problems {
				fmt.Fprintln(c.errOut, p.Error())
			}
			if n := len(doc.Problems); n > 0 {
				return fail(exitFailed, "%s has %d problems", pos[0], n)
			}
			return c.print(map[string]any{"name": doc.Name, "steps": doc.Steps, "valid": true}, func() { fmt.Fprintf(c.out, "%s is valid: %d steps\n", doc.Name, doc.Steps) })
		},
	}
}

// pipelineInputs parses inputs of the form NAME=VALUE and returns the values by name. A value
// that is valid JSON is sent as JSON, any other as a string.
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

// pipelineOptions are the flags of pipeline run and pipeline schedule. The latter does not have
// async.
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
	args, h, err := pipelineCall(ctx, c, o, name)
	if err != nil {
		return err
	}
	return startRun(ctx, c, o, args, h)
}

// pipelineCall returns the arguments and headers of a call for the pipeline in a file, or
// for the built-in one of this name.
func pipelineCall(ctx context.Context, c *env, o *pipelineOptions, name string) (map[string]any, http.Header, error) {
	inputs, err := pipelineInputs(o.inputs)
	if err != nil {
		return nil, nil, err
	}
	args := map[string]any{"inputs": inputs}
	if _, err := os.Stat(name); err == nil || name == "-" || strings.ContainsAny(name, "/") {
		raw, err := readPipeline(c, name)
		if err != nil {
			return nil, nil, err
		}
		if !json.Valid(raw) {
			return nil, nil, fail(exitUsage, "%s is not JSON", name)
		}
		args["document"] = raw
	} else {
		all, err := builtInPipelines(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		i := slices.IndexFunc(all, func(p pipeline.Description) bool { return p.Name == name })
		if i < 0 {
			return nil, nil, fail(exitFailed, "there is no file and no built-in pipeline %s: 'binnacle pipeline list' lists them", name)
		}
		args["pipeline"], args["digest"] = name, all[i].Digest
	}
	h := session(o.session)
	if h == nil {
		h = http.Header{}
	}
	h.Set("X-Binnacle-Timeout", strconv.Itoa(int(o.timeout.Seconds())))
	return args, h, nil
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
	raw, err := c.post(ctx, runsPath, args, h, &doc)
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

func newPipelineRunsCmd(c *env) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "runs", Short: "List the newest runs of pipelines", Example: "  binnacle pipeline runs --limit 10", Args: takes(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []work.PipelineRun
			if err := c.get(cmd.Context(), runsPath+"?limit="+strconv.Itoa(limit), &all); err != nil {
				return err
			}
			return c.table(all, []output.Column{{Heading: "RUN", Min: 28}, {Heading: "PIPELINE", Min: 20}, {Heading: "STATUS", Min: 10}, {Heading: "STARTED", Min: 24}, {Heading: "TOOK"}}, func(g *output.Grid) {
				for _, r := range all {
					g.Add(r.Run, r.Pipeline, r.Status, r.Started, pipeline.Took(r.Started, r.Ended))
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
			var r work.PipelineRun
			if err := c.get(cmd.Context(), runsPath+"/"+url.PathEscape(pos[0]), &r); err != nil {
				return err
			}
			if c.structured() {
				return c.print(r, func() {})
			}
			fmt.Fprintf(c.out, "%s  %s  %s %s\n", r.Pipeline, r.Status, pipeline.Took(r.Started, r.Ended), r.ErrorCode)
			return c.table(r.Steps, []output.Column{{Heading: "STEP", Min: 16}, {Heading: "PACK", Min: 20}, {Heading: "STATUS", Min: 10}, {Heading: "CALLS", Min: 5}, {Heading: "TOOK", Min: 10}, {Heading: "NEWEST CALL"}}, func(g *output.Grid) {
				for _, s := range r.Steps {
					g.Add(s.ID, s.Pack, strings.TrimSpace(s.Status+" "+s.ErrorCode), strconv.FormatInt(s.Attempts, 10), pipeline.Took(s.Started, s.Ended), s.CallID)
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
			var text string
			if _, err := os.Stat(pos[0]); err == nil || pos[0] == "-" {
				raw, err := readPipeline(c, pos[0])
				if err != nil {
					return err
				}
				doc, err := pipeline.Parse(raw)
				if err != nil {
					return fail(exitFailed, "%s: %v", pos[0], err)
				}
				text = pipeline.Flowchart(doc.Nodes())
			} else {
				resp, err := c.request(cmd.Context(), http.MethodGet, runsPath+"/"+url.PathEscape(pos[0])+"/graph", nil, nil)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				raw, err := io.ReadAll(resp.Body)
				if err != nil {
					return err
				}
				text = string(raw)
			}
			return c.print(map[string]any{"mermaid": text}, func() { fmt.Fprint(c.out, text) })
		},
	}
}

func newPipelineCancelCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use: "cancel RUN", Short: "Request the cancellation of a run", Long: "Request the cancellation of a run. The calls of its steps are stopped, and a run that has\nnot begun does not begin. A run that has ended is not changed.",
		Example: "  binnacle pipeline cancel c-ABC", Args: takes(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			resp, err := c.request(cmd.Context(), http.MethodDelete, runsPath+"/"+url.PathEscape(pos[0]), nil, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			return c.printRaw(raw, func() {
				fmt.Fprintf(c.errOut, "cancellation of %s requested; `binnacle pipeline show %s` shows its state\n", pos[0], pos[0])
			})
		},
	}
}

func newPipelineScheduleCmd(c *env) *cobra.Command {
	var o pipelineOptions
	var cron, missed, zone string
	cmd := &cobra.Command{
		Use: "schedule FILE|NAME", Short: "Run a pipeline at the times of a schedule",
		Long: `Run a pipeline, from a file or a built-in one, at the times of a schedule, and print the id
of the schedule. The schedule is a call that lasts up to 31 days; 'binnacle job cancel' ends
it, and 'binnacle pipeline schedules' lists it. Each run is a call of its own and is decided by policy when it begins. No run begins while
the one before is in progress.`,
		Example: "  binnacle pipeline schedule report.json --cron '30 6 * * MON-FRI' --timezone Europe/Berlin --session s-report",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, pos []string) error {
			ctx := cmd.Context()
			args, h, err := pipelineCall(ctx, c, &o, pos[0])
			if err != nil {
				return err
			}
			args["cron"], args["missed"], args["timezone"] = cron, missed, zone
			h.Set("Prefer", "respond-async")
			var doc struct {
				CallID string `json:"call_id"`
				Output struct {
					Schedule string `json:"schedule"`
				} `json:"output"`
			}
			raw, err := c.post(ctx, "/api/v1/calls", map[string]any{"kind": "tool." + pipeline.SchedulePack, "tool": pipeline.SchedulePack, "args": args}, h, &doc)
			if err != nil {
				return err
			}
			return c.printRaw(raw, func() { fmt.Fprintln(c.out, cmp.Or(doc.Output.Schedule, doc.CallID)) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&cron, "cron", "", "`TIMES`: minute, hour, day of month, month and day of week, or @hourly, @daily, @every DURATION")
	f.StringVar(&zone, "timezone", "UTC", "`NAME` of the time zone of the times")
	f.StringVar(&missed, "missed", "skip", "what follows times that passed while no instance executed the schedule: skip for nothing, or run for one run")
	f.StringArrayVar(&o.inputs, "input", nil, "input `NAME=VALUE` of each run, as JSON or text; may be repeated")
	f.StringVar(&o.session, "session", "", "`NAME` of the session (s-…), or its id")
	f.DurationVar(&o.timeout, "time-limit", 31*24*time.Hour, "time for which the schedule lasts, at most 744h")
	return cmd
}

func newPipelineSchedulesCmd(c *env) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "schedules [SCHEDULE]", Short: "List the newest schedules of pipelines, or show one",
		Long: `List the newest schedules of pipelines with their next times, those that go on before
those that have ended, or show one.`,
		Example: "  binnacle pipeline schedules\n  binnacle pipeline schedules c-ABC --json", Args: takes(0, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			var all []work.PipelineSchedule
			var doc any
			if len(pos) == 0 {
				if err := c.get(cmd.Context(), schedulesPath+"?limit="+strconv.Itoa(limit), &all); err != nil {
					return err
				}
				doc = all
			} else {
				var one work.PipelineSchedule
				if err := c.get(cmd.Context(), schedulesPath+"/"+url.PathEscape(pos[0]), &one); err != nil {
					return err
				}
				all, doc = []work.PipelineSchedule{one}, one
			}
			return c.table(doc, []output.Column{{Heading: "SCHEDULE", Min: 28}, {Heading: "PIPELINE", Min: 16}, {Heading: "TIMES", Min: 16}, {Heading: "STATUS", Min: 10}, {Heading: "RUNS", Min: 5}, {Heading: "SKIPPED", Min: 7}, {Heading: "NEWEST RUN", Min: 28}, {Heading: "NEXT"}}, func(g *output.Grid) {
				for _, s := range all {
					g.Add(s.Schedule, s.Pipeline, strings.TrimSpace(s.Cron+" "+s.Timezone), s.Status, strconv.FormatInt(s.Runs, 10), strconv.FormatInt(s.Skipped, 10), cmp.Or(s.NewestRun, s.NewestSkipped), s.Next)
				}
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "greatest `NUMBER` of schedules")
	return cmd
}
