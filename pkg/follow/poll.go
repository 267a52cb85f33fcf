package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// A view that nobody waits for need not hear of each event by itself: a hundred
// deliveries at once cost little more than ten one after the other. Such a
// follower asks every so often, and when somebody wants to know.

// Poll returns once everything is applied that was on the stream when it was
// called. Of a follower without Every it knows nothing better than what came,
// and returns at once.
func (f *Follower) Poll(ctx context.Context) error {
	if f.Every == 0 {
		return nil
	}
	last := uint64(0)
	for _, filter := range f.filters {
		n, err := f.Conn.Last(ctx, f.Stream, filter)
		if err != nil {
			return err
		}
		last = max(last, n)
	}
	for first := true; f.Position() < last; first = false {
		if !first { // the consumer learns of a message a moment after its writer
			time.Sleep(time.Millisecond)
		}
		done := make(chan struct{})
		select {
		case f.polls <- done:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// maxRest is how many times Every a follower rests at most when nothing comes.
const maxRest = 8

// answerWithin is how long a request for messages may stay unanswered.
const answerWithin = 5 * time.Second

// polled is a round of a follower that asks.
func (f *Follower) polled(ctx context.Context, r *reading, batch int, reconnected <-chan struct{}) error {
	ends := make(chan error, 1) // of requests; nil: there is more
	left := 0                   // of the request under way; touched only by the subscription until it ends
	inbox := f.Conn.NC.NewInbox()
	end := func(err error) {
		select {
		case ends <- err:
		default:
		}
	}
	sub, err := f.Conn.NC.Subscribe(inbox, func(m *nats.Msg) {
		if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
			end(statusError(status))
			return
		}
		if md, err := m.Metadata(); err != nil {
			r.fail(err)
		} else {
			r.take(m.Subject, m.Data, delivery{md.Sequence.Consumer, md.Sequence.Stream, md.NumPending})
		}
		if left--; left == 0 {
			end(nil)
		}
	})
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	rest := f.Every
	var waiting []chan struct{}
	defer func() { // they ask again in the next round, with their own patience
		for _, w := range waiting {
			go func() {
				select {
				case f.polls <- w:
				case <-ctx.Done():
				}
			}()
		}
	}()
	for {
		before := f.Position()
		for more := true; more; {
			left = batch
			if err := f.Conn.Next(f.Stream, f.Consumer, inbox, batch); err != nil {
				return err
			}
			for at, answered := f.Position(), false; !answered; {
				select {
				case <-ctx.Done():
					return nil
				case <-reconnected:
					return errReconnected
				case err := <-r.broken:
					return err
				case <-time.After(answerWithin):
					if f.Position() == at {
						return fmt.Errorf("no answer to a request for messages within %v", answerWithin)
					}
					at = f.Position()
				case err := <-ends:
					if more, answered = err == nil, true; !more && err != errDrained {
						return err
					}
				}
			}
			gap := false
			select {
			case err := <-r.broken:
				return err
			case <-r.gap:
				gap = true
			default:
			}
			if gap || r.stuck() || r.silent() {
				if err := r.mend(ctx); err != nil {
					return err
				}
				more = true
			}
		}
		f.caught()
		for _, w := range waiting {
			close(w)
		}
		waiting = waiting[:0]
		if rest = min(2*rest, maxRest*f.Every); f.Position() > before {
			rest = f.Every
		}
		select {
		case <-ctx.Done():
			return nil
		case <-reconnected:
			return errReconnected
		case <-time.After(rest):
		case w := <-f.polls:
			waiting = append(waiting, w)
		}
		for more := true; more; { // whoever came meanwhile is answered too
			select {
			case w := <-f.polls:
				waiting = append(waiting, w)
			default:
				more = false
			}
		}
	}
}

// errDrained ends a request: there are no more messages for now.
var errDrained = errors.New("no more messages")

func statusError(status string) error {
	if status == "404" || status == "408" {
		return errDrained
	}
	return fmt.Errorf("request for messages: status %s", status)
}
