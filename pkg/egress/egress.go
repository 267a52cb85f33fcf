// Package egress defines the protocol by which the session-runner and the mcp-router obtain
// the proxy of a call from the egress-broker, and implements their side of it.
package egress

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// Request is the data of the event <executor>.egress_requested.v1.
type Request struct {
	CallID string `json:"call_id"`
	Inbox  string `json:"inbox"` // inbox id for this request only, to which the response is sent
	To     string `json:"to"`    // instance to whose inbox the response is sent
}

// Canonical implements canon.Document.
func (r *Request) Canonical(c *canon.Codec) {
	c.Str("call_id", &r.CallID)
	c.Str("inbox", &r.Inbox)
	c.Str("to", &r.To)
}

// Opened is the response to a request: the proxy of the call, or the reason for refusing it.
type Opened struct {
	Socket    string `json:"socket,omitempty"`    // path of the proxy's unix socket
	Authority string `json:"authority,omitempty"` // CA certificate that the call's program must trust, in PEM
	Refused   string `json:"refused,omitempty"`
}

// SocketName returns the name of the socket of a call's proxy in the folder of the egress-broker.
func SocketName(callID string) string {
	name := sha256.Sum256([]byte(callID))
	return hex.EncodeToString(name[:8])
}

// ValidInbox reports whether id is a valid id of an inbox for a response.
func ValidInbox(id string) bool {
	return strings.HasPrefix(id, contract.IDEgressInbox) && len(id) <= 64 && contract.Token(id)
}

// again is the time after which a request without a response is repeated for the first
// time. A restart of the NATS server loses responses.
const again = 5 * time.Second

// within is the time after which Open fails without a response.
const within = 20 * time.Second

// Open requests the proxy of a started call, and returns it. It records the request on the ledger
// first. It returns an error if the request cannot be recorded, if the broker refuses it or its
// response is malformed, or if no response arrives within 20 seconds or until ctx ends.
func Open(ctx context.Context, m *emit.Emitter, transport *transient.Transport, instance string, started *contract.Event) (Opened, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req := Request{CallID: started.CallID, Inbox: emit.NewID(contract.IDEgressInbox), To: instance}
	in := transport.Open(req.Inbox, services.EgressBroker) // before the request, because frames for an id that is not open are dropped
	defer in.Close()
	for wait := again; ; wait *= 2 {
		if _, err := m.Append(ctx, m.New(contract.EventEgressRequested, started.Session, contract.Bytes(&req), started)); err != nil {
			return Opened{}, err
		}
		try, cancel := context.WithTimeout(ctx, wait)
		f, err := in.Next(try)
		cancel()
		if err == nil {
			return opened(f)
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return Opened{}, fmt.Errorf("no response from the egress-broker: %w", err)
		}
	}
}

func opened(f transient.Frame) (o Opened, err error) {
	if err := json.Unmarshal(f.Data, &o); err != nil {
		return o, fmt.Errorf("response of the egress-broker: %w", err)
	}
	if o.Refused != "" {
		return o, errors.New(o.Refused)
	}
	return o, nil
}
