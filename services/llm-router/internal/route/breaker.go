package route

import "time"

// Break configures when a breaker opens, and for how long. The zero value means five
// failures in a row, and ten seconds.
type Break struct {
	Failures int   `json:"failures,omitempty"` // in a row; 0 = 5
	OpenMS   int64 `json:"open_ms,omitempty"`  // 0 = 10000
}

// Breaker is a circuit breaker for a provider key: after repeated failures it refuses
// requests for a time. The zero value is closed. It is not safe for concurrent use.
type Breaker struct {
	Break
	fails int
	until time.Time // end of the time without requests; zero if closed
	probe bool      // a request is probing the provider
}

// Allow reports whether a request may be sent. After the time without requests, it
// allows one request at a time as a probe. Success, Failure or Undecided must follow
// true.
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

// Open returns the time until which the breaker refuses requests. It returns the zero
// time if the breaker is closed, or may allow a probe at now.
func (b *Breaker) Open(now time.Time) time.Time {
	if b.until.IsZero() || !now.Before(b.until) {
		return time.Time{}
	}
	return b.until
}

// Success closes the breaker, whatever its state was, and resets the count of
// failures.
func (b *Breaker) Success() { *b = Breaker{Break: b.Break} }

// Undecided ends an attempt that was neither a success nor a failure of the provider,
// for example because the caller disconnected.
func (b *Breaker) Undecided() { b.probe = false }

// Failure counts a failure at now, and opens the breaker if that is the configured
// number of failures in a row.
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
