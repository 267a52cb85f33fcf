package route

import "time"

// Break says when a breaker opens, and for how long. The zero value means five
// failures in a row, and ten seconds.
type Break struct {
	Failures int   `json:"failures,omitempty"` // in a row; 0 = 5
	OpenMS   int64 `json:"open_ms,omitempty"`  // 0 = 10000
}

// Breaker keeps callers away from what keeps failing. The zero value is closed.
// It is not safe for concurrent use.
type Breaker struct {
	Break
	fails int
	until time.Time // open until; zero = closed
	probe bool      // one caller is trying
}

// Allow reports whether a caller may try now. While it is open one caller at a
// time may, once its time is over.
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

// Open is the time until which the breaker refuses callers, seen from the given time. The zero time: they
// are not, or one of them may try.
func (b *Breaker) Open(now time.Time) time.Time {
	if b.until.IsZero() || !now.Before(b.until) {
		return time.Time{}
	}
	return b.until
}

// Success closes the breaker, whatever its state was, and resets the count of
// failures.
func (b *Breaker) Success() { *b = Breaker{Break: b.Break} }

// Undecided says that an attempt ended without telling anything about the
// provider, as when the caller left.
func (b *Breaker) Undecided() { b.probe = false }

// Failure counts a failure, and opens the breaker at the configured number in a
// row, from the given time on.
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
