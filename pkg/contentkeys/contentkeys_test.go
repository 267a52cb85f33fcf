package contentkeys

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// TestRing checks that cached keys are used for life without another query, that a key
// which the cached keys do not include is found by a new query, that a key counts as
// destroyed only if a new query does not return it, and that the error of a query is
// returned.
func TestRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored, fetched := Keys{Current: "k1", Keys: map[string][]byte{"k1": {1}}}, 0
		var fail error
		r := &Ring{fetch: func(context.Context) (Keys, error) {
			fetched++
			return Keys{Current: stored.Current, Keys: maps.Clone(stored.Keys)}, fail
		}}
		get := func(id string, want error, fetches int) {
			t.Helper()
			key, err := r.Key(t.Context(), id)
			if !errors.Is(err, want) || err == nil && len(key) != 1 || fetched != fetches {
				t.Errorf("%s: %v %v after %d queries, want %v after %d", id, key, err, fetched, want, fetches)
			}
		}
		get("k1", nil, 1)
		get("k1", nil, 1)
		stored.Current, stored.Keys["k2"] = "k2", []byte{2}
		if id, _, err := r.Current(t.Context()); id != "k1" || err != nil {
			t.Error("the cached current key is", id, err)
		}
		get("k2", nil, 2) // created after the last query
		if id, _, err := r.Current(t.Context()); id != "k2" || err != nil {
			t.Error("the current key is", id, err)
		}
		delete(stored.Keys, "k1")
		get("k1", nil, 2) // still cached
		time.Sleep(life)
		get("k1", contract.ErrErased, 3)
		get("k1", contract.ErrErased, 4)
		fail = errors.New("no vault-broker")
		get("k3", fail, 5)
	})
}
