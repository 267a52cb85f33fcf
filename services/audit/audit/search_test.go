package audit

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// TestSearchIndex compares search results from the index, built in transactions of random
// size, with those of a linear scan. It also checks that an unknown facet is an error.
func TestSearchIndex(t *testing.T) {
	db, err := openDB(filepath.Join(t.TempDir(), "view.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	v := &View{db: db}
	rng := rand.New(rand.NewPCG(1, 2))
	have := map[string][]uint64{}
	const n = 9000 // enough sequences for lists of several chunks
	for seq := uint64(1); seq <= n; {
		err := db.Update(func(tx *bbolt.Tx) error {
			w := writer{tx: tx, known: &v.tenants, postings: map[term][]uint64{}}
			n, err := w.tenant("t")
			if err != nil {
				return err
			}
			for range 1 + rng.IntN(40) {
				w.post(term{tenant: n}, seq)
				for _, text := range []string{"actor=" + fmt.Sprint(rng.IntN(3)), "tool=" + fmt.Sprint(rng.IntN(30)), "tool=x"[:5+rng.IntN(2)]} {
					if l := have[text]; len(l) == 0 || l[len(l)-1] != seq {
						have[text] = append(l, seq)
						w.post(term{n, text}, seq)
					}
				}
				if err := tx.Bucket(bTimes).Put(key(1000+seq/100), key(max(1, seq/100*100))); err != nil {
					return err
				}
				seq++
			}
			v.tenants.add(w.added)
			return w.flushPostings()
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Update(func(tx *bbolt.Tx) error { return putUint(tx, "position", seq-1) }); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 {
		q := SearchQuery{Tenant: "t", Terms: map[string]string{}, Limit: 1 + rng.IntN(50), Before: uint64(rng.IntN(n + 500))}
		if rng.IntN(4) > 0 {
			q.Terms["actor"] = fmt.Sprint(rng.IntN(4))
		}
		if rng.IntN(2) > 0 {
			q.Terms["tool"] = fmt.Sprint(rng.IntN(30))
		}
		var want []uint64
		_ = db.View(func(tx *bbolt.Tx) error {
			to := getUint(tx, "position")
			if q.Before > 0 {
				to = min(to, q.Before-1)
			}
			for s := to; s > 0; s-- {
				in := true
				for f, val := range q.Terms {
					in = in && slices.Contains(have[f+"="+val], s)
				}
				if in {
					want = append(want, s)
				}
			}
			return nil
		})
		var got []uint64
		for {
			found, next, err := v.Search(q)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, found...)
			if next == 0 {
				break
			}
			q.Before = next
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v: got %d, want %d:\n%v\n%v", q, len(got), len(want), got, want)
		}
	}
	if _, _, err := v.Search(SearchQuery{Tenant: "t", Terms: map[string]string{"colour": "red"}, Limit: 1}); err == nil {
		t.Error("an unknown facet finds something")
	}
}

// TestSearchLate checks that a search finds an event from before Until that is stored
// after later events, and no events after Until plus eventlog.Disorder.
func TestSearchLate(t *testing.T) {
	v, err := OpenView(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, after := range []time.Duration{0, 10 * time.Second, time.Minute, 20 * time.Second, time.Hour, 2 * time.Hour} {
		e := &contract.Event{ID: fmt.Sprint("e-", i), Name: contract.EventFreezeAcknowledged, Version: 1, Source: "judge/judge-1", Tenant: "t", Origin: "-", Key: "k",
			Actor: "alice", Client: "-", Lamport: uint64(i + 1), Time: contract.Time(begin.Add(after)), Data: []byte(`{}`)}
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Add(eventlog.Entry{Seq: uint64(i + 1), Subject: e.Subject(), Data: b}); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Flush(); err != nil {
		t.Fatal(err)
	}
	got, _, err := v.Search(SearchQuery{Tenant: "t", Until: contract.Time(begin.Add(30 * time.Second)), Limit: 10})
	if want := []uint64{4, 3, 2, 1}; err != nil || !slices.Equal(got, want) { // event 3 is later than Until; the query for events compares exact times
		t.Errorf("found %v, want %v: %v", got, want, err)
	}
}
