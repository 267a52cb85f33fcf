package llmrouter

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/route"
)

// keyring caches provider keys for keyLife, so that they are not fetched for every call.
// vault-broker releases the values, sealed, under the decision of the call that fetches
// them. It is safe for concurrent use.
type keyring struct {
	mu   sync.Mutex
	held map[string]heldKey
}

type heldKey struct {
	value string
	until time.Time
}

// keyLife is how long a fetched key is used. A new value in the vault takes effect after
// that time at the latest, or earlier if the provider rejects the old one.
const keyLife = 30 * time.Second

// get returns the value of a key, cached or fetched with the grant of w. The value is
// registered with w, so that w redacts it. The error is that of fetching the value.
func (k *keyring) get(ctx context.Context, w *execute.Work, name string) (string, error) {
	k.mu.Lock()
	h, ok := k.held[name]
	k.mu.Unlock()
	if ok && time.Now().Before(h.until) {
		w.Hide(name, h.value)
		return h.value, nil
	}
	v, err := w.Secret(ctx, name)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == nil {
		k.held = map[string]heldKey{}
	}
	k.held[name] = heldKey{v, time.Now().Add(keyLife)}
	return v, nil
}

// refused removes a value that the provider rejected, unless a newer one has replaced
// it.
func (k *keyring) refused(name, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[name].value == value {
		delete(k.held, name)
	}
}

// rotation selects the keys of a provider in round-robin order. It skips a key that is
// at its rate limit for the requested model, or whose breaker rejects requests. It is
// safe for concurrent use.
type rotation struct {
	mu    sync.Mutex
	names []string
	next  int
	state map[string]*route.Breaker
	rests map[[2]string]time.Time // end of a rate limit, by key and model
}

func newRotation(names []string, b route.Break) *rotation {
	if len(names) == 0 {
		names = []string{""} // a provider without keys also needs a breaker
	}
	r := &rotation{names: names, state: map[string]*route.Breaker{}, rests: map[[2]string]time.Time{}}
	for _, n := range names {
		r.state[n] = &route.Breaker{Break: b}
	}
	return r
}

// pick returns the name of the next usable key for a model, which is "" for a provider
// without keys; the caller must then call report or rest with this name. If no key is
// usable, pick returns a failure with the time after which one may be usable:
// fault.RateLimited if at least one key is at its rate limit, or else
// fault.ProviderUnavailable.
func (r *rotation) pick(now time.Time, model string) (string, *provider.Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limited, broken := time.Time{}, time.Time{}
	sooner := func(a *time.Time, b time.Time) {
		if a.IsZero() || b.Before(*a) {
			*a = b
		}
	}
	for range r.names {
		n := r.names[r.next%len(r.names)]
		r.next++
		if until := r.rests[[2]string{n, model}]; now.Before(until) {
			sooner(&limited, until)
			continue
		}
		if r.state[n].Allow(now) {
			return n, nil
		}
		if until := r.state[n].Open(now); until.IsZero() {
			sooner(&broken, now.Add(time.Second)) // another request is probing the key
		} else {
			sooner(&broken, until)
		}
	}
	if !limited.IsZero() {
		return "", &provider.Failure{Code: fault.RateLimited, Status: http.StatusTooManyRequests, Retry: limited.Sub(now), Message: "every key of the provider is at its rate limit for model " + model}
	}
	return "", &provider.Failure{Code: fault.ProviderUnavailable, Retry: broken.Sub(now), Message: "the provider is left alone for a while after it failed"}
}

// rest excludes a key from requests to a model until the given time, or until more than
// 4096 exclusions are stored and all are removed. For the key's breaker, the request was
// neither a success nor a failure.
func (r *rotation) rest(name, model string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rests) > 4096 {
		clear(r.rests)
	}
	r.rests[[2]string{name, model}] = until
	r.state[name].Undecided()
}

// report calls f with the breaker of a key while r.mu is held.
func (r *rotation) report(name string, f func(*route.Breaker)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.state[name])
}

// latencies holds a smoothed time to the first byte for each provider/model, in
// microseconds. Each value after the first counts for a fifth. It is safe for concurrent
// use; a concurrent update may be lost.
type latencies struct{ m sync.Map }

func (l *latencies) of(id string) int64 {
	if v, ok := l.m.Load(id); ok {
		return v.(int64)
	}
	return 0
}

func (l *latencies) add(id string, d time.Duration) {
	us := d.Microseconds()
	if old := l.of(id); old > 0 {
		us = old + (us-old)/5
	}
	l.m.Store(id, max(us, 1))
}
