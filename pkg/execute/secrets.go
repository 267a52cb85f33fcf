package execute

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// SecretRequest is the data of <executor>.secret_requested.v1.
type SecretRequest struct {
	CallID     string   `json:"call_id"`
	DecisionID string   `json:"decision_id"`
	Names      []string `json:"names"`
	Recipient  string   `json:"recipient"` // ephemeral X25519 public key, base64
	To         string   `json:"to"`        // instance whose mailbox gets the sealed values
}

// Canonical implements canon.Document.
func (r *SecretRequest) Canonical(c *canon.Codec) {
	c.Str("call_id", &r.CallID)
	c.Str("decision_id", &r.DecisionID)
	c.Strs("names", &r.Names)
	c.Str("recipient", &r.Recipient)
	c.Str("to", &r.To)
}

// SecretInfo binds sealed values to their call.
func SecretInfo(decisionID string) string { return "binnacle secret v1 " + decisionID }

// PutSecretInfo binds a sealed value to the call that stores it.
func PutSecretInfo(callID string) string { return "binnacle secret put v1 " + callID }

// SealedSecrets is the frame the broker sends: values sealed, or why not.
type SealedSecrets struct {
	Sealed  string `json:"sealed,omitempty"` // base64, a JSON object of values by name
	Refused string `json:"refused,omitempty"`
}

// SecretsByBroker asks the vault-broker: the request is on the ledger, the
// values come sealed to a key made for this call, through the mailbox.
func SecretsByBroker(m *emit.Emitter, box *transient.Box, instance string) Secrets {
	return func(ctx context.Context, started *contract.Event, a *contract.Allowed, names []string) (map[string]string, error) {
		key, err := seal.NewKey()
		if err != nil {
			return nil, err
		}
		req := SecretRequest{CallID: a.Call.ID, DecisionID: a.Decision.ID, Names: names, Recipient: key.Public(), To: instance}
		in := box.Open("secret-" + a.Call.ID)
		defer in.Close()
		if _, err := m.Append(ctx, m.New("secret_requested", started.Session, contract.Bytes(&req), started)); err != nil {
			return nil, err
		}
		f, err := in.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("no answer from the vault-broker: %w", err)
		}
		var s SealedSecrets
		if err := json.Unmarshal(f.Data, &s); err != nil {
			return nil, err
		}
		if s.Refused != "" {
			return nil, errors.New(s.Refused)
		}
		raw, err := base64.StdEncoding.DecodeString(s.Sealed)
		if err != nil {
			return nil, err
		}
		plain, err := key.Open(SecretInfo(a.Decision.ID), raw)
		if err != nil {
			return nil, err
		}
		var out map[string]string
		return out, json.Unmarshal(plain, &out)
	}
}
