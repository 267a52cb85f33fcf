package llmrouter

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
)

// CacheConfig configures the cache of responses. A response is reused for a request that
// permits it, if the kind, the tenant, the caller, the virtual key, the beta features,
// the actions on findings in responses and, after the prompt guards, every byte of the
// body are the same.
type CacheConfig struct {
	Store string `json:"store,omitempty"`  // memory (default): in this instance; object: in the mesh's object store, shared by all instances and kept across restarts, at most 1 GiB; responses to calls that are not recorded as plain text are always in memory
	TTLMS int64  `json:"ttl_ms,omitempty"` // lifetime of a cached response, in milliseconds; 0 = 1 hour
	MaxMB int64  `json:"max_mb,omitempty"` // limit on the memory that an instance uses for the cache, in MiB; 0 = 64
}

// cache holds responses up to a total size in bytes and evicts the least recently used
// ones. The zero value is empty. It is safe for concurrent use.
type cache struct {
	mu   sync.Mutex
	by   map[string]*list.Element
	ages list.List // elements of by, most recently used first
	size int64
}

// kept is one cached response.
type kept struct {
	key, media, model string
	tenant            string
	until             time.Time
	body              []byte            // the response, if it is cached in memory
	stored            *contract.Content // the response, if it is in the object store
}

// forget removes the entries of a tenant, except those in the object store, which are recorded as
// plain text.
func (c *cache) forget(tenant string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for el := c.ages.Front(); el != nil; {
		next := el.Next()
		if k := el.Value.(*kept); k.tenant == tenant && k.stored == nil {
			c.drop(el)
		}
		el = next
	}
}

// get returns the entry for a key, or nil if there is none or it has expired.
func (c *cache) get(key string, now time.Time) *kept {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.by[key]
	if el == nil {
		return nil
	}
	k := el.Value.(*kept)
	if now.After(k.until) {
		c.drop(el)
		return nil
	}
	c.ages.MoveToFront(el)
	return k
}

// drop removes an entry. c.mu must be held.
func (c *cache) drop(el *list.Element) {
	k := c.ages.Remove(el).(*kept)
	delete(c.by, k.key)
	c.size -= int64(len(k.body)) + entrySize
}

// entrySize is an estimate of the bytes of an entry without its body.
const entrySize = 512

// put adds an entry, replacing one with the same key, and evicts others until the cache
// is within limit, in bytes. It does not evict the new entry.
func (c *cache) put(k *kept, limit int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string]*list.Element{}
	}
	if old := c.by[k.key]; old != nil {
		c.drop(old)
	}
	c.by[k.key] = c.ages.PushFront(k)
	c.size += int64(len(k.body)) + entrySize
	for c.size > limit && c.ages.Len() > 1 {
		c.drop(c.ages.Back())
	}
}

// cacheKey returns the key of a request. It covers the tenant and the caller, so that a
// response is never returned to another caller, and everything else that determines the
// response: the kind, the virtual key, the body, the beta features, and the output
// guard, which combines the configuration with the obligations of the decision.
func (c *call) cacheKey() string {
	parts := []string{c.w.Call.Kind, c.w.Event.Tenant, c.w.Event.Actor, c.key.id, string(c.body), digestOf(c.args.Beta)}
	var guard []string
	for _, class := range slices.Sorted(maps.Keys(c.reply)) {
		guard = append(guard, class, c.reply[class])
	}
	return digestOf(append(parts, digestOf(guard)))
}

// digestOf returns a digest of a list of texts, in hexadecimal. Different lists have
// different digests.
func digestOf(parts []string) string {
	h := sha256.New()
	for _, s := range parts {
		n := sha256.Sum256([]byte(s))
		h.Write(n[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// cacheLimit returns the size limit of the cache in bytes.
func (s *Service) cacheLimit() int64 {
	if s.Cache.MaxMB > 0 {
		return s.Cache.MaxMB << 20
	}
	return 64 << 20
}

// cached completes the call with a cached response. It returns false if there is none
// that can be read, or if another response has begun. If the response cannot be sent to
// the caller, it returns a failed result and true.
func (c *call) cached(ctx context.Context) (execute.Result, bool) {
	key := c.cacheKey()
	k := c.s.cache.get(key, time.Now())
	if k == nil && c.s.Cache.Store == "object" && c.s.view.Poll(ctx) == nil { // another instance may have cached it: read its event, if there is one
		k = c.s.cache.get(key, time.Now())
	}
	if k == nil {
		return execute.Result{}, false
	}
	body := k.body
	if k.stored != nil {
		var err error
		if body, err = c.s.env.Blobs.In(c.w.Event.Tenant).Kept(ctx, k.stored); err != nil {
			return execute.Result{}, false
		}
	}
	head := &llm.Head{Status: http.StatusOK, Headers: map[string]string{headerCache: "hit", headerModel: k.model, headerType: k.media}}
	if err := c.out.claim(&attempt{}, head); err != nil {
		return execute.Result{}, false
	}
	if err := c.out.finish(body); err != nil {
		return execute.Fail(fault.ClientStalled, "%v", err), true
	}
	c.w.Fact(events.AttemptFinishedName, contract.Bytes(&events.AttemptFinished{API: c.w.Call.Kind, Attempt: 1, Findings: c.inPrompt.List("prompt."), Key: c.key.id, Model: k.model, Provider: "cache", Requested: c.args.Model,
		Rule: "cache", Status: contract.Succeeded, Streamed: c.args.Stream, Tags: c.key.tags}))
	if k.media == typeJSON {
		c.output = body
	}
	r := c.result()
	r.EffectType = "llm.cache_hit"
	return r, true
}

// keep caches a complete response: in the object store if that is configured and the
// call's content is recorded as plain text, or else in memory. If the object store
// cannot be written, the response is not cached.
func (c *call) keep(ctx context.Context, body []byte, head *llm.Head) {
	ttl := time.Duration(c.s.Cache.TTLMS) * time.Millisecond
	if ttl == 0 {
		ttl = time.Hour
	}
	k := &kept{key: c.cacheKey(), tenant: c.w.Event.Tenant, media: head.Headers[headerType], model: head.Headers[headerModel], until: time.Now().Add(ttl)}
	if c.s.Cache.Store != "object" || c.args.Capture != llm.CapturePlain { // content that is not recorded as plain text is not put into the object store either
		k.body = body
		c.s.cache.put(k, c.s.cacheLimit())
		// If the key was destroyed before the entry was added, nothing else removes the entry.
		if !readable(ctx, c) {
			c.s.cache.forget(k.tenant)
		}
		return
	}
	stored, err := c.s.env.Blobs.In(c.w.Event.Tenant).Keep(ctx, body, k.media, ttl)
	if err != nil {
		c.s.env.Log.Warn("a response was not cached", "call", c.w.Call.ID, "err", err)
		return
	}
	c.w.Fact(events.ResponseCachedName, contract.Bytes(&events.ResponseCached{Commitment: stored.Commitment, Expires: contract.Time(k.until), Key: k.key, MediaType: k.media, Model: k.model, Size: stored.Size}))
}

// readable reports whether the content key of the call's body still exists; it is true for a
// body that is not encrypted.
func readable(ctx context.Context, c *call) bool {
	id := c.w.Call.KeyID()
	if id == "" {
		return true
	}
	_, err := c.s.env.Blobs.Keys.Key(ctx, c.w.Event.Tenant, id)
	return err == nil
}

// applyCached adds a response in the object store to this instance's cache, unless it
// has expired. Every instance does so, including the one that stored the response. It
// returns an error if the event or its expiry time cannot be decoded.
func (s *Service) applyCached(e *contract.Event) error {
	var d events.ResponseCached
	if err := contract.Decode(e.Data, &d); err != nil {
		return err
	}
	until, err := contract.ParseTime(d.Expires)
	if err != nil || time.Now().After(until) {
		return err
	}
	s.cache.put(&kept{key: d.Key, media: d.MediaType, model: d.Model, until: until,
		stored: &contract.Content{Commitment: d.Commitment, MediaType: d.MediaType, Size: d.Size, Store: contract.StoreObject}}, s.cacheLimit())
	return nil
}
