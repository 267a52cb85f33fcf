// Package secret is the protocol by which secrets travel sealed: from the
// vault-broker to the executor of a call that may have them, and from the instance
// that proposed a vault.put to the vault-broker. It holds the documents, the names
// that secrets may have, and what each seal is bound to; it stores nothing.
package secret

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Request is the data of <executor>.secret_requested.v2. Version 1 has no
// inbox and is refused.
type Request struct {
	CallID     string   `json:"call_id"`
	DecisionID string   `json:"decision_id"`
	Inbox      string   `json:"inbox"` // id of this request alone, under which the sealed values are sent
	Names      []string `json:"names"`
	Recipient  string   `json:"recipient"` // ephemeral X25519 public key, base64
	To         string   `json:"to"`        // instance whose mailbox gets the sealed values
}

// Canonical implements canon.Document.
func (r *Request) Canonical(c *canon.Codec) {
	c.Str("call_id", &r.CallID)
	c.Str("decision_id", &r.DecisionID)
	c.OptStr("inbox", &r.Inbox)
	c.Strs("names", &r.Names)
	c.Str("recipient", &r.Recipient)
	c.Str("to", &r.To)
}

// RequestInfo returns the context string that binds sealed values to the request that
// they answer: its tenant, decision, inbox and names. A value sealed for one request
// cannot be opened as the answer to another, even if both belong to the same call.
func RequestInfo(tenant string, r *Request) string {
	return sealInfo("binnacle secret v2", append([]string{tenant, r.DecisionID, r.Inbox}, r.Names...)...)
}

// PutInfo binds a value that is to be stored to its tenant, name and call.
func PutInfo(tenant, name, callID string) string {
	return sealInfo("binnacle secret put v2", tenant, name, callID)
}

// ReservedNames begins names that no secret may have: content keys had such
// names until release 0.4.
const ReservedNames = "content-key"

// ValidName reports whether a secret may have the name: 1 to 64 of
// [A-Za-z0-9._-], not beginning with ReservedNames.
func ValidName(s string) bool {
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, bad) && !strings.HasPrefix(strings.ToLower(s), ReservedNames)
}

// sealInfo joins the parts that a seal is bound to; quoting keeps one list of
// parts from being spelled as another.
func sealInfo(purpose string, parts ...string) string {
	return fmt.Sprintf("%s %q", purpose, parts)
}

// vaultBroker is the only service that sends secrets.
const vaultBroker = "vault-broker"

// secretInbox begins the ids of inboxes for sealed values.
const secretInbox = "secret"

// ValidInbox reports whether id can be the inbox of a request for secrets, and
// of nothing else.
func ValidInbox(id string) bool {
	return strings.HasPrefix(id, secretInbox+"-") && len(id) <= 64 && contract.Token(id)
}

// Sealed is the frame the broker sends: values sealed, or why not.
type Sealed struct {
	Sealed  string `json:"sealed,omitempty"` // base64, a JSON object of values by name
	Refused string `json:"refused,omitempty"`
}

// FromBroker asks the vault-broker: the request is on the ledger, the
// values come sealed to a key made for this request, to an inbox of its own.
func FromBroker(m *emit.Emitter, box *transient.Box, instance string) func(ctx context.Context, started *contract.Event, a *contract.Allowed, names []string) (map[string]string, error) {
	return func(ctx context.Context, started *contract.Event, a *contract.Allowed, names []string) (map[string]string, error) {
		key, err := seal.NewKey()
		if err != nil {
			return nil, err
		}
		req := Request{CallID: a.Call.ID, DecisionID: a.Decision.ID, Inbox: emit.NewID(secretInbox), Names: names, Recipient: key.Public(), To: instance}
		in := box.Open(req.Inbox, vaultBroker)
		defer in.Close()
		if _, err := m.Append(ctx, m.New(contract.EventSecretRequested, started.Session, contract.Bytes(&req), started)); err != nil {
			return nil, err
		}
		f, err := in.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("no answer from the vault-broker: %w", err)
		}
		var s Sealed
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
		plain, err := key.Open(RequestInfo(started.Tenant, &req), raw)
		if err != nil {
			return nil, err
		}
		var out map[string]string
		if err := json.Unmarshal(plain, &out); err != nil {
			return nil, err
		}
		for _, name := range names {
			if _, ok := out[name]; !ok {
				return nil, fmt.Errorf("the vault-broker's answer lacks secret %s", name)
			}
		}
		return out, nil
	}
}
