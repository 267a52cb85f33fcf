package bus

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTimely shows that the leases whose renewal is overdue compared with that of the newest lease
// are removed.
func TestTimely(t *testing.T) {
	now := time.Now()
	old := func(name string, age time.Duration) *Lease {
		return &Lease{body: name + " nonce host 1", stored: now.Add(-age)}
	}
	for want, leases := range map[string][]*Lease{
		"a-1 a-2": {old("a-1", overdue), old("a-2", 0)},
		"a-2":     {old("a-1", overdue+1), old("a-2", 0)},
		"b-2 b-3": {old("b-1", 2*overdue), old("b-2", overdue), old("b-3", 0)},
		"c-1":     {old("c-1", 2*overdue)},
		"":        nil,
	} {
		var got []string
		for _, l := range timely(leases) {
			got = append(got, l.Instance())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s, want %s", got, want)
		}
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
