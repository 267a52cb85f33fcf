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

// polled is a round of a follower with Every. It returns when ctx ends, when the
// connection was made again and when the reading breaks; Run begins the next round.
func (f *Follower) polled(ctx context.Context, r *reading, batch int, reconnected <-chan struct{}) error {
	p := &poller{f: f, r: r, batch: batch, inbox: f.Conn.NC.NewInbox(), ends: make(chan error, 1), reconnected: reconnected}
	sub, err := f.Conn.NC.Subscribe(p.inbox, p.receive)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	defer p.requeue(ctx)
	for rest := f.Every; ; {
		before := f.Position()
		if err := p.drain(ctx); err != nil {
			return err
		}
		f.caught()
		p.answer()
		if rest = min(2*rest, maxRest*f.Every); f.Position() > before {
			rest = f.Every
		}
		if err := p.rest(ctx, rest); err != nil {
			return err
		}
	}
}

// poller is the state of a round of a follower with Every.
type poller struct {
	f           *Follower
	r           *reading
	batch       int
	inbox       string
	ends        chan error      // of requests; nil: there is more
	left        int             // of the request under way; touched only by the subscription until it ends
	reconnected <-chan struct{} // closed when the connection was made again
	waiting     []chan struct{} // callers of Poll
}

// receive takes one message of a request, or the status that ends it.
func (p *poller) receive(m *nats.Msg) {
	if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
		p.end(statusError(status))
		return
	}
	if md, err := m.Metadata(); err != nil {
		p.r.fail(err)
	} else {
		p.r.take(m.Subject, m.Data, delivery{md.Sequence.Consumer, md.Sequence.Stream, md.NumPending})
	}
	if p.left--; p.left == 0 {
		p.end(nil)
	}
}

func (p *poller) end(err error) {
	select {
	case p.ends <- err:
	default:
	}
}

// drain requests messages until there are none for now, and mends what is missing.
func (p *poller) drain(ctx context.Context) error {
	for more := true; more; {
		p.left = p.batch
		if err := p.f.Conn.Next(p.f.Stream, p.f.Consumer, p.inbox, p.batch); err != nil {
			return err
		}
		switch err := p.ended(ctx); {
		case errors.Is(err, errDrained):
			more = false
		case err != nil:
			return err
		}
		gap := false
		select {
		case err := <-p.r.broken:
			return err
		case <-p.r.gap:
			gap = true
		default:
		}
		if gap || p.r.stuck() || p.r.silent() {
			if err := p.r.mend(ctx); err != nil {
				return err
			}
			more = true
		}
	}
	return nil
}

// ended waits for the end of the request under way: nil where there may be more,
// errDrained where there is not, and any other error where the round is over.
func (p *poller) ended(ctx context.Context) error {
	for at := p.f.Position(); ; at = p.f.Position() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.reconnected:
			return errReconnected
		case err := <-p.r.broken:
			return err
		case err := <-p.ends:
			return err
		case <-time.After(answerWithin):
			if p.f.Position() == at {
				return fmt.Errorf("no answer to a request for messages within %v", answerWithin)
			}
		}
	}
}

// answer lets those go that wait in Poll.
func (p *poller) answer() {
	for _, w := range p.waiting {
		close(w)
	}
	p.waiting = p.waiting[:0]
}

// rest waits until it is time for the next request, or until Poll is called, and
// collects all that called it.
func (p *poller) rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.reconnected:
		return errReconnected
	case <-time.After(d):
	case w := <-p.f.polls:
		p.waiting = append(p.waiting, w)
	}
	for {
		select {
		case w := <-p.f.polls:
			p.waiting = append(p.waiting, w)
		default:
			return nil
		}
	}
}

// requeue gives those that still wait to the next round, with their own patience.
func (p *poller) requeue(ctx context.Context) {
	for _, w := range p.waiting {
		go func() {
			select {
			case p.f.polls <- w:
			case <-ctx.Done():
			}
		}()
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
