package route

import (
	"cmp"
	"time"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/bound"
)

// Break configures after how many failures a breaker opens, and for how long. The zero
// value means five consecutive failures and ten seconds.
type Break struct {
	Failures int   `json:"failures,omitempty"` // consecutive failures that open the breaker; 0 = 5
	OpenMS   int64 `json:"open_ms,omitempty"`  // time for which the breaker stays open, in milliseconds; 0 = 10000
}

// maxFailures is the maximum of Break.Failures.
const maxFailures = 1_000_000

// Check returns an error that begins with the invalid member, if there is one.
func (b Break) Check() error {
	return cmp.Or(bound.Check("failures", b.Failures, maxFailures), bound.Check("open_ms", b.OpenMS, bound.Day))
}

// Breaker is a circuit breaker for a provider key: after repeated failures it rejects
// requests for a time. The zero value is closed. It is not safe for concurrent use.
type Breaker struct {
	Break
	fails int
	until time.Time // time at which the open period ends; zero if closed
	probe bool      // a request is in progress as a probe
}

// Allow reports whether a request may be sent. When the open period has ended, it allows
// one request at a time as a probe. If Allow returns true, the caller must call Success,
// Failure or Undecided for the request.
func (b *Breaker) Allow(now time.Time) bool {
	if b.until.IsZero() {
		return true
	}
	if now.Before(b.until) || b.probe {
		return false
	}
	b.probe = true
	return true
}

// Open returns the time until which the breaker rejects requests. It returns the zero
// time if the breaker is closed, or if the open period has ended at now.
func (b *Breaker) Open(now time.Time) time.Time {
	if b.until.IsZero() || !now.Before(b.until) {
		return time.Time{}
	}
	return b.until
}

// Success closes the breaker, whatever its state was, and resets the number of failures.
func (b *Breaker) Success() { *b = Breaker{Break: b.Break} }

// Undecided ends an attempt that was neither a success nor a failure of the provider,
// for example because the caller disconnected.
func (b *Breaker) Undecided() { b.probe = false }

// Failure counts a failure at now. It opens the breaker, or extends the open period, if
// the number of consecutive failures has reached the configured one.
func (b *Breaker) Failure(now time.Time) {
	b.probe = false
	failures, open := b.Failures, time.Duration(b.OpenMS)*time.Millisecond
	if failures == 0 {
		failures = 5
	}
	if open == 0 {
		open = 10 * time.Second
	}
	if b.fails++; b.fails >= failures {
		b.until = now.Add(open)
	}
}
