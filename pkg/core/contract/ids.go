package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/sign"

// The prefixes of ids. For most ids, the rest is 26 random characters, or the id of the
// call or event that the id belongs to. The rest of an IDKey is part of a hash of the
// public key, and SessionID computes the rest of most ids of sessions. The prefixes "k-"
// and "s-" have two meanings: in the id of an event they are IDFreezeAck and IDStart, in
// every other id IDKey and IDSession.
const (
	IDAllotment  = "al-"          // the part of a budget ledger that one run of an instance of policy holds
	IDArtifact   = "ar-"          // an artifact; the digest of its content follows
	IDBreakGlass = "b-"           // a use of break-glass
	IDCall       = "c-"           // a call
	IDCancel     = "x-"           // the event that requests a cancellation
	IDConform    = "cr-"          // a conformance report
	IDDecision   = "d-"           // a decision
	IDDeferral   = "j-"           // the event that records that an asynchronous request is answered before the outcome of its call
	IDDelegation = "g-"           // a delegation
	IDEgressFact = "n-"           // the event that records that the proxy of a call was closed by a restart
	IDEscalation = "q-"           // an escalation, which waits for approval
	IDFreeze     = "f-"           // a freeze of all executors
	IDFreezeAck  = "k-"           // the event that acknowledges a freeze; only event ids have this meaning
	IDIntent     = "i-"           // an execution intent
	IDKey        = sign.KIDPrefix // a signing or sealing key
	IDLogin      = "l-"           // a login of a person
	IDNotice     = "jn-"          // the event that records that the webhook of jobs accepted the notice of the end of a job
	IDOutcome    = "o-"           // the event that records a caller's report received after the outcome
	IDPipeline   = "pf-"          // runs of a pipeline by one actor with the same inputs
	IDProposal   = "p-"           // the event that proposes a call
	IDReceipt    = "r-"           // a receipt, and the event that records it
	IDSandbox    = "sb-"          // a held sandbox
	IDSchedule   = "sc-"          // schedules of a pipeline by one actor with the same inputs and times
	IDSecretFact = "v-"           // the event that records whether a requested secret was released
	IDSession    = "s-"           // a session
	IDStart      = "s-"           // the event that claims a call, or records that it expired; only event ids have this meaning
	IDUpload     = "u-"           // an upload of an artifact
	IDVirtualKey = "bk-"          // a virtual key's secret
)
