// Package contentkeys fetches the content keys of tenants and of their data subjects from
// the vault-broker, for the services that read and write content encrypted under them.
// Destroying a key erases its content and leaves every proof valid.
//
// The ledger does not hold the names of data subjects. A key of a subject has an id that
// contains the subject's pseudonym, an HMAC of the name under a key of the tenant that only
// the vault-broker holds.
package contentkeys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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

// Kinds of the calls that erase content: they destroy a content key, the keys of a data
// subject, and all keys of a tenant.
const (
	KindDestroy      = "vault.destroy_content_key"
	KindEraseSubject = "vault.erase_subject"
	KindEraseTenant  = "vault.erase_tenant"
)

// Query is the query for the content keys of the tenant that it is sent for. The
// vault-broker answers it only for the services in services.ContentReaders, and checks for which
// keys.
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
	Current   string            `json:"current,omitempty"` // id of the key for new content; "" if the response has no keys
	Keys      map[string][]byte `json:"keys"`              // by key id; destroyed keys are absent
	Pseudonym string            `json:"pseudonym,omitempty"`
}

// life is the time for which keys are cached. If an instance does not receive the event
// about its destruction, a destroyed key may be used for that long after it.
const life = 15 * time.Second

// maxHeld is the maximum number of tenants and data subjects whose keys are cached.
const maxHeld = 4096

// Owner is whose keys are fetched: those of a data subject of a tenant, given by its name or
// its pseudonym, or the tenant's own keys if both are "".
type Owner struct{ Tenant, Subject, Pseudonym string }

// Ring fetches the content keys of tenants and of their data subjects, and caches them for
// life or until Forget is called. It implements blob.Keys and is safe for concurrent use. If
// the keys cannot be fetched or decrypted, its methods return an error.
type Ring struct {
	client *rpc.Client
	fetch  func(ctx context.Context, of Owner) (Keys, error) // query, except in tests
	held   lru.Cache[*held]                                  // by Owner
	erased atomic.Uint64                                     // number of calls of Forget
}

// held holds the cached keys of one owner.
type held struct {
	mu    sync.Mutex
	keys  Keys
	until time.Time
}

// New returns a Ring that sends its queries with client.
func New(client *rpc.Client) *Ring {
	r := &Ring{client: client}
	r.held = lru.Cache[*held]{Max: maxHeld, Epoch: r.erased.Load}
	r.fetch = r.query
	return r
}

// Forget empties the cache, also of keys that are being fetched. An instance calls it when it
// reads that content keys were destroyed.
func (r *Ring) Forget() { r.erased.Add(1) }

// PseudonymOf returns the pseudonym in the id of a key of a data subject, and "" for a
// tenant's own key.
func PseudonymOf(id string) string {
	p, _, ok := strings.Cut(strings.TrimPrefix(id, contract.IDContentKey), "-")
	if !ok {
		return ""
	}
	return p
}

// ErrOtherSubject is the error of a call that would read content about a data subject that the call
// does not name.
var ErrOtherSubject = errors.New("the content is about a data subject that the call does not name: send the header X-Binnacle-Subject")

// callKey is the context key of the call for which contents are read and written.
type callKey struct{}

// ForCall returns a context for reading and writing the contents of the call that the event with the
// ledger sequence allowed allows. The vault-broker gives an executor keys only for such a call.
func ForCall(ctx context.Context, allowed uint64) context.Context {
	return context.WithValue(ctx, callKey{}, allowed)
}

// CallOf returns the ledger sequence that ForCall has added to a context, or 0.
func CallOf(ctx context.Context) uint64 {
	seq, _ := ctx.Value(callKey{}).(uint64)
	return seq
}

// Covers reports whether a call whose contents are encrypted under the key call may read content
// under the key content. A call about no or another data subject may not read content about a data
// subject, because it would record it under a key that an erasure of the subject does not destroy.
func Covers(call, content string) bool {
	p := PseudonymOf(content)
	return p == "" || p == PseudonymOf(call)
}

// keys returns an owner's cached keys if they are not older than life and has returns
// true for them, and otherwise fetches them. The owner's lock is held while they are
// fetched, so a concurrent caller waits and can use the result.
func (r *Ring) keys(ctx context.Context, of Owner, has func(Keys) bool) (Keys, error) {
	h := r.held.GetOrPut(of.Tenant+"/"+of.Pseudonym+"/"+of.Subject, func() *held { return &held{} })
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().Before(h.until) && has(h.keys) {
		return h.keys, nil
	}
	got, err := r.fetch(ctx, of)
	if err != nil {
		return Keys{}, err
	}
	h.keys, h.until = got, time.Now().Add(life)
	return got, nil
}

// query fetches an owner's keys from the vault-broker. The response is sealed to a key
// that is generated for this query only.
func (r *Ring) query(ctx context.Context, of Owner) (got Keys, err error) {
	k, err := seal.NewKey()
	if err != nil {
		return Keys{}, err
	}
	sealed, err := rpc.Do(ctx, r.client.In(of.Tenant), Query, query.ContentKeysRequest{Allowed: int64(CallOf(ctx)), Pseudonym: of.Pseudonym, Recipient: k.Public(), Subject: of.Subject})
	if err != nil {
		return Keys{}, fmt.Errorf("content keys: %w", err)
	}
	plain, err := k.Open(Info, sealed.Value.Sealed)
	if err != nil {
		return Keys{}, err
	}
	return got, json.Unmarshal(plain, &got)
}

// current returns the keys of a data subject, given by its name, or of the tenant.
func (r *Ring) current(ctx context.Context, tenant, subject string) (Keys, error) {
	return r.keys(ctx, Owner{Tenant: tenant, Subject: subject}, func(Keys) bool { return true })
}

// Current returns the id and the bytes of the key for new content about a data subject, or
// those of the tenant's own key if subject is "". The caller must not change the bytes.
func (r *Ring) Current(ctx context.Context, tenant, subject string) (string, []byte, error) {
	k, err := r.current(ctx, tenant, subject)
	if err != nil {
		return "", nil, err
	}
	return k.Current, k.Keys[k.Current], nil
}

// Pseudonym returns the pseudonym of a data subject.
func (r *Ring) Pseudonym(ctx context.Context, tenant, subject string) (string, error) {
	k, err := r.current(ctx, tenant, subject)
	return k.Pseudonym, err
}

// Key returns a tenant's key with the given id. If the cached keys do not include it,
// they are fetched again, because it may have been created since. Key returns
// contract.ErrErased if the fetched keys do not include it either; the key then counts
// as destroyed. The caller must not change the bytes.
func (r *Ring) Key(ctx context.Context, tenant, id string) ([]byte, error) {
	k, err := r.keys(ctx, Owner{Tenant: tenant, Pseudonym: PseudonymOf(id)}, func(k Keys) bool { return k.Keys[id] != nil })
	if err != nil {
		return nil, err
	}
	key, ok := k.Keys[id]
	if !ok {
		return nil, contract.ErrErased
	}
	return key, nil
}
