package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Views that are off the hot path poll: delivering a hundred events at once costs little
// more than delivering ten one at a time. A follower with Every requests new entries at
// intervals, and whenever Poll is called.

// Poll returns nil once every matching entry that was stored when Poll was called has
// been applied, or returns the error of ctx or of the NATS request. While Run is not
// running, Poll may wait until ctx ends. A follower without Every receives entries as
// they are stored; for it, Poll returns nil at once.
func (f *Follower) Poll(ctx context.Context) error {
	if f.Every == 0 {
		return nil
	}
	last, err := f.newest(ctx)
	if err != nil {
		return err
	}
	for first := true; f.Position() < last; first = false {
		if !first { // the server makes a message available to the consumer a moment after it is stored
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

// newest returns the sequence of the newest entry that the consumer selects, or 0 if there is
// none. It queries with the consumer's filters: a cover that matches every entry makes the
// server return the last entry, whereas for the reader's own filters it would visit every
// subject that matches.
func (f *Follower) newest(ctx context.Context) (last uint64, err error) {
	for _, filter := range f.delivers {
		n, err := f.Conn.Last(ctx, f.Stream, filter)
		if err != nil {
			return 0, err
		}
		last = max(last, n)
	}
	return last, nil
}

// Reach returns a sequence of the stream up to which every matching entry has been
// applied. While the follower runs, that is at least the last sequence that the stream
// had when Reach was called: Reach waits until the matching entries up to there have been
// applied. After Run has returned, it may be less. Reach returns the error of ctx or of a
// NATS request.
func (f *Follower) Reach(ctx context.Context) (uint64, error) {
	tail, err := f.Conn.LastSeq(ctx, f.Stream)
	if err != nil {
		return 0, err
	}
	last, err := f.newest(ctx)
	if err != nil {
		return 0, err
	}
	for f.Position() < min(last, tail) {
		if f.ended.Load() {
			return f.Position(), nil
		}
		if err := f.Poll(ctx); err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return tail, nil
}

// Applied is like Reach, but also returns an error if Run has returned, because events that are
// stored after that are not applied.
func (f *Follower) Applied(ctx context.Context) (uint64, error) {
	at, err := f.Reach(ctx)
	if err == nil && f.Ended() {
		err = errors.New("the view is not read any more, because the service stops")
	}
	return at, err
}

// Ended reports whether Run has returned, after which no further entry is applied.
func (f *Follower) Ended() bool { return f.ended.Load() }

// maxRest is the maximum interval between polls of an idle follower, in multiples of
// Every.
const maxRest = 8

// answerWithin is the time without a delivery after which a pull request counts as
// failed, unless Apply is under way.
const answerWithin = 5 * time.Second

// polled runs one round of a follower with Every. When ctx ends, it returns the error of
// ctx. It returns another error when the connection has been made again or when reading
// fails; Run then begins the next round.
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
		if err := f.settle(ctx); err != nil {
			return err
		}
		p.answer()
		if rest = min(2*rest, maxRest*f.Every); f.Position() > before {
			rest = f.Every
		}
		if err := p.rest(ctx, rest); err != nil {
			return err
		}
	}
}

// poller is the state of one round of a follower with Every.
type poller struct {
	f           *Follower
	r           *reading
	batch       int
	inbox       string
	ends        chan error      // the result of a pull request; nil means that more messages may be available
	left        int             // messages left in the current request; only the subscription's goroutine uses it until the request ends
	reconnected <-chan struct{} // closed when the connection is made again
	waiting     []chan struct{} // channels of the callers that wait in Poll
}

// receive handles one message of a pull request, or the status message that ends the
// request.
func (p *poller) receive(m *nats.Msg) {
	if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
		p.end(statusError(status))
		return
	}
	if d, err := deliveryOf(m.Reply); err != nil {
		p.r.fail(err)
	} else {
		p.r.take(m.Subject, m.Data, d)
	}
	if p.left--; p.left == 0 {
		p.end(nil)
	}
}

// end records the result of the current pull request. It does not block; while a result
// is waiting to be read, later ones are dropped.
func (p *poller) end(err error) {
	select {
	case p.ends <- err:
	default:
	}
}

// drain requests messages until no more are available, and repairs gaps.
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
		if err := p.r.over(ctx, p.reconnected); err != nil {
			return err
		}
		broken := p.r.torn() || p.r.stuck()
		if !broken {
			var err error
			if broken, err = p.r.silent(ctx); err != nil {
				return err
			}
		}
		if broken {
			if err := p.r.mend(ctx); err != nil {
				return err
			}
			more = true
		}
	}
	return nil
}

// ended waits for the end of the current request. It returns nil if more messages may be
// available, errDrained if not, and any other error if the round has to end.
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
			if p.f.Position() == at && !p.r.applying() {
				return fmt.Errorf("no answer to a request for messages within %v", answerWithin)
			}
		}
	}
}

// answer closes the channels of the callers that wait in Poll, which then check the
// position again.
func (p *poller) answer() {
	for _, w := range p.waiting {
		close(w)
	}
	p.waiting = p.waiting[:0]
}

// rest waits for d or until Poll is called, and collects all calls of Poll
// that wait. It returns an error if ctx ends or the connection is made again
// first, or if reading has failed.
func (p *poller) rest(ctx context.Context, d time.Duration) error {
	if err := p.r.over(ctx, p.reconnected); err != nil {
		return err
	}
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

// requeue passes the calls of Poll that still wait to the next round. It does not block.
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

// errDrained is the result of a pull request if no more messages are available now.
var errDrained = errors.New("no more messages")

// statusError returns the error for a status message of JetStream, which ends a pull
// request: errDrained for 404 (no messages) and 408 (the request has expired), and
// otherwise an error with the status.
func statusError(status string) error {
	if status == "404" || status == "408" {
		return errDrained
	}
	return fmt.Errorf("request for messages: status %s", status)
}
