package quota

import (
	"errors"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// TestInFlight checks that a tenant has at most as many calls in flight as its quota
// permits, that the calls of other tenants do not count, and that a call no longer counts
// once it has ended.
func TestInFlight(t *testing.T) {
	var c Calls
	now := time.Unix(1000, 0)
	q := contract.Quota{InFlight: 2}
	enter := func(tenant string) (func(), string) {
		leave, exceeded, err := c.Enter(tenant, q, now)
		var e *apierr.Error
		if errors.As(err, &e) != (leave == nil) || e != nil && (e.Status != 429 || e.Code != contract.CodeQuotaExceeded || e.RetryAfter != "1") {
			t.Fatalf("%+v", err)
		}
		return leave, exceeded
	}
	first, _ := enter("t")
	second, _ := enter("t")
	if leave, exceeded := enter("t"); leave != nil || exceeded != InFlight {
		t.Error("a third call enters:", exceeded)
	}
	if leave, _ := enter("u"); leave == nil {
		t.Error("the calls of t count for u")
	}
	first()
	third, _ := enter("t")
	if third == nil {
		t.Fatal("an ended call counts")
	}
	second()
	third()
	if n := c.byTenant["t"].inFlight; n != 0 {
		t.Error("in flight after all calls:", n)
	}
}

// TestCallsPerSecond checks that a tenant's calls enter at the rate of its quota, with up
// to a second's calls at once, that a clock that goes backwards has no effect, and that a
// changed quota begins with a full second's calls.
func TestCallsPerSecond(t *testing.T) {
	var c Calls
	began := time.Unix(1000, 0)
	many := func(at time.Duration, rate int64) (n int) {
		for n < 100 {
			leave, exceeded, err := c.Enter("t", contract.Quota{CallsPerSecond: rate}, began.Add(at))
			if err != nil {
				if exceeded != CallsPerSecond {
					t.Fatal(exceeded)
				}
				return n
			}
			leave()
			n++
		}
		return n
	}
	for _, x := range []struct {
		at   time.Duration
		rate int64
		want int
	}{
		{0, 10, 10}, {50 * time.Millisecond, 10, 0}, {100 * time.Millisecond, 10, 1}, {600 * time.Millisecond, 10, 5}, {500 * time.Millisecond, 10, 0}, {600 * time.Millisecond, 10, 0},
		{time.Hour, 10, 10}, {time.Hour, 3, 3}, {time.Hour + time.Second, 3, 3},
	} {
		if n := many(x.at, x.rate); n != x.want {
			t.Errorf("at %s with %d a second: %d calls enter, want %d", x.at, x.rate, n, x.want)
		}
	}
}

// TestNoQuota checks that any number of calls may enter if the tenant has no quota, and
// that nothing is stored for the tenant then.
func TestNoQuota(t *testing.T) {
	var c Calls
	for range 1000 {
		if _, _, err := c.Enter("t", contract.Quota{BodyBytes: 1}, time.Unix(1000, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.byTenant) != 0 {
		t.Error(len(c.byTenant), "tenants are stored")
	}
}

// TestDelay checks that the first refusal of a tenant is not delayed, that the delays of
// the following ones grow to at most a second, and that tenants do not affect each
// other.
func TestDelay(t *testing.T) {
	var c Calls
	began := time.Unix(1000, 0)
	for i := range 300 {
		want := min(time.Duration(i)*10*time.Millisecond, time.Second)
		if d := c.Delay("t", began); d != want {
			t.Fatalf("refusal %d is delayed by %s, want %s", i, d, want)
		}
	}
	for _, x := range []struct {
		tenant   string
		at, want time.Duration
	}{{"u", 0, 0}, {"t", 500 * time.Millisecond, 510 * time.Millisecond}, {"t", 5 * time.Second, 0}, {"t", 5*time.Second + 4*time.Millisecond, 6 * time.Millisecond}} {
		if d := c.Delay(x.tenant, began.Add(x.at)); d != x.want {
			t.Errorf("tenant %s at %s: a delay of %s, want %s", x.tenant, x.at, d, x.want)
		}
	}
}

// TestDenials checks that a tenant may propose DenialsPerMinute calls within a minute from
// the first of them, and as many again after it, and that tenants do not affect each other.
func TestDenials(t *testing.T) {
	var d Denials
	began := time.Unix(1000, 0)
	many := func(tenant string, at time.Duration) (n int) {
		for range 5 * DenialsPerMinute {
			if d.Take(tenant, began.Add(at)) {
				n++
			}
		}
		return n
	}
	for _, x := range []struct {
		tenant string
		at     time.Duration
		want   int
	}{{"t", 0, DenialsPerMinute}, {"t", time.Minute - time.Nanosecond, 0}, {"u", time.Minute - time.Nanosecond, DenialsPerMinute}, {"t", time.Minute, DenialsPerMinute}, {"u", time.Minute, 0}} {
		if n := many(x.tenant, x.at); n != x.want {
			t.Errorf("tenant %s at %s: %d calls, want %d", x.tenant, x.at, n, x.want)
		}
	}
}
