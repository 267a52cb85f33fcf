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
	Unknown      = "unknown" // started, and nobody can say how it ended
	DeadLettered = "dead_lettered"
)

// Started is the data of <executor>.effect_started.v1, the claim: it is on
// the ledger before the effect begins.
type Started struct {
	CallID     string `json:"call_id"`
	DecisionID string `json:"decision_id"`
	IntentID   string `json:"intent_id"`
}

// AppendCanonical implements the document encoding.
func (s *Started) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Str("call_id", s.CallID)
	w.Str("decision_id", s.DecisionID)
	w.Str("intent_id", s.IntentID)
	return w.End()
}

// Effect says what came of a call.
type Effect struct {
	Artifacts    []string     `json:"artifacts,omitempty"` // commitments
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

// Usage is what the effect consumed.
type Usage struct {
	CPUMillis    int64 `json:"cpu_ms,omitempty"`
	InputTokens  int64 `json:"input_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
	WallMS       int64 `json:"wall_ms,omitempty"`
}

// AppendCanonical implements the document encoding.
func (u *Usage) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.OptInt("cpu_ms", u.CPUMillis)
	w.OptInt("input_tokens", u.InputTokens)
	w.OptInt("output_tokens", u.OutputTokens)
	w.OptInt("wall_ms", u.WallMS)
	return w.End()
}

// Attestation is what the sandbox says it enforced.
type Attestation struct {
	Enforced    []string `json:"enforced"`
	ImageDigest string   `json:"image_digest"`
	Limits      *Sandbox `json:"limits"`
	Tier        string   `json:"tier"`
}

// AppendCanonical implements the document encoding.
func (a *Attestation) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Strs("enforced", a.Enforced)
	w.Str("image_digest", a.ImageDigest)
	w.Append("limits", a.Limits.AppendCanonical)
	w.Str("tier", a.Tier)
	return w.End()
}

// AppendCanonical implements the document encoding.
func (e *Effect) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.OptStrs("artifacts", e.Artifacts)
	if e.Attestation != nil {
		w.Append("attestation", e.Attestation.AppendCanonical)
	}
	w.Str("call_id", e.CallID)
	w.Str("effect_type", e.EffectType)
	w.Str("ended", e.Ended)
	w.OptStr("error_code", e.ErrorCode)
	w.OptStr("error_message", e.ErrorMessage)
	w.OptInt("frames", e.Frames)
	w.Str("input_digest", e.InputDigest)
	w.Str("instance", e.Instance)
	w.OptStr("output_digest", e.OutputDigest)
	w.OptStr("started", e.Started)
	w.Str("status", e.Status)
	w.Str("tool", e.Tool)
	if e.Usage != nil {
		w.Append("usage", e.Usage.AppendCanonical)
	}
	return w.End()
}

// Receipt closes a call. Receipts of one session form a chain by Prev; Index
// counts them from 1.
type Receipt struct {
	ArgsDigest     string `json:"args_digest"`
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

// AppendCanonical implements the document encoding; an unset Sig is absent,
// which is the signature's preimage.
func (r *Receipt) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	w.Str("args_digest", r.ArgsDigest)
	w.Str("call_id", r.CallID)
	w.Str("decision_digest", r.DecisionDigest)
	w.Str("decision_id", r.DecisionID)
	w.Str("effect_digest", r.EffectDigest)
	w.Str("executor", r.Executor)
	w.Str("id", r.ID)
	w.Int("index", r.Index)
	w.OptStr("intent_id", r.IntentID)
	w.Str("kid", r.KID)
	w.Int("lamport", r.Lamport)
	w.OptStr("output_digest", r.OutputDigest)
	w.Str("prev", r.Prev)
	w.Str("reason_code", r.ReasonCode)
	w.Str("session", r.Session)
	w.OptStr("sig", r.Sig)
	w.Str("status", r.Status)
	w.Str("tenant", r.Tenant)
	w.Str("time", r.Time)
	w.Str("verdict", r.Verdict)
	return w.End()
}

// Recorded is the data of <service>.effect_recorded.v1: everything that ends
// a call, in one event, so that there is nothing to fall out of step. Decision
// is present when the call never had an allowed event: a denial.
type Recorded struct {
	Decision *Decision `json:"decision,omitempty"`
	Effect   Effect    `json:"effect"`
	Output   *Content  `json:"output,omitempty"`
	Receipt  Receipt   `json:"receipt"`
}

// AppendCanonical implements the document encoding.
func (r *Recorded) AppendCanonical(dst []byte) []byte {
	w := canon.Object(dst)
	if r.Decision != nil {
		w.Append("decision", r.Decision.AppendCanonical)
	}
	w.Append("effect", r.Effect.AppendCanonical)
	if r.Output != nil {
		w.Append("output", r.Output.AppendCanonical)
	}
	w.Append("receipt", r.Receipt.AppendCanonical)
	return w.End()
}
