// Package starts is the view of allowed calls that have not started, policy.starts.
// What has not started within its window is expired.
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

// View is the allowed calls that have not started. It sees every call of the mesh,
// nearly all of which start at once, so it reads no more than the call's id until
// a call has waited for a while. The zero value is empty; it is safe for
// concurrent use.
type View struct {
	mu    sync.Mutex
	calls map[string]held // by call
	at    uint64          // sequence last applied
}

type held struct {
	entry eventlog.Entry
	since time.Time // when it was applied or last swept
	bad   bool      // not a decision; the executor refuses it too
}

// Reads reports whether the view takes events of a name.
func Reads(name string) bool {
	return name == contract.EventAllowed || name == contract.EventEffectStarted || name == contract.EventStartExpired
}

// Apply folds one entry in. It keeps a copy of what it needs of en.Data.
func (v *View) Apply(en eventlog.Entry) error {
	id := contract.PeekCallID(en.Data)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.calls == nil {
		v.calls = map[string]held{}
	}
	v.at = en.Seq
	subject := strings.Split(en.Subject, ".") // evt, tenant, service, origin, name and target, key
	if len(subject) != 6 {
		return nil
	}
	service, name := subject[2], subject[4]
	switch {
	case name == contract.EventEffectStarted || name == contract.EventStartExpired:
		if h, ok := v.calls[id]; ok && ends(service, name, h.entry.Subject) {
			delete(v.calls, id)
		}
		return nil
	case service != "policy":
		return nil
	}
	en.Data = bytes.Clone(en.Data)
	v.calls[id] = held{entry: en, since: time.Now()}
	return nil
}

// ends reports whether a service may record that a call, allowed under a subject,
// has started or will not: its executor claims it, policy expires it.
func ends(service, name, allowed string) bool {
	if name == contract.EventStartExpired {
		return service == "policy"
	}
	return bus.Allows(allowed, service)
}

// Dump returns the view's canonical form, sorted JSON lines, and the sequence
// that it was last changed by.
func (v *View) Dump() (at uint64, lines []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for id, h := range v.calls {
		w := canon.Object(nil)
		w.Str("call_id", id)
		w.Int("seq", int64(h.entry.Seq))
		out = append(out, string(w.End())+"\n")
	}
	slices.Sort(out)
	return v.at, []byte(strings.Join(out, ""))
}

// Expired returns the events that allowed the calls whose window was over at now,
// the oldest first. A call stays in the view until the ledger says that it started
// or expired, and is returned once a second until then.
func (v *View) Expired(now time.Time) []*contract.Event {
	v.mu.Lock()
	defer v.mu.Unlock()
	over := map[uint64]*contract.Event{} // by sequence
	for id, h := range v.calls {
		if h.bad || time.Since(h.since) < time.Second {
			continue
		}
		e, expires, err := readAllowed(h.entry)
		if h.bad = err != nil; !h.bad && !now.After(expires) {
			continue
		}
		h.since = time.Now()
		v.calls[id] = h
		if !h.bad {
			over[h.entry.Seq] = e
		}
	}
	var out []*contract.Event
	for _, seq := range slices.Sorted(maps.Keys(over)) {
		out = append(out, over[seq])
	}
	return out
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
