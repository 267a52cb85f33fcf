package egressbroker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
)

// Fetch requests secrets for a call from the vault-broker; secret.FromBroker returns one.
type Fetch = func(ctx context.Context, cause *contract.Event, a *contract.Allowed, allowed uint64, names []string) (map[string]string, error)

// credentials holds the secrets of one call in memory. Each is requested from the
// vault-broker before the first request that needs it. Every attempt writes to the ledger,
// so a refusal is final for the call, and any other failure is final after maxAttempts
// attempts.
type credentials struct {
	life    context.Context // ends with the call's proxy
	fetch   Fetch
	cause   *contract.Event // the request for the proxy
	a       *contract.Allowed
	allowed uint64 // ledger sequence of a

	mu      sync.Mutex
	secrets map[string]*attempt // the last attempt by name
}

// attempt is a request for one secret. value and err are set before done is closed.
type attempt struct {
	number int // from 1
	done   chan struct{}
	value  string
	err    error
}

const (
	credentialWait = 15 * time.Second // longest duration of an attempt
	maxAttempts    = 3                // attempts for each name in a call
)

// get returns the secret of the rule that allows a request. Concurrent requests for one
// secret share an attempt, which continues if the request for which it began ends.
func (c *credentials) get(ctx context.Context, r netrule.Rule, _, _, _ string) (string, error) {
	a := c.attempt(r.Credential.Secret)
	select {
	case <-a.done:
		return a.value, a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// attempt returns the last attempt for a name, or begins one if there is none, or if the last
// one failed and is not final.
func (c *credentials) attempt(name string) *attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, number := c.secrets[name], 1
	if last != nil {
		if !last.failed() || last.number == maxAttempts {
			return last
		}
		number = last.number + 1
	}
	a := &attempt{number: number, done: make(chan struct{})}
	if c.secrets == nil {
		c.secrets = map[string]*attempt{}
	}
	c.secrets[name] = a
	go func() {
		defer close(a.done)
		ctx, cancel := context.WithTimeout(c.life, credentialWait)
		defer cancel()
		var got map[string]string
		if got, a.err = c.fetch(ctx, c.cause, c.a, c.allowed, []string{name}); a.err == nil {
			a.value = got[name]
		}
	}()
	return a
}

// failed reports whether the attempt has ended with an error other than a refusal.
func (a *attempt) failed() bool {
	select {
	case <-a.done:
		_, refused := errors.AsType[*secret.Refusal](a.err)
		return a.err != nil && !refused
	default:
		return false
	}
}
