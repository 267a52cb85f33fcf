package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
)

// JetStream implements Log on the volumes of Conn.Ledger. It appends to the last one.
type JetStream struct{ Conn *bus.Conn }

// attempts is the maximum number of attempts of one append, and attemptTimeout the
// timeout of each; attemptTimeout also limits each attempt to read one entry. With the
// pauses between the attempts, an append is meant to outlast the restart of a server or
// the election of a leader.
const (
	attempts       = 8
	attemptTimeout = 2 * time.Second
)

// Append implements Log.
func (l JetStream) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	ack, err := l.publish(ctx, subject, data, nats.Header{jetstream.MsgIDHeader: {id}})
	if err != nil {
		return 0, err
	}
	if !ack.Duplicate {
		return ack.Seq, nil
	}
	return l.own(ctx, ack.Seq, subject, data)
}

// Start implements Log.
func (l JetStream) Start(subject, id string, data []byte) func(context.Context) (uint64, error) {
	f, err := l.Conn.JS.PublishMsgAsync(&nats.Msg{Subject: subject, Data: data, Header: nats.Header{}}, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
	return func(ctx context.Context) (uint64, error) {
		if err == nil {
			try, cancel := context.WithTimeout(ctx, attemptTimeout)
			defer cancel()
			select {
			case ack := <-f.Ok():
				if !ack.Duplicate {
					return ack.Sequence, nil
				}
				return l.own(ctx, ack.Sequence, subject, data)
			case <-f.Err():
			case <-try.Done():
			}
		}
		return l.Append(ctx, subject, id, data)
	}
}

// own handles a duplicate response: it returns seq if the stored event equals this
// writer's event, otherwise a *TakenError. It returns another error if the stored event
// cannot be read.
func (l JetStream) own(ctx context.Context, seq uint64, subject string, data []byte) (uint64, error) {
	en, err := l.Get(ctx, seq)
	if err != nil {
		return 0, err
	}
	if !same(en, subject, data) {
		return 0, &TakenError{seq}
	}
	return seq, nil
}

// AppendExpect implements Log.
func (l JetStream) AppendExpect(ctx context.Context, subject, id string, data []byte, filter string, expect uint64) (uint64, error) {
	if expect < l.Conn.Ledger.Open().First {
		expect = 0 // the last match is in an earlier volume, which no longer changes, so the open volume must have no match
	}
	ack, err := l.publish(ctx, subject, data, nats.Header{jetstream.MsgIDHeader: {id},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(expect, 10)}, jetstream.ExpectedLastSubjSeqSubjHeader: {filter}})
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == 10164) {
		// A single server checks the expected sequence before the id, so a resend after
		// a lost response conflicts too: check whether the last event is our own.
		last, err := l.Last(ctx, filter)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		if err == nil && same(last, subject, data) {
			return last.Seq, nil
		}
		return 0, ErrConflict
	}
	if err != nil {
		return 0, err
	}
	if !ack.Duplicate {
		return ack.Seq, nil
	}
	return l.own(ctx, ack.Seq, subject, data)
}

// publish sends the request until the server stores the message or rejects it for good,
// but at most attempts times and not after ctx has ended. The message id in header makes
// that safe: within the stream's duplicate window, the server stores one message per id.
// If the server rejects the message for good, the error is the server's
// *jetstream.APIError; any other error wraps ErrUnavailable.
func (l JetStream) publish(ctx context.Context, subject string, data []byte, header nats.Header) (bus.Ack, error) {
	var last error
	id := header.Get(jetstream.MsgIDHeader)
	for i := range attempts {
		try, cancel := context.WithTimeout(ctx, attemptTimeout)
		ack, err := l.Conn.Publish(try, &nats.Msg{Subject: subject, Data: data, Header: header})
		cancel()
		if err == nil {
			return ack, nil
		}
		var api *jetstream.APIError
		if errors.As(err, &api) && !passing(api.ErrorCode) {
			return bus.Ack{}, err
		}
		last = err
		select {
		case <-ctx.Done():
			return bus.Ack{}, fmt.Errorf("%w: append of %s: %w", ErrUnavailable, id, errors.Join(ctx.Err(), last))
		case <-time.After(time.Duration(25<<i) * time.Millisecond):
		}
	}
	return bus.Ack{}, fmt.Errorf("%w: append of %s: %w", ErrUnavailable, id, last)
}

// passing reports whether an append that failed with code may succeed if it is repeated:
// the cluster is not available for now (10008), or an append under the same id is in
// progress (10158, on replicated streams only).
func passing(code jetstream.ErrorCode) bool { return code == 10008 || code == 10158 }

func entry(m *nats.Msg) (Entry, error) {
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	return Entry{Seq: seq, Subject: m.Header.Get(jetstream.SubjectHeader), Data: m.Data}, err
}

// get reads one entry of a volume, with up to three attempts. It returns ErrNotFound if
// none matches, and an error that wraps ErrUnavailable if no attempt succeeds.
func (l JetStream) get(ctx context.Context, v bus.Volume, req map[string]any) (Entry, error) {
	var last error
	for range 3 {
		try, cancel := context.WithTimeout(ctx, attemptTimeout)
		m, err := l.Conn.Fresh(try, v.Stream, req)
		cancel()
		if errors.Is(err, bus.ErrNotFound) {
			return Entry{}, ErrNotFound
		}
		if err == nil {
			return entry(m)
		}
		if last = err; ctx.Err() != nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return Entry{}, fmt.Errorf("%w: read: %w", ErrUnavailable, last)
}

// Last implements Log.
func (l JetStream) Last(ctx context.Context, filter string) (Entry, error) {
	for v := l.Conn.Ledger.Open(); ; {
		en, err := l.get(ctx, v, bus.LastBy(filter))
		before, ok := l.Conn.Ledger.Before(v.First)
		if !errors.Is(err, ErrNotFound) || !ok {
			return en, err
		}
		v = before
	}
}

// Get implements Log.
func (l JetStream) Get(ctx context.Context, seq uint64) (Entry, error) {
	return l.get(ctx, l.Conn.Ledger.At(seq), map[string]any{"seq": seq})
}

// scanBatch is the number of entries that Scan requests at once, after a smaller first
// batch. For each request the server may have to load and decompress a block of the
// stream, so a batch is about as large as the limit of GetBatch allows.
const scanBatch = 2048

// Scan implements Log.
func (l JetStream) Scan(ctx context.Context, filter string, from uint64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		seq, size := max(from, 1), 64
		if from <= 1 && filter != bus.EveryEvent && len(l.Conn.Ledger) == 1 {
			next, err := l.sparse(ctx, filter, yield)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if next == 0 {
				return
			}
			seq = next
		}
		for v := l.Conn.Ledger.At(seq); ; {
			batch, end, err := l.batch(ctx, v, filter, seq, size)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, m := range batch {
				en, err := entry(m)
				if !yield(en, err) || err != nil {
					return
				}
				seq = en.Seq + 1
			}
			if end {
				next, more := l.Conn.Ledger.After(v.First)
				if !more {
					return
				}
				v, seq = next, next.First
			}
			size = scanBatch
		}
	}
}

// few is the maximum number of entries that sparse reads one by one, and the maximum number of
// subjects for which the method ends reads entries.
const few = 256

// distant is the minimum sequence of the last match for which sparse reads by subject.
const distant = 20_000

// sparse yields the first entries that match filter: all of them if the method ends returns
// any, and otherwise as many as the constant few permits, which it reads one by one. For a
// batch, the server would search every block of the stream after the last match, and hold the
// subjects of each in memory. next is the sequence from which the scan continues, or 0 if it
// has ended because all entries were yielded or yield returned false.
func (l JetStream) sparse(ctx context.Context, filter string, yield func(Entry, error) bool) (next uint64, err error) {
	last, err := l.Last(ctx, filter)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if last.Seq >= distant {
		all, err := l.ends(ctx, filter, last.Seq)
		if err != nil {
			return 0, err
		}
		for _, en := range all {
			if !yield(en, nil) {
				break
			}
		}
		if len(all) > 0 {
			return 0, nil
		}
	}
	next = 1
	for n := 0; n < few && next <= last.Seq; n++ {
		en, err := l.next(ctx, filter, next)
		if err != nil {
			return 0, err
		}
		if !yield(en, nil) {
			return 0, nil
		}
		next = en.Seq + 1
	}
	if next > last.Seq {
		return 0, nil
	}
	return next, nil
}

// next returns the first entry of the open volume that matches filter, from sequence seq
// on.
func (l JetStream) next(ctx context.Context, filter string, seq uint64) (Entry, error) {
	return l.get(ctx, l.Conn.Ledger.Open(), map[string]any{"seq": seq, "next_by_subj": filter})
}

// ends returns all entries that match filter, sorted, if no subject has more than two of them:
// the first and the last entry of each subject, for which the server has an index. It returns
// none if a subject has more, if the number of subjects is greater than the constant few, if
// filter selects events of every service, or if entries have been added since the subjects were
// counted. last is the sequence of the newest match.
func (l JetStream) ends(ctx context.Context, filter string, last uint64) (all []Entry, err error) {
	if bus.ParseFilter(filter).Service == "" {
		return nil, nil
	}
	counts, end, err := l.Conn.Subjects(ctx, l.Conn.Ledger.Open().Stream, filter, few)
	if err != nil {
		return nil, fmt.Errorf("%w: read: %w", ErrUnavailable, err)
	}
	for _, subject := range slices.Sorted(maps.Keys(counts)) {
		n := counts[subject]
		if n > 2 || last > end {
			return nil, nil
		}
		en, err := l.Last(ctx, subject)
		if err != nil || en.Seq > end {
			return nil, err
		}
		all = append(all, en)
		if n == 2 {
			if en, err = l.next(ctx, subject, 1); err != nil {
				return nil, err
			}
			all = append(all, en)
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return all, nil
}

// batch reads up to n entries of a volume that match filter, from sequence seq on, with
// up to three attempts. end reports that no further entry matched. If no attempt
// succeeds, batch returns an error that wraps ErrUnavailable.
func (l JetStream) batch(ctx context.Context, v bus.Volume, filter string, seq uint64, n int) (batch []*nats.Msg, end bool, err error) {
	var last error
	for range 3 {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		batch, end, err := l.Conn.FreshBatch(try, v.Stream, filter, seq, n)
		cancel()
		if err == nil {
			return batch, end, nil
		}
		if last = err; ctx.Err() != nil {
			break
		}
	}
	return nil, false, fmt.Errorf("%w: read: %w", ErrUnavailable, last)
}
