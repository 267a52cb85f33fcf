package follow

import (
	"context"
	"errors"
	"testing"
)

// TestOver checks which reason ends a round if several have occurred. The end of the
// context takes precedence over a reconnection, a reconnection over an error of the
// subscription, and each of the three over the repair of a gap, which would send a
// request.
func TestOver(t *testing.T) {
	failed := errors.New("no more heartbeats")
	reconnected, open := make(chan struct{}), make(chan struct{})
	close(reconnected)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name        string
		ctx         context.Context
		reconnected chan struct{}
		want        error
	}{
		{"ended", ended, reconnected, context.Canceled},
		{"reconnected", t.Context(), reconnected, errReconnected},
		{"failed", t.Context(), open, failed},
	} {
		for range 100 { // select chooses at random
			r := &reading{f: &Follower{}, mu: newLock(), broken: make(chan error, 1), gap: make(chan struct{}, 1), quiet: make(chan struct{}, 1)}
			r.fail(failed)
			r.gap <- struct{}{}
			r.quiet <- struct{}{}
			if err := r.watch(tt.ctx, tt.reconnected); !errors.Is(err, tt.want) {
				t.Fatalf("%s: the round ends with %v, want %v", tt.name, err, tt.want)
			}
			p := &poller{f: r.f, r: r, reconnected: tt.reconnected, ends: make(chan error, 1)}
			if errors.Is(tt.want, failed) {
				r.fail(failed) // watch has received the first one
			}
			if err := p.rest(tt.ctx, 0); !errors.Is(err, tt.want) {
				t.Fatalf("%s: a follower that polls ends with %v, want %v", tt.name, err, tt.want)
			}
		}
	}
}
