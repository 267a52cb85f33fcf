package artifact

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// TestRepeat shows that Repeat outlasts a server that does not respond in time or is absent for a
// while, that it ends after Attempts requests or with the context, and that it does not repeat a
// request that failed otherwise.
func TestRepeat(t *testing.T) {
	refused, silent := errors.New("refused"), errors.New("silent")
	for name, c := range map[string]struct {
		results []error // of the requests, silent for one without a response; further ones succeed
		limit   time.Duration
		want    error
		n       int
		took    time.Duration
	}{
		"succeeds":              {n: 1},
		"is refused":            {results: []error{refused}, want: refused, n: 1},
		"has no response twice": {results: []error{silent, silent}, n: 3, took: 20 * time.Second},
		"has no response":       {results: []error{silent, silent, silent, silent}, want: context.DeadlineExceeded, n: Attempts, took: 40 * time.Second},
		"has no server":         {results: []error{fmt.Errorf("request: %w", nats.ErrNoResponders), nats.ErrNoResponders}, n: 3, took: 6 * time.Second},
		"ends in a pause":       {results: []error{nats.ErrNoResponders}, limit: time.Second, want: nats.ErrNoResponders, n: 1, took: time.Second},
		"ends in a request":     {results: []error{silent, silent}, limit: 11 * time.Second, want: context.DeadlineExceeded, n: 2, took: 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.limit > 0 {
					limited, cancel := context.WithTimeout(ctx, c.limit)
					defer cancel()
					ctx = limited
				}
				n, began := 0, time.Now()
				err := Repeat(ctx, 10*time.Second, func(ctx context.Context) error {
					n++
					if n > len(c.results) {
						return nil
					}
					if errors.Is(c.results[n-1], silent) {
						<-ctx.Done()
						return ctx.Err()
					}
					return c.results[n-1]
				})
				if took := time.Since(began); !errors.Is(err, c.want) || n != c.n || took != c.took {
					t.Errorf("%v after %d requests in %s, want %v after %d in %s", err, n, took, c.want, c.n, c.took)
				}
			})
		})
	}
}
