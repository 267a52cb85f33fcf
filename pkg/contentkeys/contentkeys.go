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

	mu    sync.Mutex
	held  Keys
	until time.Time
}

// keys returns the cached keys, or fetches them if they are older than life. The lock is
// held while they are fetched, so that concurrent callers share one query. The response
// is sealed to a key that is generated for that query only.
func (r *Ring) keys(ctx context.Context) (Keys, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) {
		return r.held, nil
	}
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
	var got Keys
	if err := json.Unmarshal(plain, &got); err != nil {
		return Keys{}, err
	}
	r.held, r.until = got, time.Now().Add(life)
	return got, nil
}

// Current returns the id and the bytes of the key for new content. The caller must not
// change the bytes.
func (r *Ring) Current(ctx context.Context) (string, []byte, error) {
	k, err := r.keys(ctx)
	if err != nil {
		return "", nil, err
	}
	return k.Current, k.Keys[k.Current], nil
}

// Key returns the key with the given id. It returns contract.ErrErased if the fetched
// keys do not include it: it was destroyed, or it was created after they were fetched.
// The caller must not change the bytes.
func (r *Ring) Key(ctx context.Context, id string) ([]byte, error) {
	k, err := r.keys(ctx)
	if err != nil {
		return nil, err
	}
	key, ok := k.Keys[id]
	if !ok {
		return nil, contract.ErrErased
	}
	return key, nil
}
