package run

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
)

// Trust is an instance's view of the key registry.
type Trust struct {
	mu  sync.RWMutex
	reg trust.Registry
	at  uint64 // sequence last applied
	see func(lamport uint64)
}

// dump is the view's canonical form, and the sequence that it was last changed by.
func (t *Trust) dump() query.ViewDump {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return query.ViewDump{Name: "keys", Position: t.at, Dump: string(t.reg.Dump())}
}

func (t *Trust) apply(en eventlog.Entry) error {
	e, err := eventlog.Open(en)
	if err != nil || e.Service() != "provision" || e.Name != contract.EventKeyPublished && e.Name != contract.EventKeyRevoked {
		return nil
	}
	var k contract.TrustKey
	if err := contract.Decode(e.Data, &k); err != nil {
		slog.Error("trust event refused", "seq", en.Seq, "err", err)
		return nil
	}
	t.see(e.Lamport) // what we sign must come after the key that signs it
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = en.Seq
	if err := t.reg.Apply(k, e.Lamport); err != nil {
		slog.Error("trust event refused", "seq", en.Seq, "err", err)
	}
	return nil
}

// At implements guard.KeyAt.
func (t *Trust) At(kid, owner, use string, lamport uint64) ([]byte, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.reg.At(kid, owner, use, lamport)
}

// Current returns owner's newest valid key for use.
func (t *Trust) Current(owner, use string) (contract.TrustKey, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.reg.Current(owner, use)
}

// Valid reports whether a key is published and not revoked.
func (t *Trust) Valid(kid string) bool {
	for _, k := range t.Keys() {
		if k.KID == kid {
			return k.RevokedSince == 0
		}
	}
	return false
}

// Keys lists every key, oldest first.
func (t *Trust) Keys() []trust.Key {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.reg.Keys()
}

// wait returns when the root and, if named, our own key are published.
func (t *Trust) wait(ctx context.Context, kid string) {
	for told := time.Now(); ctx.Err() == nil; {
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			slog.Warn("waits for its key to be published", "kid", kid)
		}
		t.mu.RLock()
		ok := t.reg.Has(t.reg.Root) && (kid == "" || t.reg.Has(kid))
		t.mu.RUnlock()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}
