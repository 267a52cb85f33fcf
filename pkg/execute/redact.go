package execute

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
)

// Hide adds a secret value, which is then replaced by "[secret:NAME]" in the call's
// result and facts before these are recorded; see Redactor. The executor adds each value
// that it fetches. A handler that uses a value from an earlier call must add it before
// use. Hide is safe for concurrent use.
func (w *Work) Hide(name, value string) {
	for {
		old := w.hidden.Load()
		if w.hidden.CompareAndSwap(old, old.With(name, value)) {
			return
		}
	}
}

// Redactor returns a redactor of the secret values that the call has received so far. It
// is nil, which changes nothing, if there are none. The executor applies it to the facts
// and to the texts and the output of the result before it records them; a handler must
// apply it to its log messages and frames.
func (w *Work) Redactor() *redact.Redactor { return w.hidden.Load() }

// redacted returns r with the secrets that the call received removed from its texts and
// output, or a failed result if they cannot be removed from the output. It changes
// r.Artifacts in place.
func (w *Work) redacted(r Result) Result {
	red := w.Redactor()
	if red == nil {
		return r
	}
	r.ErrorCode, r.ErrorMessage, r.EffectType = red.String(r.ErrorCode), red.String(r.ErrorMessage), red.String(r.EffectType)
	for i := range r.Artifacts {
		r.Artifacts[i] = red.String(r.Artifacts[i])
	}
	if r.Output == nil {
		return r
	}
	out, err := red.JSON(r.Output)
	if err != nil {
		f := Fail(contract.CodeInvalidOutput, "the output cannot be redacted: %v", err)
		f.EffectType, f.Usage, f.Attestation = r.EffectType, r.Usage, r.Attestation
		return f
	}
	r.Output = out
	return r
}
