package audit

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/receipt"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// chronicle generates a ledger, and computes the expected map of tips for each of its
// sizes.
type chronicle struct {
	entries []eventlog.Entry
	roots   []translog.Hash           // indexed by the size of the ledger
	tips    []map[string]translog.Tip // indexed by the size of the ledger; the keys are session ids
}

func (c *chronicle) add(t testing.TB, session string, outcome bool) {
	n := len(c.entries) + 1
	e := &contract.Event{ID: fmt.Sprint("e-", n), Source: "policy/p-1", Name: "cancel_requested", Version: 1, Key: "k", Time: "2026-01-02T03:04:05.000Z",
		Tenant: "t", Actor: "a", Client: "-", Origin: "-", Lamport: uint64(n), Session: session, Data: []byte("{}")}
	held := map[string]translog.Tip{}
	if n > 1 {
		for k, v := range c.tips[n-1] {
			held[k] = v
		}
	}
	if session != "" {
		e.Key = session
		tip, ok := held[session]
		if !ok {
			tip.Digest = digestHash(t, receipt.Genesis("t", session).Digest)
		}
		tip.Events++
		if outcome {
			rec := contract.Recorded{Receipt: contract.Receipt{CallID: e.ID, Session: session, Tenant: "t", Index: int64(tip.Receipts + 1)}}
			e.Name, e.Data = "effect_recorded", contract.Bytes(&rec)
			tip.Receipts++
			tip.Digest = digestHash(t, contract.Digest(&rec.Receipt))
		}
		held[session] = tip
	}
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	c.entries = append(c.entries, eventlog.Entry{Seq: uint64(n), Subject: e.Subject(), Data: b})
	var leaves []translog.TipLeaf
	for s, tip := range held {
		k := translog.TipKey("t", s)
		leaves = append(leaves, translog.TipLeaf{Key: k, Leaf: tip.Leaf(k)})
	}
	if n == 1 {
		c.roots, c.tips = append(c.roots, translog.Hash{}), append(c.tips, nil)
	}
	c.roots, c.tips = append(c.roots, translog.TipsRoot(leaves)), append(c.tips, held)
}

func digestHash(t testing.TB, digest string) translog.Hash {
	b, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:"))
	if err != nil {
		t.Fatal(err)
	}
	return translog.Hash(b)
}

func open(t testing.TB, dir string) *View {
	v, err := OpenView(dir)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestTips checks the root of the map of tips after each of a series of transactions of
// random size, between some of which the view is opened again, and then the proofs from
// the maps as of earlier positions. A view that is rebuilt has the same dump.
func TestTips(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 5))
		c := &chronicle{}
		for range 300 {
			session := ""
			if r.IntN(8) > 0 {
				session = fmt.Sprint("s-", r.IntN(25))
			}
			c.add(t, session, r.IntN(2) == 0)
		}
		dir := t.TempDir()
		v := open(t, dir)
		flushed := uint64(0)
		for i, en := range c.entries {
			if err := v.Add(en); err != nil {
				t.Fatal(err)
			}
			if r.IntN(10) > 0 && i < len(c.entries)-1 {
				continue
			}
			if err := v.Flush(); err != nil {
				t.Fatal(err)
			}
			flushed = en.Seq
			if pos, _, root, err := v.Head(); err != nil || pos != flushed || root != c.roots[pos] {
				t.Fatalf("seed %d at %d: root %x, want %x (%v)", seed, pos, root, c.roots[pos], err)
			}
			if r.IntN(5) == 0 {
				if err := v.Close(); err != nil {
					t.Fatal(err)
				}
				v = open(t, dir)
			}
		}
		for size := uint64(1); size <= flushed; size += 1 + r.Uint64N(9) {
			for session, tip := range c.tips[size] {
				p, err := v.ProveTip("t", session, size, c.roots[size])
				if err != nil || p.Events != int64(tip.Events) || p.Receipts != int64(tip.Receipts) || p.Tip != "sha256:"+hex.EncodeToString(tip.Digest[:]) {
					t.Fatalf("seed %d: %s at %d: %+v, want %+v (%v)", seed, session, size, p, tip, err)
				}
				var path []translog.Hash
				for _, h := range p.Path {
					path = append(path, digestHash(t, h))
				}
				if err := translog.VerifyTip(translog.TipKey("t", session), &tip, path, c.roots[size]); err != nil {
					t.Fatalf("seed %d: %s at %d: %v", seed, session, size, err)
				}
			}
			for s := range 25 {
				session := fmt.Sprint("s-", s)
				if _, there := c.tips[size][session]; there {
					continue
				}
				if _, err := v.ProveTip("t", session, size, c.roots[size]); err == nil {
					t.Fatalf("seed %d: %s is proven at %d, before it began", seed, session, size)
				}
			}
			if _, err := v.ProveTip("t", "s-1", size, translog.Hash{1}); err == nil {
				t.Fatal("a proof is made against a root that is not the map's")
			}
		}
		var was, is bytes.Buffer
		if err := v.WriteDump(&was); err != nil {
			t.Fatal(err)
		}
		if err := v.Reset(); err != nil {
			t.Fatal(err)
		}
		for _, en := range c.entries {
			if err := v.Add(en); err != nil {
				t.Fatal(err)
			}
		}
		if err := v.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := v.WriteDump(&is); err != nil || !bytes.Equal(was.Bytes(), is.Bytes()) || !strings.Contains(is.String(), `{"tips":"`) {
			t.Fatalf("seed %d: a view built anew differs (%v)", seed, err)
		}
		v.Close()
	}
}

// BenchmarkTips measures, on a ledger with 100,000 sessions, a flush of 1000 outcomes,
// the update of the map of tips alone for 1000 sessions, and a proof from the map as of
// 1000 entries before the end.
func BenchmarkTips(b *testing.B) {
	const history, changed = 100_000, 1000
	v := open(b, b.TempDir())
	defer v.Close()
	entry := func(n, session int) eventlog.Entry {
		rec := contract.Recorded{Receipt: contract.Receipt{CallID: fmt.Sprint("c-", n), Session: fmt.Sprint("s-", session), Tenant: "t", Index: 1}}
		e := &contract.Event{ID: fmt.Sprint("r-c-", n), Source: "policy/p-1", Name: "effect_recorded", Version: 1, Key: rec.Receipt.Session, Time: "2026-01-02T03:04:05.000Z",
			Tenant: "t", Actor: "a", Client: "-", Origin: "-", Lamport: uint64(n), Session: rec.Receipt.Session, Data: contract.Bytes(&rec)}
		raw, err := e.Encode()
		if err != nil {
			b.Fatal(err)
		}
		return eventlog.Entry{Seq: uint64(n), Subject: e.Subject(), Data: raw}
	}
	n := 0
	for s := range history {
		n++
		if err := v.Add(entry(n, s)); err != nil {
			b.Fatal(err)
		}
	}
	if err := v.Flush(); err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	b.Run("flush", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			for range changed {
				n++
				if err := v.Add(entry(n, r.IntN(history))); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
			if err := v.Flush(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tips", func(b *testing.B) {
		for b.Loop() {
			err := v.db.Update(func(tx *bbolt.Tx) error {
				w := writer{tx: tx, sessions: map[string]*Session{}}
				for range changed {
					s, err := w.session(fmt.Sprint("t.s-", r.IntN(history)))
					if err != nil {
						return err
					}
					s.Events++
				}
				return w.flushTips()
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("prove 1000 back", func(b *testing.B) {
		root, err := v.TipsRootAt(uint64(n - changed))
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := v.ProveTip("t", "s-7", uint64(n-changed), root); err != nil {
				b.Fatal(err)
			}
		}
	})
}
