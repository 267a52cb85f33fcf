package guard

import (
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// MaxReportWithin is the longest time that a caller which executes a call itself
// may take to report its outcome.
const MaxReportWithin = 24 * time.Hour

// callerKinds are the families of kinds whose effect is outside the mesh. No caller
// can execute what the mesh does itself.
var callerKinds = []string{"client.*", "tool.*"}

// callerMay reports whether the caller may execute the call itself.
func callerMay(in *Inputs) bool {
	f := &in.Facts
	return f.ReportWithin > 0 && f.ReportWithin <= MaxReportWithin.Milliseconds() && f.Proposer == contract.CallerExecutor &&
		matchAny(callerKinds, f.Kind) && !matchAny(in.P0.CallerKinds, f.Kind)
}

// toCaller addresses an intent to the caller: it names the service that hands it
// out, ends when the report is due, and permits no secret, since secrets go to
// executors alone.
func toCaller(i *contract.ExecutionIntent, f *Facts) {
	i.Executor, i.Secrets = contract.CallerExecutor, nil
	now, err := contract.ParseTime(f.Now)
	if err != nil {
		return // gateState has denied the call
	}
	i.Deadline = contract.Time(now.Add(time.Duration(f.ReportWithin) * time.Millisecond))
	i.Expires = min(i.Expires, i.Deadline) // TimeFormat sorts as time does
}

// CallID returns the id of the call that the intent with this id belongs to, or ""
// for what is not the id of an intent.
func CallID(intentID string) string {
	call, _ := strings.CutPrefix(intentID, "i-")
	if call == intentID {
		return ""
	}
	return call
}
