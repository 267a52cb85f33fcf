package audit

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/services/audit/internal/tips"
)

// The view stores the map of tips, to which checkpoints commit, as of the view's
// position. It computes the map as of an earlier position by undoing later changes, and
// so stores no older versions.

var (
	bTips   = []byte("tips")   // tips.Place of an inner node -> encoded node
	bRecent = []byte("recent") // sequence of a session's last event -> tenant.session
	kTips   = []byte("tips")   // key in bMeta of the map's root
)

// nodes implements tips.Store with the bucket bTips.
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

// tip returns the session's entry in the map of tips.
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

// flushTips updates the map of tips and bRecent for the sessions that changed in the
// transaction.
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
		s, err := readSession(tx.Bucket(bSessions).Get(id))
		if err != nil {
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
	events := tx.Bucket(bEvents)
	t.Events, t.Receipts = uint64(s.Events), uint64(s.Receipts)
	list(events, key(s.first), (size+1)<<1, func(n uint64) bool {
		t.Events, t.Receipts = t.Events-1, t.Receipts-n&1
		return true
	})
	switch t.Receipts {
	case uint64(s.Receipts):
		t.Digest, err = tipDigest(s.Tenant, s.ID, s.Tip)
		return t, err
	case 0:
		t.Digest, err = tipDigest(s.Tenant, s.ID, "")
		return t, err
	}
	last := lastOdd(events, key(s.first), size<<1|1) >> 1
	b := tx.Bucket(bReceipts).Get(place{numberIn(tx, s.Tenant), last}.key())
	if len(b) != len(t.Digest) {
		return t, fmt.Errorf("session %s: the index misses a receipt", s.ID)
	}
	t.Digest = translog.Hash(b)
	return t, nil
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

// ProveTip returns a session's entry in the map of tips as of the first size entries of
// the ledger, with its proof. It returns an error if the root of that map is not want,
// and ErrNoSession if the session had no event then.
func (v *View) ProveTip(tenant, session string, size uint64, want translog.Hash) (p *evidence.TipProof, err error) {
	err = v.db.View(func(tx *bbolt.Tx) error {
		s, err := lookup(tx, tenant, session)
		if err != nil {
			return err
		}
		m, err := mapAt(tx, size, want)
		if err != nil {
			return err
		}
		p, err = m.prove(s)
		return err
	})
	return p, err
}

// pastMap is the map of tips as of an earlier position of the ledger. It is valid until its
// transaction ends.
type pastMap struct {
	tx    *bbolt.Tx
	size  uint64 // number of entries that the ledger had
	store tips.Store
	root  tips.Child
}

// mapAt returns the map as of the first size entries of the ledger. It returns an error if
// its root is not want.
func mapAt(tx *bbolt.Tx, size uint64, want translog.Hash) (*pastMap, error) {
	store, root, err := tipsAt(tx, size)
	if err == nil && root.Root() != want {
		err = fmt.Errorf("the map of tips of %d entries does not have the checkpoint's root", size)
	}
	return &pastMap{tx, size, store, root}, err
}

// prove returns a session's entry in the map, with its proof, or ErrNoSession if the map
// has no entry for it.
func (m *pastMap) prove(s *Session) (*evidence.TipProof, error) {
	t, err := s.tipAt(m.tx, m.size)
	if err != nil {
		return nil, err
	}
	key := translog.TipKey(s.Tenant, s.ID)
	path, at, err := tips.Prove(m.store, m.root, key)
	if err == nil && (at == nil || *at != key) {
		err = ErrNoSession
	}
	return evidence.NewTipProof(t, path), err
}

// checkTips returns an error if the view's map, as of the last signed checkpoint, is not
// the one to which the checkpoint commits, or if the checkpoint's line about the map is
// malformed. Otherwise it returns nil, also if no valid checkpoint can be read, if the
// checkpoint commits to no map, or if the view has not reached that position.
func (s *Service) checkTips() error {
	note, err := os.ReadFile(s.checkpointFile())
	if err != nil {
		return nil // Service.compare returns this error, unless the file does not exist
	}
	c, err := s.env.Trust.Checkpoint(note)
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

// dumpTips calls line with the root of the map. The dump need not contain the map itself,
// because the sessions determine it.
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
