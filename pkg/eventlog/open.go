package eventlog

import (
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Every is the filter that selects every event, for readers that accept any producer and
// tenant, such as audit.
const Every = bus.EveryEvent

// Open decodes a stored entry. Outside pkg/core and tests, Open and OpenBytes are the only
// functions that decode a stored event; scripts/measure-code fails if there is another
// one. Open checks in this order that
//
//   - the entry is no larger than the server accepts, bus.MaxMessage;
//   - its subject matches one of filters, which determine the tenants, producers, event
//     names and keys that the caller accepts. Callers pass the filters with which they
//     read, so that a check does not depend on the server alone. Without filters, Open
//     accepts nothing;
//   - its bytes are the canonical form of an event;
//   - the subject is the one that the event determines, so that the checks of the subject
//     hold for the event.
//
// Signatures are inside the event's data and have rules of their own: see
// guard.CheckIntent, guard.VerifyDecision and receipt. If Open returns an error, the
// entry is not an event for the caller: log it and skip it. The event aliases en.Data.
func Open(en Entry, filters ...string) (*contract.Event, error) {
	if err := accepts(en.Subject, len(en.Data), filters); err != nil {
		return nil, err
	}
	e, err := contract.DecodeEvent(en.Data)
	if err != nil {
		return nil, err
	}
	if !e.Under(en.Subject) {
		return nil, fmt.Errorf("subject %s is not the one of its body, %s", en.Subject, e.Subject())
	}
	return e, nil
}

// OpenBytes is Open for the stored bytes of an event whose subject is not known, such as
// a line of an export or of a query's response. It checks the subject that the event
// determines.
func OpenBytes(data []byte, filters ...string) (*contract.Event, error) {
	e, err := contract.DecodeEvent(data)
	if err != nil {
		return nil, err
	}
	if err := accepts(e.Subject(), len(data), filters); err != nil {
		return nil, err
	}
	return e, nil
}

// accepts returns an error unless size is at most bus.MaxMessage and one of filters
// selects subject.
func accepts(subject string, size int, filters []string) error {
	if size > bus.MaxMessage {
		return fmt.Errorf("an event of %d bytes, more than %d", size, bus.MaxMessage)
	}
	if !bus.MatchAny(filters, subject) {
		return fmt.Errorf("subject %s is not one of %q", subject, filters)
	}
	return nil
}
