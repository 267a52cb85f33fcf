package outcome

import (
	"encoding/json"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// MessageEncrypted is the error message in the effect of a failed call whose contents are
// encrypted. The real one is in the output, which is encrypted under the same key.
const MessageEncrypted = "the error message is encrypted with the contents of the call"

// Failure returns the output of a failed call whose contents are encrypted and which has no
// other output: a document with the error message.
func Failure(message string) []byte {
	c := canon.Object(nil)
	c.Str("error_message", message)
	return c.End()
}

// Message returns the error message of an effect. If it is encrypted, Message reads it with open,
// which opens a content; if that fails, it returns MessageEncrypted.
func Message(r *contract.Recorded, open func(*contract.Content) ([]byte, error)) string {
	if r.Effect.ErrorMessage != MessageEncrypted || r.Output == nil || r.Output.Encryption == nil {
		return r.Effect.ErrorMessage
	}
	var doc struct {
		Message string `json:"error_message"`
	}
	b, err := open(r.Output)
	if err != nil || json.Unmarshal(b, &doc) != nil || doc.Message == "" {
		return MessageEncrypted
	}
	return doc.Message
}
