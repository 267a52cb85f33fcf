package llm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
)

// Attach prepares the request as the body of a call, in the capture mode a.Capture: a plain or
// encrypted body is to be stored, and any other is only carried to the executor. An encrypted body
// is under the content key that key selects. It sets a.Body to the body's commitment and, in mode
// CaptureHashed, a.Digest to the body's SHA-256. s is used only in mode CaptureEncrypted, the only
// mode in which Attach can fail.
func (a *Args) Attach(ctx context.Context, s *blob.Store, key blob.Under, body []byte) (*propose.Body, error) {
	const media = "application/json"
	var b propose.Body
	switch a.Capture {
	case CapturePlain:
		b.Content, b.Object = blob.Refer(body, media)
	case CaptureEncrypted:
		var err error
		if b.Content, b.Object, err = s.Seal(ctx, key, body, media); err != nil {
			return nil, err
		}
	default:
		b.Content, b.Carried = blob.Withheld(body, media)
	}
	if a.Capture == CaptureHashed {
		sum := sha256.Sum256(body)
		a.Digest = "sha256:" + hex.EncodeToString(sum[:])
	}
	a.Body = b.Content.Commitment
	return &b, nil
}

// Request completes r, the proposal of a call to a language model: it sets the args, the
// body, the labels (the data classes of the body) and the executor, and sets Stream. Its
// error is that of Attach.
func Request(ctx context.Context, s *blob.Store, r *propose.Request, a *Args, body []byte, labels []string) error {
	b, err := a.Attach(ctx, s, r.Key, body)
	if err != nil {
		return err
	}
	b.For = Executor
	r.Encrypt = false // the args are a summary without content
	r.Body, r.Args, r.Labels, r.Stream, r.Executor = b, contract.Bytes(a), labels, true, Executor
	return nil
}
