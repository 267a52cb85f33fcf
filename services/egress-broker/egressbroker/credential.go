package egressbroker

import (
	"context"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// Fetch requests secrets for a call from the vault-broker; secret.FromBroker returns one.
type Fetch = func(ctx context.Context, cause *contract.Event, a *contract.Allowed, allowed uint64, names []string) (map[string]string, error)

// credentials holds the secrets of one call in memory. Each is requested from the
// vault-broker before the first request that needs it.
type credentials struct {
	fetch   Fetch
	cause   *contract.Event // the request for the proxy
	a       *contract.Allowed
	allowed uint64 // ledger sequence of a

	mu     sync.Mutex
	values map[string]string
}

// credentialWait is the longest time for which a request waits for its secret.
const credentialWait = 15 * time.Second

// get returns the secret of the rule that allows a request. Concurrent requests for
// secrets of one call are serialized.
func (c *credentials) get(ctx context.Context, r netrule.Rule, _, _, _ string) (string, error) {
	name := r.Credential.Secret
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.values[name]; ok {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, credentialWait)
	defer cancel()
	got, err := c.fetch(ctx, c.cause, c.a, c.allowed, []string{name})
	if err != nil {
		return "", err
	}
	if c.values == nil {
		c.values = map[string]string{}
	}
	c.values[name] = got[name]
	return got[name], nil
}
