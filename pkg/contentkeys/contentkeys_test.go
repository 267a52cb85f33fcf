package contentkeys

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
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
		r.fetch = func(context.Context, Owner) (Keys, error) {
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
		if id, _, err := r.Current(t.Context(), "t", ""); id != "k1" || err != nil {
			t.Error("the cached current key is", id, err)
		}
		get("k2", nil, 2) // created after the last query
		if id, _, err := r.Current(t.Context(), "t", ""); id != "k2" || err != nil {
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
	r.fetch = func(ctx context.Context, of Owner) (Keys, error) {
		tenant := of.Tenant
		fetched[tenant]++
		if tenant == "a" { // the lock of a's keys is held here
			if _, key, err := r.Current(ctx, "b", ""); err != nil || string(key) != "b" {
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

// TestForget checks that a destroyed key is not used after Forget, also if it was fetched before
// the destruction and the response arrives after Forget. It also checks that the keys of a data
// subject are fetched by the pseudonym in their id.
func TestForget(t *testing.T) {
	const pseudonym = "00112233445566778899aabbccddeeff"
	id := contract.IDContentKey + pseudonym + "-000001"
	r, late, fetched := New(nil), make(chan struct{}), make(chan struct{}, 3)
	all := Keys{Current: id, Pseudonym: pseudonym, Keys: map[string][]byte{id: {1}}}
	r.fetch = func(_ context.Context, of Owner) (Keys, error) {
		if of.Tenant != "t" || of.Pseudonym != pseudonym && of.Subject != "ann" {
			t.Errorf("fetched keys of %+v", of)
		}
		got := all
		fetched <- struct{}{}
		<-late
		return got, nil
	}
	done := make(chan error)
	go func() { _, err := r.Key(t.Context(), "t", id); done <- err }()
	<-fetched
	all = Keys{Pseudonym: pseudonym}
	r.Forget()
	close(late)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := r.Key(t.Context(), "t", id); !errors.Is(err, contract.ErrErased) {
		t.Error("after Forget:", err)
	}
	if p, err := r.Pseudonym(t.Context(), "t", "ann"); p != pseudonym || err != nil {
		t.Error(p, err)
	}
	if p := PseudonymOf("tk-000001"); p != "" {
		t.Error("a tenant's own key has the pseudonym", p)
	}
}

// frame is a response of one frame.
type frame struct{ data []byte }

func (f frame) Next(context.Context) (transient.Frame, error) {
	return transient.Frame{Data: f.data}, nil
}
func (frame) Close() {}

// TestQuery checks the current key of a valid response, and the errors for a response that was
// sealed for another purpose, for one without keys, and for a query that fails.
func TestQuery(t *testing.T) {
	lost := errors.New("no vault-broker runs")
	for name, x := range map[string]struct {
		info, plain string
		err         error // of the query
		want        string
	}{
		"keys":        {Info, `{"current":"k1","keys":{"k1":"AQ=="}}`, nil, ""},
		"another use": {"binnacle value", `{"current":"k1","keys":{"k1":"AQ=="}}`, nil, "cannot open"},
		"no keys":     {Info, `[]`, nil, "unmarshal"},
		"lost":        {Info, ``, lost, "content keys: vault-broker does not respond"},
	} {
		r := New(&rpc.Client{
			Live: func(_ context.Context, service string) (rpc.Instance, error) {
				return rpc.Instance{Name: service + "-1"}, nil
			},
			Send: func(_ context.Context, _, _, _ string, args any) (rpc.Frames, error) {
				sealed, err := seal.To(args.(query.ContentKeysRequest).Recipient, x.info, []byte(x.plain))
				if err != nil {
					t.Fatal(err)
				}
				raw, err := json.Marshal(query.SealedKeys{Sealed: sealed})
				if err != nil {
					t.Fatal(err)
				}
				return frame{raw}, x.err
			},
		})
		id, key, err := r.Current(t.Context(), "t", "")
		if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
		if err == nil && (id != "k1" || string(key) != "\x01") {
			t.Errorf("%s: %s %v", name, id, key)
		}
		if (x.err != nil) != errors.Is(err, lost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
