package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// The statuses of an effect. Every call that has ended has exactly one of them.
const (
	Succeeded    = "succeeded"
	Failed       = "failed"
	Denied       = "denied"
	Expired      = "expired"
	TimedOut     = "timed_out"
	Cancelled    = "cancelled"
	Unknown      = "unknown" // started, but how it ended cannot be determined
	DeadLettered = "dead_lettered"
)

// Started is the data of two events. <executor>.effect_started is an executor's claim,
// which is stored before the effect begins. With policy.start_expired, policy claims a
// call that no executor claimed in time, and then records it as expired. Both have the
// same message id for a call, so at most one of them is stored.
type Started struct {
	CallID     string `json:"call_id"`
	DecisionID string `json:"decision_id"`
	ExecutedBy string `json:"executed_by,omitempty"` // set to Caller if the caller executes the call itself; empty in start_expired
	IntentID   string `json:"intent_id"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (s *Started) Canonical(c *canon.Codec) {
	c.Str("call_id", &s.CallID)
	c.Str("decision_id", &s.DecisionID)
	c.OptStr("executed_by", &s.ExecutedBy)
	c.Str("intent_id", &s.IntentID)
}

// Caller is the value of executed_by and attested_by where the caller itself, and not an
// executor of the mesh, executed a call or attests its effect.
const Caller = "caller"

// CallerExecutor is the service that intents name as executor if the caller executes the
// call itself. The service hands the intent out to the caller, receives the caller's
// report of the effect, and issues the receipt.
const CallerExecutor = "gateway"

// Effect describes the execution of a call, or why the call was not executed, as the
// service that records the Effect observed it or, with AttestedBy set, as the caller
// reported it.
type Effect struct {
	Artifacts    []string     `json:"artifacts,omitempty"`   // commitments to contents that the effect produced
	AttestedBy   string       `json:"attested_by,omitempty"` // set to Caller if the caller reported the effect and no executor observed it
	Attestation  *Attestation `json:"attestation,omitempty"`
	CallID       string       `json:"call_id"`
	EffectType   string       `json:"effect_type"`
	Ended        string       `json:"ended"`
	ErrorCode    string       `json:"error_code,omitempty"`
	ErrorMessage string       `json:"error_message,omitempty"`
	Frames       int64        `json:"frames,omitempty"` // number of transient frames sent during the call
	InputDigest  string       `json:"input_digest"`
	Instance     string       `json:"instance"`
	OutputDigest string       `json:"output_digest,omitempty"`
	Started      string       `json:"started,omitempty"`
	Status       string       `json:"status"`
	Tool         string       `json:"tool"`
	Usage        *Usage       `json:"usage,omitempty"`
}

// The names of measures in Usage.Measured.
const (
	MeasureCompute = "compute_ms"
	MeasureEgress  = "egress_bytes"
	MeasureMemory  = "memory_peak_bytes"
)

// Usage holds the amounts that an effect consumed. A measure of zero that Measured does
// not name was either not used or not measured.
type Usage struct {
	CachedTokens    int64    `json:"cached_tokens,omitempty"` // the part of InputTokens that came from a prompt cache
	Cents           int64    `json:"cents,omitempty"`
	CPUMillis       int64    `json:"cpu_ms,omitempty"`
	EgressBytes     int64    `json:"egress_bytes,omitempty"`
	InputTokens     int64    `json:"input_tokens,omitempty"`
	Measured        []string `json:"measured,omitempty"` // names of measures that are known even if they are zero
	MemoryPeakBytes int64    `json:"memory_peak_bytes,omitempty"`
	OutputTokens    int64    `json:"output_tokens,omitempty"`
	ReasoningTokens int64    `json:"reasoning_tokens,omitempty"` // the part of OutputTokens spent on reasoning
	USDMicros       int64    `json:"usd_micros,omitempty"`       // millionths of a US dollar
	WallMS          int64    `json:"wall_ms,omitempty"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (u *Usage) Canonical(c *canon.Codec) {
	c.OptInt("cached_tokens", &u.CachedTokens)
	c.OptInt("cents", &u.Cents)
	c.OptInt("cpu_ms", &u.CPUMillis)
	c.OptInt("egress_bytes", &u.EgressBytes)
	c.OptInt("input_tokens", &u.InputTokens)
	c.OptStrs("measured", &u.Measured)
	c.OptInt("memory_peak_bytes", &u.MemoryPeakBytes)
	c.OptInt("output_tokens", &u.OutputTokens)
	c.OptInt("reasoning_tokens", &u.ReasoningTokens)
	c.OptInt("usd_micros", &u.USDMicros)
	c.OptInt("wall_ms", &u.WallMS)
}

// Attestation is the sandbox's report about one execution: its tier of isolation, the
// limits that were set, and in Enforced the names of the limits and other restrictions
// that it enforced.
type Attestation struct {
	Enforced    []string `json:"enforced"`
	ImageDigest string   `json:"image_digest"`
	Limits      Sandbox  `json:"limits"`
	Tier        string   `json:"tier"`
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (a *Attestation) Canonical(c *canon.Codec) {
	c.Strs("enforced", &a.Enforced)
	c.Str("image_digest", &a.ImageDigest)
	c.Doc("limits", &a.Limits)
	c.Str("tier", &a.Tier)
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (e *Effect) Canonical(c *canon.Codec) {
	c.OptStrs("artifacts", &e.Artifacts)
	canon.OptDoc(c, "attestation", &e.Attestation)
	c.OptStr("attested_by", &e.AttestedBy)
	c.Str("call_id", &e.CallID)
	c.Str("effect_type", &e.EffectType)
	c.Str("ended", &e.Ended)
	c.OptStr("error_code", &e.ErrorCode)
	c.OptStr("error_message", &e.ErrorMessage)
	c.OptInt("frames", &e.Frames)
	c.Str("input_digest", &e.InputDigest)
	c.Str("instance", &e.Instance)
	c.OptStr("output_digest", &e.OutputDigest)
	c.OptStr("started", &e.Started)
	c.Str("status", &e.Status)
	c.Str("tool", &e.Tool)
	canon.OptDoc(c, "usage", &e.Usage)
}

// Receipt is the signed record that closes a call. The receipts of one session
// form a chain: Prev is the digest of the receipt before, and Index counts from
// 1. Only receipt.Issue makes one.
type Receipt struct {
	ArgsDigest     string `json:"args_digest"`
	AttestedBy     string `json:"attested_by,omitempty"` // the value of Effect.AttestedBy
	CallID         string `json:"call_id"`
	DecisionDigest string `json:"decision_digest"` // digest of the canonical bytes of the signed decision
	DecisionID     string `json:"decision_id"`
	EffectDigest   string `json:"effect_digest"`
	Executor       string `json:"executor"` // service whose key signed the receipt
	ID             string `json:"id"`       // "r-" followed by the call id
	Index          int64  `json:"index"`
	IntentID       string `json:"intent_id,omitempty"`
	KID            string `json:"kid"`
	Lamport        int64  `json:"lamport"`
	OutputDigest   string `json:"output_digest,omitempty"`
	Prev           string `json:"prev"` // digest of the previous receipt's canonical bytes; for the first receipt, the digest of receipt.Genesis
	ReasonCode     string `json:"reason_code"`
	Session        string `json:"session"`
	Sig            string `json:"sig,omitempty"`
	Status         string `json:"status"`
	Tenant         string `json:"tenant"`
	Time           string `json:"time"`
	Verdict        string `json:"verdict"`
}

// Canonical implements canon.Document. An unset Sig is absent; the signature covers the
// bytes without it.
func (r *Receipt) Canonical(c *canon.Codec) {
	c.Str("args_digest", &r.ArgsDigest)
	c.OptStr("attested_by", &r.AttestedBy)
	c.Str("call_id", &r.CallID)
	c.Str("decision_digest", &r.DecisionDigest)
	c.Str("decision_id", &r.DecisionID)
	c.Str("effect_digest", &r.EffectDigest)
	c.Str("executor", &r.Executor)
	c.Str("id", &r.ID)
	c.Int("index", &r.Index)
	c.OptStr("intent_id", &r.IntentID)
	c.Str("kid", &r.KID)
	c.Int("lamport", &r.Lamport)
	c.OptStr("output_digest", &r.OutputDigest)
	c.Str("prev", &r.Prev)
	c.Str("reason_code", &r.ReasonCode)
	c.Str("session", &r.Session)
	c.OptStr("sig", &r.Sig)
	c.Str("status", &r.Status)
	c.Str("tenant", &r.Tenant)
	c.Str("time", &r.Time)
	c.Str("verdict", &r.Verdict)
}

// Recorded is the data of <service>.effect_recorded. One event holds everything
// that ends a call, so that effect and receipt cannot be stored apart. Decision
// is present if no allowed event holds the decision, that is, if the call was
// denied.
type Recorded struct {
	Decision *Decision `json:"decision,omitempty"`
	Effect   Effect    `json:"effect"`
	Output   *Content  `json:"output,omitempty"`
	Receipt  Receipt   `json:"receipt"`
}

// ErrorCode returns the error code with which every API and every pipeline reports the
// outcome, or "" for a success. It is that of the effect, except for a denial: the code is then that
// of the reason in Reasons, or CodeDenied for a reason that a policy bundle defines.
func (r *Recorded) ErrorCode() string {
	if r.Effect.Status != Denied {
		return r.Effect.ErrorCode
	}
	if code := Reasons[r.Receipt.ReasonCode].ErrorCode; code != "" {
		return code
	}
	return CodeDenied
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (r *Recorded) Canonical(c *canon.Codec) {
	canon.OptDoc(c, "decision", &r.Decision)
	c.Doc("effect", &r.Effect)
	canon.OptDoc(c, "output", &r.Output)
	c.Doc("receipt", &r.Receipt)
}
