package quota

import (
	"fmt"
	"testing"
	"time"
)

// TestAddresses shows that each address may send Rate requests at once and per second, that the port
// and the lower half of an IPv6 address do not matter, and that the number of addresses is bounded.
func TestAddresses(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	a := Addresses{Rate: 3}
	take := func(peer string, want int) {
		t.Helper()
		got := 0
		for range 10 {
			if a.Take(peer, now) {
				got++
			}
		}
		if got != want {
			t.Errorf("%s: %d requests, want %d", peer, got, want)
		}
	}
	take("192.0.2.1:1", 3)
	take("192.0.2.1:2", 0)
	take("[::ffff:192.0.2.1]:3", 0)
	take("192.0.2.2:1", 3)
	take("[2001:db8::1]:1", 3)
	take("[2001:db8::2%eth0]:1", 0)
	take("[2001:db8:0:1::1]:1", 3)
	take("@", 3)
	now = now.Add(time.Second)
	take("192.0.2.1:4", 3)
	for i := range maxAddresses {
		a.Take(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255), now)
	}
	take("192.0.2.9:1", 10) // there is no room, and every address is recent: it is not counted
	now = now.Add(2 * time.Second)
	if take("192.0.2.9:1", 3); len(a.seen) != 1 {
		t.Errorf("%d addresses", len(a.seen))
	}
}
