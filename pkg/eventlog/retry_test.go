package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// TestRetry checks that Retry repeats attempts while the ledger is unavailable and ctx
// has not ended, and returns any other result at once.
func TestRetry(t *testing.T) {
	unavailable := fmt.Errorf("read: %w", eventlog.ErrUnavailable)
	for _, c := range []struct {
		name     string
		results  []error
		want     error
		attempts int
	}{
		{"success", []error{nil}, nil, 1},
		{"success after an outage", []error{unavailable, unavailable, nil}, nil, 3},
		{"conflict", []error{eventlog.ErrConflict, nil}, eventlog.ErrConflict, 1},
		{"not found after an outage", []error{unavailable, eventlog.ErrNotFound}, eventlog.ErrNotFound, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				err := eventlog.Retry(t.Context(), func() error {
					attempts++
					return c.results[attempts-1]
				})
				if !errors.Is(err, c.want) || attempts != c.attempts {
					t.Errorf("%v after %d attempts, want %v after %d", err, attempts, c.want, c.attempts)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := eventlog.Retry(ctx, func() error { return unavailable }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the deadline: %v", err)
		}
	})
}

// TestUnavailable checks that Get, Last, Scan and Append return ErrUnavailable while the
// server is down.
func TestUnavailable(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{{Service: "a", Slots: 1}})
	log := eventlog.JetStream{Conn: b.Connect(t, "provision")}
	b.Down()
	for name, f := range map[string]func(context.Context) error{
		"get":  func(ctx context.Context) error { _, err := log.Get(ctx, 1); return err },
		"last": func(ctx context.Context) error { _, err := log.Last(ctx, "evt.>"); return err },
		"scan": func(ctx context.Context) error {
			for _, err := range log.Scan(ctx, "evt.>", 1) {
				return err
			}
			return nil
		},
		"append": func(ctx context.Context) error {
			_, err := log.Append(ctx, "evt.t.policy.-.e.k", "id", nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := f(ctx); !errors.Is(err, eventlog.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
}
