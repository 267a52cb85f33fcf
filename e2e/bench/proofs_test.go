//go:build bench

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// bigSession is the number of calls in the session whose export is measured.
const bigSession = 10_000

// proofs measures evidence: the delay of checkpoints under full load, the export of a
// long session, and how many proofs per second are computed and verified.
func proofs(t *testing.T) {
	consistency(t)
	m := harness.One(t, harness.Options{Noop: true})
	checkpointLag(t, m)
	noop := func(session string) error {
		_, err := post("http://"+m.Addr+"/api/v1/packs/noop", m.Token, session, []byte(`{"n":1}`))
		return err
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range bigSession / 4 {
				if err := noop("s-big"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(2 * time.Second)
	pack := filepath.Join(t.TempDir(), "big.tar")
	took := make([]float64, 3)
	for i := range took {
		began := time.Now()
		if out, err := m.CLI("export", "--session", "s-big", "--out", pack); err != nil {
			t.Fatal(out, err)
		}
		took[i] = time.Since(began).Seconds()
	}
	slices.Sort(took)
	b, err := os.ReadFile(pack)
	if err != nil {
		t.Fatal(err)
	}
	add(row{Name: "export of a 10,000-call session", Durability: "process", Value: fmt.Sprintf("%.1f s, %d MiB; after %d other calls", took[1], len(b)>>20, others), Budget: "<= 3 s"})
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	var rep *evidence.Report
	d := onOneCore(func() { rep, err = evidence.Verify(b, strings.TrimSpace(string(root))) })
	if err != nil || rep.Receipts != bigSession {
		t.Fatal(rep, err)
	}
	add(row{Name: "verify: a 10,000-call pack, one core", Durability: "process", PerSecond: bigSession / d.Seconds(), Value: "receipts"})
	var sizes []uint64
	for n := uint64(1); n < uint64(rep.TreeSize); n += uint64(rep.TreeSize)/500 + 1 {
		sizes = append(sizes, n)
	}
	began := time.Now()
	for _, from := range sizes {
		if _, err := get(m, fmt.Sprintf("/log/consistency?from=%d&to=%d", from, rep.TreeSize)); err != nil {
			t.Fatal(err)
		}
	}
	add(row{Name: "consistency proofs over HTTP", Durability: "process", Clients: 1, PerSecond: float64(len(sizes)) / time.Since(began).Seconds()})
}

func get(m *harness.Mesh, path string) ([]byte, error) {
	r, err := m.Operator().Do(context.Background(), http.MethodGet, path, "", "")
	if err != nil {
		return nil, err
	}
	if r.Status != http.StatusOK {
		return nil, fmt.Errorf("%s: %d %s", path, r.Status, r.Body)
	}
	return r.Body, nil
}

var others int // number of calls that checkpointLag made before the calls of the long session

// checkpointLag measures repeatedly, under the load of 64 clients, the age of the oldest
// event that no checkpoint covers yet.
func checkpointLag(t *testing.T, m *harness.Mesh) {
	done := make(chan struct{})
	var lags []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
			note, err := get(m, "/log/checkpoint")
			if err != nil {
				continue // no checkpoint yet, or it could not be read
			}
			var size uint64
			if _, err := fmt.Sscan(strings.Split(string(note), "\n")[1], &size); err != nil {
				t.Error(err)
				return
			}
			line, err := get(m, fmt.Sprintf("/api/v1/ledger?from=%d&to=%d", size+1, size+1))
			if err != nil || len(bytes.TrimSpace(line)) == 0 {
				continue // the checkpoint covers every event, or the ledger could not be read
			}
			var e struct{ Time time.Time }
			if err := json.Unmarshal(line, &e); err != nil {
				t.Error(err)
				return
			}
			lags = append(lags, time.Since(e.Time))
		}
	})
	lat, rate, err := load(64, 15*time.Second, func(i int) error {
		_, err := post("http://"+m.Addr+"/api/v1/packs/noop", m.Token, fmt.Sprintf("s-lag-%d", i), []byte(`{"n":1}`))
		return err
	})
	close(done)
	wg.Wait()
	if err != nil || len(lags) < 20 {
		t.Fatal(len(lags), err)
	}
	others = len(lat)
	slices.Sort(lags)
	add(row{Name: "checkpoint lag under full load", Durability: "process", Clients: 64, Value: fmt.Sprintf("p50 %d ms, worst %d ms, at %.0f calls/s", lags[len(lags)/2].Milliseconds(), lags[len(lags)-1].Milliseconds(), rate), Budget: "<= 1 s"})
}

// consistency measures how fast a tree of a million leaves is built, and how fast
// consistency proofs in it are computed and verified.
func consistency(t *testing.T) {
	const size = 1_000_000
	nodes := make([][]translog.Hash, 21)
	get := func(level uint, i uint64) (translog.Hash, error) { return nodes[level][i], nil }
	began := time.Now()
	for i := range uint64(size) {
		if err := translog.Append(i, translog.LeafHash(fmt.Append(nil, i)), get, func(level uint, _ uint64, h translog.Hash) error { nodes[level] = append(nodes[level], h); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	add(row{Name: "Merkle tree: leaves hashed and added", Durability: "none", PerSecond: size / time.Since(began).Seconds()})
	root, err := translog.Root(size, get)
	if err != nil {
		t.Fatal(err)
	}
	const n = 20_000
	var proofs [n][]translog.Hash
	var roots [n]translog.Hash
	old := func(i int) uint64 { return uint64(i)*(size/n) + 1 }
	began = time.Now()
	for i := range n {
		if proofs[i], err = translog.Consistency(old(i), size, get); err != nil {
			t.Fatal(err)
		}
	}
	add(row{Name: "consistency proofs made, tree of a million", Durability: "none", PerSecond: n / time.Since(began).Seconds()})
	for i := range n {
		if roots[i], err = translog.Root(old(i), get); err != nil {
			t.Fatal(err)
		}
	}
	began = time.Now()
	for i := range n {
		if err := translog.VerifyConsistency(old(i), size, roots[i], root, proofs[i]); err != nil {
			t.Fatal(err)
		}
	}
	add(row{Name: "consistency proofs verified, one core", Durability: "none", PerSecond: n / time.Since(began).Seconds()})
}
