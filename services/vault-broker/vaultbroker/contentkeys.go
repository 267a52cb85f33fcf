package vaultbroker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/hashivault"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/store"
)

const (
	kindRotate = "vault.rotate_content_key"

	// contentDomain is the domain of the store of content keys. In releases up to 0.4,
	// content keys were in the store of secrets, under names with this prefix. No tenant
	// may be named secret.ReservedNames.
	contentDomain = secret.ReservedNames + "/"

	// tokenDomain is the domain of the store of access tokens. With it, a name has two slashes,
	// and the name of a secret has one, so no tenant can be confused with it.
	tokenDomain = "token/"
)

// open opens the stores of secrets and of content keys. It returns the client that has to
// run while they are used, or nil if they are files. original is the tenant of values
// that have none in their names.
func (s *Service) open(original string) (*hashivault.Client, error) {
	if s.Dir != "" {
		secrets, content, err := openStores(s.Dir, s.KEK, original)
		if err != nil {
			return nil, err
		}
		tokens, err := store.Open(filepath.Join(s.Dir, "tokens.json"), s.KEK, tokenDomain)
		if err != nil {
			return nil, err
		}
		s.keeper, s.content = newKeeper(s.env, newTokens(s.env, secrets.Backend(), tokens.Backend(), s.via), s.KEK), &contentKeeper{env: s.env, store: content.Backend()}
		return nil, nil
	}
	c, err := hashivault.New(s.Vault, s.env.Log)
	if err != nil {
		return nil, err
	}
	s.keeper = newKeeper(s.env, newTokens(s.env, hashivault.NewKV(c, "secrets", s.KEK), hashivault.NewKV(c, "tokens", s.KEK), s.via), s.KEK)
	s.leases = &leases{s.env, c}
	s.content = &contentKeeper{env: s.env, store: hashivault.NewKV(c, "content-keys", s.KEK)}
	return c, nil
}

// openStores checks the folder dir with private.Check and opens both stores in it. It moves
// content keys that releases up to 0.4 stored among the secrets to the store of content
// keys, and gives the names that releases up to 0.5 stored to the tenant original, the
// only one that the mesh had. Each step survives a crash and is completed at the next
// start.
func openStores(dir string, kek []byte, original string) (secrets, content *store.Store, err error) {
	if original == secret.ReservedNames {
		return nil, nil, fmt.Errorf("a tenant cannot be named %s", original)
	}
	if err := private.Check(dir); err != nil {
		return nil, nil, err
	}
	if secrets, err = store.Open(filepath.Join(dir, "secrets.json"), kek, ""); err != nil {
		return nil, nil, err
	}
	if content, err = store.Open(filepath.Join(dir, "content-keys.json"), kek, contentDomain); err != nil {
		return nil, nil, err
	}
	if err := secrets.MoveTo(content, contentDomain); err != nil {
		return nil, nil, err
	}
	return secrets, content, errors.Join(secrets.Rename(original), content.Rename(original))
}

// contentKeeper stores content keys and executes the calls that create and destroy them.
type contentKeeper struct {
	env   *run.Env
	store backend.Backend
	mu    sync.Mutex // held while keys are read or changed
}

var contentTools = []contract.Tool{
	{Description: "Makes a new content key; what is recorded from now on is encrypted under it.", Class: "E1", Executor: services.VaultBroker, Kind: kindRotate, Tool: kindRotate, Version: "v1",
		InputSchema: contract.Raw(`{"additionalProperties":false,"type":"object"}`), OutputSchema: contract.Raw(`{"properties":{"id":{"type":"string"}},"required":["id"],"type":"object"}`)},
	{Description: "Destroys a content key: what was encrypted under it is erased for ever, and every proof still holds.", Class: "E4", Executor: services.VaultBroker, Kind: contentkeys.KindDestroy, Tool: contentkeys.KindDestroy, Version: "v1",
		InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"id":{"pattern":"^` + contract.IDContentKey + `[0-9]{6}$","type":"string"}},"required":["id"],"type":"object"}`),
		OutputSchema: contract.Raw(`{"properties":{"id":{"type":"string"}},"required":["id"],"type":"object"}`)},
}

// serveContentKeys registers the handler of queries for content keys. The response
// contains the keys of the query's tenant or data subject, sealed to the recipient that the
// query names.
func (s *Service) serveContentKeys() {
	rpc.Serve(&rpc.Server{Transport: s.env.Transport}, contentkeys.Query, func(ctx context.Context, q *query.ContentKeysRequest) (sealed query.SealedKeys, err error) {
		if err := s.mayHave(ctx, q); err != nil {
			return sealed, err
		}
		k, err := s.content.contentKeysFor(ctx, transient.Tenant(ctx), q)
		defer func() {
			for _, key := range k.Keys {
				clear(key)
			}
		}()
		if err != nil {
			s.env.Log.Warn("the content keys cannot be read", "err", err)
			return sealed, errors.New("the content keys cannot be read")
		}
		plain, err := json.Marshal(k)
		if err != nil {
			return sealed, err
		}
		defer clear(plain)
		sealed.Sealed, err = seal.To(q.Recipient, contentkeys.Info, plain)
		return sealed, err
	})
}

// lenders are the executors for whose calls a service may have content keys, besides its own calls:
// work reads parts of artifacts for the session-runner.
var lenders = map[string][]string{services.Work: {services.SessionRunner}}

// mayHave returns an error unless the service that sent a query may have the keys. The gateway
// returns contents to its callers, and policy decides on them, so both may have the keys of every
// owner. Audit may have those of tenants. An executor may have those of its tenant and of the data
// subject of a call that it is allowed to run and that has no outcome; it never names a subject, and
// so never makes a key for one.
func (s *Service) mayHave(ctx context.Context, q *query.ContentKeysRequest) error {
	service, ofSubject := transient.From(ctx), q.Subject != "" || q.Pseudonym != ""
	switch {
	case service == services.Gateway || service == services.Policy || service == services.Audit && !ofSubject:
		return nil
	case service == services.Audit || q.Subject != "" || q.Allowed < 0:
		return rpc.Errorf(contract.CodeDenied, "content keys of data subjects are not for %s", service)
	}
	a, err := s.calls.Unended(ctx, transient.Tenant(ctx), uint64(q.Allowed), append(lenders[service], service)...)
	switch {
	case err != nil:
		s.env.Log.Warn("the ledger cannot be read", "err", err)
		return errors.New("the call for which the content keys are fetched cannot be read now")
	case a == nil || ofSubject && contentkeys.PseudonymOf(a.Call.KeyID()) != q.Pseudonym:
		s.env.Log.Warn("content keys refused", "service", service, "tenant", transient.Tenant(ctx), "sequence", q.Allowed)
		return rpc.Errorf(contract.CodeDenied, "no call of %s that has no outcome needs these content keys", service)
	}
	return nil
}

// contentKeys returns all content keys of an owner that are not destroyed, by their names
// in the store, with the newest as the current one. If there are none and create is true, it
// creates one. The caller must hold c.mu.
func (c *contentKeeper) contentKeys(ctx context.Context, owner string, create bool) (contentkeys.Keys, error) {
	k := contentkeys.Keys{Keys: map[string][]byte{}}
	ids, err := c.store.Names(ctx, owner)
	if err != nil {
		return k, err
	}
	for _, id := range ids { // the names are sorted, so the last usable key is the newest
		v, err := c.store.Get(ctx, owner, id, 0)
		if errors.Is(err, backend.ErrErased) {
			continue
		}
		if err != nil {
			return k, err
		}
		if len(v.Bytes) == contentKeySize { // releases up to 0.5 stored an empty value in the place of a destroyed key
			k.Keys[id], k.Current = v.Bytes, id
		}
	}
	if k.Current == "" && create {
		id, key, err := c.newContentKey(ctx, owner)
		if err != nil {
			return k, err
		}
		k.Keys[id], k.Current = key, id
	}
	return k, nil
}

const contentKeySize = 32

// newContentKey creates the next key of an owner and returns its name and value. The key is
// durable if the error is nil, and otherwise must not be used. If another instance creates
// the same id at the same time, one of them takes the next id. The caller must hold
// c.mu.
func (c *contentKeeper) newContentKey(ctx context.Context, owner string) (string, []byte, error) {
	key := make([]byte, contentKeySize)
	rand.Read(key)
	for {
		n := 1
		names, err := c.store.Names(ctx, owner)
		if err != nil {
			return "", nil, err
		}
		if len(names) > 0 {
			if _, err := fmt.Sscanf(names[len(names)-1], contract.IDContentKey+"%d", &n); err != nil {
				return "", nil, err
			}
			n++
		}
		id := fmt.Sprintf(contract.IDContentKey+"%06d", n)
		if _, err = c.store.Put(ctx, owner, id, key, backend.About{}, 0); !errors.Is(err, backend.ErrConflict) {
			return id, key, err
		}
	}
}

// changeContentKey executes a call that creates or destroys a content key of its tenant.
func (c *contentKeeper) changeContentKey(ctx context.Context, w *execute.Work) execute.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	effect, id := "content_key.made", ""
	if w.Call.Kind == kindRotate {
		var err error
		if id, _, err = c.newContentKey(ctx, w.Event.Tenant); err != nil {
			return c.unchanged(w, err)
		}
	} else {
		var args struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(w.Args, &args); err != nil {
			return execute.Fail(contract.CodeInvalidInput, "%v", err)
		}
		effect, id = "content_key.destroyed", args.ID
		owner, name := placeOf(w.Event.Tenant, id)
		v, err := c.store.Get(ctx, owner, name, 0)
		if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrErased) || err == nil && len(v.Bytes) != contentKeySize {
			return execute.Fail(contract.CodeNotFound, "id: content key %s not found or destroyed", id)
		}
		clear(v.Bytes)
		if err == nil {
			err = c.store.Erase(ctx, owner, name)
		}
		if err != nil {
			return c.unchanged(w, err)
		}
		destroyed(w, 1, "")
	}
	doc := canon.Object(nil)
	doc.Str("id", id)
	return execute.Result{EffectType: effect, Output: doc.End()}
}

// unchanged returns the result of a call whose change of a content key failed with err. If
// the store did not respond, the status is unknown, because the change may have been made.
func (c *contentKeeper) unchanged(w *execute.Work, err error) execute.Result {
	c.env.Log.Error("a content key cannot be changed", "tenant", w.Event.Tenant, "call", w.Call.ID, "err", err)
	res := execute.Fail(code(err), "the store could not be written: %s", cause(err))
	if errors.Is(err, backend.ErrUnavailable) {
		res.Status = contract.Unknown
	}
	return res
}
