package audit

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/audit/internal/runs"
	"github.com/binnacle-mesh/binnacle/services/audit/internal/tree"
)

// View is audit's view of the ledger: the tree, the map of tips, the search index, and
// further indexes, such as those of sessions, receipts and ids. After OpenView, only
// Add, Flush and Reset change it. A view that is rebuilt by replay has the same dump at
// the same position. Methods other than Reset and Close are safe for concurrent use.
type View struct {
	Tree *tree.Tree
	db   *bbolt.DB
	dir  string
	ids  *runs.Set // event ids, digests of receipts, and commitments of outputs; see ids.go

	tenants numbers // numbers of the tenants

	// Durable, if set, waits until all entries that were added are durable on the ledger.
	// Flush calls it, because the view must not hold an event that the ledger may lose.
	Durable func() error

	mu      sync.Mutex
	pending []eventlog.Entry
}

var (
	bMeta     = []byte("meta")     // position, greatest Lamport time, layout, root of the map of tips, numbers of the runs, kMesh and kOpened
	bSessions = []byte("sessions") // tenant.session -> sequence of its first event, session document
	bEvents   = []byte("events")   // list of a session's events (see posts); sequence of the session's first event -> 2 · sequence, plus 1 if the event records a receipt
	bExecutor = []byte("executor") // sequence of an event that allows a call -> sequence of its session's first event, executor
	bReceipts = []byte("receipts") // tenant's number, sequence of the event that records a receipt -> SHA-256 of the receipt
	bYoung    = []byte("young")    // position after a flush -> records of the flush that are in no run yet
	bSystem   = []byte("system")   // tenant's number, sequence of a trust or policy event -> systemEvent
	bAlarms   = []byte("alarms")   // sequence of an entry -> text of the alarm about it
	bTimes    = []byte("times")    // second -> sequence of the first event in that second, if no event before it has a later time
	bSearch   = []byte("search")   // one list (see posts) per tenant's number and term, facet=value, of the sequences of the events with the term; with the empty term, of all of the tenant's events
	bTenants  = []byte("tenants")  // tenant -> its number
	buckets   = [][]byte{bMeta, bSessions, bEvents, bExecutor, bReceipts, bYoung, bSystem, bAlarms, bTimes, bSearch, bTenants, bKnown, bTips, bRecent}
	growing   = [][]byte{bEvents, bExecutor, bReceipts, bYoung, bSystem, bAlarms, bTimes, bSearch, bRecent} // buckets whose keys are mostly added at the end, of the bucket or of a list in it
	dumped    = [][]byte{bSessions, bExecutor, bReceipts, bSystem, bAlarms, bTenants, bKnown, bTimes}       // buckets that Dump writes entry by entry
)

// OpenView opens or creates the view in dir. A database with another layout is emptied,
// and one that cannot be opened is renamed and replaced by an empty one. If the index of
// ids cannot be opened, the whole view is emptied. An empty view must be rebuilt from
// the ledger.
func OpenView(dir string) (*View, error) {
	if err := errors.Join(private.Mkdir(dir), private.Check(dir)); err != nil {
		return nil, err
	}
	t, err := tree.Open(filepath.Join(dir, "tree"))
	if err != nil {
		return nil, err
	}
	db, err := openOrRenew(filepath.Join(dir, "view.db"))
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	v := &View{Tree: t, db: db, dir: dir}
	if err := v.tenants.load(db); err != nil {
		return nil, errors.Join(err, db.Close(), t.Close())
	}
	if err := v.openIDs(); err != nil {
		slog.Error("audit's index of ids is unreadable, and the view will be rebuilt", "err", err)
		if err := v.Reset(); err != nil {
			return nil, errors.Join(err, db.Close(), t.Close())
		}
	}
	return v, nil
}

// openOrRenew opens or creates the database. If it cannot be opened, openOrRenew renames
// it, and creates another one.
func openOrRenew(path string) (*bbolt.DB, error) {
	db, err := openDB(path)
	if err == nil {
		return db, nil
	}
	slog.Error("audit view is unreadable and will be rebuilt", "err", err)
	if err := os.Rename(path, path+".broken"); err != nil {
		return nil, err
	}
	return openDB(path)
}

// openDB opens or creates the database. If the database has another layout, openDB
// empties it.
func openDB(path string) (*bbolt.DB, error) {
	// The view can be rebuilt, so it need not survive a power loss. Without NoGrowSync,
	// bbolt would sync the file each time that it grows.
	db, err := bbolt.Open(path, private.FileMode, &bbolt.Options{NoSync: true, NoGrowSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	if err := db.Update(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bMeta); b != nil && getUint(tx, "layout") != layout {
			return empty(tx) // the layout is that of another release; the entries are deleted, and the view is then rebuilt from the ledger
		}
		return create(tx)
	}); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// empty deletes all entries of the view's database.
func empty(tx *bbolt.Tx) error {
	for _, name := range buckets {
		if err := tx.DeleteBucket(name); err != nil && !errors.Is(err, bbolterrors.ErrBucketNotFound) {
			return err
		}
	}
	return create(tx)
}

func create(tx *bbolt.Tx) error {
	for _, b := range buckets {
		if _, err := tx.CreateBucketIfNotExists(b); err != nil {
			return err
		}
	}
	return putUint(tx, "layout", layout)
}

// Reset deletes all entries of the database, so that the view is rebuilt from the first
// entry of the ledger. The rebuild overwrites the files of the tree.
func (v *View) Reset() error {
	err := v.db.Update(empty)
	v.tenants.clear()
	if v.ids != nil {
		err = errors.Join(err, v.ids.Close())
	}
	return errors.Join(err, v.openIDs())
}

// checkTree returns an error if the tree has fewer leaves than the index has entries.
// That can happen after a power loss, because neither is synced; both can be rebuilt.
func (v *View) checkTree() error {
	pos, _ := v.Position()
	if pos == 0 {
		return nil
	}
	if _, err := v.Tree.Node(0, pos-1); err != nil {
		return fmt.Errorf("the tree ends before entry %d, which the index has: %w", pos, err)
	}
	return nil
}

// layout is the version of the formats of all buckets.
const layout = 7

// Close closes the files. It stores the list of free pages first: without it, the next
// OpenView reads every page of the database to find them, as it does after a crash.
func (v *View) Close() error {
	v.db.NoFreelistSync = false
	err := v.db.Update(func(*bbolt.Tx) error { return nil })
	return errors.Join(err, v.db.Close(), v.ids.Close(), v.Tree.Close())
}

// maxPending is the number of pending entries at which Add flushes them.
const maxPending = 4000

// Add adds the next entry to the pending entries. Flush applies them; Add calls it when
// maxPending entries are pending. en.Data must not be changed after the call.
func (v *View) Add(en eventlog.Entry) error {
	v.mu.Lock()
	v.pending = append(v.pending, en)
	full := len(v.pending) >= maxPending
	v.mu.Unlock()
	if full {
		return v.Flush()
	}
	return nil
}

// Flush applies the pending entries in one transaction, which costs nearly the same for
// one entry as for many. It first calls Durable. It returns an error if Durable does, and
// if a pending entry does not directly follow the entry before it. After an error the
// entries stay pending.
func (v *View) Flush() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.pending) == 0 {
		return nil
	}
	if v.Durable != nil {
		if err := v.Durable(); err != nil {
			return err
		}
	}
	if err := v.apply(v.pending); err != nil {
		return err
	}
	clear(v.pending)
	v.pending = v.pending[:0]
	return nil
}

// apply applies entries in one transaction.
func (v *View) apply(entries []eventlog.Entry) error {
	tx, err := v.db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // fails after a commit, and is not needed then
	w := writer{tx: tx, ids: v.ids.Begin(), known: &v.tenants, sessions: map[string]*Session{}, postings: map[term][]uint64{}}
	if err := v.write(&w, entries); err != nil {
		return errors.Join(err, w.ids.Discard())
	}
	return w.ids.Commit(func() error {
		err := tx.Commit()
		if err == nil {
			v.tenants.add(w.added)
		}
		return err
	})
}

// write writes entries to the tree and, with w, to the index.
func (v *View) write(w *writer, entries []eventlog.Entry) error {
	for _, b := range growing {
		w.tx.Bucket(b).FillPercent = 0.95
	}
	if k, _ := w.tx.Bucket(bTimes).Cursor().Last(); k != nil {
		w.second = int64(binary.BigEndian.Uint64(k))
	}
	w.opened = getUint(w.tx, kOpened)
	pos, lamport := getUint(w.tx, "position"), getUint(w.tx, "lamport")
	from, leaves := pos, make([]translog.Hash, 0, len(entries))
	for _, en := range entries {
		if en.Seq != pos+1 {
			return fmt.Errorf("the ledger has a gap: %d follows %d", en.Seq, pos)
		}
		leaves = append(leaves, translog.LeafHash(en.Data))
		pos = en.Seq
		l, err := w.apply(en)
		if err != nil {
			return err
		}
		lamport = max(lamport, l)
	}
	if err := errors.Join(v.Tree.Extend(from, leaves), w.flush(pos)); err != nil {
		return err
	}
	return errors.Join(putUint(w.tx, "position", pos), putUint(w.tx, "lamport", lamport))
}

// Session is the view's record of a session: its counts, its last event, and the tip of
// its receipt chain.
type Session struct {
	Actor    string `json:"actor"`
	Created  string `json:"created_at"`
	Events   int64  `json:"events"`
	Lamport  int64  `json:"last_lamport_clock"`
	LastSeq  int64  `json:"last_seq"`
	Receipts int64  `json:"receipt_count"`
	ID       string `json:"session_id"`
	Tenant   string `json:"tenant"`
	Tip      string `json:"tip"`

	was   int64    // value of LastSeq before the transaction; 0 for a new session
	first uint64   // sequence of the session's first event
	added []uint64 // values that the transaction adds to the session's list in bEvents
}

// stored returns the session's value in bSessions.
func (s *Session) stored() []byte { return canon.Append(key(s.first), s) }

// readSession decodes a value in bSessions.
func readSession(b []byte) (*Session, error) {
	if len(b) < 8 {
		return nil, errors.New("a session's record is cut off")
	}
	s := &Session{first: binary.BigEndian.Uint64(b)}
	return s, json.Unmarshal(b[8:], s)
}

// Canonical implements canon.Document.
func (s *Session) Canonical(c *canon.Codec) {
	c.Str("actor", &s.Actor)
	c.Str("created_at", &s.Created)
	c.Int("events", &s.Events)
	c.Int("last_lamport_clock", &s.Lamport)
	c.Int("last_seq", &s.LastSeq)
	c.Int("receipt_count", &s.Receipts)
	c.Str("session_id", &s.ID)
	c.Str("tenant", &s.Tenant)
	c.Str("tip", &s.Tip)
}

// writer applies entries within one transaction. It writes the changed sessions, the map
// of tips and the search index at the end.
type writer struct {
	tx       *bbolt.Tx
	ids      *runs.Change
	known    *numbers            // numbers of the tenants, as of the last transaction
	opened   uint64              // sequence of cell_opened, or 0
	added    map[string]uint32   // numbers of the tenants that first appear in this transaction
	sessions map[string]*Session // by tenant.session
	postings map[term][]uint64   // sequences of the events with a term, ascending
	second   int64               // Unix time of the last key in bTimes, in seconds; 0: the bucket is empty
}

// apply adds an entry to the indexes and returns its Lamport time. It records an alarm
// and returns 0 if the entry is not a valid event, if misplaced returns a reason for it,
// if an earlier event has its id, or if it is an outcome that cannot be decoded.
func (w *writer) apply(en eventlog.Entry) (lamport uint64, err error) {
	alarm := func(what string) (uint64, error) {
		slog.Error("ledger alarm", "seq", en.Seq, "subject", en.Subject, "alarm", what)
		return 0, w.tx.Bucket(bAlarms).Put(key(en.Seq), canon.AppendString(nil, what))
	}
	e, err := eventlog.Open(en, eventlog.Every)
	if err != nil {
		return alarm(err.Error())
	}
	tenant, err := w.tenant(e.Tenant)
	if err != nil {
		return 0, err
	}
	w.post(term{tenant: tenant}, en.Seq)
	if why, err := w.misplaced(e); err != nil {
		return 0, err
	} else if why != "" {
		return alarm(why)
	}
	if isNew, err := w.first(place{tenant, en.Seq}, kindEvent, e.ID); err != nil {
		return 0, err
	} else if !isNew {
		return alarm("event id " + e.ID + " is already taken")
	}
	if err := w.clock(e, en.Seq); err != nil {
		return 0, err
	}
	var rec *contract.Recorded
	switch e.Name {
	case contract.EventEffectRecorded:
		rec = &contract.Recorded{}
		if err := contract.Decode(e.Data, rec); err != nil {
			return alarm(err.Error())
		}
	case contract.EventKeyPublished, contract.EventKeyRevoked, contract.EventPolicyActivated, contract.EventCellOpened, contract.EventPasskeyRegistered:
		if err := w.system(e, place{tenant, en.Seq}); err != nil {
			return 0, err
		}
	case contract.EventTenantCreated:
		if err := w.created(e, en.Seq); err != nil {
			return 0, err
		}
	}
	for _, t := range terms(e, rec) {
		w.post(term{tenant, t}, en.Seq)
	}
	if rec != nil {
		for _, c := range outputs(rec) {
			if _, err := w.first(place{tenant, en.Seq}, kindOutput, e.Tenant, ".", c); err != nil {
				return 0, err
			}
		}
	}
	if e.Session == "" {
		return e.Lamport, nil
	}
	return e.Lamport, w.inSession(e, rec, place{tenant, en.Seq})
}

// inSession adds an event to its session. rec is the outcome if the event records one,
// or else nil.
func (w *writer) inSession(e *contract.Event, rec *contract.Recorded, where place) error {
	id, seq := e.Tenant+"."+e.Session, where.seq
	s, err := w.session(id)
	if err != nil {
		return err
	}
	if s.ID == "" {
		s.ID, s.Tenant, s.Actor, s.Created, s.first = e.Session, e.Tenant, e.Actor, e.Time, seq
	}
	s.Events++
	s.LastSeq = int64(seq)
	if e.Name == contract.EventAllowed {
		if err := w.tx.Bucket(bExecutor).Put(key(seq), append(key(s.first), e.Target...)); err != nil {
			return err
		}
	}
	if rec == nil {
		s.added = append(s.added, seq<<1)
		return nil
	}
	s.added = append(s.added, seq<<1|1)
	s.Receipts, s.Lamport, s.Tip = s.Receipts+1, rec.Receipt.Lamport, contract.Digest(&rec.Receipt)
	if _, err := w.first(where, kindReceipt, e.Tenant, ".", s.Tip); err != nil {
		return err
	}
	digest, err := tipDigest(s.Tenant, s.ID, s.Tip)
	if err != nil {
		return err
	}
	return w.tx.Bucket(bReceipts).Put(where.key(), digest[:])
}

// session returns the record of a session, which the caller may change; flush stores it.
// The record of a new session is zero. id is tenant.session.
func (w *writer) session(id string) (*Session, error) {
	if s := w.sessions[id]; s != nil {
		return s, nil
	}
	s := &Session{}
	if b := w.tx.Bucket(bSessions).Get([]byte(id)); b != nil {
		var err error
		if s, err = readSession(b); err != nil {
			return nil, err
		}
		s.was = s.LastSeq
	}
	w.sessions[id] = s
	return s, nil
}

// flush writes the sessions, tips, search terms and ids that the transaction collected.
// pos is the sequence of its last entry.
func (w *writer) flush(pos uint64) error {
	list := slices.SortedFunc(maps.Values(w.sessions), func(a, b *Session) int { return cmp.Compare(a.first, b.first) })
	for _, s := range list {
		if err := posts(w.tx.Bucket(bEvents), key(s.first), s.added); err != nil {
			return err
		}
		if err := w.tx.Bucket(bSessions).Put([]byte(s.Tenant+"."+s.ID), s.stored()); err != nil {
			return err
		}
	}
	return errors.Join(w.flushTips(), w.flushPostings(), w.flushIDs(pos))
}

// key encodes n so that keys sort in the order of the numbers.
func key(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func getUint(tx *bbolt.Tx, name string) uint64 {
	if b := tx.Bucket(bMeta).Get([]byte(name)); len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func putUint(tx *bbolt.Tx, name string, n uint64) error {
	return tx.Bucket(bMeta).Put([]byte(name), key(n))
}

// Position returns the sequence of the last applied entry and the greatest Lamport time
// up to it. Both are 0 if no entry is applied.
func (v *View) Position() (position, lamport uint64) {
	_ = v.db.View(func(tx *bbolt.Tx) error {
		position, lamport = getUint(tx, "position"), getUint(tx, "lamport")
		return nil
	})
	return position, lamport
}

// Dump calls line with each line of the view's canonical form, as JSON: the position,
// the roots of the tree and of the map of tips, and the indexes. line must not retain
// its argument. If line returns an error, Dump returns one too.
func (v *View) Dump(line func([]byte) error) error {
	return v.db.View(func(tx *bbolt.Tx) error {
		pos, names := getUint(tx, "position"), namesIn(tx)
		if err := line(fmt.Appendf(nil, `{"lamport":%d,"position":%d}`, getUint(tx, "lamport"), pos)); err != nil {
			return err
		}
		root, err := translog.Root(pos, v.Tree.Node)
		if err != nil {
			return err
		}
		if err := line(fmt.Appendf(nil, `{"root":"%x"}`, root)); err != nil {
			return err
		}
		if err := errors.Join(dumpTips(tx, line), v.dumpIDs(pos, line), dumpEvents(tx, line), dumpSearch(tx, names, line)); err != nil {
			return err
		}
		for _, name := range dumped {
			if err := tx.Bucket(name).ForEach(func(k, val []byte) error {
				w := canon.Object(nil)
				w.Str("bucket", string(name))
				w.Str("key", printable(name, k, names))
				switch string(name) {
				case string(bTenants):
					w.Int("value", int64(binary.BigEndian.Uint32(val)))
				case string(bTimes), string(bKnown):
					w.Int("value", int64(binary.BigEndian.Uint64(val)))
				case string(bReceipts):
					w.Str("value", digestText(val))
				case string(bExecutor):
					w.Str("value", string(val[8:]))
				case string(bSessions):
					w.Raw("value", val[8:])
				default:
					w.Raw("value", val)
				}
				return line(w.End())
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// printable returns a key of a bucket as text. The number of a tenant is replaced by the
// tenant's name, from names. A sequence or time has 20 decimal digits.
func printable(bucket, k []byte, names map[uint32]string) string {
	switch string(bucket) {
	case string(bSessions), string(bTenants), string(bKnown):
		return string(k)
	case string(bReceipts), string(bSystem):
		return fmt.Sprintf("%s.%020d", names[binary.BigEndian.Uint32(k)], binary.BigEndian.Uint64(k[4:]))
	}
	return fmt.Sprintf("%020d", binary.BigEndian.Uint64(k))
}

// WriteDump writes the view's canonical form to w, each line with a newline.
func (v *View) WriteDump(w io.Writer) error {
	return v.Dump(func(b []byte) error { _, err := w.Write(append(b, '\n')); return err })
}

// ErrNoSession is returned for a session without events.
var ErrNoSession = notFound("no such session")

// Lookup returns the view's record of a session, or ErrNoSession.
func (v *View) Lookup(tenant, session string) (s *Session, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		s, err = lookup(tx, tenant, session)
		return err
	})
	return s, err
}

func lookup(tx *bbolt.Tx, tenant, session string) (*Session, error) {
	b := tx.Bucket(bSessions).Get([]byte(tenant + "." + session))
	if b == nil {
		return nil, ErrNoSession
	}
	return readSession(b)
}

// Sessions returns at most limit records of a tenant's sessions, in the order of their
// ids, from offset on.
func (v *View) Sessions(tenant string, offset, limit int) ([]json.RawMessage, error) {
	out := []json.RawMessage{}
	err := v.db.View(func(tx *bbolt.Tx) error {
		c, prefix := tx.Bucket(bSessions).Cursor(), []byte(tenant+".")
		for k, b := c.Seek(prefix); bytes.HasPrefix(k, prefix) && len(out) < limit; k, b = c.Next() {
			if offset > 0 {
				offset--
				continue
			}
			out = append(out, bytes.Clone(b[8:]))
		}
		return nil
	})
	return out, err
}

// EventSeqs returns the sequences of a session's events up to sequence size, ascending.
// For an unknown session it returns none, and no error.
func (v *View) EventSeqs(tenant, session string, size uint64) (out []uint64, err error) {
	err = v.inSession(tenant, session, func(seq uint64, _ bool) bool {
		if seq <= size {
			out = append(out, seq)
		}
		return seq < size
	})
	return out, err
}

// inSession calls each for the events of a session in ascending order, until each
// returns false. receipt reports whether the event records a receipt.
func (v *View) inSession(tenant, session string, each func(seq uint64, receipt bool) bool) error {
	return v.db.View(func(tx *bbolt.Tx) error {
		s, err := lookup(tx, tenant, session)
		if errors.Is(err, ErrNoSession) {
			return nil
		}
		if err != nil {
			return err
		}
		list(tx.Bucket(bEvents), key(s.first), 0, func(n uint64) bool { return each(n>>1, n&1 == 1) })
		return nil
	})
}

// ReceiptSeqs returns the sequences of the events that record the receipts of a tenant's
// session, or of all of the tenant's sessions if session is empty, ascending. It skips
// offset of them and returns at most limit.
func (v *View) ReceiptSeqs(tenant, session string, offset, limit int) (out []uint64, err error) {
	each := func(seq uint64, receipt bool) bool {
		switch {
		case !receipt:
		case offset > 0:
			offset--
		case len(out) < limit:
			out = append(out, seq)
		}
		return len(out) < limit
	}
	if session != "" {
		err = v.inSession(tenant, session, each)
		return out, err
	}
	err = v.db.View(func(tx *bbolt.Tx) error {
		ofTenant(tx.Bucket(bReceipts), numberIn(tx, tenant), func(seq uint64, _ []byte) bool { return each(seq, true) })
		return nil
	})
	return out, err
}
