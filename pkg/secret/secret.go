// Package secret defines the protocol that transports sealed secrets: from the
// vault-broker to the executor of a call that may use them, and from the instance that
// proposed a vault.put to the vault-broker. It defines the documents, the valid names of
// secrets and the context that each sealed value is bound to, and implements the
// executor's side of a request. It does not store secrets.
package secret

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Request is the data of the event <executor>.secret_requested.v3, by which an executor
// requests secrets. Version 1 has no inbox and no Allowed, and is rejected.
type Request struct {
	Allowed    int64    `json:"allowed"` // ledger sequence of the event that allows the call
	CallID     string   `json:"call_id"`
	DecisionID string   `json:"decision_id"`
	Inbox      string   `json:"inbox"` // inbox id for this request only, to which the sealed values are sent
	Names      []string `json:"names"`
	Recipient  string   `json:"recipient"`          // ephemeral X25519 public key, base64
	Rejected   bool     `json:"rejected,omitempty"` // whether a server has rejected the values that were released for the call before
	To         string   `json:"to"`                 // instance to whose inbox the sealed values are sent
}

// Canonical implements canon.Document.
func (r *Request) Canonical(c *canon.Codec) {
	c.Int("allowed", &r.Allowed)
	c.Str("call_id", &r.CallID)
	c.Str("decision_id", &r.DecisionID)
	c.OptStr("inbox", &r.Inbox)
	c.Strs("names", &r.Names)
	c.Str("recipient", &r.Recipient)
	c.OptBool("rejected", &r.Rejected)
	c.Str("to", &r.To)
}

// RequestInfo returns the context string that binds sealed values to the request that
// they answer: its tenant, decision, inbox and names. A value sealed for one request
// cannot be opened as the answer to another, even if both belong to the same call.
func RequestInfo(tenant string, r *Request) string {
	return sealInfo("binnacle secret v2", append([]string{tenant, r.DecisionID, r.Inbox}, r.Names...)...)
}

// PutInfo returns the context string that binds the sealed value of a vault.put to its
// tenant, name and call.
func PutInfo(tenant, name, callID string) string {
	return sealInfo("binnacle secret put v2", tenant, name, callID)
}

// FilesInfo returns the context string that binds the sealed secrets of an MCP server's files to
// the connection with the server's command, which names the session-runner and the mcp-router.
func FilesInfo(tenant, connection string) string {
	return sealInfo("binnacle mcp files", tenant, connection)
}

// ReservedNames is a prefix that names of secrets must not have: until release 0.4,
// content keys were stored under such names.
const ReservedNames = "content-key"

// ValidName reports whether s is a valid name of a secret: 1 to 64 characters of
// [A-Za-z0-9._-] that do not begin with ReservedNames in upper, lower or mixed case.
func ValidName(s string) bool {
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, bad) && !strings.HasPrefix(strings.ToLower(s), ReservedNames)
}

// sealInfo returns the context string of a seal. The parts are quoted, so that two
// different lists of parts never have the same string.
func sealInfo(purpose string, parts ...string) string {
	return fmt.Sprintf("%s %q", purpose, parts)
}

// vaultBroker is the only service from which secrets are accepted.
const vaultBroker = services.VaultBroker

// ValidInbox reports whether id is a valid id of an inbox for sealed values: contract.IDSecretInbox
// and up to 57 characters of [A-Za-z0-9_-]. The prefix distinguishes it from the other
// ids with which transient.Transport receives frames.
func ValidInbox(id string) bool {
	return strings.HasPrefix(id, contract.IDSecretInbox) && len(id) <= 64 && contract.Token(id)
}

// Sealed is the document of the frame that the vault-broker sends: the sealed values, or
// the reason for refusing them.
type Sealed struct {
	Sealed  string `json:"sealed,omitempty"` // base64 of a sealed JSON object with the values by name; "" if Refused is set
	Refused string `json:"refused,omitempty"`
	Code    string `json:"code,omitempty"` // error code of a refusal that has one; see Refusal
}

// Refusal is the error of a request for secrets that the vault-broker has refused.
type Refusal struct {
	Code   string // of schemas/errors.json
	Reason string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Reason }

// RefusalCode returns the error code, for packages that do not import this one.
func (r *Refusal) RefusalCode() string { return r.Code }

// again is the time after which a request without a response is repeated for the first
// time.
const again = 5 * time.Second

// request calls send until a response arrives, and returns the response. It waits for 5
// seconds, the constant again, after the first call, and twice as long after each further one.
// It returns an error if send or the stream fails, or once ctx is done.
func request(ctx context.Context, in *transient.Stream, send func() error) (transient.Frame, error) {
	for wait := again; ; wait *= 2 {
		if err := send(); err != nil {
			return transient.Frame{}, err
		}
		try, cancel := context.WithTimeout(ctx, wait)
		f, err := in.Next(try)
		cancel()
		if err == nil {
			return f, nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return transient.Frame{}, fmt.Errorf("no answer from the vault-broker: %w", err)
		}
	}
}

// Fetch fetches the named secrets of a started call, and returns their values by name; see FromBroker.
type Fetch = func(ctx context.Context, started *contract.Event, a *contract.Allowed, allowed uint64, names []string) (map[string]string, error)

// FromBroker returns a function that requests secrets for a started call from the
// vault-broker and returns their values by name. allowed is the ledger sequence of the
// event that allows the call. The function records the request on the ledger and receives
// the values in an inbox for this request only, sealed to a key that it generates for this
// request. If no response arrives, the function repeats the request after 5 seconds and then
// at doubled intervals, because a restart of the NATS server loses responses.
// It returns an error unless it has received and opened the value of every name before ctx
// ends: a *Refusal if the vault-broker refuses the request.
func FromBroker(m *emit.Emitter, transport *transient.Transport, instance string) Fetch {
	return fromBroker(m, transport, instance, false)
}

// Renewed is FromBroker for values in place of those that a server has rejected. An access token that was
// obtained before the call was allowed is then replaced; other values are released again.
func Renewed(m *emit.Emitter, transport *transient.Transport, instance string) Fetch {
	return fromBroker(m, transport, instance, true)
}

func fromBroker(m *emit.Emitter, transport *transient.Transport, instance string, rejected bool) Fetch {
	return func(ctx context.Context, started *contract.Event, a *contract.Allowed, allowed uint64, names []string) (map[string]string, error) {
		key, err := seal.NewKey()
		if err != nil {
			return nil, err
		}
		req := Request{Allowed: int64(allowed), CallID: a.Call.ID, DecisionID: a.Decision.ID, Inbox: emit.NewID(contract.IDSecretInbox), Names: names, Recipient: key.Public(), Rejected: rejected, To: instance}
		// The inbox is opened before the request is recorded, because frames for an id
		// that is not open are dropped.
		in := transport.Open(req.Inbox, vaultBroker)
		defer in.Close()
		f, err := request(ctx, in, func() error {
			_, err := m.Append(ctx, m.New(contract.EventSecretRequested, started.Session, contract.Bytes(&req), started))
			return err
		})
		if err != nil {
			return nil, err
		}
		var s Sealed
		if err := json.Unmarshal(f.Data, &s); err != nil {
			return nil, err
		}
		if s.Refused != "" {
			return nil, &Refusal{Code: cmp.Or(s.Code, contract.EventSecretRefused), Reason: s.Refused}
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
		// A handler must not run with some of its secrets missing.
		for _, name := range names {
			if _, ok := out[name]; !ok {
				return nil, fmt.Errorf("the vault-broker's answer lacks secret %s", name)
			}
		}
		return out, nil
	}
}
