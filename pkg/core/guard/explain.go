package guard

// Parts of a decision, in the order in which they answer.
const (
	PartGates       = "gates"
	PartSchema      = "input schema"
	PartCeilings    = "p0"
	PartRules       = "p1"
	PartDelegator   = "p1 for the delegator"
	PartOverlay     = "p2"
	PartDualControl = "dual control"
	PartCaller      = "executed by the caller"
	PartSandbox     = "sandbox"
	PartLimits      = "limits"
	PartPeople      = "approvals"
)

// Step is what one part of a decision answered.
type Step struct {
	Part    string `json:"layer"`
	Name    string `json:"name,omitempty"` // of the document
	Digest  string `json:"digest,omitempty"`
	Verdict string `json:"verdict,omitempty"` // empty: no opinion
	Reason  string `json:"reason_code,omitempty"`
	At      string `json:"at,omitempty"` // the rule that answered
}

// Explain is Judge, with what each part answered. layers are the steps of the
// parts whose answers are among the inputs: schema, rules and overlays. They
// are listed where they count: a gate that denies hides them.
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
