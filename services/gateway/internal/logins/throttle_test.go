package logins

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestThrottle shows after how many failures attempts are delayed, for one person at
// one address, for an address and for a person, how the delays grow, that a success
// resets them, and that the number of entries is limited.
func TestThrottle(t *testing.T) {
	now := time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC)
	// until returns how many attempts at the same time are made before one is delayed.
	until := func(next func(i int) map[string]int) int {
		var x throttle
		for i := range 1000 {
			if x.check(next(i), now) != nil {
				return i
			}
		}
		return 1000
	}
	for what, c := range map[string]struct {
		next func(i int) map[string]int
		want int
	}{
		"a person at an address": {func(int) map[string]int { return attempt("1.1.1.1", "t", "ann") }, freeOfBoth},
		"an address":             {func(i int) map[string]int { return attempt("1.1.1.1", "t", fmt.Sprint(i)) }, freeOfAddress},
		"a person":               {func(i int) map[string]int { return attempt(fmt.Sprint(i), "t", "ann") }, freeOfPerson},
		"everybody":              {func(i int) map[string]int { return attempt(fmt.Sprint(i), "t", fmt.Sprint(i)) }, 1000},
		"tenants":                {func(i int) map[string]int { return attempt(fmt.Sprint(i), fmt.Sprint("t", i), "ann") }, 1000},
	} {
		if got := until(c.next); got != c.want {
			t.Errorf("%s: delayed after %d attempts, want %d", what, got, c.want)
		}
	}

	var x throttle
	keys := attempt("1.1.1.1", "t", "ann")
	at, waited := now, []time.Duration{}
	for range 18 {
		for x.check(keys, at) != nil {
			at = at.Add(time.Second)
		}
		waited = append(waited, at.Sub(now))
		now = at
	}
	if waited[5] != time.Second || waited[6] != 2*time.Second || waited[10] != 32*time.Second || waited[17] != longest {
		t.Error(waited)
	}
	x.succeeded(keys)
	for range freeOfBoth {
		if err := x.check(keys, at); err != nil {
			t.Error("after a success:", err)
		}
	}

	var y throttle
	for i := range 2 * maxThrottled {
		_ = y.check(attempt(fmt.Sprint(i), "t", fmt.Sprint(i)), now.Add(time.Duration(i)*time.Millisecond))
	}
	if len(y.seen) > maxThrottled+3 {
		t.Errorf("%d entries", len(y.seen))
	}
}

// TestUserCode shows that a user code depends on the device code, has the form that
// approval accepts, and differs for each of 1000 device codes.
func TestUserCode(t *testing.T) {
	seen := map[string]bool{}
	for i := range 1000 {
		code := userCode(fmt.Sprint(i))
		if len(code) != 11 || code[3] != '-' || code[7] != '-' || seen[code] || userCode(fmt.Sprint(i)) != code {
			t.Fatal(code)
		}
		if _, err := approval(code, nil); err != nil {
			t.Fatal(err)
		}
		seen[code] = true
	}
	if _, err := approval("short", nil); err == nil {
		t.Error("a malformed code is accepted")
	}
}

// TestApproved shows that a device receives only scopes of the approval and, if it
// requested scopes, only those that it requested. An approval without scopes gives none.
func TestApproved(t *testing.T) {
	for _, c := range []struct{ scopes, requested, want []string }{
		{[]string{"a", "b"}, nil, []string{"a", "b"}},
		{[]string{"a", "b"}, []string{"b", "c"}, []string{"b"}},
		{[]string{"a"}, []string{"c"}, nil},
		{nil, []string{"c"}, nil},
		{nil, nil, nil},
	} {
		if got := approved(c.scopes, c.requested); !slices.Equal(got, c.want) {
			t.Errorf("%v of %v: %v", c.requested, c.scopes, got)
		}
	}
}
