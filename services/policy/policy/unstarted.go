package policy

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Unstarted is the view of allowed calls that have not started. It sees every
// call of the mesh, nearly all of which start at once, so it reads no more
// than the call's id until a call has waited for a while. The zero value is
// empty; it is safe for concurrent use.
type Unstarted struct {
	mu    sync.Mutex
	calls map[string]held
	at    uint64 // sequence last applied
}

type held struct {
	entry eventlog.Entry
	since time.Time // when it was applied or last swept
	bad   bool      // not a decision; the executor refuses it too
}

// UnstartedReads reports whether the view takes events of this name.
func UnstartedReads(name string) bool {
	return name == contract.EventAllowed || name == contract.EventEffectStarted || name == contract.EventStartExpired
}

// Apply folds one entry in. It keeps a copy of what it needs of en.Data.
func (p *Unstarted) Apply(en eventlog.Entry) error {
	id := contract.PeekCallID(en.Data)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[string]held{}
	}
	p.at = en.Seq
	at := strings.Split(en.Subject, ".") // evt, tenant, service, origin, name and target, key
	if len(at) != 6 {
		return nil
	}
	switch service, name := at[2], at[4]; name {
	case contract.EventEffectStarted, contract.EventStartExpired:
		h, ok := p.calls[id]
		if ok && (service == "policy" && name == contract.EventStartExpired || name == contract.EventEffectStarted && strings.Contains(h.entry.Subject, ".allowed_"+service+".")) {
			delete(p.calls, id)
		}
		return nil
	default:
		if service != "policy" {
			return nil
		}
	}
	en.Data = bytes.Clone(en.Data)
	p.calls[id] = held{entry: en, since: time.Now()}
	return nil
}

// Dump returns the view's canonical form, sorted JSON lines, and the sequence
// that it was last changed by.
func (p *Unstarted) Dump() (at uint64, lines []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for id, h := range p.calls {
		w := canon.Object(nil)
		w.Str("call_id", id)
		w.Int("seq", int64(h.entry.Seq))
		out = append(out, string(w.End())+"\n")
	}
	slices.Sort(out)
	return p.at, []byte(strings.Join(out, ""))
}

// expired returns the calls whose window was over at now, oldest first. A call stays in the
// view until the ledger says that it started or expired, and is returned once a
// second until then.
func (p *Unstarted) expired(now time.Time) []*contract.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	type found struct {
		seq uint64
		e   *contract.Event
	}
	var over []found
	for id, h := range p.calls {
		if h.bad || time.Since(h.since) < time.Second {
			continue
		}
		e, expires, err := readAllowed(h.entry)
		if h.bad = err != nil; !h.bad && !now.After(expires) {
			continue
		}
		h.since = time.Now()
		p.calls[id] = h
		if !h.bad {
			over = append(over, found{h.entry.Seq, e})
		}
	}
	slices.SortFunc(over, func(x, y found) int { return cmp.Compare(x.seq, y.seq) })
	out := make([]*contract.Event, len(over))
	for i := range over {
		out[i] = over[i].e
	}
	return out
}

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
