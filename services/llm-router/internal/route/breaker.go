package route

import "time"

// Breaker keeps callers away from what keeps failing. The zero value is closed.
// It is not safe for concurrent use.
type Breaker struct {
	fails int
	until time.Time // open until; zero = closed
	probe bool      // one caller is trying
}

// Circuit breaker: so many failures in a row open it for so long.
const (
	breakAfter = 5
	breakFor   = 10 * time.Second
)

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

// Open is until when callers are kept away; zero: they are not.
func (b *Breaker) Open(now time.Time) time.Time {
	if b.until.IsZero() || !now.Before(b.until) {
		return time.Time{}
	}
	return b.until
}

// Success closes it.
func (b *Breaker) Success() { *b = Breaker{} }

// Undecided says that an attempt ended without telling anything about the
// provider, as when the caller left.
func (b *Breaker) Undecided() { b.probe = false }

// Failure counts one.
func (b *Breaker) Failure(now time.Time) {
	b.probe = false
	if b.fails++; b.fails >= breakAfter {
		b.until = now.Add(breakFor)
	}
}
