package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/audit/internal/runs"
)

// The index of ids maps the hashes of ids to the places of events (see place). It is
// stored in sorted runs, because hashes are in random order: a database that is updated in
// place would write a page for each. Each run is a file of its own. bMeta contains the
// numbers of the runs that belong to the index, so that the index changes in the same
// transaction as the rest of the view.

// The kinds of ids (see runs.KeyOf).
const (
	kindEvent   byte = 'e' // id of an event
	kindOutput  byte = 'o' // tenant.commitment of a content -> first outcome of the tenant that produced it
	kindReceipt byte = 'r' // tenant.digest of a receipt in a session -> first event that records it
)

// place is the place of an event: its tenant's number and its sequence.
type place struct {
	tenant uint32
	seq    uint64
}

// The index of ids stores a place as one number: the tenant's number in the upper 24 bits,
// and the sequence in the other 40.
const (
	seqBits   = 40
	maxTenant = 1<<(64-seqBits) - 1
)

func (p place) value() uint64 { return uint64(p.tenant)<<seqBits | p.seq }

// seqIn returns the sequence in a value of the index of ids, or 0 if the event is not of
// the tenant with the given number.
func seqIn(value uint64, tenant uint32) uint64 {
	if uint32(value>>seqBits) != tenant {
		return 0
	}
	return value & (1<<seqBits - 1)
}

// key returns the key of the event in the buckets that are ordered by tenant.
func (p place) key() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, p.tenant), p.seq)
}

var kRuns = []byte("runs") // key in bMeta of the numbers of the runs

// openIDs opens the index of ids as of the last transaction.
func (v *View) openIDs() error {
	return v.db.View(func(tx *bbolt.Tx) (err error) {
		var numbers []uint64
		for b := tx.Bucket(bMeta).Get(kRuns); len(b) >= 8; b = b[8:] {
			numbers = append(numbers, binary.BigEndian.Uint64(b))
		}
		var young [][]byte
		if err := tx.Bucket(bYoung).ForEach(func(_, b []byte) error {
			young = append(young, b)
			return nil
		}); err != nil {
			return err
		}
		v.ids, err = runs.Open(filepath.Join(v.dir, "ids"), numbers, young...)
		return err
	})
}

// first adds an id with the place of its event to the index, unless the index contains
// the id. It returns true if it added the id.
func (w *writer) first(where place, kind byte, id ...string) (bool, error) {
	k := runs.KeyOf(kind, id...)
	if have, err := w.ids.Find(k); have > 0 || err != nil {
		return false, err
	}
	w.ids.Add(k, where.value())
	return true, nil
}

// flushIDs stores the ids that the transaction added. pos is the sequence of the
// transaction's last entry.
func (w *writer) flushIDs(pos uint64) error {
	numbers, records, err := w.ids.Prepare()
	if err != nil {
		return err
	}
	if numbers == nil {
		return w.tx.Bucket(bYoung).Put(key(pos), records)
	}
	var b []byte
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	if err := w.tx.Bucket(bMeta).Put(kRuns, b); err != nil {
		return err
	}
	if err := w.tx.DeleteBucket(bYoung); err != nil {
		return err
	}
	_, err = w.tx.CreateBucket(bYoung)
	return err
}

// find returns the sequence of the tenant's event that the index contains for an id, or
// 0 if there is none.
func find(v *View, tenant string, kind byte, id ...string) (uint64, error) {
	value, err := v.ids.Find(runs.KeyOf(kind, id...))
	return seqIn(value, v.tenants.of(tenant)), err
}

// SeqOf returns the sequence of the tenant's event with the given id, or 0 if there is
// none.
func (v *View) SeqOf(tenant, id string) (uint64, error) { return find(v, tenant, kindEvent, id) }

// ReceiptSeq returns the sequence of the first event of the tenant that records the
// receipt with the given digest, or a not-found error.
func (v *View) ReceiptSeq(tenant, digest string) (uint64, error) {
	seq, err := find(v, tenant, kindReceipt, tenant, ".", digest)
	if err == nil && seq == 0 {
		err = notFound("no receipt has the digest %s", digest)
	}
	return seq, err
}

// maker returns the sequence of the proposal of the tenant's call with the given id, or of
// the first outcome of the tenant that produced the content with the given commitment. It
// returns 0 if there is no such event.
func (v *View) maker(tenant, id string) (uint64, error) {
	if strings.HasPrefix(id, "sha256:") {
		return find(v, tenant, kindOutput, tenant, ".", id)
	}
	return v.SeqOf(tenant, contract.IDProposal+id)
}

// outputs returns the commitments of the contents that an outcome produced.
func outputs(r *contract.Recorded) []string {
	out := r.Effect.Artifacts
	if d := r.Effect.OutputDigest; d != "" {
		out = append([]string{d}, out...)
	}
	return out
}

// dumpIDs calls line with one line for each first byte of the hashes, which contains the
// number of ids and a digest over their hashes and places. It leaves out ids of entries
// after pos, which flushes may add while it runs.
func (v *View) dumpIDs(pos uint64, line func([]byte) error) error {
	var counts [256]int64
	var sums [256]hash.Hash
	if err := v.ids.All(func(r runs.Record) error {
		if r.Value&(1<<seqBits-1) > pos {
			return nil
		}
		at := r.Key[0]
		if sums[at] == nil {
			sums[at] = sha256.New()
		}
		counts[at]++
		sums[at].Write(binary.BigEndian.AppendUint64(r.Key[:], r.Value))
		return nil
	}); err != nil {
		return err
	}
	for at, sum := range sums {
		if sum == nil {
			continue
		}
		w := canon.Object(nil)
		w.Str("bucket", "ids")
		w.Int("count", counts[at])
		w.Str("key", hex.EncodeToString([]byte{byte(at)}))
		w.Str("seqs", digestText(sum.Sum(nil)))
		if err := line(w.End()); err != nil {
			return err
		}
	}
	return nil
}

// digestText returns a SHA-256 in the form in which events contain it.
func digestText(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }
