package contract

import "github.com/binnacle-mesh/binnacle/pkg/core/canon"

// Effect statuses. Exactly one ends each call.
const (
	Succeeded    = "succeeded"
	Failed       = "failed"
	Denied       = "denied"
	Expired      = "expired"
	TimedOut     = "timed_out"
	Cancelled    = "cancelled"
	Unknown      = "unknown" // started, and it is not known how it ended
	DeadLettered = "dead_lettered"
)

// Started is the data of <executor>.effect_started, the claim, which is on the
// ledger before the effect begins, and of policy.start_expired, which ends a call
// that no executor claimed in time.
type Started struct {
	CallID     string `json:"call_id"`
	DecisionID string `json:"decision_id"`
	ExecutedBy string `json:"executed_by,omitempty"` // "caller" where the intent was handed out to the caller
	IntentID   string `json:"intent_id"`
}

// Canonical implements canon.Document.
func (s *Started) Canonical(c *canon.Codec) {
	c.Str("call_id", &s.CallID)
	c.Str("decision_id", &s.DecisionID)
	c.OptStr("executed_by", &s.ExecutedBy)
	c.Str("intent_id", &s.IntentID)
}

// Caller is the value of executed_by and attested_by where the caller, and no
// executor of the mesh, executed a call or attests its outcome.
const Caller = "caller"

// CallerExecutor is the service to which the intent of a call is addressed that its
// caller executes. It hands the intent out, receives the report of the outcome and
// signs it as the caller's attestation.
const CallerExecutor = "gateway"

// Effect is the outcome of a call.
type Effect struct {
	Artifacts    []string     `json:"artifacts,omitempty"`   // commitments
	AttestedBy   string       `json:"attested_by,omitempty"` // "caller" where the caller reported the effect and no executor observed it
	Attestation  *Attestation `json:"attestation,omitempty"`
	CallID       string       `json:"call_id"`
	EffectType   string       `json:"effect_type"`
	Ended        string       `json:"ended"`
	ErrorCode    string       `json:"error_code,omitempty"`
	ErrorMessage string       `json:"error_message,omitempty"`
	Frames       int64        `json:"frames,omitempty"` // transient frames sent before this
	InputDigest  string       `json:"input_digest"`
	Instance     string       `json:"instance"`
	OutputDigest string       `json:"output_digest,omitempty"`
	Started      string       `json:"started,omitempty"`
	Status       string       `json:"status"`
	Tool         string       `json:"tool"`
	Usage        *Usage       `json:"usage,omitempty"`
}

// Names of measures in Usage.Measured.
const (
	MeasureCompute = "compute_ms"
	MeasureEgress  = "egress_bytes"
	MeasureMemory  = "memory_peak_bytes"
)

// Usage is what an effect consumed. A measure that is zero was not used, or, unless
// Measured names it, not measured.
type Usage struct {
	CachedTokens    int64    `json:"cached_tokens,omitempty"` // part of InputTokens that a prompt cache held
	Cents           int64    `json:"cents,omitempty"`
	CPUMillis       int64    `json:"cpu_ms,omitempty"`
	EgressBytes     int64    `json:"egress_bytes,omitempty"`
	InputTokens     int64    `json:"input_tokens,omitempty"`
	Measured        []string `json:"measured,omitempty"` // what is known even where it is 0: compute_ms, egress_bytes, memory_peak_bytes
	MemoryPeakBytes int64    `json:"memory_peak_bytes,omitempty"`
	OutputTokens    int64    `json:"output_tokens,omitempty"`
	ReasoningTokens int64    `json:"reasoning_tokens,omitempty"` // part of OutputTokens
	USDMicros       int64    `json:"usd_micros,omitempty"`       // millionths of a US dollar
	WallMS          int64    `json:"wall_ms,omitempty"`
}

// Canonical implements canon.Document.
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

// Attestation is what the sandbox reports that it enforced.
type Attestation struct {
	Enforced    []string `json:"enforced"`
	ImageDigest string   `json:"image_digest"`
	Limits      Sandbox  `json:"limits"`
	Tier        string   `json:"tier"`
}

// Canonical implements canon.Document.
func (a *Attestation) Canonical(c *canon.Codec) {
	c.Strs("enforced", &a.Enforced)
	c.Str("image_digest", &a.ImageDigest)
	c.Doc("limits", &a.Limits)
	c.Str("tier", &a.Tier)
}

// Canonical implements canon.Document.
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

// Receipt closes a call. Receipts of one session form a chain by Prev; Index
// counts them from 1.
type Receipt struct {
	ArgsDigest     string `json:"args_digest"`
	AttestedBy     string `json:"attested_by,omitempty"` // the effect's
	CallID         string `json:"call_id"`
	DecisionDigest string `json:"decision_digest"` // of the signed decision's bytes
	DecisionID     string `json:"decision_id"`
	EffectDigest   string `json:"effect_digest"`
	Executor       string `json:"executor"` // service that signed
	ID             string `json:"id"`       // "r-" + call id
	Index          int64  `json:"index"`
	IntentID       string `json:"intent_id,omitempty"`
	KID            string `json:"kid"`
	Lamport        int64  `json:"lamport"`
	OutputDigest   string `json:"output_digest,omitempty"`
	Prev           string `json:"prev"` // digest of the previous receipt's bytes, or the genesis
	ReasonCode     string `json:"reason_code"`
	Session        string `json:"session"`
	Sig            string `json:"sig,omitempty"`
	Status         string `json:"status"`
	Tenant         string `json:"tenant"`
	Time           string `json:"time"`
	Verdict        string `json:"verdict"`
}

// Canonical implements canon.Document; an unset Sig is absent, which is the
// signature's preimage.
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

// Recorded is the data of <service>.effect_recorded: everything that ends a call,
// in one event, so that its parts cannot disagree. Decision is present where the
// call has no allowed event, that is, in a denial.
type Recorded struct {
	Decision *Decision `json:"decision,omitempty"`
	Effect   Effect    `json:"effect"`
	Output   *Content  `json:"output,omitempty"`
	Receipt  Receipt   `json:"receipt"`
}

// Canonical implements canon.Document.
func (r *Recorded) Canonical(c *canon.Codec) {
	canon.OptDoc(c, "decision", &r.Decision)
	c.Doc("effect", &r.Effect)
	canon.OptDoc(c, "output", &r.Output)
	c.Doc("receipt", &r.Receipt)
}
