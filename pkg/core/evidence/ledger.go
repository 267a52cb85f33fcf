package evidence

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// trailer is the last line of an exported ledger: the checkpoint over exactly the
// lines before it.
type trailer struct {
	Note         string
	Cosignatures []string // witnesses' signature lines over Note
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (t *trailer) Canonical(c *canon.Codec) {
	c.Str("binnacle_checkpoint", &t.Note)
	c.OptStrs("cosignatures", &t.Cosignatures)
}

// LedgerTrailer returns the last line of an exported ledger, with its newline:
// the checkpoint over all lines before it and the witnesses' cosignatures.
func LedgerTrailer(note string, cosignatures ...string) []byte {
	return append(contract.Bytes(&trailer{note, cosignatures}), '\n')
}

// LedgerReport is the result of a successful verification of a ledger: the log that it
// proves, and counts of sessions, receipts and open calls.
type LedgerReport struct {
	Origin   string `json:"origin"`
	TreeSize int64  `json:"tree_size"`
	RootHash string `json:"root_hash"`
	Sessions int    `json:"sessions"`
	Receipts int    `json:"receipts"`
	Attested int    `json:"attested_by_callers"` // receipts of effects that callers reported and no executor observed
	Open     int    `json:"open_calls"`
	Tips     string `json:"tips"` // TipBound, or TipAttested if the checkpoint commits to no map of tips
}

// String returns the report as several lines of text for people; programs use the
// JSON form.
func (r *LedgerReport) String() string {
	tips := "their map, computed again, is the one that the checkpoint commits to"
	if r.Tips != TipBound {
		tips = "the checkpoint commits to no map of them"
	}
	return fmt.Sprintf("VERIFIED ledger %s\n  size      %d events, root %s\n  sessions  %d, each chain unbroken\n  receipts  %d, of them %d attested by the callers alone\n  tips      %s\n  open      %d calls without an outcome yet\n",
		r.Origin, r.TreeSize, r.RootHash, r.Sessions, r.Receipts, r.Attested, tips, r.Open)
}

// Opener opens an exported ledger at its start. Each of the two passes of a verification
// calls it once and closes the reader. It must return the same bytes each time.
type Opener func() (io.ReadCloser, error)

// VerifyLedger verifies an exported ledger against the key id of the trusted root: the
// Merkle root over every event, the schema of every event, the signatures of keys,
// decisions, votes, receipts and the checkpoint, the rules of every call, the contents
// that are stored inline, the chain of every session, and the map of tips, if the
// checkpoint commits to one. If the line of an event fails, the error contains the
// line's number.
func VerifyLedger(export []byte, rootKID string) (*LedgerReport, error) {
	return VerifyLedgerFrom(opener(export), rootKID, Demands{})
}

func opener(b []byte) Opener {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
}

// VerifyLedgerFrom verifies like VerifyLedger, but reads from open and also checks the
// demands. The first pass verifies the checkpoint over all lines with the keys that the
// lines publish; its memory grows with the keys, policies and tenants in the ledger. The
// second pass checks the calls, and stores the ids of the sessions' events and the state
// of each session and call.
func VerifyLedgerFrom(open Opener, rootKID string, demands Demands) (*LedgerReport, error) {
	l, err := authenticate(open, rootKID, demands)
	if err != nil {
		return nil, err
	}
	w := newWalk(l)
	if err := each(open, func(n uint64, b []byte) error {
		if n == l.head.Size {
			return nil // the last line is the trailer
		}
		return w.add(n, b)
	}); err != nil {
		w.stop()
		if x := w.first(); x != nil {
			return nil, x.err // the error of an earlier line takes precedence
		}
		return nil, err
	}
	return w.report()
}

// each calls f with every line and its index, counted from 0, until f or reading returns
// an error. It adds the line's number, counted from 1, to that error.
func each(open Opener, f func(n uint64, line []byte) error) error {
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	in := newLineReader(r)
	for n := uint64(0); ; n++ {
		b, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(n, b)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
	}
}

// authentic is a ledger whose checkpoint is verified.
type authentic struct {
	system
	head *translog.Checkpoint
	last trailer
	tips translog.Hash
	has  bool // whether the checkpoint commits to a map of tips

	openedAt      uint64          // index of cell_opened
	organizations map[string]bool // tenants for the budget ledgers of organizations
	governing
}

// authenticate runs the first pass over the export: it checks the schema of every event,
// applies the events about trust, policies, log epochs and the mesh as a whole, and
// verifies the checkpoint over all lines, and the demands.
func authenticate(open Opener, rootKID string, demands Demands) (*authentic, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	l := &authentic{system: newSystem(rootKID), organizations: map[string]bool{}}
	kept := demands.keptHead()
	var tree translog.Frontier
	in := newLineReader(r)
	for {
		b, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("not an exported ledger")
		}
		if err == nil && isTrailer(b) {
			if err := l.readTrailer(bytes.Clone(b), in, tree.Size+1); err != nil {
				return nil, err
			}
			return l, l.seal(&tree, kept, demands)
		}
		if err == nil {
			err = l.read(tree.Size, b)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", tree.Size+1, err)
		}
		tree.Add(translog.LeafHash(b))
		kept.at(&tree)
		if in.last() {
			return nil, errors.New("the last line is not the checkpoint; the export is cut off")
		}
	}
}

func isTrailer(line []byte) bool { return bytes.HasPrefix(line, []byte(`{"binnacle_checkpoint":`)) }

// readTrailer reads the checkpoint from line n, which must be the last.
func (l *authentic) readTrailer(b []byte, in *lineReader, n uint64) error {
	if !in.last() {
		return fmt.Errorf("line %d: a checkpoint that is not the last line", n)
	}
	if err := contract.Decode(b, &l.last); err != nil {
		return fmt.Errorf("the last line: %w", err)
	}
	return nil
}

// read processes the event line at index n in the first pass.
func (l *authentic) read(n uint64, b []byte) error {
	e, err := openEvent(b)
	if err != nil {
		return err
	}
	if err := e.CheckData(); err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	if err := l.admits(e); err != nil {
		return err
	}
	if err := l.exists(e); err != nil {
		return err
	}
	l.changed(n, e)
	if !isSystem(e) && e.Name != contract.EventLogEpochOpened && cellMakers[e.Name] == "" {
		return nil
	}
	e.Data = bytes.Clone(e.Data) // the slice aliases b, which the next line overwrites
	switch {
	case e.Name == contract.EventLogEpochOpened:
		return l.epoch(e)
	case isSystem(e):
		return l.apply(e, nil)
	}
	return l.readCell(n, e)
}

// epoch verifies an event that opens a log epoch.
func (l *authentic) epoch(e *contract.Event) error {
	opened, err := trust.VerifyEpoch(e, l.reg.At)
	if err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	l.epochs = max(l.epochs, opened.Epoch)
	return l.own(e, "")
}

// seal checks that the trusted root is published, that the checkpoint is signed and
// covers exactly the lines, that it agrees with the kept checkpoint and the log epoch,
// and that the demands are met.
func (l *authentic) seal(tree *translog.Frontier, kept *keptHead, demands Demands) (err error) {
	if !l.reg.Has(l.reg.Root) {
		return fmt.Errorf("the trusted root %s is not published here", l.reg.Root)
	}
	if l.head, err = openNote([]byte(l.last.Note), l.reg, canon.MaxInt); err != nil {
		return err
	}
	if err := l.checkOrigin(l.head.Origin); err != nil {
		return err
	}
	if err := l.checkEpoch(); err != nil {
		return err
	}
	if l.head.Size != tree.Size || l.head.Root != tree.Root() {
		return fmt.Errorf("the lines do not have the checkpoint's root: %d lines, checkpoint of %d", tree.Size, l.head.Size)
	}
	if l.tips, l.has, err = l.head.Tips(); err != nil {
		return err
	}
	if err := kept.check(l.head, l.reg); err != nil {
		return err
	}
	return demands.cosigned([]byte(l.last.Note), l.last.Cosignatures)
}

// checkEpoch returns an error if the checkpoint of a ledger names another log epoch than
// the one that the ledger's events opened last. It accepts every checkpoint of a tenant's
// export, which need not contain these events.
func (l *authentic) checkEpoch() error {
	if named := l.head.Extension("epoch"); !l.export && named != "" && named != strconv.FormatInt(l.epochs, 10) {
		return fmt.Errorf("the checkpoint is of log epoch %s, the ledger in epoch %d", named, l.epochs)
	}
	return nil
}

// walk is the state of the second pass. Sessions are distributed to workers by a hash of
// the session id, so that all processors verify signatures while the events of a session
// stay in order.
type walk struct {
	l       *authentic
	ids     map[string]struct{}
	workers []*worker
}

// batchSize is the greatest number of events that are sent to a worker at once.
const batchSize = 64

// worker checks the sessions that are assigned to it, in a goroutine of its own.
type worker struct {
	l        *authentic
	in       chan []item
	done     chan struct{}
	pending  []item
	sessions map[[2]string]*course
	claims   map[string]claim // claims of the calls that changed the mesh as a whole, by their id
	at       uint64           // index of the line that caused err
	err      error
}

// item is one event of a session and the index of its line.
type item struct {
	n uint64
	e *contract.Event
}

// course is the state of one session during walk, the second pass over the event lines.
type course struct {
	calls    map[string]*callState
	tip      receipt.Tip
	events   uint64
	receipts uint64
	attested int
}

func newWalk(l *authentic) *walk {
	w := &walk{l: l, ids: map[string]struct{}{}}
	for range runtime.GOMAXPROCS(0) {
		x := &worker{l: l, in: make(chan []item, 4), done: make(chan struct{}), sessions: map[[2]string]*course{}, claims: map[string]claim{}}
		w.workers = append(w.workers, x)
		go x.run()
	}
	return w
}

// add processes one line in the second pass. It passes an event of a session to the
// worker of that session, and returns an error if an earlier event of any session has
// the same id. It ignores events without a session, and those of the cell in a tenant's
// export, which need not be whole sessions.
func (w *walk) add(n uint64, b []byte) error {
	l := w.l
	e, err := openEvent(bytes.Clone(b))
	if err != nil || e.Session == "" || l.export && e.Tenant != l.tenant {
		return err
	}
	if _, twice := w.ids[e.ID]; twice {
		return fmt.Errorf("event id %s occurs twice", e.ID)
	}
	w.ids[e.ID] = struct{}{}
	x := w.of(e.Session)
	if x.pending = append(x.pending, item{n, e}); len(x.pending) >= batchSize {
		x.flush()
	}
	return nil
}

// of returns the worker of the sessions with an id.
func (w *walk) of(session string) *worker {
	sum := uint32(0)
	for _, c := range []byte(session) {
		sum = sum*31 + uint32(c)
	}
	return w.workers[sum%uint32(len(w.workers))]
}

// course returns the state of a session, or nil if it has no events. The workers must have
// been stopped.
func (w *walk) course(tenant, session string) *course {
	return w.of(session).sessions[[2]string{tenant, session}]
}

// courses returns an iterator over the states of all sessions. The workers must have been
// stopped.
func (w *walk) courses() iter.Seq[*course] {
	return func(yield func(*course) bool) {
		for _, x := range w.workers {
			for _, s := range x.sessions {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// flush sends the pending events to the worker's goroutine.
func (x *worker) flush() {
	x.in <- x.pending
	x.pending = make([]item, 0, batchSize)
}

// run processes events until the first error, and then discards the rest, so that
// the sender does not block.
func (x *worker) run() {
	defer close(x.done)
	for batch := range x.in {
		for _, i := range batch {
			if x.err != nil {
				break
			}
			if err := x.follow(i.n, i.e); err != nil {
				x.at, x.err = i.n, fmt.Errorf("line %d: session %s: event %s (%s): %w", i.n+1, i.e.Session, i.e.ID, i.e.Name, err)
			}
		}
	}
}

// follow applies the event at index n to its session, and checks the contents that are
// stored inline.
func (x *worker) follow(n uint64, e *contract.Event) error {
	k := [2]string{e.Tenant, e.Session}
	s := x.sessions[k]
	if s == nil {
		s = &course{calls: map[string]*callState{}, tip: receipt.Genesis(e.Tenant, e.Session)}
		x.sessions[k] = s
	}
	d, err := x.check(n, e, s)
	if err != nil {
		return err
	}
	contents := d.contents()
	for i := range contents {
		if _, err := contents[i].Open(nil); err != nil && !isGone(err) {
			return fmt.Errorf("content %s: %w", contents[i].Commitment, err)
		}
	}
	s.events++
	if e.Name == contract.EventEffectRecorded {
		s.receipts++
	}
	if d.recorded != nil && d.recorded.Receipt.AttestedBy == contract.Caller {
		s.attested++
	}
	return nil
}

// check applies the event at index n to the calls of its session, and returns its data.
func (x *worker) check(n uint64, e *contract.Event, s *course) (d data, err error) {
	if d, err = decode(e); err != nil {
		return d, err
	}
	if err = x.l.permits(n, &d, s.calls[e.CallID]); err != nil {
		return d, err
	}
	if err = checkEvent(e, &d, s.calls, &s.tip, &x.l.system); err == nil {
		x.note(n, e, &d, s)
	}
	return d, err
}

// stop sends the pending events to the workers, makes the workers exit and waits for
// them.
func (w *walk) stop() {
	for _, x := range w.workers {
		x.flush()
		close(x.in)
		<-x.done
	}
}

// first returns the worker whose error is about the earliest line, or nil if no worker
// found an error. The workers must have been stopped.
func (w *walk) first() *worker {
	var first *worker
	for _, x := range w.workers {
		if x.err != nil && (first == nil || x.at < first.at) {
			first = x
		}
	}
	return first
}

// report waits until the workers have processed all pending events and have exited, and
// returns the report. If workers found errors, it returns the one about the earliest
// line. If the checkpoint commits to a map of tips that differs from the map of the
// sessions' tips, it returns an error.
func (w *walk) report() (*LedgerReport, error) {
	w.stop()
	if x := w.first(); x != nil {
		return nil, x.err
	}
	if err := w.caused(); err != nil {
		return nil, err
	}
	rep := &LedgerReport{Origin: w.l.head.Origin, TreeSize: int64(w.l.head.Size), RootHash: hex.EncodeToString(w.l.head.Root[:]), Tips: TipAttested}
	var leaves []translog.TipLeaf
	for _, x := range w.workers {
		rep.Sessions += len(x.sessions)
		for k, s := range x.sessions {
			rep.Receipts += int(s.receipts)
			rep.Attested += s.attested
			rep.Open += openCalls(s.calls)
			leaf, err := s.leaf(k)
			if err != nil {
				return nil, err
			}
			leaves = append(leaves, leaf)
		}
	}
	if w.l.has {
		if translog.TipsRoot(leaves) != w.l.tips {
			return nil, errors.New("the sessions do not have the checkpoint's map of tips")
		}
		rep.Tips = TipBound
	}
	return rep, nil
}

// leaf returns the session's entry in the map of tips.
func (s *course) leaf(k [2]string) (translog.TipLeaf, error) {
	t, err := tipOf(s.tip.Digest, s.events, s.receipts)
	key := translog.TipKey(k[0], k[1])
	return translog.TipLeaf{Key: key, Leaf: t.Leaf(key)}, err
}
