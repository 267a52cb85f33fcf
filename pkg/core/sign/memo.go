package sign

import (
	"crypto/ed25519"
	"crypto/sha256"
	"sync"
)

// Remember replaces the process's cache of valid signatures by an empty one. The cache
// holds signatures that Key.Sign made or Verify verified, at most 2*limit of them; with
// limit 0, which is the initial setting, it holds none. Verify returns nil for a
// signature in the cache without computing the verification again. An entry is for a
// signature with its public key, domain and body, because whether a signature verifies
// depends on these bytes alone. Whether the key is valid, for what and for whom, is not
// cached; callers check it each time.
//
// The cache is for a process in which several services verify the same documents: another
// process verifies each signature once and would have no benefit.
func Remember(limit int) {
	known.mu.Lock()
	defer known.mu.Unlock()
	known.limit, known.recent, known.older = limit, nil, nil
}

// known is the cache of Remember.
var known memo

// memo is a bounded set of digests, safe for concurrent use. The digests are in two
// halves: when recent has limit elements, it replaces older.
type memo struct {
	mu            sync.Mutex
	limit         int
	recent, older map[digest]struct{}
}

type digest [sha256.Size]byte

// digestOf returns the digest of a public key, a signature and the bytes that were signed.
// It returns false if the limit of m is 0, or if public or sig does not have the length of
// its kind, because the digest would be ambiguous.
func (m *memo) digestOf(public, sig, msg []byte) (d digest, ok bool) {
	m.mu.Lock()
	on := m.limit > 0
	m.mu.Unlock()
	if !on || len(public) != ed25519.PublicKeySize || len(sig) != ed25519.SignatureSize {
		return d, false
	}
	h := sha256.New()
	h.Write(public)
	h.Write(sig)
	h.Write(msg)
	h.Sum(d[:0])
	return d, true
}

func (m *memo) has(d digest) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.recent[d]
	if !ok {
		_, ok = m.older[d]
	}
	return ok
}

func (m *memo) add(d digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.recent) >= m.limit {
		m.recent, m.older = nil, m.recent
	}
	if m.recent == nil {
		m.recent = make(map[digest]struct{}, m.limit)
	}
	m.recent[d] = struct{}{}
}
