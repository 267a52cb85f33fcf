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
// them. Keys of different tenants are distinct even if their names are equal. It is safe
// for concurrent use.
type keyring struct {
	mu   sync.Mutex
	held map[tenantKey]heldKey
}

// tenantKey identifies a provider key: its tenant and its name in the configuration.
type tenantKey struct{ tenant, name string }

type heldKey struct {
	value string
	until time.Time
}

// keyLife is how long a fetched key is used. A new value in the vault takes effect after
// that time at the latest, or earlier if the provider rejects the old one.
const keyLife = 30 * time.Second

// get returns the value of a key of w's tenant, cached or fetched with the grant of w. The
// value is registered with w, so that w redacts it. The error is that of fetching the
// value.
func (k *keyring) get(ctx context.Context, w *execute.Work, name string) (string, error) {
	at := tenantKey{w.Event.Tenant, name}
	k.mu.Lock()
	h, ok := k.held[at]
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
		k.held = map[tenantKey]heldKey{}
	}
	k.held[at] = heldKey{v, time.Now().Add(keyLife)}
	return v, nil
}

// refused removes a value that the provider rejected, unless a newer one has replaced
// it.
func (k *keyring) refused(at tenantKey, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[at].value == value {
		delete(k.held, at)
	}
}

// rotation selects the keys of a provider. Each tenant has keys of its own under the
// configured names, so a key that is rejected or at its rate limit is skipped for its
// tenant only. A provider without keys has one state for all tenants. It is safe for
// concurrent use.
type rotation struct {
	mu    sync.Mutex
	names []string
	limit route.Break
	by    map[string]*turns // by tenant, made at its first request; by "" for a provider without keys
}

// turns is the rotation of one tenant's keys, in round-robin order. It skips a key that
// is at its rate limit for the requested model, or whose breaker rejects requests.
type turns struct {
	names []string
	next  int
	state map[string]*route.Breaker
	rests map[[2]string]time.Time // end of a rate limit, by key and model
}

func newRotation(names []string, b route.Break) *rotation {
	return &rotation{names: names, limit: b, by: map[string]*turns{}}
}

// of returns the rotation of a tenant's keys, which it creates if necessary. r.mu must
// be held.
func (r *rotation) of(tenant string) *turns {
	names := r.names
	if len(names) == 0 {
		tenant, names = "", []string{""} // a provider without keys also needs a breaker
	}
	t := r.by[tenant]
	if t == nil {
		t = &turns{names: names, state: map[string]*route.Breaker{}, rests: map[[2]string]time.Time{}}
		for _, n := range names {
			t.state[n] = &route.Breaker{Break: r.limit}
		}
		r.by[tenant] = t
	}
	return t
}

// pick returns the name of a tenant's next usable key for a model. The name is "" for a
// provider without keys. After the request, the caller must call report or rest with this
// tenant and name. If no key is usable, pick returns a failure with the time to wait
// until one may be usable: fault.RateLimited if at least one key is at its rate limit, or
// else fault.ProviderUnavailable.
func (r *rotation) pick(now time.Time, tenant, model string) (string, *provider.Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(tenant).pick(now, model)
}

// pick implements rotation.pick for one tenant.
func (r *turns) pick(now time.Time, model string) (string, *provider.Failure) {
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
	return "", &provider.Failure{Code: fault.ProviderUnavailable, Retry: broken.Sub(now), Message: "no request is sent to the provider for a time after its failures"}
}

// rest excludes a key from requests to a model until the given time, or until more than
// 4096 exclusions of its tenant are stored and all are removed. For the key's breaker,
// the request was neither a success nor a failure.
func (r *rotation) rest(key tenantKey, model string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.of(key.tenant)
	if len(t.rests) > 4096 {
		clear(t.rests)
	}
	t.rests[[2]string{key.name, model}] = until
	t.state[key.name].Undecided()
}

// report calls f with the breaker of a key while r.mu is held.
func (r *rotation) report(key tenantKey, f func(*route.Breaker)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.of(key.tenant).state[key.name])
}

// latencies holds a smoothed time to the first byte for each provider/model, in
// microseconds. Each value after the first has a weight of one fifth. It is safe for
// concurrent use; a concurrent update may be lost.
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
