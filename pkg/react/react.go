// Package react runs reactors that are off the hot path, such as notifications, on
// Watermill's Router: several messages at once, with panics recovered, retries with
// backoff, a poison queue, correlation and metrics as its middleware. It provides a thin
// subscriber over a service's durable consumer and a thin publisher over the ledger, since
// the ones of Watermill process one message at a time and panic on messages without their
// headers. Readers that depend on the order of events use package follow.
package react

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
)

// Reactor is a handler of the events of a work consumer.
type Reactor struct {
	Name  string // name in logs and metrics, and in the events of its poison queue
	Work  bus.Work
	Limit int // maximum number of events that are handled at once
	// Handle handles one event. It may be called again for the same event, up to three
	// times in one delivery. A nil error acknowledges the event; any other error of the
	// last call returns it for another delivery, or, if the error wraps ErrPermanent, or
	// after MaxTries deliveries, sends it to the poison queue. An error of Later is no
	// failure.
	Handle func(ctx context.Context, e *contract.Event) error
	// MaxTries is the number of deliveries after which an event goes to the poison queue;
	// 0 means 20.
	MaxTries uint64
	// Timeout bounds the calls of Handle in one delivery, together; 0 means 30 s.
	Timeout time.Duration
}

// ErrPermanent is wrapped by the error of a handler for an event that no further attempt
// can handle.
var ErrPermanent = errors.New("no further attempt can succeed")

// Permanent returns an error that wraps err and ErrPermanent.
func Permanent(err error) error { return fmt.Errorf("%w: %w", ErrPermanent, err) }

// laterError is the error of Later, or that of Again with a cause.
type laterError struct {
	after time.Duration
	cause error
}

func (e laterError) Error() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return "the event is handled later"
}

func (e laterError) Unwrap() error { return e.cause }

// Later returns the error with which a handler postpones an event that it cannot handle yet:
// the event is delivered again after at least d, which must be positive. This is no failure:
// the error is neither logged nor counted and does not send the event to the poison queue, and
// Handle is not called again in this delivery. The delivery counts towards MaxTries of a later
// failure.
func Later(d time.Duration) error { return laterError{d, nil} }

// Again returns the error of a handler that failed with err and whose event is to be
// delivered again after at least d instead of after Backoff. d must be positive. MaxTries
// applies as to any other error.
func Again(err error, d time.Duration) error { return laterError{d, err} }

// Deliveries returns the number of deliveries of an event, including the current one. ctx is
// the context with which Handle was called; for any other context the result is 0.
func Deliveries(ctx context.Context) uint64 {
	n, _ := ctx.Value(triesKey).(uint64)
	return n
}

// Counter counts handled events by reactor and status: "ok", "retry" or "poison".
type Counter interface {
	Reaction(reactor, status string, took time.Duration)
}

// Env holds the parts of an instance that reactors use.
type Env struct {
	Service string
	Conn    *bus.Conn
	Emit    *emit.Emitter
	Log     *slog.Logger
	Metrics Counter // nil for none
}

// Run runs reactors until ctx ends, and then waits until their handlers have returned, which
// takes at most their Timeout if they respect their context. It returns an error if the
// router cannot be made or started.
func Run(ctx context.Context, env Env, reactors ...Reactor) error {
	router, err := NewRouter(env, func(r Reactor) message.Subscriber {
		return &Subscriber{Feed: func(ctx context.Context, take func(context.Context, *consumer.Delivery)) error {
			return consumer.Run(ctx, env.Conn, env.Service, r.Work, r.Limit, take)
		}, Log: env.Log}
	}, reactors...)
	if err != nil {
		return err
	}
	return router.Run(ctx)
}

// retry calls a handler up to three times, with pauses of 50 ms and 200 ms. Watermill doubles
// the interval twice for each attempt: once for the parameters of ShouldRetry.
var retry = middleware.Retry{MaxRetries: 2, InitialInterval: 25 * time.Millisecond, Multiplier: 2, MaxInterval: time.Second,
	ShouldRetry: func(p middleware.RetryParams) bool {
		var later laterError
		return !errors.Is(p.Err, ErrPermanent) && (!errors.As(p.Err, &later) || later.cause != nil)
	}}

// NewRouter returns a router with a handler for each reactor. from returns the subscriber of
// a reactor.
func NewRouter(env Env, from func(Reactor) message.Subscriber, reactors ...Reactor) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(env.Log))
	if err != nil {
		return nil, err
	}
	for _, r := range reactors {
		if r.MaxTries == 0 {
			r.MaxTries = 20
		}
		if r.Timeout == 0 {
			r.Timeout = 30 * time.Second
		}
		poison, err := middleware.PoisonQueueWithFilter(&Publisher{Emit: env.Emit}, contract.EventReactionFailed, isPoison)
		if err != nil {
			return nil, err
		}
		h := router.AddConsumerHandler(r.Name, r.Name, from(r), r.handle)
		h.AddMiddleware(poison, r.measured(env), r.judged, postponed, middleware.CorrelationID, middleware.Recoverer, middleware.Timeout(r.Timeout), retry.Middleware)
	}
	return router, nil
}

// handle passes the event of a message to the reactor's handler.
func (r *Reactor) handle(m *message.Message) error {
	e, _ := m.Context().Value(eventKey).(*contract.Event)
	if e == nil {
		return Permanent(errors.New("the message has no event"))
	}
	return r.Handle(m.Context(), e)
}

// postponed stores the delay of an error of Later or Again for the subscriber, and removes
// an error of Later.
func postponed(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		out, err := next(m)
		var later laterError
		if delay, _ := m.Context().Value(delayKey).(*time.Duration); delay != nil && errors.As(err, &later) {
			*delay = later.after
			if later.cause == nil {
				return out, nil
			}
		}
		return out, err
	}
}

// poisonError is the error of an event that goes to the poison queue.
type poisonError struct{ error }

func (p poisonError) Unwrap() error { return p.error }

// isPoison reports whether an event with this error goes to the poison queue.
func isPoison(err error) bool { return errors.As(err, new(poisonError)) }

// judged marks the error of an event that goes to the poison queue.
func (r *Reactor) judged(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		out, err := next(m)
		if tries, _ := m.Context().Value(triesKey).(uint64); err != nil && (errors.Is(err, ErrPermanent) || tries >= r.MaxTries) {
			err = poisonError{err}
			if delay, _ := m.Context().Value(delayKey).(*time.Duration); delay != nil {
				*delay = 0
			}
		}
		return out, err
	}
}

// measured counts the results of a handler, and logs its errors.
func (r *Reactor) measured(env Env) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			began := time.Now()
			out, err := next(m)
			status := "ok"
			if delay, _ := m.Context().Value(delayKey).(*time.Duration); err == nil && delay != nil && *delay > 0 {
				return out, nil
			}
			switch {
			case isPoison(err):
				status = "poison"
				env.Log.Error("an event cannot be handled", "reactor", r.Name, "event", m.UUID, "err", err)
			case err != nil:
				status = "retry"
				env.Log.Warn("an event will be handled again", "reactor", r.Name, "event", m.UUID, "err", err)
			}
			if env.Metrics != nil {
				env.Metrics.Reaction(r.Name, status, time.Since(began))
			}
			return out, err
		}
	}
}

// Keys of values in the context of a message.
type contextKey int

const (
	eventKey contextKey = iota
	triesKey
	delayKey // *time.Duration: the delay of an error of Later or Again; 0 if there is none
)

// Metadata of a message.
const (
	MetaCorrelation = middleware.CorrelationIDMetadataKey
	MetaSubject     = "subject"
)

// Subscriber passes the deliveries of a durable consumer to a router, as many
// at once as Feed passes to it. A message that is no valid event is logged and
// not delivered again.
type Subscriber struct {
	// Feed calls take for each delivery until ctx ends, several at once, and returns when
	// every call has returned.
	Feed func(ctx context.Context, take func(context.Context, *consumer.Delivery)) error
	Log  *slog.Logger

	mu     sync.Mutex
	stops  []context.CancelFunc
	closed sync.WaitGroup
}

// Subscribe implements message.Subscriber. The topic is not used: Feed has the filters.
func (s *Subscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	ctx, stop := context.WithCancel(ctx)
	s.mu.Lock()
	s.stops = append(s.stops, stop)
	s.mu.Unlock()
	out := make(chan *message.Message)
	s.closed.Go(func() {
		defer close(out)
		if err := s.Feed(ctx, func(_ context.Context, d *consumer.Delivery) { s.deliver(ctx, d, out) }); err != nil {
			s.Log.Error("subscription ended", "err", err)
		}
	})
	return out, nil
}

// deliver passes one delivery on, waits until the router has acknowledged or refused it,
// and responds to the server. If ctx ends before the router takes it, it is returned for
// redelivery. A delivery that is no valid event is never delivered again.
func (s *Subscriber) deliver(ctx context.Context, d *consumer.Delivery, out chan<- *message.Message) {
	e, err := d.Open()
	if err != nil {
		s.Log.Error("message refused", "subject", d.Subject, "err", err)
		d.Term()
		return
	}
	m := message.NewMessage(e.ID, message.Payload(e.Data))
	m.Metadata.Set(MetaSubject, d.Subject)
	m.Metadata.Set(MetaCorrelation, e.Correl)
	var delay time.Duration
	with := context.WithValue(context.WithValue(context.WithoutCancel(ctx), eventKey, e), triesKey, d.Tries)
	with, cancel := context.WithCancel(context.WithValue(with, delayKey, &delay))
	defer cancel()
	m.SetContext(with)
	select {
	case out <- m:
	case <-ctx.Done():
		d.Nak(0)
		return
	}
	select {
	case <-m.Acked():
		if delay > 0 {
			d.Nak(delay)
		} else {
			d.Ack()
		}
	case <-m.Nacked():
		d.Nak(cmp.Or(delay, Backoff(d.Tries)))
	}
}

// Backoff returns the time before the next delivery of an event that was delivered n times:
// one second, doubled each time, at most a minute.
func Backoff(n uint64) time.Duration {
	return min(time.Second<<min(max(n, 1)-1, 6), time.Minute)
}

// Close implements message.Subscriber. It waits until the handlers have returned.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	for _, stop := range s.stops {
		stop()
	}
	s.mu.Unlock()
	s.closed.Wait()
	return nil
}

// Publisher appends an event to the ledger for each message that a reactor has received
// and could not handle. The topic is the name of the event, the event of the message is
// its cause, and its data are the id of that event, the reactor and the reason. A
// message without an event is an error.
type Publisher struct{ Emit *emit.Emitter }

// Publish implements message.Publisher. A nil error means that the events are stored.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		e, _ := m.Context().Value(eventKey).(*contract.Event)
		if e == nil {
			return errors.New("the message has no event, so its tenant is not known")
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.Context()), 10*time.Second)
		_, err := p.Emit.Append(ctx, p.Emit.New(topic, e.Key, failure(m, e), e))
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// Close implements message.Publisher.
func (*Publisher) Close() error { return nil }

// maxReason is the maximum number of bytes of a reason.
const maxReason = 512

// failure returns the data of reaction_failed.v1.
func failure(m *message.Message, e *contract.Event) []byte {
	reason := m.Metadata.Get(middleware.ReasonForPoisonedKey)
	w := canon.Object(nil)
	w.Str("event", e.ID)
	w.Str("reactor", m.Metadata.Get(middleware.PoisonedHandlerKey))
	w.Str("reason", reason[:min(len(reason), maxReason)])
	return w.End()
}
