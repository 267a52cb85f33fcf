package guard

import (
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// MaxReportWithin bounds how long a caller that executes a call itself may take
// to report its outcome.
const MaxReportWithin = 24 * time.Hour

// callerKinds are the families of kinds whose effect lies outside the mesh. What
// the mesh does itself no caller can do in its place.
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
		return // late has denied the call
	}
	i.Deadline = contract.Time(now.Add(time.Duration(f.ReportWithin) * time.Millisecond))
	i.Expires = min(i.Expires, i.Deadline) // TimeFormat sorts as time does
}

// CallID is the call that an intent belongs to, by the intent's id; "" where it
// is none.
func CallID(intentID string) string {
	call, _ := strings.CutPrefix(intentID, "i-")
	if call == intentID {
		return ""
	}
	return call
}
