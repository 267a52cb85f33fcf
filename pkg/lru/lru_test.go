package lru_test

import (
	"fmt"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/lru"
)

// TestEvicts checks that a full cache evicts the entry that was used least recently, and
// no other. Get, Put and GetOrPut each count as a use.
func TestEvicts(t *testing.T) {
	c := lru.Cache[int]{Max: 3}
	for i := range 3 {
		c.Put(fmt.Sprint(i), i)
	}
	c.Get("0")
	if v := c.GetOrPut("1", func() int { return 9 }); v != 1 {
		t.Error("a value that the cache holds was made again:", v)
	}
	c.Put("3", 3) // evicts the key 2
	c.Put("0", 7)
	if v := c.GetOrPut("4", func() int { return 4 }); v != 4 { // evicts the key 1
		t.Error("made", v)
	}
	for key, want := range map[string]int{"0": 7, "3": 3, "4": 4} {
		if v, ok := c.Get(key); !ok || v != want {
			t.Errorf("%s: %d %v, want %d", key, v, ok, want)
		}
	}
	for _, key := range []string{"1", "2"} {
		if _, ok := c.Get(key); ok {
			t.Error("not evicted:", key)
		}
	}
	if c.Len() != 3 {
		t.Error("holds", c.Len())
	}
}

// TestEpoch checks that the cache is emptied when the number that Epoch returns changes,
// whichever method is used first.
func TestEpoch(t *testing.T) {
	for name, use := range map[string]func(*lru.Cache[int]) bool{
		"Get":      func(c *lru.Cache[int]) bool { _, ok := c.Get("a"); return ok },
		"Put":      func(c *lru.Cache[int]) bool { c.Put("b", 2); return c.Len() > 1 },
		"GetOrPut": func(c *lru.Cache[int]) bool { return c.GetOrPut("a", func() int { return 2 }) == 1 },
	} {
		epoch := uint64(7)
		c := &lru.Cache[int]{Max: 3, Epoch: func() uint64 { return epoch }}
		c.Put("a", 1)
		if v, ok := c.Get("a"); !ok || v != 1 {
			t.Errorf("%s: not held within an epoch: %d %v", name, v, ok)
		}
		epoch++
		if use(c) {
			t.Errorf("%s: an entry of the last epoch is used", name)
		}
	}
}
