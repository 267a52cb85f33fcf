package audit

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/audit/internal/tree"
)

// View is audit's view of the ledger: the tree, the map of tips, the search index, and
// further indexes, such as those of sessions, receipts and ids. After OpenView, only
// Add, Flush and Reset change it. A view that is rebuilt by replay has the same dump at
// the same position. A View is safe for concurrent use.
type View struct {
	Tree *tree.Tree
	db   *bbolt.DB

	mu      sync.Mutex
	pending []eventlog.Entry
}

var (
	bMeta     = []byte("meta")     // position, greatest Lamport time, layout
	bSessions = []byte("sessions") // tenant.session -> session document
	bEvents   = []byte("events")   // tenant.session\x00seq -> event name, followed by the target if the event allows a call
	bReceipts = []byte("receipts") // seq -> receipt
	bIDs      = []byte("ids")      // event id -> seq
	bSystem   = []byte("system")   // sequence of a trust or policy event -> event name
	bAlarms   = []byte("alarms")   // seq -> text of the alarm about the entry
	bTimes    = []byte("times")    // second -> sequence of the first event in that second, if no event before it has a later time
	bSearch   = []byte("search")   // facet=value\x00seq -> differences between consecutive sequences
	buckets   = [][]byte{bMeta, bSessions, bEvents, bReceipts, bIDs, bSystem, bAlarms, bTimes, bSearch, bTips, bRecent}
	dumped    = buckets[1:8] // buckets that Dump writes entry by entry
)

// OpenView opens or creates the view in dir. A database with another layout is emptied,
// and one that cannot be opened is renamed and replaced by an empty one. An empty view
// must be rebuilt from the ledger.
func OpenView(dir string) (*View, error) {
	if err := errors.Join(private.Mkdir(dir), private.Check(dir)); err != nil {
		return nil, err
	}
	t, err := tree.Open(filepath.Join(dir, "tree"))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "view.db")
	db, err := openDB(path)
	if err != nil {
		slog.Error("audit view is unreadable and will be rebuilt", "err", err)
		if err := os.Rename(path, path+".broken"); err != nil {
			return nil, err
		}
		if db, err = openDB(path); err != nil {
			return nil, err
		}
	}
	return &View{Tree: t, db: db}, nil
}

// openDB opens or creates the database. If the database has another layout, openDB
// empties it.
func openDB(path string) (*bbolt.DB, error) {
	// The view can be rebuilt, so it need not survive a power loss.
	db, err := bbolt.Open(path, private.FileMode, &bbolt.Options{NoSync: true, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	return db, db.Update(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bMeta); b != nil && getUint(tx, "layout") != layout {
			return empty(tx) // the layout is that of another release; the entries are deleted, and the view is then rebuilt from the ledger
		}
		return create(tx)
	})
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
func (v *View) Reset() error { return v.db.Update(empty) }

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
const layout = 5

// Close closes the files. It stores the list of free pages first: without it, the next
// OpenView reads every page of the database to find them, as it does after a crash.
func (v *View) Close() error {
	v.db.NoFreelistSync = false
	err := v.db.Update(func(*bbolt.Tx) error { return nil })
	return errors.Join(err, v.db.Close(), v.Tree.Close())
}

// maxPending is the number of pending entries at which Add flushes them.
const maxPending = 4000

// Add adds a copy of the next entry to the pending entries. Flush applies them; Add
// calls it when maxPending entries are pending.
func (v *View) Add(en eventlog.Entry) error {
	en.Data = bytes.Clone(en.Data)
	v.mu.Lock()
	v.pending = append(v.pending, en)
	full := len(v.pending) >= maxPending
	v.mu.Unlock()
	if full {
		return v.Flush()
	}
	return nil
}

// Flush applies the pending entries in one transaction. A transaction costs nearly the
// same for one entry as for many, so the service flushes periodically and before it
// reads the view for a query. Flush returns an error, and applies nothing, if a pending
// entry does not directly follow the one before.
func (v *View) Flush() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.pending) == 0 {
		return nil
	}
	err := v.db.Update(func(tx *bbolt.Tx) error {
		w := writer{tx: tx, sessions: map[string]*Session{}, postings: map[string]*posting{}}
		if k, _ := tx.Bucket(bTimes).Cursor().Last(); k != nil {
			w.second = int64(binary.BigEndian.Uint64(k))
		}
		pos, lamport := getUint(tx, "position"), getUint(tx, "lamport")
		from, leaves := pos, make([]translog.Hash, 0, len(v.pending))
		for _, en := range v.pending {
			if en.Seq != pos+1 {
				return fmt.Errorf("ledger has a hole: %d follows %d", en.Seq, pos)
			}
			leaves = append(leaves, translog.LeafHash(en.Data))
			pos = en.Seq
			l, err := w.apply(en)
			if err != nil {
				return err
			}
			lamport = max(lamport, l)
		}
		if err := errors.Join(v.Tree.Extend(from, leaves), w.flush()); err != nil {
			return err
		}
		return errors.Join(putUint(tx, "position", pos), putUint(tx, "lamport", lamport))
	})
	if err == nil {
		clear(v.pending)
		v.pending = v.pending[:0]
	}
	return err
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

	was int64 // value of LastSeq before the transaction
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
	sessions map[string]*Session
	postings map[string]*posting // by term
	second   int64               // second of the last entry in bTimes, as Unix time
}

// apply adds an entry to the indexes and returns its Lamport time. An entry that is not
// a valid event, for which misplaced returns a reason, or whose id an earlier event has,
// is recorded as an alarm and otherwise ignored. An outcome that cannot be decoded is
// recorded as an alarm, too; only its id and its time are indexed. For an alarm, apply
// returns 0.
func (w *writer) apply(en eventlog.Entry) (lamport uint64, err error) {
	alarm := func(what string) (uint64, error) {
		slog.Error("ledger alarm", "seq", en.Seq, "subject", en.Subject, "alarm", what)
		return 0, w.tx.Bucket(bAlarms).Put(key(en.Seq), canon.AppendString(nil, what))
	}
	e, err := eventlog.Open(en, eventlog.Every)
	if err != nil {
		return alarm(err.Error())
	}
	if why := w.misplaced(e); why != "" {
		return alarm(why)
	}
	if first := w.tx.Bucket(bIDs).Get([]byte(e.ID)); first != nil {
		return alarm("event id " + e.ID + " is already taken")
	}
	if err := w.tx.Bucket(bIDs).Put([]byte(e.ID), key(en.Seq)); err != nil {
		return 0, err
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
	case contract.EventKeyPublished, contract.EventKeyRevoked, contract.EventPolicyActivated:
		if err := w.tx.Bucket(bSystem).Put(key(en.Seq), canon.AppendString(nil, e.Name)); err != nil {
			return 0, err
		}
	}
	for _, t := range terms(e, rec) {
		w.post(t, en.Seq)
	}
	if e.Session == "" {
		return e.Lamport, nil
	}
	id := e.Tenant + "." + e.Session
	s, err := w.session(id)
	if err != nil {
		return 0, err
	}
	if s.ID == "" {
		s.ID, s.Tenant, s.Actor, s.Created = e.Session, e.Tenant, e.Actor, e.Time
	}
	s.Events++
	s.LastSeq = int64(en.Seq)
	if err := w.tx.Bucket(bEvents).Put(eventKey(id, en.Seq), canon.AppendString(nil, named(e))); err != nil {
		return 0, err
	}
	if rec != nil {
		s.Receipts, s.Lamport, s.Tip = s.Receipts+1, rec.Receipt.Lamport, contract.Digest(&rec.Receipt)
		if err := w.tx.Bucket(bReceipts).Put(key(en.Seq), contract.Bytes(&rec.Receipt)); err != nil {
			return 0, err
		}
	}
	return e.Lamport, nil
}

// session returns the record of a session, which the caller may change; flush stores it.
// The record of a new session is zero. id is tenant.session.
func (w *writer) session(id string) (*Session, error) {
	if s := w.sessions[id]; s != nil {
		return s, nil
	}
	s := &Session{}
	if b := w.tx.Bucket(bSessions).Get([]byte(id)); b != nil {
		if err := json.Unmarshal(b, s); err != nil {
			return nil, err
		}
		s.was = s.LastSeq
	}
	w.sessions[id] = s
	return s, nil
}

func (w *writer) flush() error {
	for id, s := range w.sessions {
		if err := w.tx.Bucket(bSessions).Put([]byte(id), contract.Bytes(s)); err != nil {
			return err
		}
	}
	return errors.Join(w.flushTips(), w.flushPostings())
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

// Dump calls line for each line of the view's canonical form: the position, the roots of
// the tree and of the map of tips, the search index and the other indexes, as JSON. line
// must not retain its argument. If line returns an error, Dump returns one too.
func (v *View) Dump(line func([]byte) error) error {
	return v.db.View(func(tx *bbolt.Tx) error {
		pos := getUint(tx, "position")
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
		if err := errors.Join(dumpTips(tx, line), dumpSearch(tx, line)); err != nil {
			return err
		}
		for _, name := range dumped {
			if err := tx.Bucket(name).ForEach(func(k, val []byte) error {
				w := canon.Object(nil)
				w.Str("bucket", string(name))
				w.Str("key", printable(name, k))
				if string(name) == string(bIDs) || string(name) == string(bTimes) {
					w.Int("value", int64(binary.BigEndian.Uint64(val)))
				} else {
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

// dumpSearch writes one line per term. It joins the chunks of a term, because the
// boundaries between them depend on the times at which the view was flushed.
func dumpSearch(tx *bbolt.Tx, line func([]byte) error) error {
	c := tx.Bucket(bSearch).Cursor()
	for k, _ := c.First(); k != nil; {
		term := string(k[:len(k)-9])
		list := seqs(tx, term, 0, 1<<63)
		var b []byte
		for _, n := range list {
			b = binary.BigEndian.AppendUint64(b, n)
		}
		w := canon.Object(nil)
		w.Str("bucket", "search")
		w.Int("count", int64(len(list)))
		w.Str("key", term)
		w.Str("seqs", sign.Digest(b))
		if err := line(w.End()); err != nil {
			return err
		}
		k, _ = c.Seek([]byte(term + "\x01"))
	}
	return nil
}

// printable returns the key of an entry as text. A sequence or time has 20 decimal
// digits; in a key of bEvents, a slash precedes it.
func printable(bucket, k []byte) string {
	switch string(bucket) {
	case "receipts", "system", "alarms", "times":
		return fmt.Sprintf("%020d", binary.BigEndian.Uint64(k))
	case "events":
		return fmt.Sprintf("%s/%020d", k[:len(k)-9], binary.BigEndian.Uint64(k[len(k)-8:]))
	}
	return string(k)
}

// WriteDump writes the view's canonical form to w, each line with a newline.
func (v *View) WriteDump(w io.Writer) error {
	return v.Dump(func(b []byte) error { _, err := w.Write(append(b, '\n')); return err })
}

// ErrNoSession is returned for a session without events.
var ErrNoSession = notFound("no such session")

// Lookup returns the view's record of a session, or ErrNoSession.
func (v *View) Lookup(tenant, session string) (*Session, error) {
	var s Session
	err := v.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bSessions).Get([]byte(tenant + "." + session))
		if b == nil {
			return ErrNoSession
		}
		return json.Unmarshal(b, &s)
	})
	return &s, err
}

// SeqOf returns the sequence of the event with the given id, or 0 if there is none.
func (v *View) SeqOf(id string) (seq uint64, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bIDs).Get([]byte(id)); b != nil {
			seq = binary.BigEndian.Uint64(b)
		}
		return nil
	})
	return seq, err
}

// Sessions returns at most limit records of sessions, in the order of their ids, from
// offset on.
func (v *View) Sessions(offset, limit int) ([]json.RawMessage, error) {
	out := []json.RawMessage{}
	err := v.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bSessions).Cursor()
		for k, b := c.First(); k != nil && len(out) < limit; k, b = c.Next() {
			if offset > 0 {
				offset--
				continue
			}
			out = append(out, bytes.Clone(b))
		}
		return nil
	})
	return out, err
}

// EventSeqs returns the sequences of a session's events up to sequence size, ascending.
func (v *View) EventSeqs(tenant, session string, size uint64) ([]uint64, error) {
	var out []uint64
	err := v.db.View(func(tx *bbolt.Tx) error {
		prefix := []byte(tenant + "." + session + "\x00")
		c := tx.Bucket(bEvents).Cursor()
		for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
			if n := binary.BigEndian.Uint64(k[len(k)-8:]); n <= size {
				out = append(out, n)
			}
		}
		return nil
	})
	return out, err
}

// SystemSeqs returns the sequences of the trust and policy events up to sequence size,
// ascending.
func (v *View) SystemSeqs(size uint64) ([]uint64, error) {
	var out []uint64
	err := v.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bSystem).ForEach(func(k, _ []byte) error {
			if n := binary.BigEndian.Uint64(k); n <= size {
				out = append(out, n)
			}
			return nil
		})
	})
	return out, err
}

// Receipts calls yield for the receipts of a session, or of all sessions if session is
// empty, in the order of the ledger. It skips offset receipts and yields at most limit.
// It stops at the first error of yield and returns it.
func (v *View) Receipts(tenant, session string, offset, limit int, yield func(json.RawMessage) error) error {
	return v.db.View(func(tx *bbolt.Tx) error {
		n := 0
		each := func(b []byte) (more bool, err error) {
			if b == nil {
				return true, nil
			}
			if offset > 0 {
				offset--
				return true, nil
			}
			if n++; n > limit {
				return false, nil
			}
			return true, yield(bytes.Clone(b))
		}
		receipts := tx.Bucket(bReceipts)
		if session == "" {
			c := receipts.Cursor()
			for k, b := c.First(); k != nil; k, b = c.Next() {
				if more, err := each(b); err != nil || !more {
					return err
				}
			}
			return nil
		}
		prefix := []byte(tenant + "." + session + "\x00")
		c := tx.Bucket(bEvents).Cursor()
		for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
			if more, err := each(receipts.Get(k[len(k)-8:])); err != nil || !more {
				return err
			}
		}
		return nil
	})
}
