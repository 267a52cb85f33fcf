package guard

import (
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// callerInputs returns the inputs of an allowed call that its caller executes and
// reports within five seconds.
func callerInputs() Inputs {
	at := time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)
	return Inputs{CallID: "c-1", P0: &Ceilings{StartWindowMS: 60_000, Sandbox: contract.Sandbox{CPUMillis: 1, MemoryMiB: 1, OutputBytes: 1, Pids: 1, Tier: "process", WallMS: 1}},
		Tool: &contract.Tool{Executor: "session-runner", Kind: "tool.x", Tool: "x", Secrets: []contract.SecretGrant{{Name: "k"}}},
		P1:   Answer{Verdict: contract.Allow, Reason: "RULE_X"},
		Facts: Facts{Kind: "tool.x", Tool: "x", Proposer: "gateway", Now: contract.Time(at.Add(time.Second)), Proposed: contract.Time(at),
			Deadline: contract.Time(at.Add(time.Minute)), ReportWithin: 5000}}
}

// TestCallerIntent shows that an intent for the caller names the service that hands it
// out, expires no later than the report is due, and contains no secrets, unlike the
// intent for an executor. It also checks CallID.
func TestCallerIntent(t *testing.T) {
	in := callerInputs()
	if v := Judge(in); v.Verdict != contract.Allow {
		t.Fatal(v)
	}
	i := mint(&in, Judge(in))
	if i.Executor != contract.CallerExecutor || i.Deadline != "2026-03-03T12:00:06.000Z" || i.Expires != i.Deadline || len(i.Secrets) > 0 {
		t.Errorf("%+v", i)
	}
	if CallID(i.ID) != "c-1" || CallID("c-1") != "" {
		t.Error(CallID(i.ID))
	}
	in.Facts.ReportWithin = 0
	if i := mint(&in, Judge(in)); i.Executor != "session-runner" || len(i.Secrets) != 1 || i.Deadline != "" {
		t.Errorf("%+v", i)
	}
}

// TestCallerMay checks the shortest and the longest time within which a caller
// may report.
func TestCallerMay(t *testing.T) {
	for _, ms := range []int64{1, MaxReportWithin.Milliseconds()} {
		in := callerInputs()
		in.Facts.ReportWithin = ms
		if v := Judge(in); v.Verdict != contract.Allow {
			t.Errorf("%d ms: %+v", ms, v)
		}
	}
}

// TestCallerRefused checks that calls which no caller may execute itself are denied with
// ReasonCallerExecutionRefused, and that this reason does not apply if an executor
// executes them.
func TestCallerRefused(t *testing.T) {
	for name, change := range map[string]func(*Inputs){
		"the mesh's own kind":    func(in *Inputs) { in.Facts.Kind, in.Tool.Kind = "policy.freeze", "policy.freeze" },
		"a model":                func(in *Inputs) { in.Facts.Kind = "llm.chat" },
		"below zero":             func(in *Inputs) { in.Facts.ReportWithin = -1 },
		"longer than a day":      func(in *Inputs) { in.Facts.ReportWithin = MaxReportWithin.Milliseconds() + 1 },
		"proposed by a service":  func(in *Inputs) { in.Facts.Proposer, in.Facts.ParentLive = "judge", true },
		"the ceilings forbid it": func(in *Inputs) { in.P0.CallerKinds = []string{"tool.*"} },
		"an obligation":          func(in *Inputs) { in.P1.Obliged = []string{ObligeRedact + "pii"} },
	} {
		in := callerInputs()
		change(&in)
		if v := Judge(in); v.Verdict != contract.Deny || v.Reason != contract.ReasonCallerExecutionRefused {
			t.Errorf("%s: %+v", name, v)
		}
		in.Facts.ReportWithin = 0
		if v := Judge(in); strings.Contains(v.Reason, "CALLER") {
			t.Errorf("%s: %+v for an executor", name, v)
		}
	}
}
