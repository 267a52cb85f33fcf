package logins

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// throttle delays attempts to log in after failures. An attempt counts for the address of
// the peer, for the person, and for the person at that address. For each of them, the next
// attempt is delayed after a number of failures. Each further failure doubles the delay, up
// to longest. After the time longest without an attempt, the count begins again at zero.
//
// The number for the person alone is high, because otherwise anyone could prevent a
// person from logging in. The answers of the identity provider count for the address of the
// peer, apart from passwords. The zero value is ready to use, and safe for concurrent use.
type throttle struct {
	mu   sync.Mutex
	seen map[string]*failures
}

type failures struct {
	n     int
	until time.Time // no attempt is permitted before this time
	last  time.Time
}

const (
	longest       = 15 * time.Minute
	maxThrottled  = 10000
	freeOfBoth    = 5
	freeOfAddress = 30
	freeOfPerson  = 100
)

// attempt returns the keys under which one attempt counts, each with the number of
// failures after which attempts are delayed.
func attempt(address, tenant, principal string) map[string]int {
	person := tenant + "/" + principal
	return map[string]int{"a " + address: freeOfAddress, "p " + person: freeOfPerson, "b " + address + " " + person: freeOfBoth}
}

// check returns an error (429) if the attempt must not be made at now. An attempt that may
// be made counts as a failure until succeeded is called, so that attempts that are made at
// the same time count, too.
func (t *throttle) check(keys map[string]int, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := time.Duration(0)
	for k := range keys {
		if f := t.seen[k]; f != nil && now.Before(f.until) {
			wait = max(wait, f.until.Sub(now))
		}
	}
	if wait > 0 {
		return &apierr.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: contract.CodeQuotaExceeded,
			Message: "too many failed attempts to log in; wait", RetryAfter: strconv.Itoa(int(wait/time.Second) + 1)}
	}
	t.prune(now)
	for k, free := range keys {
		f := t.seen[k]
		if f == nil || now.Sub(f.last) > longest {
			f = &failures{}
			t.seen[k] = f
		}
		f.n, f.last = f.n+1, now
		if over := f.n - free; over >= 0 {
			f.until = now.Add(min(time.Second<<min(over, 20), longest))
		}
	}
	return nil
}

// succeeded removes the failures of the person, and those of the person at the
// address. For the address itself it only ends the delay and subtracts the failure
// that check has counted for the attempt.
func (t *throttle) succeeded(keys map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, free := range keys {
		if free != freeOfAddress {
			delete(t.seen, k)
		} else if f := t.seen[k]; f != nil {
			f.n, f.until = max(f.n-1, 0), time.Time{}
		}
	}
}

// prune makes the map of t if it is nil. If t has maxThrottled keys or more, prune removes
// the keys that delay no attempt at now, and those whose last attempt was made more than
// the duration longest before now.
func (t *throttle) prune(now time.Time) {
	if t.seen == nil {
		t.seen = map[string]*failures{}
	}
	if len(t.seen) < maxThrottled {
		return
	}
	for k, f := range t.seen {
		if now.Sub(f.last) > longest || now.After(f.until) {
			delete(t.seen, k)
		}
	}
}
