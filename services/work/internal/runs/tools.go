package runs

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
)

// The kinds of calls for pipelines.
const (
	KindRun      = "tool." + pipeline.RunPack
	KindSchedule = "tool." + pipeline.SchedulePack
	KindApprove  = "tool." + pipeline.ApprovalPack
	KindList     = "tool.pipeline.list"
	KindShow     = "tool.pipeline.show"
	KindRuns     = "tool.pipeline.runs"
)

// tool returns the document of a tool for pipelines.
func tool(kind, class, about, input, output string) contract.Tool {
	return contract.Tool{Description: about, Class: class, Executor: services.Work, Kind: kind, Tool: kind[len("tool."):], Version: "v1", Rerunnable: true,
		InputSchema: contract.Raw(input), OutputSchema: contract.Raw(output)}
}

// Tools are the tools for pipelines.
var Tools = []contract.Tool{
	tool(KindRun, "E1", "Runs a pipeline: the document in the arguments, or the built-in one with a name and the digest that pipeline.list returns. Each step is a call of its own, for the caller.",
		`{"additionalProperties":false,"properties":{"digest":{"description":"digest of the document; required with pipeline","pattern":"^sha256:[0-9a-f]{64}$","type":"string"},"document":{"additionalProperties":true,"type":"object"},"inputs":{"additionalProperties":true,"type":"object"},"pipeline":{"description":"name of a built-in pipeline","maxLength":64,"type":"string"}},"type":"object"}`,
		`{"additionalProperties":true,"properties":{"output":{},"pipeline":{"type":"string"},"run":{"type":"string"},"status":{"type":"string"}},"required":["pipeline","run","status"],"type":"object"}`),
	tool(KindSchedule, "E1", "Runs a pipeline at the times of a schedule until the call is cancelled or its time is over. Each run is a call of its own, for the caller.",
		`{"additionalProperties":false,"properties":{"cron":{"description":"minute, hour, day of month, month and day of week, or @hourly, @daily, @weekly, @monthly or @every DURATION","maxLength":128,"minLength":1,"type":"string"},"digest":{"description":"digest of the document; required with pipeline","pattern":"^sha256:[0-9a-f]{64}$","type":"string"},"document":{"additionalProperties":true,"type":"object"},"inputs":{"additionalProperties":true,"type":"object"},"missed":{"default":"skip","description":"what follows times that passed while no instance executed the schedule: nothing, or one run","enum":["skip","run"],"type":"string"},"pipeline":{"description":"name of a built-in pipeline","maxLength":64,"type":"string"},"timezone":{"default":"UTC","description":"name in the time zone database","maxLength":64,"minLength":1,"type":"string"}},"required":["cron"],"type":"object"}`,
		`{"additionalProperties":true,"properties":{"schedule":{"type":"string"}},"required":["schedule"],"type":"object"}`),
	tool(KindApprove, "E0", "Succeeds if people have approved the call. Policy must escalate the kind tool.pipeline.approve.",
		`{"additionalProperties":false,"properties":{"reason":{"maxLength":4096,"type":"string"},"step":{"maxLength":64,"type":"string"}},"required":["reason"],"type":"object"}`,
		`{"additionalProperties":false,"properties":{"approved":{"type":"boolean"}},"required":["approved"],"type":"object"}`),
	tool(KindList, "E0", "Lists the built-in pipelines with their digests, and the packs that they need and the mesh lacks.", `{"additionalProperties":false,"properties":{},"type":"object"}`,
		`{"additionalProperties":true,"properties":{"pipelines":{"type":"array"}},"required":["pipelines"],"type":"object"}`),
	tool(KindShow, "E0", "Describes a run of a pipeline of the caller: its steps, their calls, states and times.", `{"additionalProperties":false,"properties":{"run":{"description":"id of the run","maxLength":64,"type":"string"}},"required":["run"],"type":"object"}`,
		`{"additionalProperties":true,"properties":{"run":{"type":"string"},"status":{"type":"string"},"steps":{"type":"array"}},"required":["run","status","steps"],"type":"object"}`),
	tool(KindRuns, "E0", "Lists the newest runs of pipelines of the caller.", `{"additionalProperties":false,"properties":{"limit":{"default":50,"maximum":1000,"minimum":1,"type":"integer"}},"type":"object"}`,
		`{"additionalProperties":true,"properties":{"runs":{"type":"array"}},"required":["runs"],"type":"object"}`),
}

// Handle executes a call for pipelines.
func (r *Runner) Handle(ctx context.Context, w *execute.Work) execute.Result {
	switch w.Call.Kind {
	case KindRun:
		return r.Run(ctx, w)
	case KindSchedule:
		return r.Schedule(ctx, w)
	case KindApprove:
		return approve(w)
	case KindList:
		return output(map[string]any{"pipelines": pipeline.Describe(r.Known)})
	case KindShow, KindRuns:
		return r.describe(ctx, w)
	}
	return execute.Fail(contract.CodeInvalidInput, "%s is not a call for pipelines", w.Call.Kind)
}

// describe executes pipeline.show and pipeline.runs.
func (r *Runner) describe(ctx context.Context, w *execute.Work) execute.Result {
	var a struct {
		Run   string `json:"run"`
		Limit int    `json:"limit"`
	}
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "arguments: %v", err)
	}
	actor := w.Event.Actor
	if slices.Contains(w.Call.Scopes, "audit:read") {
		actor = ""
	}
	var one *events.PipelineRun
	var all []*events.PipelineRun
	if err := r.Board(ctx, func(b *flow.Board) {
		if one = b.Get(w.Event.Tenant, actor, a.Run); w.Call.Kind == KindRuns {
			all = b.List(w.Event.Tenant, actor, a.Limit)
		}
	}); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the runs cannot be read: %v", err)
	}
	if w.Call.Kind == KindRuns {
		return output(map[string]any{"runs": all})
	}
	if one == nil {
		return execute.Fail(contract.CodeNotFound, "/run: none of the caller's newest runs has this id: pipeline.runs lists them")
	}
	return output(one)
}

// approve executes pipeline.approve. It succeeds only if the decision states that people
// approved the call, so that a policy which does not escalate it approves nothing.
func approve(w *execute.Work) execute.Result {
	var facts struct {
		Resolution string `json:"resolution"`
	}
	if err := json.Unmarshal(w.Facts, &facts); err != nil || facts.Resolution != contract.ResolvedGranted {
		return execute.Fail(contract.CodeApprovalRequired, "the policy required no approval of the step: add an approval rule for %s to the ceilings or the policy", KindApprove)
	}
	return output(map[string]any{"approved": true})
}
