// Package starts is the view policy.starts: the allowed calls that have not started.
// A call that does not start within its window expires: policy claims it with
// start_expired and then records its outcome. Since policy may fail between the two
// events, the view lists an expired call until its outcome is on the ledger.
//
// The view is built from events only, by the service and by replay. It decides
// nothing: the service expires the calls that Expired returns.
package starts

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// View holds the allowed calls that have not started, and the expired calls without an
// outcome. It processes every call of the mesh, and nearly all of them start at once. Of
// the event that allows a call, it therefore decodes only the call's id, and stores the
// sequence instead of the bytes; Expired reads the event when the call has waited for
// some time. The zero value is the empty view. A View is safe for concurrent use.
type View struct {
	mu     sync.Mutex
	calls  map[call]held // entries that allow calls that have not started
	ending map[call]held // entries that allow expired calls without an outcome
	at     uint64        // sequence of the last entry applied
}

// call identifies a call. Calls of two tenants may have the same id.
type call struct{ tenant, id string }

// callOf returns the call that an entry is about. ok is false if the entry's subject does
// not have the six tokens of an event's subject, which are returned in subject.
func callOf(en eventlog.Entry) (c call, subject []string, ok bool) {
	subject = strings.Split(en.Subject, ".") // tokens: evt, tenant, service, origin, name with _target if there is one, key
	if len(subject) != 6 {
		return call{}, nil, false
	}
	return call{subject[1], contract.PeekCallID(en.Data)}, subject, true
}

// The intervals after which Expired returns the same call again. The interval is longer
// for an expired call, because the instance that expired it is expected to record the
// outcome.
const (
	callPause   = time.Second
	endingPause = 5 * time.Second
)

// held is the entry that allowed a call. The entry is read only after it has been in
// its map for the interval of the map, callPause or endingPause.
type held struct {
	seq     uint64
	subject string
	since   time.Time // when the entry was added to its map, or last considered by Expired
	expires time.Time // end of the call's window; zero until the entry was read
	bad     bool      // whether the entry cannot be decoded as a decision; the executor rejects it, too
}

// Reads reports whether Apply processes events with this name.
func Reads(name string) bool {
	switch name {
	case contract.EventAllowed, contract.EventEffectStarted, contract.EventStartExpired, contract.EventEffectRecorded:
		return true
	}
	return false
}

// Apply applies the next entry of the ledger, whose event must have a name that Reads selects,
// and does not retain en.Data. It ignores entries of services other than policy, except the
// claim of a call by the executor that the decision names. The error is always nil.
func (v *View) Apply(en eventlog.Entry) error {
	id, subject, ok := callOf(en)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.calls == nil {
		v.calls, v.ending = map[call]held{}, map[call]held{}
	}
	v.at = en.Seq
	if !ok {
		return nil
	}
	service, name := subject[2], subject[4]
	h, listed := v.calls[id]
	if name == contract.EventEffectStarted {
		if listed && bus.Allows(h.subject, service) { // claimed by the executor that the decision names
			delete(v.calls, id)
		}
		return nil
	}
	if service != "policy" {
		return nil
	}
	switch name {
	case contract.EventStartExpired:
		if listed {
			delete(v.calls, id)
			h.since = time.Now()
			v.ending[id] = h
		}
	case contract.EventEffectRecorded:
		delete(v.ending, id)
	default:
		v.calls[id] = held{seq: en.Seq, subject: en.Subject, since: time.Now()}
	}
	return nil
}

// Dump returns the canonical form of the view, sorted lines of JSON for the calls,
// and the sequence of the last entry applied, for comparison with replay.
func (v *View) Dump() (at uint64, lines []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for state, calls := range map[string]map[call]held{"": v.calls, "expired": v.ending} {
		for id, h := range calls {
			w := canon.Object(nil)
			w.Str("call_id", id.id)
			w.Int("seq", int64(h.seq))
			if state != "" {
				w.Str("state", state)
			}
			w.Str("tenant", id.tenant)
			out = append(out, string(w.End())+"\n")
		}
	}
	slices.Sort(out)
	return v.at, []byte(strings.Join(out, ""))
}

// Call is an allowed call that has not started, or that policy expired.
type Call struct {
	Seq   uint64          // ledger sequence of Event
	Event *contract.Event // the event that allows the call
}

// Expired returns the calls whose window had ended at now, oldest first. A call that has
// not started is returned at most once a second, until the event that starts or expires
// it is applied. An expired call is returned at most every five seconds until its
// outcome is applied. get reads an entry of the ledger; if it fails, the call is
// considered again after the same interval. A call whose entry cannot be decoded is
// never returned.
func (v *View) Expired(now time.Time, get func(seq uint64) (eventlog.Entry, error)) []Call {
	var out []Call
	for _, seq := range v.waiting(now) {
		en, err := get(seq)
		if err != nil {
			continue
		}
		e, expires, err := readAllowed(en)
		if id, _, ok := callOf(en); ok {
			v.learn(id, seq, expires, err != nil)
		}
		if err == nil && now.After(expires) {
			out = append(out, Call{seq, e})
		}
	}
	return out
}

// waiting returns the sequences of the entries that have been in their map for its
// interval and whose window has ended at now or is not known yet, in increasing order.
// Bad entries are omitted. The same entries are not returned again before the interval
// has passed once more.
func (v *View) waiting(now time.Time) []uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	var seqs []uint64
	for pause, calls := range map[time.Duration]map[call]held{callPause: v.calls, endingPause: v.ending} {
		for id, h := range calls {
			if h.bad || time.Since(h.since) < pause || !h.expires.IsZero() && !now.After(h.expires) {
				continue
			}
			h.since = time.Now()
			calls[id] = h
			seqs = append(seqs, h.seq)
		}
	}
	slices.Sort(seqs)
	return seqs
}

// learn stores the end of a call's window, or that its entry is bad, if the call is
// still listed with that entry.
func (v *View) learn(id call, seq uint64, expires time.Time, bad bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, calls := range []map[call]held{v.calls, v.ending} {
		if h, ok := calls[id]; ok && h.seq == seq {
			h.expires, h.bad = expires, bad
			calls[id] = h
		}
	}
}

// readAllowed decodes the event that allowed a call, and returns it with the end of
// the call's window.
func readAllowed(en eventlog.Entry) (*contract.Event, time.Time, error) {
	e, err := eventlog.Open(en, bus.Filter{Service: services.Policy}.String())
	if err != nil {
		return nil, time.Time{}, err
	}
	var a contract.Allowed
	if err := contract.Decode(e.Data, &a); err != nil {
		return nil, time.Time{}, err
	}
	if a.Decision.Intent == nil {
		return nil, time.Time{}, errors.New("allowed without an intent")
	}
	t, err := contract.ParseTime(a.Decision.Intent.Expires)
	return e, t, err
}
