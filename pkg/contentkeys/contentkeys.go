// Package contentkeys fetches the tenant's content keys from the vault-broker, for the
// services that read and write content encrypted under them. Destroying a key erases its
// content and leaves every proof valid.
package contentkeys

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Info is the context string that binds a sealed response to its purpose.
const Info = "binnacle content keys v1"

// Query is the query for the content keys. The vault-broker answers it only for the
// services in services.ContentReaders.
var Query = readersQuery()

// readersQuery returns the query of package query, addressed to the vault-broker and
// restricted to the services that may fetch content keys.
func readersQuery() query.Query[query.ContentKeysRequest, query.SealedKeys] {
	q := query.ContentKeysQuery.Of(services.VaultBroker)
	q.Callers = services.ContentReaders()
	return q
}

// Keys is the document that the sealed response contains.
type Keys struct {
	Current string            `json:"current"`
	Keys    map[string][]byte `json:"keys"` // by key id; destroyed keys are absent
}

// life is the time for which keys are cached. A destroyed key may be used for that long
// after its destruction.
const life = 15 * time.Second

// Ring fetches the content keys and caches them for life. It implements blob.Keys and is
// safe for concurrent use. If the keys cannot be fetched or decrypted, its methods
// return an error.
type Ring struct {
	// Client sends Query to the vault-broker.
	Client *rpc.Client

	fetch func(context.Context) (Keys, error) // replaces the query in tests; nil otherwise
	mu    sync.Mutex
	held  Keys
	until time.Time
}

// keys returns the cached keys if they are not older than life and hold accepts them,
// and otherwise fetches them. The lock is held while they are fetched, so a concurrent
// caller waits and can use the result.
func (r *Ring) keys(ctx context.Context, hold func(Keys) bool) (Keys, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) && hold(r.held) {
		return r.held, nil
	}
	fetch := r.fetch
	if fetch == nil {
		fetch = r.query
	}
	got, err := fetch(ctx)
	if err != nil {
		return Keys{}, err
	}
	r.held, r.until = got, time.Now().Add(life)
	return got, nil
}

// query fetches the keys from the vault-broker. The response is sealed to a key that is
// generated for this query only.
func (r *Ring) query(ctx context.Context) (got Keys, err error) {
	k, err := seal.NewKey()
	if err != nil {
		return Keys{}, err
	}
	sealed, err := rpc.Do(ctx, r.Client, Query, query.ContentKeysRequest{Recipient: k.Public()})
	if err != nil {
		return Keys{}, fmt.Errorf("content keys: %w", err)
	}
	plain, err := k.Open(Info, sealed.Value.Sealed)
	if err != nil {
		return Keys{}, err
	}
	return got, json.Unmarshal(plain, &got)
}

// Current returns the id and the bytes of the key for new content. The caller must not
// change the bytes.
func (r *Ring) Current(ctx context.Context) (string, []byte, error) {
	k, err := r.keys(ctx, func(Keys) bool { return true })
	if err != nil {
		return "", nil, err
	}
	return k.Current, k.Keys[k.Current], nil
}

// Key returns the key with the given id. If the cached keys do not include it, they are
// fetched again, because it may have been created since. Key returns contract.ErrErased
// if the fetched keys do not include it either; the key then counts as destroyed. The
// caller must not change the bytes.
func (r *Ring) Key(ctx context.Context, id string) ([]byte, error) {
	k, err := r.keys(ctx, func(k Keys) bool { return k.Keys[id] != nil })
	if err != nil {
		return nil, err
	}
	key, ok := k.Keys[id]
	if !ok {
		return nil, contract.ErrErased
	}
	return key, nil
}
