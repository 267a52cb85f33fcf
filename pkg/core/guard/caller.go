package guard

import (
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// MaxReportWithin is the longest time that a caller which executes a call itself may
// take to report the effect.
const MaxReportWithin = 24 * time.Hour

// callerKinds are the patterns of the kinds that callers may execute themselves: tools,
// whose effect is outside the mesh. Callers cannot execute other kinds.
var callerKinds = []string{"client.*", "tool.*"}

// callerMay reports whether the caller is permitted to execute the call itself.
func callerMay(in *Inputs) bool {
	f := &in.Facts
	return f.ReportWithin > 0 && f.ReportWithin <= MaxReportWithin.Milliseconds() && f.Proposer == contract.CallerExecutor &&
		matchAny(callerKinds, f.Kind) && !matchAny(in.P0.CallerKinds, f.Kind)
}

// toCaller changes an intent into one for the caller. It names the service that hands
// the intent out, has the time at which the report is due as its deadline, and expires
// no later than that. It contains no secrets, since secrets are released to executors
// only.
func toCaller(i *contract.ExecutionIntent, f *Facts) {
	i.Executor, i.Secrets = contract.CallerExecutor, nil
	now, err := contract.ParseTime(f.Now)
	if err != nil {
		return // does not occur: gateState denies calls with a malformed time
	}
	i.Deadline = contract.Time(now.Add(time.Duration(f.ReportWithin) * time.Millisecond))
	i.Expires = min(i.Expires, i.Deadline) // strings in TimeFormat sort in order of time
}

// CallID returns the id of the call that the intent with this id belongs to, or
// "" if intentID is not the id of an intent.
func CallID(intentID string) string {
	call, _ := strings.CutPrefix(intentID, contract.IDIntent)
	if call == intentID {
		return ""
	}
	return call
}
