package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/view"
	"github.com/binnacle-mesh/binnacle/services/policy/recorded"
)

// replayed is an entry of the ledger that was decoded.
type replayed struct {
	eventlog.Entry
	event *contract.Event // nil if the entry is not a valid event; audit's view records an alarm about it

	// At most one of these is set.
	call      *contract.Call     // the proposed call
	decision  *contract.Decision // the decision that policy recorded
	undecoded error              // the event's data cannot be decoded
}

// chunk is a number of consecutive entries, and the error that ended the reading after
// them, or nil.
type chunk struct {
	entries []replayed
	err     error
}

// chunkEntries is the greatest number of entries in a chunk.
const chunkEntries = 128

// readLedger reads the entries of the ledger up to position to, adds them to lines, and
// closes lines. It returns early if stop is closed, or if reading fails; the last chunk then
// has the error of reading.
func readLedger(from io.Reader, to uint64, lines *ordered[chunk], stop <-chan struct{}) {
	defer lines.close()
	in := bufio.NewReaderSize(from, 1<<20)
	for seq := uint64(1); seq <= to; {
		first, stored := seq, make([][]byte, 0, chunkEntries)
		var ended error
		for ; seq <= to && len(stored) < chunkEntries; seq++ {
			line, err := in.ReadBytes('\n')
			if err != nil {
				ended = fmt.Errorf("the ledger ended at %d of %d: %w", seq-1, to, err)
				break
			}
			stored = append(stored, line[:len(line)-1])
		}
		if !lines.add(stop, func() chunk { return decodeChunk(first, stored, ended) }) || ended != nil {
			return
		}
	}
}

// decodeChunk decodes consecutive entries, the first of which has sequence first.
func decodeChunk(first uint64, stored [][]byte, ended error) chunk {
	c := chunk{make([]replayed, len(stored)), ended}
	for i, b := range stored {
		x := &c.entries[i]
		x.Seq, x.Data = first+uint64(i), b
		e, err := eventlog.OpenBytes(b, eventlog.Every)
		if err != nil {
			continue
		}
		x.event, x.Subject = e, e.Subject()
		x.decode()
	}
	return c
}

// decode decodes the call or the decision in the data of the event, if it has one. Audit's
// view reports an alarm about an outcome that cannot be decoded, and about a decision that
// policy did not append.
func (x *replayed) decode() {
	if x.event.Name == contract.EventCallProposed {
		var c contract.Call
		if x.undecoded = contract.Decode(x.event.Data, &c); x.undecoded == nil {
			x.call = &c
		}
		return
	}
	d, err := contract.DecisionIn(x.event)
	switch {
	case err == nil:
		x.decision = d
	case x.event.Name != contract.EventEffectRecorded:
		x.undecoded = err
	}
}

// finding is the result of checking a decision or another event.
type finding struct {
	redecided bool   // the decision was repeated, and is equal
	erased    bool   // the decision could not be repeated; see replayReport.Erased
	differs   string // a difference; "" if there is none
}

// repeat begins to add findings to the report in their order. The function that it returns
// waits until all findings are added.
func (r *replayer) repeat() (end func()) {
	r.findings = newOrdered[finding](8 * chunkEntries)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = r.findings.each(func(f finding) error { r.rep.add(f); return nil })
	})
	return func() {
		r.findings.close()
		wg.Wait()
		r.findings = nil
	}
}

// found adds the finding that f returns to the report, after those before it. While run
// is in progress, found does not wait for f, which is called on another goroutine.
func (r *replayer) found(f func() finding) {
	if r.findings == nil {
		r.rep.add(f())
		return
	}
	r.findings.add(nil, f)
}

// differ adds a difference to the report, unless the report has maxDifferences already.
func (r *replayer) differ(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.found(func() finding { return finding{differs: text} })
}

// add adds a finding to the report, except a difference if the report has maxDifferences
// already.
func (rep *replayReport) add(f finding) {
	switch {
	case f.redecided:
		rep.Redecided++
	case f.erased:
		rep.Erased++
	case len(rep.Differences) < maxDifferences:
		rep.Differences = append(rep.Differences, f.differs)
	}
}

// again repeats the recorded decision d on a call with the given arguments. recalled and
// err are the results of recorded.State.Recall. It may be called concurrently.
func (r *replayer) again(d *contract.Decision, ref *contract.Content, recalled *recorded.Recalled, err error) finding {
	args, unread := r.open(d.Tenant, ref)
	if errors.Is(unread, contract.ErrErased) || errors.Is(unread, contract.ErrEncrypted) {
		return finding{erased: true}
	}
	if unread != nil {
		err = unread
	}
	switch {
	case errors.Is(err, contract.ErrErased):
		return finding{erased: true}
	case err != nil:
		return finding{differs: fmt.Sprintf("decision %s: %v", d.ID, err)}
	}
	verdict, reason, hash, egress := recalled.Redecide(r.ctx, args)
	if verdict != d.Verdict || reason != d.ReasonCode || hash != d.PolicyHash {
		return finding{differs: fmt.Sprintf("decision %s: recorded %s %s, decided again %s %s", d.ID, d.Verdict, d.ReasonCode, verdict, reason)}
	}
	if d.Intent != nil && !slices.EqualFunc(d.Intent.EgressRules, egress, func(a, b contract.EgressRule) bool { return netrule.Equal(&a, &b) }) {
		return finding{differs: fmt.Sprintf("decision %s: decided again, its intent has other egress rules", d.ID)}
	}
	return finding{redecided: true}
}

// besides are the views that are built concurrently with the replay, each in a goroutine of
// its own.
type besides struct {
	views []*beside
	wg    sync.WaitGroup
}

// beside is a view that is built concurrently with the replay; its declaration sets Alone.
type beside struct {
	*rebuilding
	reads *view.Selection
	in    chan []replayed
	err   error // error of the first entry that the view rejected
}

// beside begins to build the views whose declaration sets Alone.
func (r *replayer) beside() *besides {
	b := &besides{}
	for i := range r.views {
		v := &r.views[i]
		if !v.Alone {
			continue
		}
		reads, err := view.Select([]view.Declaration{v.Declaration})
		x := &beside{v, reads, make(chan []replayed, 8), err}
		b.views = append(b.views, x)
		b.wg.Go(x.run)
	}
	return b
}

// apply passes the next entries to the views. The caller must not change them.
func (b *besides) apply(entries []replayed) {
	for _, x := range b.views {
		x.in <- entries
	}
}

// end waits until each view has applied all entries or has rejected one, and returns the
// error of the first view that rejected one.
func (b *besides) end() error {
	for _, x := range b.views {
		close(x.in)
	}
	b.wg.Wait()
	for _, x := range b.views {
		if x.err != nil {
			return x.err
		}
	}
	return nil
}

// run applies entries until the first error, and then receives the rest, so that the
// sender does not wait.
func (x *beside) run() {
	for entries := range x.in {
		for i := range entries {
			if x.err == nil {
				x.err = x.one(&entries[i])
			}
		}
	}
}

// one applies an entry, unless it is after the position of the live view or the view does
// not read it.
func (x *beside) one(en *replayed) error {
	if en.Seq > x.live.Position || len(x.reads.Of(en.Subject)) == 0 {
		return nil
	}
	if err := x.State.Apply(en.Entry, en.event); err != nil {
		return fmt.Errorf("event %d: view %s: %w", en.Seq, x.Name, err)
	}
	return nil
}
