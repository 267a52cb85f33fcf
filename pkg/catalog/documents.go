package catalog

import (
	"crypto/sha256"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Remember replaces the process's cache of tool documents by an empty one. The cache holds the
// decoded documents of the newest events that views have applied, at most 2*limit of them; with
// limit 0, which is the initial setting, it holds none.
//
// The cache is for a process in which several services have a view of the tools: another process
// decodes each document once and would have no benefit.
func Remember(limit int) {
	known.mu.Lock()
	defer known.mu.Unlock()
	known.limit, known.recent, known.older = limit, nil, nil
}

// known is the cache of Remember.
var known documents

// documents is a bounded set of decoded tool documents by the digest of their bytes, safe for
// concurrent use. They are in two halves: when recent has limit elements, it replaces older.
type documents struct {
	mu            sync.Mutex
	limit         int
	recent, older map[[sha256.Size]byte]entry
}

// decoded returns the tool in the data of an event with its digest. The tool may be shared
// with other views, so its slices must not be modified. The error is that of
// contract.Decode.
func decoded(data []byte) (entry, error) {
	known.mu.Lock()
	on := known.limit > 0
	known.mu.Unlock()
	var key [sha256.Size]byte
	if on {
		key = sha256.Sum256(data)
		if e, ok := known.get(key); ok {
			return e, nil
		}
	}
	var e entry
	if err := contract.Decode(data, &e.tool); err != nil {
		return entry{}, err
	}
	e.digest = contract.Digest(&e.tool)
	if on {
		known.put(key, e)
	}
	return e, nil
}

func (d *documents) get(key [sha256.Size]byte) (entry, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, ok := d.recent[key]
	if !ok {
		e, ok = d.older[key]
	}
	return e, ok
}

func (d *documents) put(key [sha256.Size]byte, e entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.recent) >= d.limit {
		d.recent, d.older = nil, d.recent
	}
	if d.recent == nil {
		d.recent = map[[sha256.Size]byte]entry{}
	}
	d.recent[key] = e
}
