package vaultbroker

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// Owners in the store of content keys, besides tenants. No tenant has a dot in its id.
//
//	<tenant>                content keys of the tenant, by id
//	<tenant>.<pseudonym>    content keys of a data subject, by number
//	<tenant>.index          keys under which the names of data subjects become pseudonyms
//	<tenant>.subjects       pseudonyms of the data subjects that ever had a key
func subjectOwner(tenant, pseudonym string) string { return tenant + "." + pseudonym }
func indexOwner(tenant string) string              { return tenant + ".index" }
func subjectsOwner(tenant string) string           { return tenant + ".subjects" }

// placeOf returns the owner and the name in the store of a tenant's key with the given id.
func placeOf(tenant, id string) (owner, name string) {
	p := contentkeys.PseudonymOf(id)
	if p == "" {
		return tenant, id
	}
	return subjectOwner(tenant, p), contract.IDContentKey + strings.TrimPrefix(id, contract.IDContentKey+p+"-")
}

// idOf returns the id of the key of a data subject with a name in the store.
func idOf(pseudonym, name string) string {
	return contract.IDContentKey + pseudonym + "-" + strings.TrimPrefix(name, contract.IDContentKey)
}

var erasureTools = []contract.Tool{
	tool(contentkeys.KindEraseSubject, "E4", "Destroys all content keys of a data subject: what was encrypted under them is erased for ever, and every proof still holds.",
		`{"additionalProperties":false,"properties":{"reason":{"maxLength":512,"minLength":1,"type":"string"},"subject":{"description":"pseudonym of the data subject; the header X-Binnacle-Subject with its name sets it","pattern":"^[0-9a-f]{32}$","type":"string"}},"required":["reason","subject"],"type":"object"}`,
		`{"properties":{"keys":{"items":{"type":"string"},"type":"array"},"subject":{"type":"string"}},"required":["keys","subject"],"type":"object"}`),
	tool(contentkeys.KindEraseTenant, "E4", "Destroys all content keys of the tenant and of its data subjects: what was encrypted under them is erased for ever, and every proof still holds.",
		`{"additionalProperties":false,"properties":{"reason":{"maxLength":512,"minLength":1,"type":"string"},"tenant":{"description":"the tenant of the call, so that no other one is erased by mistake","type":"string"}},"required":["reason","tenant"],"type":"object"}`,
		`{"properties":{"keys":{"items":{"type":"string"},"type":"array"},"tenant":{"type":"string"}},"required":["keys","tenant"],"type":"object"}`),
}

// contentKeysFor returns the keys that a query requests, by their ids.
func (c *contentKeeper) contentKeysFor(ctx context.Context, tenant string, q *query.ContentKeysRequest) (contentkeys.Keys, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pseudonym := q.Pseudonym
	if q.Subject != "" {
		if pseudonym != "" {
			return contentkeys.Keys{}, errors.New("a query names a data subject by name and by pseudonym")
		}
		var err error
		if pseudonym, err = c.pseudonym(ctx, tenant, q.Subject); err != nil {
			return contentkeys.Keys{}, err
		}
		// The pseudonym is stored before the first key, so that an erasure of the tenant finds it.
		_, err = c.store.Put(ctx, subjectsOwner(tenant), pseudonym, []byte{1}, backend.About{}, 0)
		if err != nil && !errors.Is(err, backend.ErrConflict) {
			return contentkeys.Keys{}, err
		}
	}
	if pseudonym == "" {
		return c.contentKeys(ctx, tenant, true)
	}
	k, err := c.contentKeys(ctx, subjectOwner(tenant, pseudonym), q.Subject != "")
	out := contentkeys.Keys{Keys: map[string][]byte{}, Pseudonym: pseudonym}
	for name, key := range k.Keys {
		out.Keys[idOf(pseudonym, name)] = key
	}
	if k.Current != "" {
		out.Current = idOf(pseudonym, k.Current)
	}
	return out, err
}

// pseudonym returns the pseudonym of a data subject of a tenant. The caller must hold
// c.mu.
func (c *contentKeeper) pseudonym(ctx context.Context, tenant, subject string) (string, error) {
	k, err := c.contentKeys(ctx, indexOwner(tenant), true)
	if err != nil {
		return "", err
	}
	defer func() {
		for _, key := range k.Keys {
			clear(key)
		}
	}()
	m := hmac.New(sha256.New, k.Keys[k.Current])
	m.Write([]byte("binnacle data subject v1 " + subject))
	return hex.EncodeToString(m.Sum(nil)[:16]), nil
}

// destroyed records that a call has destroyed keys, so that every instance drops them.
func destroyed(w *execute.Work, keys int, pseudonym string) {
	w.Fact(events.ContentKeysDestroyedName, contract.Bytes(&events.ContentKeysDestroyed{CallID: w.Call.ID, Keys: int64(keys), Pseudonym: pseudonym}))
}

// eraseContent executes a call that erases the content of a data subject or of its tenant. It
// may run again: keys that an earlier run destroyed are destroyed already, and in the output too.
func (c *contentKeeper) eraseContent(ctx context.Context, w *execute.Work) execute.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	var a struct{ Subject, Tenant string }
	if err := json.Unmarshal(w.Args, &a); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	tenant := w.Event.Tenant
	if w.Call.Kind == contentkeys.KindEraseSubject {
		ids, err := c.eraseKeys(ctx, tenant, a.Subject)
		if err != nil {
			return c.unchanged(w, err)
		}
		if len(ids) == 0 {
			return execute.Fail(contract.CodeNotFound, "subject: no content was encrypted for this data subject")
		}
		destroyed(w, len(ids), a.Subject)
		return execute.Result{EffectType: "content.erased", Output: document(map[string]any{"keys": ids, "subject": a.Subject})}
	}
	if a.Tenant != tenant {
		return execute.Fail(contract.CodeInvalidInput, "tenant: the call is one of the tenant %s, and erases no other; use a credential of the tenant", tenant)
	}
	ids, err := c.eraseTenant(ctx, tenant)
	if err != nil {
		return c.unchanged(w, err)
	}
	destroyed(w, len(ids), "")
	return execute.Result{EffectType: "content.erased", Output: document(map[string]any{"keys": ids, "tenant": tenant})}
}

// eraseTenant destroys all content keys of a tenant and of its data subjects, and the keys of the
// pseudonyms. It returns the ids of the content keys.
func (c *contentKeeper) eraseTenant(ctx context.Context, tenant string) ([]string, error) {
	ids, err := c.eraseKeys(ctx, tenant, "")
	if err != nil {
		return nil, err
	}
	subjects, err := c.store.Names(ctx, subjectsOwner(tenant))
	if err != nil {
		return nil, err
	}
	for _, p := range subjects {
		more, err := c.eraseKeys(ctx, tenant, p)
		if err != nil {
			return nil, err
		}
		ids = append(ids, more...)
	}
	_, err = c.eraseAll(ctx, indexOwner(tenant))
	return ids, err
}

// eraseKeys destroys the keys of a data subject, or those of the tenant itself if pseudonym is
// "". It returns their ids, also of keys that were destroyed before.
func (c *contentKeeper) eraseKeys(ctx context.Context, tenant, pseudonym string) ([]string, error) {
	if pseudonym == "" {
		return c.eraseAll(ctx, tenant)
	}
	names, err := c.eraseAll(ctx, subjectOwner(tenant, pseudonym))
	for i, name := range names {
		names[i] = idOf(pseudonym, name)
	}
	return names, err
}

// eraseAll destroys every value of an owner and returns the names.
func (c *contentKeeper) eraseAll(ctx context.Context, owner string) ([]string, error) {
	names, err := c.store.Names(ctx, owner)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := c.store.Erase(ctx, owner, name); err != nil {
			return nil, err
		}
	}
	if names == nil {
		names = []string{}
	}
	return names, nil
}
