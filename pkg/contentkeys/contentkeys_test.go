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

// TestRing checks that cached keys are used without another query until they expire,
// that a key which the cached keys do not include is found by a new query, that a key
// counts as destroyed only if a new query does not return it, and that the error of a
// query is returned.
func TestRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored, fetched := Keys{Current: "k1", Keys: map[string][]byte{"k1": {1}}}, 0
		var fail error
		r := New(nil)
		r.fetch = func(context.Context, string) (Keys, error) {
			fetched++
			return Keys{Current: stored.Current, Keys: maps.Clone(stored.Keys)}, fail
		}
		get := func(id string, want error, fetches int) {
			t.Helper()
			key, err := r.Key(t.Context(), "t", id)
			if !errors.Is(err, want) || err == nil && len(key) != 1 || fetched != fetches {
				t.Errorf("%s: %v %v after %d queries, want %v after %d", id, key, err, fetched, want, fetches)
			}
		}
		get("k1", nil, 1)
		get("k1", nil, 1)
		stored.Current, stored.Keys["k2"] = "k2", []byte{2}
		if id, _, err := r.Current(t.Context(), "t"); id != "k1" || err != nil {
			t.Error("the cached current key is", id, err)
		}
		get("k2", nil, 2) // created after the last query
		if id, _, err := r.Current(t.Context(), "t"); id != "k2" || err != nil {
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

// TestTenants checks that each tenant's keys are fetched and cached apart, also under
// the same key id, and that one tenant's fetch does not block that of another.
func TestTenants(t *testing.T) {
	r, fetched := New(nil), map[string]int{}
	r.fetch = func(ctx context.Context, tenant string) (Keys, error) {
		fetched[tenant]++
		if tenant == "a" { // the lock of a's keys is held here
			if _, key, err := r.Current(ctx, "b"); err != nil || string(key) != "b" {
				t.Errorf("b's key is %q %v", key, err)
			}
		}
		return Keys{Current: "k", Keys: map[string][]byte{"k": []byte(tenant)}}, nil
	}
	for _, tenant := range []string{"a", "b", "a", "b"} {
		if key, err := r.Key(t.Context(), tenant, "k"); err != nil || string(key) != tenant {
			t.Errorf("the key of %s is %q %v", tenant, key, err)
		}
	}
	if fetched["a"] != 1 || fetched["b"] != 1 {
		t.Errorf("queries: %v", fetched)
	}
}
