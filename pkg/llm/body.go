package llm

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

// Attach makes a the summary of a call whose body is the request, kept as
// a.Capture says, and returns that body.
func (a *Args) Attach(body []byte) *propose.Body {
	var b propose.Body
	if a.Capture == CapturePlain {
		b.Content, b.Object = blob.Refer(body, "application/json")
	} else {
		b.Content, b.Carried = blob.Withheld(body, "application/json")
	}
	if a.Capture == CaptureHashed {
		sum := sha256.Sum256(body)
		a.Digest = "sha256:" + hex.EncodeToString(sum[:])
	}
	a.Body = b.Content.Commitment
	return &b
}

// Request makes the proposal of a call to a language model of its parts: args,
// body and the data classes that the body brings.
func Request(r *propose.Request, a *Args, body []byte, labels []string) {
	r.Body = a.Attach(body)
	r.Args, r.Labels, r.Stream = contract.Bytes(a), labels, true
}
