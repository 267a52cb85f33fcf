// Package lru provides a cache with a maximum number of entries that evicts the least
// recently used one.
package lru

import (
	"container/list"
	"sync"
)

// Cache holds the Max most recently used entries. Max, at least 1, and Epoch are set
// before its first use; it is safe for concurrent use.
type Cache[V any] struct {
	Max int
	// Epoch, if it is not nil, returns a number that changes when the entries may have
	// become invalid, such as the number of reconnections to a server. The first use
	// after a change empties the cache.
	Epoch func() uint64

	mu    sync.Mutex
	epoch uint64
	by    map[string]*list.Element
	ages  list.List // most recently used first
}

// entry is the value of an element of Cache.ages.
type entry[V any] struct {
	key   string
	value V
}

// Get returns the value of a key, and reports whether the cache holds it.
func (c *Cache[V]) Get(key string) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renew()
	el := c.by[key]
	if el == nil {
		return v, false
	}
	c.ages.MoveToFront(el)
	return el.Value.(*entry[V]).value, true
}

// Put sets the value of a key. If that adds an entry to a full cache, Put evicts the
// least recently used one.
func (c *Cache[V]) Put(key string, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renew()
	c.put(key, v)
}

// GetOrPut returns the value of a key. If the cache does not hold the key, GetOrPut
// first puts the value that make returns, as Put does; make must not use the cache.
func (c *Cache[V]) GetOrPut(key string, make func() V) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renew()
	if el := c.by[key]; el != nil {
		c.ages.MoveToFront(el)
		return el.Value.(*entry[V]).value
	}
	v := make()
	c.put(key, v)
	return v
}

// Len returns the number of entries, including entries that the next use removes because
// Epoch returns another number.
func (c *Cache[V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ages.Len()
}

// renew empties the cache if it is new or if Epoch returns another number than before.
// c.mu must be held.
func (c *Cache[V]) renew() {
	var now uint64
	if c.Epoch != nil {
		now = c.Epoch()
	}
	if c.by == nil || now != c.epoch {
		c.epoch, c.by = now, map[string]*list.Element{}
		c.ages.Init()
	}
}

// put sets the value of a key and evicts the least recently used entries until at most
// Max are left. c.mu must be held.
func (c *Cache[V]) put(key string, v V) {
	if el := c.by[key]; el != nil {
		el.Value.(*entry[V]).value = v
		c.ages.MoveToFront(el)
		return
	}
	c.by[key] = c.ages.PushFront(&entry[V]{key, v})
	for c.ages.Len() > c.Max {
		delete(c.by, c.ages.Remove(c.ages.Back()).(*entry[V]).key)
	}
}
