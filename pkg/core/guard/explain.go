package guard

// The parts of a decision, in the order in which they are taken into account. Judge
// receives the answers of the input schema, the rules and the overlays, and computes the
// other parts.
const (
	PartGates       = "gates"
	PartSchema      = "input schema"
	PartCeilings    = "p0"
	PartRules       = "p1"
	PartDelegator   = "p1 for the delegator"
	PartOverlay     = "p2"
	PartDualControl = "dual control"
	PartSecrets     = "access list of secrets"
	PartCaller      = "executed by the caller"
	PartSandbox     = "sandbox"
	PartEgress      = "egress"
	PartLimits      = "limits"
	PartPeople      = "approvals"
)

// Step is the result of one part of a decision, as `binnacle policy explain`
// prints it.
type Step struct {
	Part    string `json:"layer"`
	Name    string `json:"name,omitempty"` // id of the overlay, accounts of the limits, or resolution of the votes; empty for other parts
	Digest  string `json:"digest,omitempty"`
	Verdict string `json:"verdict,omitempty"` // empty = none
	Reason  string `json:"reason_code,omitempty"`
	At      string `json:"at,omitempty"` // file:line of the P1 rule that matched; empty for other parts, or if no rule applied
}

// Explain returns the verdict of Judge and the results of the parts that were applied.
// layers are the steps of those parts whose answers are inputs: schema, rules (also
// those for the delegator) and overlays. They are listed after the gates and before the
// other parts. If a gate denies, only the gates are listed.
func Explain(in Inputs, layers []Step) (Answer, []Step) {
	var out []Step
	v := judge(&in, func(part string, a Answer) {
		out = append(out, Step{Part: part, Verdict: a.Verdict, Reason: a.Reason})
		if part == PartGates && a.Verdict == "" {
			out = append(out, layers...)
		}
	})
	return v, out
}
