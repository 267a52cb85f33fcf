// Package contentkeys fetches the content keys of tenants from the vault-broker, for the
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
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Info is the context string that binds a sealed response to its purpose.
const Info = "binnacle content keys v1"

// Query is the query for the content keys of the tenant that it is sent for. The
// vault-broker answers it only for the services in services.ContentReaders.
var Query = readersQuery()

// readersQuery returns the query of package query, addressed to the vault-broker and
// restricted to the services that may fetch content keys.
func readersQuery() query.Query[query.ContentKeysRequest, query.SealedKeys] {
	q := query.ContentKeysQuery.Of(services.VaultBroker)
	q.Callers = services.ContentReaders()
	return q
}

// Keys is the document in the sealed response to Query.
type Keys struct {
	Current string            `json:"current"`
	Keys    map[string][]byte `json:"keys"` // by key id; destroyed keys are absent
}

// life is the time for which keys are cached. A destroyed key may be used for that long
// after its destruction.
const life = 15 * time.Second

// maxTenants is the maximum number of tenants whose keys are cached.
const maxTenants = 1024

// Ring fetches the content keys of tenants and caches them for life. It implements
// blob.Keys and is safe for concurrent use. If the keys cannot be fetched or decrypted,
// its methods return an error.
type Ring struct {
	client *rpc.Client
	fetch  func(ctx context.Context, tenant string) (Keys, error) // query, except in tests
	held   lru.Cache[*held]                                       // by tenant
}

// held holds the cached keys of one tenant.
type held struct {
	mu    sync.Mutex
	keys  Keys
	until time.Time
}

// New returns a Ring that sends its queries with client.
func New(client *rpc.Client) *Ring {
	r := &Ring{client: client, held: lru.Cache[*held]{Max: maxTenants}}
	r.fetch = r.query
	return r
}

// keys returns a tenant's cached keys if they are not older than life and has returns
// true for them, and otherwise fetches them. The tenant's lock is held while they are
// fetched, so a concurrent caller waits and can use the result.
func (r *Ring) keys(ctx context.Context, tenant string, has func(Keys) bool) (Keys, error) {
	h := r.held.GetOrPut(tenant, func() *held { return &held{} })
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().Before(h.until) && has(h.keys) {
		return h.keys, nil
	}
	got, err := r.fetch(ctx, tenant)
	if err != nil {
		return Keys{}, err
	}
	h.keys, h.until = got, time.Now().Add(life)
	return got, nil
}

// query fetches a tenant's keys from the vault-broker. The response is sealed to a key
// that is generated for this query only.
func (r *Ring) query(ctx context.Context, tenant string) (got Keys, err error) {
	k, err := seal.NewKey()
	if err != nil {
		return Keys{}, err
	}
	sealed, err := rpc.Do(ctx, r.client.In(tenant), Query, query.ContentKeysRequest{Recipient: k.Public()})
	if err != nil {
		return Keys{}, fmt.Errorf("content keys: %w", err)
	}
	plain, err := k.Open(Info, sealed.Value.Sealed)
	if err != nil {
		return Keys{}, err
	}
	return got, json.Unmarshal(plain, &got)
}

// Current returns the id and the bytes of a tenant's key for new content. The caller
// must not change the bytes.
func (r *Ring) Current(ctx context.Context, tenant string) (string, []byte, error) {
	k, err := r.keys(ctx, tenant, func(Keys) bool { return true })
	if err != nil {
		return "", nil, err
	}
	return k.Current, k.Keys[k.Current], nil
}

// Key returns a tenant's key with the given id. If the cached keys do not include it,
// they are fetched again, because it may have been created since. Key returns
// contract.ErrErased if the fetched keys do not include it either; the key then counts
// as destroyed. The caller must not change the bytes.
func (r *Ring) Key(ctx context.Context, tenant, id string) ([]byte, error) {
	k, err := r.keys(ctx, tenant, func(k Keys) bool { return k.Keys[id] != nil })
	if err != nil {
		return nil, err
	}
	key, ok := k.Keys[id]
	if !ok {
		return nil, contract.ErrErased
	}
	return key, nil
}
