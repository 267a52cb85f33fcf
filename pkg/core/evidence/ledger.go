package evidence

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// trailer is the last line of an exported ledger: the checkpoint that covers
// exactly the lines above it.
type trailer struct {
	Note         string
	Cosignatures []string // witnesses' lines over it
}

// Canonical implements canon.Document.
func (t *trailer) Canonical(c *canon.Codec) {
	c.Str("binnacle_checkpoint", &t.Note)
	c.OptStrs("cosignatures", &t.Cosignatures)
}

// LedgerTrailer returns the last line of an exported ledger, with its newline: a
// checkpoint and the witnesses' lines over it.
func LedgerTrailer(note string, cosignatures ...string) []byte {
	return append(contract.Bytes(&trailer{note, cosignatures}), '\n')
}

// LedgerReport is what a verified ledger proves.
type LedgerReport struct {
	Origin   string `json:"origin"`
	TreeSize int64  `json:"tree_size"`
	RootHash string `json:"root_hash"`
	Sessions int    `json:"sessions"`
	Receipts int    `json:"receipts"`
	Attested int    `json:"attested_by_callers"` // of the receipts
	Open     int    `json:"open_calls"`
	Tips     string `json:"tips"` // TipBound, or TipAttested where the checkpoint commits to no map of tips
}

// String returns the report as text of several lines.
func (r *LedgerReport) String() string {
	tips := "their map, computed again, is the one that the checkpoint commits to"
	if r.Tips != TipBound {
		tips = "the checkpoint commits to no map of them"
	}
	return fmt.Sprintf("VERIFIED ledger %s\n  size      %d events, root %s\n  sessions  %d, each chain unbroken\n  receipts  %d, of them %d attested by the callers alone\n  tips      %s\n  open      %d calls without an outcome yet\n",
		r.Origin, r.TreeSize, r.RootHash, r.Sessions, r.Receipts, r.Attested, tips, r.Open)
}

// Opener opens an exported ledger from its start; a verifier reads it twice.
type Opener func() (io.ReadCloser, error)

// VerifyLedger verifies an exported ledger against the key id of the trusted root:
// the root hash over every line, every event's schema, every signature, every
// session's chain, and the map of tips. The error names the first line that fails.
func VerifyLedger(export []byte, rootKID string) (*LedgerReport, error) {
	return VerifyLedgerFrom(opener(export), rootKID, Demands{})
}

func opener(b []byte) Opener {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
}

// VerifyLedgerFrom is VerifyLedger over what open returns. The first pass
// verifies the checkpoint over all lines with the keys that they publish, in
// memory that does not grow with them; the second follows the calls.
func VerifyLedgerFrom(open Opener, rootKID string, demands Demands) (*LedgerReport, error) {
	l, err := authenticate(open, rootKID, demands)
	if err != nil {
		return nil, err
	}
	w := newWalk(l)
	if err := each(open, func(n uint64, b []byte) error {
		if n == l.head.Size {
			return nil // the trailer
		}
		return w.add(n, b)
	}); err != nil {
		w.stop()
		return nil, err
	}
	return w.report()
}

// each calls f with every line and its index.
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
	has  bool // tips
}

// authenticate is the first pass.
func authenticate(open Opener, rootKID string, demands Demands) (*authentic, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	l := &authentic{system: newSystem(rootKID)}
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
			err = l.read(b)
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

// readTrailer reads the checkpoint, which is the n-th line and the last.
func (l *authentic) readTrailer(b []byte, in *lineReader, n uint64) error {
	if !in.last() {
		return fmt.Errorf("line %d: a checkpoint that is not the last line", n)
	}
	if err := contract.Decode(b, &l.last); err != nil {
		return fmt.Errorf("the last line: %w", err)
	}
	return nil
}

// read takes one line of the first pass.
func (l *authentic) read(b []byte) error {
	e, err := openEvent(b)
	if err != nil {
		return err
	}
	if err := e.CheckData(); err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	if !isSystem(e) && e.Name != "log_epoch_opened" {
		return nil
	}
	e.Data = bytes.Clone(e.Data) // it aliases b
	if e.Name == "log_epoch_opened" {
		return l.epoch(e)
	}
	return l.apply(e, nil)
}

// epoch verifies the opening of a log epoch.
func (l *authentic) epoch(e *contract.Event) error {
	opened, err := trust.VerifyEpoch(e, l.reg.At)
	if err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	l.epochs = max(l.epochs, opened.Epoch)
	return nil
}

// seal verifies the checkpoint over the tree and what is demanded of it.
func (l *authentic) seal(tree *translog.Frontier, kept *keptHead, demands Demands) (err error) {
	if !l.reg.Has(l.reg.Root) {
		return fmt.Errorf("the trusted root %s is not published here", l.reg.Root)
	}
	if l.head, err = openNote([]byte(l.last.Note), l.reg, canon.MaxInt); err != nil {
		return err
	}
	if named := l.head.Extension("epoch"); named != "" && named != strconv.FormatInt(l.epochs, 10) {
		return fmt.Errorf("the checkpoint is of log epoch %s, the ledger in epoch %d", named, l.epochs)
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

// walk is the second pass: sessions are dealt out to workers, each of which
// follows its own, so that all cores check signatures.
type walk struct {
	l       *authentic
	ids     map[string]struct{}
	workers []*worker
}

// batchSize is how many events a worker gets at once.
const batchSize = 64

type worker struct {
	l        *authentic
	in       chan []item
	done     chan struct{}
	pending  []item
	sessions map[[2]string]*course
	at       uint64 // line of err
	err      error
}

// item is one session event with its line.
type item struct {
	n uint64
	e *contract.Event
}

// course is how far one session has come.
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
		x := &worker{l: l, in: make(chan []item, 4), done: make(chan struct{}), sessions: map[[2]string]*course{}}
		w.workers = append(w.workers, x)
		go x.run()
	}
	return w
}

// add takes one line of the second pass.
func (w *walk) add(n uint64, b []byte) error {
	e, err := openEvent(bytes.Clone(b))
	if err != nil || e.Session == "" {
		return err
	}
	if _, twice := w.ids[e.ID]; twice {
		return fmt.Errorf("event id %s occurs twice", e.ID)
	}
	w.ids[e.ID] = struct{}{}
	sum := uint32(0)
	for _, c := range []byte(e.Session) {
		sum = sum*31 + uint32(c)
	}
	x := w.workers[sum%uint32(len(w.workers))]
	if x.pending = append(x.pending, item{n, e}); len(x.pending) >= batchSize {
		x.flush()
	}
	return nil
}

func (x *worker) flush() {
	x.in <- x.pending
	x.pending = make([]item, 0, batchSize)
}

// run follows events until the first error, and then only takes them.
func (x *worker) run() {
	defer close(x.done)
	for batch := range x.in {
		for _, i := range batch {
			if x.err != nil {
				break
			}
			if err := x.follow(i.e); err != nil {
				x.at, x.err = i.n, fmt.Errorf("line %d: session %s: event %s (%s): %w", i.n+1, i.e.Session, i.e.ID, i.e.Name, err)
			}
		}
	}
}

func (x *worker) follow(e *contract.Event) error {
	k := [2]string{e.Tenant, e.Session}
	s := x.sessions[k]
	if s == nil {
		s = &course{calls: map[string]*callState{}, tip: receipt.Genesis(e.Tenant, e.Session)}
		x.sessions[k] = s
	}
	d, err := decode(e)
	if err != nil {
		return err
	}
	if err := checkEvent(e, &d, s.calls, &s.tip, &x.l.system); err != nil {
		return err
	}
	contents := d.contents()
	for i := range contents {
		if _, err := contents[i].Open(nil); err != nil && !isGone(err) {
			return fmt.Errorf("content %s: %w", contents[i].Commitment, err)
		}
	}
	s.events++
	if e.Name == "effect_recorded" {
		s.receipts++
	}
	if d.recorded != nil && d.recorded.Receipt.AttestedBy == contract.Caller {
		s.attested++
	}
	return nil
}

// stop ends the workers.
func (w *walk) stop() {
	for _, x := range w.workers {
		x.flush()
		close(x.in)
		<-x.done
	}
}

// report ends the walk. Of several errors it returns that of the first line.
func (w *walk) report() (*LedgerReport, error) {
	w.stop()
	var first *worker
	rep := &LedgerReport{Origin: w.l.head.Origin, TreeSize: int64(w.l.head.Size), RootHash: hex.EncodeToString(w.l.head.Root[:]), Tips: TipAttested}
	var leaves []translog.TipLeaf
	for _, x := range w.workers {
		if x.err != nil && (first == nil || x.at < first.at) {
			first = x
		}
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
	if first != nil {
		return nil, first.err
	}
	if w.l.has {
		if translog.TipsRoot(leaves) != w.l.tips {
			return nil, errors.New("the sessions do not have the checkpoint's map of tips")
		}
		rep.Tips = TipBound
	}
	return rep, nil
}

func (s *course) leaf(k [2]string) (translog.TipLeaf, error) {
	t, err := tipOf(s.tip.Digest, s.events, s.receipts)
	key := translog.TipKey(k[0], k[1])
	return translog.TipLeaf{Key: key, Leaf: t.Leaf(key)}, err
}
