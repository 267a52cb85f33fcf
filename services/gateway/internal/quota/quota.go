// Package quota limits the calls of each tenant at one gateway.
package quota

import (
	"fmt"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// Names of the quotas, as metrics show them.
const (
	InFlight       = "in_flight"
	CallsPerSecond = "calls_per_second"
	BodyBytes      = "body_bytes"
	Suspended      = "suspended" // quota of calls of suspended callers; see Denials
)

// DenialsPerMinute is the number of calls of suspended callers that a tenant may propose at
// a gateway within a minute. Policy denies each of them with events on the ledger.
const DenialsPerMinute = 60

// Calls counts the calls of the tenants that have a quota. The zero value is empty. It is
// safe for concurrent use.
type Calls struct {
	mu       sync.Mutex
	byTenant map[string]*usage
}

// usage is the usage of one tenant, with a token bucket: the number of calls that may enter
// now is tokens, plus rate for each second since at, but at most rate.
type usage struct {
	inFlight int64
	tokens   float64
	rate     int64 // calls per second for which tokens was computed; 0 = the last call had no such quota
	at       time.Time
	refusal  time.Time // earliest time of the next refusal
}

const (
	// pace is the interval between the refusals of one tenant.
	pace = 10 * time.Millisecond
	// longest is the maximum delay of a refusal.
	longest = time.Second
)

// Enter admits one call of a tenant with the quota q at the time now, and counts it until
// leave is called, which the caller must do exactly once. It returns the name of the
// quota and an error (429) if the quota does not permit the call; leave is nil then. Up
// to q.CallsPerSecond calls may enter at once after a second without calls. Calls that
// entered while the tenant had no quota are not counted.
func (c *Calls) Enter(tenant string, q contract.Quota, now time.Time) (leave func(), exceeded string, err error) {
	if q.InFlight == 0 && q.CallsPerSecond == 0 {
		return func() {}, "", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.of(tenant)
	if q.InFlight > 0 && u.inFlight >= q.InFlight {
		return nil, InFlight, apierr.Quota("", fmt.Sprintf("the quota of tenant %s is %d calls in flight at a gateway; wait for one to end", tenant, q.InFlight), 1)
	}
	if !u.spend(q.CallsPerSecond, now) {
		return nil, CallsPerSecond, apierr.Quota("", fmt.Sprintf("the quota of tenant %s is %d calls per second at a gateway; send fewer", tenant, q.CallsPerSecond), 1)
	}
	u.inFlight++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		u.inFlight--
	}, "", nil
}

// of returns the usage of a tenant, which it creates if there is none. The caller holds mu.
func (c *Calls) of(tenant string) *usage {
	u := c.byTenant[tenant]
	if u == nil {
		if c.byTenant == nil {
			c.byTenant = map[string]*usage{}
		}
		u = &usage{}
		c.byTenant[tenant] = u
	}
	return u
}

// Delay returns the time after which a call of a tenant that is refused at now is to be
// answered. The refusals of a tenant are spaced by pace, so that clients which repeat
// refused calls at once cost little. The delay is 0 if the tenant had no refusal within
// pace, and at most longest. Each call of Delay counts as a refusal, so the caller must
// call it once for each refused call.
func (c *Calls) Delay(tenant string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.of(tenant)
	at := now
	if u.refusal.After(at) {
		at = u.refusal
	}
	if last := now.Add(longest); at.After(last) {
		at = last
	}
	u.refusal = at.Add(pace)
	return at.Sub(now)
}

// spend takes a token at a rate per second, and reports whether there was one. A rate of
// 0 is no limit.
func (u *usage) spend(rate int64, now time.Time) bool {
	if rate == 0 {
		u.rate = 0
		return true
	}
	most := float64(rate)
	if u.rate != rate { // the quota is new or has changed
		u.tokens, u.rate, u.at = most, rate, now
	}
	if now.After(u.at) {
		u.tokens, u.at = min(most, u.tokens+now.Sub(u.at).Seconds()*most), now
	}
	if u.tokens < 1 {
		return false
	}
	u.tokens--
	return true
}

// Denials limits the calls of suspended callers, so that a suspended caller cannot make
// the ledger grow without limit. The zero value has counted none. It is safe for
// concurrent use.
type Denials struct {
	mu       sync.Mutex
	byTenant map[string]*minute
}

// minute is the number of calls since a time.
type minute struct {
	since time.Time
	calls int
}

// Take counts a call of a suspended caller of a tenant at now. It reports whether the
// call may be proposed: at most DenialsPerMinute calls may be proposed within a minute
// from the first of them.
func (d *Denials) Take(tenant string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byTenant == nil {
		d.byTenant = map[string]*minute{}
	}
	m := d.byTenant[tenant]
	if m == nil || now.Sub(m.since) >= time.Minute {
		m = &minute{since: now}
		d.byTenant[tenant] = m
	}
	if m.calls == DenialsPerMinute {
		return false
	}
	m.calls++
	return true
}
