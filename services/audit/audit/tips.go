package audit

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/services/audit/internal/tips"
)

// The view stores the map of tips, to which checkpoints commit, as of the view's
// position. It computes the map as of an earlier position by undoing later changes, and
// so stores no older versions.

var (
	bTips   = []byte("tips")   // tips.Place of an inner node -> node
	bRecent = []byte("recent") // sequence of a session's last event -> tenant.session
	kTips   = []byte("tips")   // key in bMeta of the map's root
)

// nodes implements tips.Store with the stored map.
type nodes struct{ *bbolt.Bucket }

// Get implements tips.Store.
func (n nodes) Get(place []byte) (*tips.Node, error) {
	b := n.Bucket.Get(place)
	if b == nil {
		return nil, nil
	}
	return tips.ReadNode(b)
}

// Put implements tips.Store.
func (n nodes) Put(place []byte, node *tips.Node) error {
	return n.Bucket.Put(place, tips.AppendNode(nil, node))
}

// tipsRoot returns the root of the stored map, or the zero Child if no map is stored.
func tipsRoot(tx *bbolt.Tx) (tips.Child, error) {
	b := tx.Bucket(bMeta).Get(kTips)
	if b == nil {
		return tips.Child{}, nil
	}
	c, rest, err := tips.ReadChild(b)
	if err == nil && len(rest) > 0 {
		err = errors.New("the map's root is malformed")
	}
	return c, err
}

// tip returns the session's entry in the map.
func (s *Session) tip() (t translog.Tip, err error) {
	t.Events, t.Receipts = uint64(s.Events), uint64(s.Receipts)
	t.Digest, err = tipDigest(s.Tenant, s.ID, s.Tip)
	return t, err
}

// tipDigest decodes last, the digest of the last receipt of a session's chain. If last
// is empty, it returns the digest of the chain's genesis.
func tipDigest(tenant, session, last string) (h translog.Hash, err error) {
	if last == "" {
		last = receipt.Genesis(tenant, session).Digest
	}
	b, err := hex.DecodeString(strings.TrimPrefix(last, "sha256:"))
	if err != nil || len(b) != len(h) {
		return h, fmt.Errorf("session %s: tip %q is not a digest", session, last)
	}
	return translog.Hash(b), nil
}

// flushTips updates the map for the sessions that changed in the transaction.
func (w *writer) flushTips() error {
	changes := make([]tips.Change, 0, len(w.sessions))
	recent := w.tx.Bucket(bRecent)
	for id, s := range w.sessions {
		t, err := s.tip()
		if err != nil {
			return err
		}
		key := translog.TipKey(s.Tenant, s.ID)
		changes = append(changes, tips.Change{Key: key, Leaf: t.Leaf(key)})
		if s.was > 0 {
			if err := recent.Delete(seqKey(s.was)); err != nil {
				return err
			}
		}
		if err := recent.Put(seqKey(s.LastSeq), []byte(id)); err != nil {
			return err
		}
	}
	root, err := tipsRoot(w.tx)
	if err != nil {
		return err
	}
	if root, err = tips.Update(nodes{w.tx.Bucket(bTips)}, root, changes); err != nil {
		return err
	}
	return w.tx.Bucket(bMeta).Put(kTips, root.Append(nil))
}

func seqKey(n int64) []byte { return key(uint64(n)) }

// Head returns the view's position, the greatest Lamport time up to it, and the root of
// the map of tips, all read in one transaction.
func (v *View) Head() (position, lamport uint64, root translog.Hash, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		position, lamport = getUint(tx, "position"), getUint(tx, "lamport")
		c, err := tipsRoot(tx)
		root = c.Root()
		return err
	})
	return position, lamport, root, err
}

// tipsAt returns the map as of an earlier position, at which the ledger had size
// entries. It computes O(c · log n) inner nodes if c of n sessions have changed since.
func tipsAt(tx *bbolt.Tx, size uint64) (tips.Store, tips.Child, error) {
	root, err := tipsRoot(tx)
	if err != nil {
		return nil, root, err
	}
	var back []tips.Change
	c := tx.Bucket(bRecent).Cursor()
	for k, id := c.Seek(key(size + 1)); k != nil; k, id = c.Next() {
		var s Session
		if err := json.Unmarshal(tx.Bucket(bSessions).Get(id), &s); err != nil {
			return nil, root, err
		}
		t, err := s.tipAt(tx, size)
		if err != nil {
			return nil, root, err
		}
		ch := tips.Change{Key: translog.TipKey(s.Tenant, s.ID)}
		if t.Events > 0 {
			ch.Leaf = t.Leaf(ch.Key)
		}
		back = append(back, ch)
	}
	store := &tips.Overlay{Under: nodes{tx.Bucket(bTips)}}
	root, err = tips.Update(store, root, back)
	return store, root, err
}

// tipAt returns the session's entry in the map as of an earlier position. The entry's
// Events is 0 if the session had no event up to that position.
func (s *Session) tipAt(tx *bbolt.Tx, size uint64) (t translog.Tip, err error) {
	t.Events, t.Receipts = uint64(s.Events), uint64(s.Receipts)
	prefix := []byte(s.Tenant + "." + s.ID + "\x00")
	receipts := tx.Bucket(bReceipts)
	c := tx.Bucket(bEvents).Cursor()
	last, k := s.Tip, []byte(nil)
	for k, _ = c.Seek(append(bytes.Clone(prefix), key(size+1)...)); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		t.Events--
		if receipts.Get(k[len(k)-8:]) != nil {
			t.Receipts--
		}
	}
	if t.Receipts < uint64(s.Receipts) { // the tip at that position is an earlier receipt or the chain's genesis
		last = ""
		for k, _ = c.Seek(append(bytes.Clone(prefix), key(size+1)...)); t.Receipts > 0; {
			if k == nil {
				k, _ = c.Last()
			} else {
				k, _ = c.Prev()
			}
			if !bytes.HasPrefix(k, prefix) {
				return t, fmt.Errorf("session %s: the index misses a receipt", s.ID)
			}
			if b := receipts.Get(k[len(k)-8:]); b != nil {
				last = sign.Digest(b)
				break
			}
		}
	}
	t.Digest, err = tipDigest(s.Tenant, s.ID, last)
	return t, err
}

// TipsRootAt returns the root of the map when the ledger had size entries. size must not
// exceed the view's position.
func (v *View) TipsRootAt(size uint64) (root translog.Hash, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		_, c, err := tipsAt(tx, size)
		root = c.Root()
		return err
	})
	return root, err
}

// ProveTip returns a session's entry in the map when the ledger had size entries, with
// its proof. want is the root to which the checkpoint of that size commits; it is an
// error if the map had another root. ProveTip returns ErrNoSession if the session had no
// event then.
func (v *View) ProveTip(tenant, session string, size uint64, want translog.Hash) (p *evidence.TipProof, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bSessions).Get([]byte(tenant + "." + session))
		if b == nil {
			return ErrNoSession
		}
		var s Session
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		store, root, err := tipsAt(tx, size)
		if err != nil {
			return err
		}
		if root.Root() != want {
			return fmt.Errorf("the map of tips of %d entries does not have the checkpoint's root", size)
		}
		t, err := s.tipAt(tx, size)
		if err != nil {
			return err
		}
		path, at, err := tips.Prove(store, root, translog.TipKey(tenant, session))
		if err == nil && (at == nil || *at != translog.TipKey(tenant, session)) {
			err = ErrNoSession
		}
		p = evidence.NewTipProof(t, path)
		return err
	})
	return p, err
}

// checkTips returns an error if the view's map, as of the last signed checkpoint, is not
// the one to which the checkpoint commits. It returns nil if there is no valid
// checkpoint, if the checkpoint commits to no map, or if the view has not reached that
// position. A malformed commitment is an error.
func (s *Service) checkTips() error {
	note, err := os.ReadFile(s.checkpointFile())
	if err != nil {
		return nil // Service.compare returns this error, unless the file does not exist
	}
	c, err := s.note(note)
	if err != nil {
		return nil
	}
	want, ok, err := c.Tips()
	if pos, _ := s.view.Position(); err != nil || !ok || pos < c.Size {
		return err
	}
	root, err := s.view.TipsRootAt(c.Size)
	if err == nil && root != want {
		err = fmt.Errorf("the map of tips of %d entries is not the last checkpoint's", c.Size)
	}
	return err
}

// dumpTips writes the root of the map. The dump need not contain the map itself, because
// the sessions determine it.
func dumpTips(tx *bbolt.Tx, line func([]byte) error) error {
	root, err := tipsRoot(tx)
	if err != nil {
		return err
	}
	h := root.Root()
	w := canon.Object(nil)
	w.Str("tips", hex.EncodeToString(h[:]))
	return line(w.End())
}
