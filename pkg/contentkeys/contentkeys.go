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

// Info binds the sealed response to its purpose.
const Info = "binnacle content keys v1"

// Query is the query for the content keys, which the vault-broker answers to
// services.ContentReaders alone.
var Query = readersQuery()

func readersQuery() query.Query[query.ContentKeysRequest, query.SealedKeys] {
	q := query.ContentKeysQuery.Of(services.VaultBroker)
	q.Callers = services.ContentReaders()
	return q
}

// Keys is the sealed document.
type Keys struct {
	Current string            `json:"current"`
	Keys    map[string][]byte `json:"keys"` // by key id; destroyed keys are absent
}

// life is the time for which keys are cached: a destroyed key can be used that long.
const life = 15 * time.Second

// Ring holds the keys for a short while. It implements blob.Keys.
type Ring struct {
	// Client sends Query.
	Client *rpc.Client

	mu    sync.Mutex
	held  Keys
	until time.Time
}

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

// Current returns the key for encryption.
func (r *Ring) Current(ctx context.Context) (string, []byte, error) {
	k, err := r.keys(ctx)
	if err != nil {
		return "", nil, err
	}
	return k.Current, k.Keys[k.Current], nil
}

// Key returns the key of an id, or contract.ErrErased if it was destroyed.
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
