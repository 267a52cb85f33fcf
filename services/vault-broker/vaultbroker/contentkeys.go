package vaultbroker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/store"
)

// KindDestroy is the kind of the calls that destroy a content key of their tenant, and the
// name of their tool.
const KindDestroy = "vault.destroy_content_key"

const (
	kindRotate = "vault.rotate_content_key"

	// contentDomain is the domain of the store of content keys. In releases up to 0.4,
	// content keys were in the store of secrets, under names with this prefix. No tenant
	// may be named secret.ReservedNames.
	contentDomain = secret.ReservedNames + "/"
)

// named returns the name in either store of a tenant's secret or content key. Neither
// tenants nor names contain a slash.
func named(tenant, name string) string { return tenant + "/" + name }

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

var contentTools = []contract.Tool{
	{Description: "Makes a new content key; what is recorded from now on is encrypted under it.", Class: "E1", Executor: "vault-broker", Kind: kindRotate, Tool: kindRotate, Version: "v1",
		InputSchema: contract.Raw(`{"additionalProperties":false,"type":"object"}`), OutputSchema: contract.Raw(`{"properties":{"id":{"type":"string"}},"required":["id"],"type":"object"}`)},
	{Description: "Destroys a content key: what was encrypted under it is erased for ever, and every proof still holds.", Class: "E4", Executor: "vault-broker", Kind: KindDestroy, Tool: KindDestroy, Version: "v1",
		InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"id":{"pattern":"^tk-[0-9]{6}$","type":"string"}},"required":["id"],"type":"object"}`),
		OutputSchema: contract.Raw(`{"properties":{"id":{"type":"string"}},"required":["id"],"type":"object"}`)},
}

// serveContentKeys registers the handler of queries for content keys. The response
// contains the keys of the query's tenant, sealed to the recipient that the query names.
func (s *Service) serveContentKeys() {
	rpc.Serve(&rpc.Server{Box: s.env.Box}, contentkeys.Query, func(ctx context.Context, q *query.ContentKeysRequest) (sealed query.SealedKeys, err error) {
		k, err := s.contentKeys(transient.Tenant(ctx))
		if err != nil {
			return sealed, errors.New("the content keys cannot be read")
		}
		plain, err := json.Marshal(k)
		if err != nil {
			return sealed, err
		}
		sealed.Sealed, err = seal.To(q.Recipient, contentkeys.Info, plain)
		return sealed, err
	})
}

// contentKeys returns all content keys of a tenant that are not destroyed, with the newest
// as the current one. If there are none, it creates one.
func (s *Service) contentKeys(tenant string) (contentkeys.Keys, error) {
	s.contentMu.Lock()
	defer s.contentMu.Unlock()
	k := contentkeys.Keys{Keys: map[string][]byte{}}
	for _, name := range s.keys.Names(named(tenant, "")) { // Names returns sorted names, so the last usable key is the newest
		v, err := s.keys.Get(name)
		if err != nil {
			return k, err
		}
		id := strings.TrimPrefix(name, named(tenant, ""))
		if len(v) == contentKeySize { // the value of a destroyed key is empty
			k.Keys[id], k.Current = v, id
		}
	}
	if k.Current == "" {
		id, key, err := s.newContentKey(tenant)
		if err != nil {
			return k, err
		}
		k.Keys[id], k.Current = key, id
	}
	return k, nil
}

const contentKeySize = 32

// newContentKey creates the next key of a tenant and returns its id and value. The key is
// durable if the error is nil, and otherwise must not be used. The caller must hold
// contentMu.
func (s *Service) newContentKey(tenant string) (string, []byte, error) {
	n := 1
	if names := s.keys.Names(named(tenant, "")); len(names) > 0 {
		if _, err := fmt.Sscanf(strings.TrimPrefix(names[len(names)-1], named(tenant, "")), "tk-%d", &n); err != nil {
			return "", nil, err
		}
		n++
	}
	id, key := fmt.Sprintf("tk-%06d", n), make([]byte, contentKeySize)
	rand.Read(key)
	return id, key, s.keys.Put(named(tenant, id), key)
}

// content executes a call that creates or destroys a content key of its tenant.
func (s *Service) content(w *execute.Work) execute.Result {
	s.contentMu.Lock()
	defer s.contentMu.Unlock()
	effect, id := "content_key.made", ""
	if w.Call.Kind == kindRotate {
		var err error
		if id, _, err = s.newContentKey(w.Event.Tenant); err != nil {
			return execute.Fail(contract.CodeInternal, "the store could not be written")
		}
	} else {
		var args struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(w.Args, &args); err != nil {
			return execute.Fail(contract.CodeInvalidInput, "%v", err)
		}
		effect, id = "content_key.destroyed", args.ID
		name := named(w.Event.Tenant, id)
		v, err := s.keys.Get(name)
		if errors.Is(err, store.ErrNotFound) || err == nil && len(v) != contentKeySize {
			return execute.Fail(contract.CodeNotFound, "id: content key %s not found or destroyed", id)
		}
		// Put stores an empty value instead of removing the name, so that the id is
		// never used again.
		if err != nil || s.keys.Put(name, []byte{}) != nil {
			return execute.Fail(contract.CodeInternal, "the store could not be written")
		}
	}
	c := canon.Object(nil)
	c.Str("id", id)
	return execute.Result{EffectType: effect, Output: c.End()}
}
