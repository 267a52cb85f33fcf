package artifact

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// Attempts is the maximum number of requests that a Store makes for a part.
const Attempts = 4

// Repeat calls f, with a context that ends after within, until f returns in time, but at most
// Attempts times and not after ctx has ended. It returns the last error of f. A Store uses it so
// that a large artifact survives a pause of its server: to read a part, or to write one, may be
// repeated. Repeat also calls f again, after a pause, if no server responds.
func Repeat(ctx context.Context, within time.Duration, f func(context.Context) error) error {
	for n := 1; ; n++ {
		limited, cancel := context.WithTimeout(ctx, within)
		err := f(limited)
		late := limited.Err() != nil
		cancel()
		absent := errors.Is(err, nats.ErrNoResponders)
		if err == nil || ctx.Err() != nil || !late && !absent || n == Attempts {
			return err
		}
		if late {
			continue
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second << n):
		}
	}
}
