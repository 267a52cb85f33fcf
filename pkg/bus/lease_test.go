package bus

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPick shows that the lease of the lowest slot is picked whose renewal is not overdue
// compared with that of the newest lease, and none if there is no lease.
func TestPick(t *testing.T) {
	now := time.Now()
	old := func(name string, age time.Duration) *Lease {
		return &Lease{body: name + " nonce host 1", stored: now.Add(-age)}
	}
	for want, leases := range map[string][]*Lease{
		"a-1": {old("a-1", overdue), old("a-2", 0)},
		"a-2": {old("a-1", overdue+1), old("a-2", 0)},
		"b-2": {old("b-1", 2*overdue), old("b-2", overdue), old("b-3", 0)},
		"c-1": {old("c-1", 2*overdue)},
	} {
		if got := pick(leases); got.Instance() != want {
			t.Errorf("%s, want %s", got.Instance(), want)
		}
	}
	if got := pick(nil); got != nil {
		t.Errorf("%+v of none", got)
	}
}

// TestLeft shows that the time left of a lease is the one to its expiry, within its limits.
func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for age, want := range map[time.Duration]time.Duration{-time.Second: SlotTTL, 0: SlotTTL, time.Second: SlotTTL - time.Second, SlotTTL: minLeft, time.Hour: minLeft} {
			l := &Lease{stored: time.Now().Add(-age)}
			if got := l.Left(); got != want {
				t.Errorf("after %v: %v, want %v", age, got, want)
			}
		}
	})
}
