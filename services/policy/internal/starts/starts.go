// Package starts is the view of allowed calls that have not started, policy.starts.
// A call that has not started within its window is expired: policy claims it with
// start_expired and then records its outcome. Between the two events policy may
// fail, so the view lists an expired call until its outcome is on the ledger.
package starts

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// View is the allowed calls that have not started, and those that policy expired
// without an outcome so far. It sees every call of the mesh, nearly all of which
// start at once, so it reads no more than the call's id until a call has waited
// for a while. The zero value is empty; it is safe for concurrent use.
type View struct {
	mu     sync.Mutex
	calls  map[string]held // not started, by call
	ending map[string]held // expired, but without an outcome, by call
	at     uint64          // sequence last applied
}

// How long a call is not returned again after Expired returned it. An expired call
// waits longer: the instance that expired it is about to record its outcome.
const (
	callPause   = time.Second
	endingPause = 5 * time.Second
)

type held struct {
	entry eventlog.Entry
	since time.Time // when it came into its map or was last swept
	bad   bool      // not a decision; the executor refuses it too
}

// Reads reports whether the view takes events of a name.
func Reads(name string) bool {
	switch name {
	case contract.EventAllowed, contract.EventEffectStarted, contract.EventStartExpired, contract.EventEffectRecorded:
		return true
	}
	return false
}

// Apply folds one entry in. It keeps a copy of what it needs of en.Data.
func (v *View) Apply(en eventlog.Entry) error {
	id := contract.PeekCallID(en.Data)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.calls == nil {
		v.calls, v.ending = map[string]held{}, map[string]held{}
	}
	v.at = en.Seq
	subject := strings.Split(en.Subject, ".") // evt, tenant, service, origin, name and target, key
	if len(subject) != 6 {
		return nil
	}
	service, name := subject[2], subject[4]
	h, listed := v.calls[id]
	if name == contract.EventEffectStarted {
		if listed && bus.Allows(h.entry.Subject, service) { // by the executor that the decision names
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
			v.ending[id] = held{entry: h.entry, since: time.Now(), bad: h.bad}
		}
	case contract.EventEffectRecorded:
		delete(v.ending, id)
	default:
		en.Data = bytes.Clone(en.Data)
		v.calls[id] = held{entry: en, since: time.Now()}
	}
	return nil
}

// Dump returns the view's canonical form, one sorted JSON line for each call of
// either map, and the sequence of the last entry applied.
func (v *View) Dump() (at uint64, lines []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for state, calls := range map[string]map[string]held{"": v.calls, "expired": v.ending} {
		for id, h := range calls {
			w := canon.Object(nil)
			w.Str("call_id", id)
			w.Int("seq", int64(h.entry.Seq))
			if state != "" {
				w.Str("state", state)
			}
			out = append(out, string(w.End())+"\n")
		}
	}
	slices.Sort(out)
	return v.at, []byte(strings.Join(out, ""))
}

// Expired returns the events that allowed the calls whose window was over at now,
// the oldest first. A call stays in the view until the ledger says that it started,
// and is returned once a second until then; one that policy expired stays until its
// outcome is on the ledger, and is returned every five seconds.
func (v *View) Expired(now time.Time) []*contract.Event {
	v.mu.Lock()
	defer v.mu.Unlock()
	over := map[uint64]*contract.Event{} // by sequence
	sweep(v.calls, callPause, now, over)
	sweep(v.ending, endingPause, now, over)
	var out []*contract.Event
	for _, seq := range slices.Sorted(maps.Keys(over)) {
		out = append(out, over[seq])
	}
	return out
}

// sweep adds to over the calls that were not returned for a while and whose window
// was over at now, and notes that they are returned.
func sweep(calls map[string]held, pause time.Duration, now time.Time, over map[uint64]*contract.Event) {
	for id, h := range calls {
		if h.bad || time.Since(h.since) < pause {
			continue
		}
		e, expires, err := readAllowed(h.entry)
		if h.bad = err != nil; !h.bad && !now.After(expires) {
			continue
		}
		h.since = time.Now()
		calls[id] = h
		if !h.bad {
			over[h.entry.Seq] = e
		}
	}
}

// readAllowed returns the event that allowed a call, and when its window ends.
func readAllowed(en eventlog.Entry) (*contract.Event, time.Time, error) {
	e, err := eventlog.Open(en)
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
