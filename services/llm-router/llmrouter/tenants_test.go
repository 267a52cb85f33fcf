package llmrouter

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	events "github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/fault"
)

// of makes m a call of another tenant, whose provider keys have other values.
func (m *made) of(tenant string) *made {
	e := *m.w.Event
	e.Tenant = tenant
	m.w.Event = &e
	m.w.Secret = func(_ context.Context, name string) (string, error) {
		m.fetched = append(m.fetched, name)
		return tenant + "'s " + name, nil
	}
	return m
}

// TestKeysOfTenants shows that a call is sent with the key of its own tenant, although
// another tenant's key of the same name is cached, and that a key that the provider
// rejects is removed for its own tenant only.
func TestKeysOfTenants(t *testing.T) {
	u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(200, completion)}})
	s := plays(t, u, nil)
	for _, tenant := range []string{"t1", "t2", "t1"} {
		if f := s.made(t, t.Context(), llm.Chat, question).of(tenant).run(t, t.Context()); f != nil {
			t.Fatal(f)
		}
	}
	if want := []string{"t1's llm.a", "t2's llm.a", "t1's llm.a"}; !slices.Equal(u.keys, want) {
		t.Errorf("sent with %q, want %q", u.keys, want)
	}
	s.keys.refused(tenantKey{"t2", "llm.a"}, "t2's llm.a")
	for tenant, want := range map[string]int{"t1": 0, "t2": 1} {
		m := s.made(t, t.Context(), llm.Chat, question).of(tenant)
		if f := m.run(t, t.Context()); f != nil || len(m.fetched) != want {
			t.Errorf("%s: fetched %q, want %d keys (%v)", tenant, m.fetched, want, f)
		}
	}
}

// TestBreakerOfTenants shows that a key that the provider rejects or limits is not used
// for a while in its own tenant, and that another tenant's calls are still sent.
func TestBreakerOfTenants(t *testing.T) {
	for name, bad := range map[string]http.HandlerFunc{"rejected": says(403, ""), "limited": says(429, "", "Retry-After", "60")} {
		t.Run(name, func(t *testing.T) {
			u := newUpstreams(t, map[string][]http.HandlerFunc{"a": {bad, says(200, completion)}})
			s := plays(t, u, func(c *Config) { c.Fallbacks, c.Retry.Attempts, c.Breaker.Failures = nil, 1, 1 })
			if f := s.made(t, t.Context(), llm.Chat, question).of("t1").run(t, t.Context()); f == nil {
				t.Fatal("a bad key is not refused")
			}
			if f := s.made(t, t.Context(), llm.Chat, question).of("t2").run(t, t.Context()); f != nil {
				t.Errorf("the other tenant's call fails: %+v", f)
			}
			if f := s.made(t, t.Context(), llm.Chat, question).of("t1").run(t, t.Context()); f == nil || f.Code != fault.ProviderUnavailable && f.Code != fault.RateLimited {
				t.Errorf("the bad key is used again: %+v", f)
			}
		})
	}
}

// TestKeptOfTenants shows that a cached response is not served to the same request of a
// caller with the same name in another tenant.
func TestKeptOfTenants(t *testing.T) {
	s := plays(t, newUpstreams(t, map[string][]http.HandlerFunc{"a": {says(200, completion)}}), nil)
	m := s.made(t, t.Context(), llm.Chat, question).of("t1")
	if f := m.run(t, t.Context()); f != nil {
		t.Fatal(f)
	}
	m.keep(t.Context(), *m.out.tee, m.out.said)
	for tenant, want := range map[string]bool{"t1": true, "t2": false} {
		again := s.made(t, t.Context(), llm.Chat, question).of(tenant)
		again.out.tee = nil
		if _, hit := again.cached(t.Context()); hit != want {
			t.Errorf("%s: hit %v, want %v", tenant, hit, want)
		}
	}
}

// TestModelsOfTenants shows that the models that a provider lists with one tenant's key
// are not shown to another tenant, and that a list that was not fetched again remains.
func TestModelsOfTenants(t *testing.T) {
	s := plays(t, newUpstreams(t, nil), nil)
	now := time.Now()
	s.models.set("t1", map[string][]string{"a": {"ft-of-t1"}, "b": {"m"}}, now.Add(-2*listLife))
	s.models.set("t1", map[string][]string{"b": {"m2"}}, now)
	ids := func(tenant string) (out []string) {
		for _, m := range s.list(tenant) {
			out = append(out, m.ID)
		}
		return out
	}
	if got := ids("t1"); !slices.Contains(got, "a/ft-of-t1") || !slices.Contains(got, "b/m2") || slices.Contains(got, "b/m") || s.models.of("t1").stale() {
		t.Errorf("%q", got)
	}
	if got := ids("t2"); slices.Contains(got, "a/ft-of-t1") || !s.models.of("t2").stale() {
		t.Errorf("another tenant sees %q", got)
	}
}

// TestUsageOfTenants shows that a response is found in its own tenant only, even if
// another tenant's provider has used the same id for a caller with the same name.
func TestUsageOfTenants(t *testing.T) {
	var u Usage
	for _, tenant := range []string{"t1", "t2"} {
		e := &contract.Event{Name: events.AttemptFinishedName, Source: "llm-router/llm-router-1", Tenant: tenant, Actor: "alice", CallID: "c-" + tenant, Time: contract.Time(time.Unix(1_700_000_000, 0)),
			Data: contract.Bytes(&events.AttemptFinished{API: llm.Responses, Model: "m", Provider: "p", ResponseID: "r1", ItemIds: []string{"i1"}, Status: contract.Succeeded, Requested: "p/m"})}
		if err := u.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
	for tenant, want := range map[string]string{"t1": "c-t1", "t2": "c-t2", "t3": ""} {
		if a, i := u.answer(tenant, "r1").Call, u.item(tenant, "i1").Call; a != want || i != want {
			t.Errorf("%s: %q and %q, want %q", tenant, a, i, want)
		}
	}
}

// TestAnnounce shows that announce appends an event to the tenant of its Emitter if the
// data differ from those of the last event in that tenant. Events in another tenant do
// not count.
func TestAnnounce(t *testing.T) {
	log := &memlog.Log{}
	m := &emit.Emitter{Log: log, Tenant: "t1", Source: "llm-router/llm-router-1", Now: time.Now}
	for _, x := range []struct {
		m    *emit.Emitter
		data string
		want uint64 // events in the log
	}{{m, `{"a":1}`, 1}, {m, `{"a":1}`, 1}, {m.In("t2"), `{"a":1}`, 2}, {m.In("t2"), `{"a":2}`, 3}, {m, `{"a":1}`, 3}, {m, `{"a":2}`, 4}} {
		if err := announce(t.Context(), x.m, events.PricesPublishedName, pricesKey, []byte(x.data)); err != nil || log.Size() != x.want {
			t.Errorf("%s in %s: %d events, want %d (%v)", x.data, x.m.Tenant, log.Size(), x.want, err)
		}
	}
}
