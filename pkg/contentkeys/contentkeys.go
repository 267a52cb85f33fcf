// Package contentkeys brings the tenant's content keys from the vault-broker to
// the few services that read and write what is encrypted under them. Destroying
// a key erases the content and leaves every proof.
package contentkeys

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Verb is the question that the vault-broker answers, to
// services.ContentReaders alone:
// {recipient}, an X25519 public key in base64. The answer is sealed to it.
const Verb = "content_keys"

// Info binds the sealed answer to its purpose.
const Info = "binnacle content keys v1"

// Keys is what the vault-broker seals.
type Keys struct {
	Current string            `json:"current"`
	Keys    map[string][]byte `json:"keys"` // by id; destroyed ones are not there
}

// Sealed is the answer.
type Sealed struct {
	Sealed string `json:"sealed"` // base64
}

// life is how long keys are held: a destroyed one is gone that soon.
const life = 15 * time.Second

// Ring holds the keys for a short while. It implements blob.Keys.
type Ring struct {
	// Ask puts a question to a live instance of a service.
	Ask func(ctx context.Context, service, verb string, args, out any) error

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
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var s Sealed
	if err := r.Ask(ctx, services.VaultBroker, Verb, map[string]string{"recipient": k.Public()}, &s); err != nil {
		return Keys{}, fmt.Errorf("content keys: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(s.Sealed)
	if err != nil {
		return Keys{}, err
	}
	plain, err := k.Open(Info, raw)
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

// Current is the key that content is encrypted under now.
func (r *Ring) Current(ctx context.Context) (string, []byte, error) {
	k, err := r.keys(ctx)
	if err != nil {
		return "", nil, err
	}
	return k.Current, k.Keys[k.Current], nil
}

// Key is the key of an id, or contract.ErrErased where it was destroyed.
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
