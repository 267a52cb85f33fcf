package execute

import "github.com/binnacle-mesh/binnacle/pkg/redact"

// Hide adds a value that the call received to those that are removed from what
// it records. The executor adds the values that it fetches; a handler that
// holds one from an earlier call adds it itself, before it uses it. Hide is
// safe for concurrent use.
func (w *Work) Hide(name, value string) {
	for {
		old := w.hidden.Load()
		if w.hidden.CompareAndSwap(old, old.With(name, value)) {
			return
		}
	}
}

// Redactor removes the values that the call has received so far. Results and
// facts pass through it before they are recorded; a handler applies it to what
// it logs, and to the frames that it sends.
func (w *Work) Redactor() *redact.Redactor { return w.hidden.Load() }

// redacted is a result without the secrets that the call received.
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
		f := Fail("invalid_output", "the output cannot be redacted: %v", err)
		f.EffectType, f.Usage, f.Attestation = r.EffectType, r.Usage, r.Attestation
		return f
	}
	r.Output = out
	return r
}
