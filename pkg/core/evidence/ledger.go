package evidence

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
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
	Passkeys int    `json:"passkey_votes"` // votes whose signature by a passkey of the approver was verified
	Tips     string `json:"tips"`          // TipBound, or TipAttested if the checkpoint commits to no map of tips
}

// String returns the report as several lines of text for people; programs use the
// JSON form.
func (r *LedgerReport) String() string {
	tips := "their map, computed again, is the one that the checkpoint commits to"
	if r.Tips != TipBound {
		tips = "the checkpoint commits to no map of them"
	}
	s := fmt.Sprintf("VERIFIED ledger %s\n  size      %d events, root %s\n  sessions  %d, each chain unbroken\n  receipts  %d, of them %d attested by the callers alone\n  tips      %s\n  open      %d calls without an outcome yet\n",
		r.Origin, r.TreeSize, r.RootHash, r.Sessions, r.Receipts, r.Attested, tips, r.Open)
	return s + passkeyLine(r.Passkeys)
}

// passkeyLine returns the line of a report about the votes whose signatures by passkeys were
// verified, or "" if there are none.
func passkeyLine(votes int) string {
	if votes == 0 {
		return ""
	}
	return fmt.Sprintf("  passkeys  %d votes, each signed by a passkey that the approver had registered\n", votes)
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
// of each session and call. Both passes use all processors.
func VerifyLedgerFrom(open Opener, rootKID string, demands Demands) (*LedgerReport, error) {
	l, err := authenticate(open, rootKID, demands)
	if err != nil {
		return nil, err
	}
	w := newWalk(l)
	trailing := func(n uint64, _ []byte) bool { return n == l.head.Size }
	if err := w.each(open, trailing, nil); err != nil {
		return nil, err
	}
	return w.report()
}

// authentic holds the state that the first pass reads from a ledger or an export. Its checkpoint
// is verified when that pass has ended without an error.
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
	l := &authentic{system: newSystem(rootKID), organizations: map[string]bool{}}
	kept := demands.keptHead()
	var tree translog.Frontier
	ended := false
	check := func(_ uint64, b []byte) opened {
		if isTrailer(b) {
			return opened{}
		}
		return openLine(b)
	}
	err := inOrder(open, true, check, func(x *line[opened]) error {
		if isTrailer(x.b) {
			ended = true
			return l.readTrailer(bytes.Clone(x.b), x.last, x.n+1)
		}
		if err := l.read(x.n, &x.result); err != nil {
			return fmt.Errorf("line %d: %w", x.n+1, err)
		}
		tree.Add(x.result.leaf)
		kept.at(&tree)
		if x.last {
			return errors.New("the last line is not the checkpoint; the export is cut off")
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case !ended:
		return nil, errors.New("not an exported ledger")
	}
	return l, l.seal(&tree, kept, demands)
}

// opened is the event of a line, whose data matches its schema, and the line's leaf hash;
// or the error of reading the line.
type opened struct {
	e    *contract.Event
	leaf translog.Hash
	err  error
}

// openLine decodes the event of a line, and checks its data against the schema. The
// event's data aliases b.
func openLine(b []byte) (x opened) {
	if x.e, x.err = openEvent(b); x.err != nil {
		return x
	}
	if err := x.e.CheckData(); err != nil {
		x.err = fmt.Errorf("event %s: %w", x.e.ID, err)
	}
	x.leaf = translog.LeafHash(b)
	return x
}

func isTrailer(line []byte) bool { return bytes.HasPrefix(line, []byte(`{"binnacle_checkpoint":`)) }

// readTrailer reads the checkpoint from line n, which must be the last.
func (l *authentic) readTrailer(b []byte, last bool, n uint64) error {
	if !last {
		return fmt.Errorf("line %d: a checkpoint that is not the last line", n)
	}
	if err := contract.Decode(b, &l.last); err != nil {
		return fmt.Errorf("the last line: %w", err)
	}
	return nil
}

// read processes the event line at index n in the first pass.
func (l *authentic) read(n uint64, x *opened) error {
	if x.err != nil {
		return x.err
	}
	e := x.e
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
	e.Data = bytes.Clone(e.Data) // the slice aliases the line, which later lines overwrite
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

// walk is the state of the second pass.
type walk struct {
	l        *authentic
	ids      map[string]struct{}
	sessions map[[2]string]*course // by tenant and session id
	claims   map[string]claim      // claims that changes of the mesh as a whole name as their causes, by event id
}

// item is one line in the second pass: an event of a session with its data, or the error of
// reading it. e is nil for other lines, and for events that the second pass does not check.
type item struct {
	e         *contract.Event
	d         data
	undecoded error // error of decoding the data
	contents  error // first error of the contents that are stored inline
	err       error // error of decoding the event
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
	return &walk{l: l, ids: map[string]struct{}{}, sessions: map[[2]string]*course{}, claims: map[string]claim{}}
}

// each runs the second pass over the lines. The lines for which other returns true are not
// events; each passes them to use, if use is not nil. It adds the line's number, counted
// from 1, to the error of a line.
func (w *walk) each(open Opener, other func(n uint64, b []byte) bool, use func(b []byte) error) error {
	check := func(n uint64, b []byte) item {
		if other(n, b) {
			return item{}
		}
		return w.open(b)
	}
	return inOrder(open, false, check, func(x *line[item]) (err error) {
		switch {
		case x.result.err != nil:
			err = x.result.err
		case x.result.e != nil:
			err = w.add(x.n, &x.result)
		case use != nil && other(x.n, x.b):
			err = use(x.b)
		}
		if err != nil {
			err = fmt.Errorf("line %d: %w", x.n+1, err)
		}
		return err
	})
}

// open reads an event of a session, decodes its data and runs the checks that need no other
// event. It ignores events without a session, and those of the cell in a tenant's export, which
// need not be whole sessions. It may be called concurrently.
func (w *walk) open(b []byte) (x item) {
	l := w.l
	e, err := contract.DecodeEvent(b) // the first pass has checked the depth
	if err != nil || e.Session == "" || l.export && e.Tenant != l.tenant {
		return item{err: err}
	}
	e.Data = bytes.Clone(e.Data) // the slice aliases b, which later lines overwrite
	x.e = e
	if x.d, x.undecoded = decode(e); x.undecoded == nil {
		x.d.check(l.reg.At)
		x.contents = x.d.checkInline()
	}
	return x
}

// add applies the event at index n to its session. It returns an error if an earlier event
// of any session has the same id.
func (w *walk) add(n uint64, x *item) error {
	e := x.e
	if _, twice := w.ids[e.ID]; twice {
		return fmt.Errorf("event id %s occurs twice", e.ID)
	}
	w.ids[e.ID] = struct{}{}
	if err := w.follow(n, e, x); err != nil {
		return fmt.Errorf("session %s: event %s (%s): %w", e.Session, e.ID, e.Name, err)
	}
	return nil
}

// follow applies the event e of the item, at index n, to its session and its call.
func (w *walk) follow(n uint64, e *contract.Event, x *item) error {
	if x.undecoded != nil {
		return x.undecoded
	}
	d := &x.d
	k := [2]string{e.Tenant, e.Session}
	s := w.sessions[k]
	if s == nil {
		s = &course{calls: map[string]*callState{}, tip: receipt.Genesis(e.Tenant, e.Session)}
		w.sessions[k] = s
	}
	if err := w.l.permits(n, d, s.calls[e.CallID]); err != nil {
		return err
	}
	if err := checkEvent(e, d, s.calls, &s.tip, &w.l.system); err != nil {
		return err
	}
	w.note(n, e, d, s)
	if x.contents != nil {
		return x.contents
	}
	s.count(e, d)
	return nil
}

// count adds an event to the numbers of the session.
func (s *course) count(e *contract.Event, d *data) {
	s.events++
	if e.Name == contract.EventEffectRecorded {
		s.receipts++
	}
	if d.recorded != nil && d.recorded.Receipt.AttestedBy == contract.Caller {
		s.attested++
	}
}

// report returns the report, after all events were added. It returns the error of
// caused, and an error if the checkpoint commits to a map of tips that differs from the
// map of the sessions' tips.
func (w *walk) report() (*LedgerReport, error) {
	if err := w.caused(); err != nil {
		return nil, err
	}
	rep := &LedgerReport{Origin: w.l.head.Origin, TreeSize: int64(w.l.head.Size), RootHash: hex.EncodeToString(w.l.head.Root[:]), Tips: TipAttested, Sessions: len(w.sessions), Passkeys: w.l.signed}
	var leaves []translog.TipLeaf
	for k, s := range w.sessions {
		rep.Receipts += int(s.receipts)
		rep.Attested += s.attested
		rep.Open += openCalls(s.calls)
		leaf, err := s.leaf(k)
		if err != nil {
			return nil, err
		}
		leaves = append(leaves, leaf)
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
