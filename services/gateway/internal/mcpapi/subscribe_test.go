package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// feedFrames is a Frames that tests fill.
type feedFrames struct {
	mu     sync.Mutex
	wake   chan struct{}
	queue  []transient.Frame
	closed bool
}

func newFeed() *feedFrames { return &feedFrames{wake: make(chan struct{}, 1)} }

func (f *feedFrames) Wake() <-chan struct{} { return f.wake }

func (f *feedFrames) Try() (x transient.Frame, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 {
		return x, false, nil
	}
	x, f.queue = f.queue[0], f.queue[1:]
	if x.Kind == transient.Failed {
		return x, false, transient.ErrGap
	}
	return x, true, nil
}

func (f *feedFrames) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

// send adds frames with the given methods. The method "gap" is an error.
func (f *feedFrames) send(methods ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	for _, m := range methods {
		b, _ := json.Marshal(mcpdoc.Frame{Method: m})
		x := transient.Frame{Kind: transient.Data, Data: b}
		if m == "gap" {
			x.Kind = transient.Failed
		}
		f.queue = append(f.queue, x)
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// TestFollowing shows that no change of a resource is missed while a subscription is renewed,
// after it has ended, or if frames are lost, unless a renewal is denied. An event sends frames
// of one lease, a given time after the start.
func TestFollowing(t *testing.T) {
	type event struct {
		at    time.Duration
		lease int
		send  []string
	}
	down := errors.New("unavailable")
	for name, c := range map[string]struct {
		events  []event
		refused map[int]error // by number of the attempt to renew, from 1
		until   time.Duration
		leases  int // number of leases that are obtained, including the first
		want    []time.Duration
	}{
		"a change":               {events: []event{{time.Second, 0, []string{mcpdoc.Updated}}}, until: time.Minute, leases: 1, want: []time.Duration{time.Second}},
		"no change":              {until: 10 * time.Minute, leases: 6},
		"two changes at once":    {events: []event{{time.Second, 0, []string{mcpdoc.Updated, mcpdoc.Updated}}}, until: time.Minute, leases: 1, want: []time.Duration{time.Second}},
		"late, of the old lease": {events: []event{{renewAfter + time.Second, 0, []string{mcpdoc.Updated}}}, until: 3 * time.Minute, leases: 2, want: []time.Duration{renewAfter + time.Second}},
		"of the next lease":      {events: []event{{renewAfter + time.Second, 1, []string{mcpdoc.Updated}}}, until: 3 * time.Minute, leases: 2, want: []time.Duration{renewAfter + time.Second}},
		"a change and then a gap": {events: []event{{time.Second, 0, []string{mcpdoc.Updated, "gap"}}}, until: time.Minute, leases: 2,
			want: []time.Duration{time.Second, time.Second + renewEnded}},
		"a gap, and frames after it": {events: []event{{time.Second, 0, []string{"gap"}}, {1500 * time.Millisecond, 0, []string{"gap"}}, {1900 * time.Millisecond, 0, []string{"gap"}}}, until: time.Minute, leases: 2,
			want: []time.Duration{time.Second + renewEnded}},
		"ended": {events: []event{{time.Second, 0, []string{mcpdoc.Ended}}}, until: time.Minute, leases: 2, want: []time.Duration{time.Second + renewEnded}},
		"ended, and down": {events: []event{{time.Second, 0, []string{mcpdoc.Ended}}}, refused: map[int]error{1: down, 2: down}, until: time.Minute, leases: 2,
			want: []time.Duration{time.Second + renewEnded + 2*renewAgain}},
		"down until the lease expired": {refused: map[int]error{1: down, 2: down, 3: down, 4: down, 5: down, 6: down, 7: down}, until: 4 * time.Minute, leases: 2,
			want: []time.Duration{renewAfter + 7*renewAgain}},
		"denied": {events: []event{{renewAfter + time.Second, 0, []string{mcpdoc.Updated}}}, refused: map[int]error{1: &apierr.Error{Status: 403}}, until: 10 * time.Minute, leases: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var got []time.Duration
				attempts := 0
				all := []*feedFrames{newFeed()}
				f := &following{uri: "x", frames: all[0], notify: func() { got = append(got, time.Since(began)) }, lease: func(context.Context) (Frames, error) {
					attempts++
					if err := c.refused[attempts]; err != nil {
						return nil, err
					}
					all = append(all, newFeed())
					return all[len(all)-1], nil
				}}
				ctx, end := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { f.run(ctx); close(done) }()
				for _, e := range c.events {
					time.Sleep(time.Until(began.Add(e.at)))
					synctest.Wait()
					if e.lease < len(all) {
						all[e.lease].send(e.send...)
					}
				}
				time.Sleep(time.Until(began.Add(c.until)))
				end()
				<-done
				if len(all) != c.leases || len(got) != len(c.want) {
					t.Fatalf("%d leases, notified at %v, want %v", len(all), got, c.want)
				}
				for i := range got {
					if got[i] != c.want[i] {
						t.Errorf("notified at %v, want %v", got, c.want)
					}
				}
				for i, f := range all {
					if !f.closed {
						t.Errorf("the frames of lease %d are not closed", i)
					}
				}
			})
		})
	}
}
