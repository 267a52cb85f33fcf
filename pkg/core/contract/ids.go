package contract

// Prefixes of ids. What follows a prefix is 26 random characters, or the id of
// the call (of the event, for IDSecretFact) that the thing belongs to.
const (
	IDBreakGlass = "b-"  // a use of break-glass
	IDCall       = "c-"  // a call
	IDCancel     = "x-"  // the event that requests a cancellation
	IDConform    = "cr-" // a conformance report
	IDDecision   = "d-"  // a decision
	IDDelegation = "g-"  // a delegation
	IDEscalation = "q-"  // an escalation, which waits for approval
	IDFreeze     = "f-"  // a freeze of the mesh
	IDFreezeAck  = "k-"  // the event that acknowledges a freeze; of an event, never of a key
	IDIntent     = "i-"  // an execution intent
	IDKey        = "k-"  // a signing or sealing key
	IDOutcome    = "o-"  // the event that records a report after the outcome
	IDProposal   = "p-"  // the event that proposes a call
	IDReceipt    = "r-"  // a receipt, and the event that records it
	IDSecretFact = "v-"  // the event that records what became of a secret's request
	IDSession    = "s-"  // a session
	IDVirtualKey = "bk-" // a virtual key's secret
)
