package runs

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/work/internal/flow"
)

// board returns a function for Runner.Board, with the runs c-1 and c-2 of ann and c-3 of bob.
func board() func(context.Context, func(*flow.Board)) error {
	var b flow.Board
	for id, actor := range map[string]string{"c-1": "ann", "c-2": "ann", "c-3": "bob"} {
		b.Apply(&contract.Event{Tenant: "t", Actor: actor, CallID: id, Name: contract.EventPipelineStarted, Data: contract.Bytes(&events.PipelineStarted{CallID: id, Name: "x", Steps: []events.PipelineStep{}})})
	}
	return func(_ context.Context, f func(*flow.Board)) error { f(&b); return nil }
}

// TestHandle checks the calls for pipelines besides pipeline.run and pipeline.schedule: which
// runs they describe, only those of the caller unless it may read everything, and their errors.
func TestHandle(t *testing.T) {
	r := New(Runner{Tools: tools(), Board: board()})
	down := New(Runner{Board: func(context.Context, func(*flow.Board)) error { return errLost }})
	all := []string{"audit:read"}
	for _, x := range []struct {
		of         *Runner
		kind, args string
		scopes     []string
		code, want string // error code, and a part of the output or of the message
	}{
		{r, KindApprove, `{}`, nil, contract.CodeApprovalRequired, "required no approval"},
		{r, KindShow, `{"run":"c-1"}`, nil, "", `"run":"c-1"`},
		{r, KindShow, `{"run":"c-3"}`, nil, contract.CodeNotFound, "/run:"},
		{r, KindShow, `{"run":"c-3"}`, all, "", `"actor":"bob"`},
		{r, KindShow, `{"run":"c-4"}`, all, contract.CodeNotFound, "/run:"},
		{r, KindShow, `{"run":4}`, nil, contract.CodeInvalidInput, "arguments:"},
		{down, KindShow, `{"run":"c-1"}`, nil, contract.CodeUnavailable, errLost.Error()},
		{down, KindRuns, `{"limit":9}`, nil, contract.CodeUnavailable, errLost.Error()},
		{r, KindList, `{}`, nil, "", `"lacking":["`},
		{r, "tool.pipeline.stop", `{}`, nil, contract.CodeInvalidInput, "tool.pipeline.stop is not"},
	} {
		res := x.of.Handle(t.Context(), &execute.Work{Call: &contract.Call{Kind: x.kind, Scopes: x.scopes}, Args: []byte(x.args), Event: cause("c-9")})
		if res.ErrorCode != x.code || !strings.Contains(string(res.Output)+res.ErrorMessage, x.want) {
			t.Errorf("%s %s: %+v", x.kind, x.args, res)
		}
	}
	for _, x := range []struct {
		args   string
		scopes []string
		want   int
	}{{`{"limit":9}`, nil, 2}, {`{"limit":1}`, nil, 1}, {`{"limit":9}`, all, 3}} {
		res := r.Handle(t.Context(), &execute.Work{Call: &contract.Call{Kind: KindRuns, Scopes: x.scopes}, Args: []byte(x.args), Event: cause("c-9")})
		var out struct {
			Runs []events.PipelineRun `json:"runs"`
		}
		if err := json.Unmarshal(res.Output, &out); err != nil || len(out.Runs) != x.want || x.scopes == nil && slices.ContainsFunc(out.Runs, func(r events.PipelineRun) bool { return r.Actor != "ann" }) {
			t.Errorf("%s %v: %+v %v", x.args, x.scopes, res, err)
		}
	}
}

// TestKnown checks that a pack is known in its version, and in any version if none is given.
func TestKnown(t *testing.T) {
	r := New(Runner{Tools: tools()})
	for of, want := range map[[2]string]bool{{"echo", ""}: true, {"echo", "v1"}: true, {"echo", "v2"}: false, {"none", ""}: false, {"none", "v1"}: false} {
		if got := r.Known(of[0], of[1]); got != want {
			t.Errorf("%v: %v", of, got)
		}
	}
}

// TestOutput checks that an output is canonical JSON, and the error of one that cannot be encoded.
func TestOutput(t *testing.T) {
	if res := output(map[string]any{"b": 1.0, "a": "<"}); string(res.Output) != `{"a":"<","b":1}` || res.ErrorCode != "" {
		t.Errorf("%+v", res)
	}
	if res := output(func() {}); res.ErrorCode != contract.CodeInvalidOutput {
		t.Errorf("%+v", res)
	}
}
