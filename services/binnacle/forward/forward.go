// Package forward delivers events of a ledger to a system of a security team, in the order of the
// ledger and at least once each: the position is stored after the delivery. A delivery that is
// repeated, for example after a crash, has the same event ids.
package forward

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/ocsf"
)

// Record is an event to deliver.
type Record struct {
	Event *ocsf.Event
	Line  []byte // the event as JSON, without a newline
}

// Target receives events.
type Target interface {
	// Deliver delivers events. When it returns nil, the target has stored them as durably as its
	// protocol can confirm. After an error that wraps ErrRefused, a repetition cannot succeed;
	// after any other error, all of the events must be delivered again.
	Deliver(ctx context.Context, batch []Record) error
	// Close closes the connections of the target.
	Close() error
}

// ErrRefused is wrapped by errors of a target that rejected events.
var ErrRefused = errors.New("rejected by the target")

// ErrOtherLedger is wrapped by the error for a position that is not one of the ledger.
var ErrOtherLedger = errors.New("the position is of another ledger or tenant, or the ledger was restored from an older backup")

// Position identifies the last event that was delivered or omitted.
type Position struct {
	Seq uint64 `json:"seq"` // on the ledger; 0 before the first event
	ID  string `json:"id"`
}

// Cursor stores a position in a file. Open returns one. It is not safe for concurrent use.
type Cursor struct {
	Position
	path string
	lock *os.File
}

// Open returns the cursor in the file path, which need not exist. Until the caller calls Close, no
// process can open the same cursor again.
func Open(path string) (*Cursor, error) {
	lock, err := private.Create(path + ".lock")
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("%s is in use by another process; give each a cursor of its own", path)
	}
	c := &Cursor{path: path, lock: lock}
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &c.Position)
		if err == nil && (c.Seq == 0) != (c.ID == "") {
			err = errors.New("it has no position")
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		lock.Close()
		return nil, fmt.Errorf("cursor %s: %w; remove it to deliver the ledger from its first event", path, err)
	}
	return c, nil
}

// set stores a position. It is durable when set returns nil.
func (c *Cursor) set(p Position) error {
	b, err := json.Marshal(p)
	if err == nil {
		err = private.Write(c.path, append(b, '\n'))
	}
	if err == nil {
		c.Position = p
	}
	return err
}

// Close releases the cursor.
func (c *Cursor) Close() error { return c.lock.Close() }

// Forwarder delivers events. Its fields are set before its first use.
type Forwarder struct {
	// Read returns the events from a ledger sequence on, as lines {event, seq}. If follow is set,
	// the lines continue as events are recorded. The Forwarder closes the reader.
	Read    func(ctx context.Context, from uint64, follow bool) (io.ReadCloser, error)
	Target  Target
	Cursor  *Cursor
	Follow  bool // continue at the end of the ledger
	All     bool // also deliver the events of ocsf.Intermediate
	Version string
	Log     *slog.Logger
	Pause   time.Duration // before the first repetition; it doubles up to a minute

	Delivered, Rejected int // events delivered, and entries that are not valid events, since the start
}

// Bounds of a batch.
const (
	maxBatch  = 500
	maxLinger = 200 * time.Millisecond // how long the first event of a batch waits for more
)

// Run delivers events until the end of the ledger or, if Follow is set, until ctx is done. If
// Follow is set, Run tries again after an error, unless the error wraps ErrRefused or
// ErrOtherLedger. It returns nil if ctx is done.
func (f *Forwarder) Run(ctx context.Context) error {
	pause := f.Pause
	for {
		before := f.Cursor.Seq
		err := f.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && !f.Follow:
			return nil
		case !f.Follow, errors.Is(err, ErrRefused), errors.Is(err, ErrOtherLedger):
			return err
		case f.Cursor.Seq > before:
			pause = f.Pause
		}
		if err != nil {
			f.Log.Warn("events are delivered again", "after", f.Cursor.Seq, "in", pause.String(), "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Minute)
	}
}

// entry is a line of the ledger, or the error at which the lines end.
type entry struct {
	seq uint64
	raw []byte
	err error
}

// pass delivers events until the lines end.
func (f *Forwarder) pass(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := f.Read(ctx, max(f.Cursor.Seq, 1), f.Follow)
	if err != nil {
		return err
	}
	defer body.Close()
	entries := make(chan entry, maxBatch)
	go read(ctx, body, entries)

	if err := f.resume(ctx, entries); err != nil {
		return err
	}
	var batch []Record
	at := f.Cursor.Position
	var linger <-chan time.Time
	for {
		var end error
		full := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-linger:
			full = true
		case x := <-entries:
			if end = x.err; end == nil {
				at = f.take(&x, &batch, at)
			}
			if linger == nil {
				linger = time.After(maxLinger)
			}
			full = len(batch) >= maxBatch
		}
		if (full || errors.Is(end, io.EOF)) && at != f.Cursor.Position {
			if err := f.deliver(ctx, batch, at); err != nil {
				return err
			}
			batch = batch[:0]
		}
		if full {
			linger = nil
		}
		if errors.Is(end, io.EOF) {
			return nil
		}
		if end != nil {
			return end
		}
	}
}

// read sends the lines of a response until they end. Its last entry has an error, io.EOF at
// the end of a complete response.
func read(ctx context.Context, body io.Reader, to chan<- entry) {
	r := bufio.NewReaderSize(body, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		x := entry{err: err}
		if err == nil {
			var doc struct {
				Event json.RawMessage
				Seq   uint64
			}
			x.err = json.Unmarshal(line, &doc)
			x.seq, x.raw = doc.Seq, doc.Event
		} else if errors.Is(err, io.EOF) && len(bytes.TrimSpace(line)) > 0 {
			x.err = io.ErrUnexpectedEOF
		}
		select {
		case <-ctx.Done():
			return
		case to <- x:
		}
		if x.err != nil {
			return
		}
	}
}

// resume checks that the first entry is the event at the cursor. If it is another event, or if
// there is no entry, the error wraps ErrOtherLedger; any other error is that of reading or of
// ctx. resume reads nothing if the cursor is before the first event.
func (f *Forwarder) resume(ctx context.Context, entries <-chan entry) error {
	if f.Cursor.Seq == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case x := <-entries:
		if x.err != nil && !errors.Is(x.err, io.EOF) {
			return x.err
		}
		if x.err != nil || x.seq != f.Cursor.Seq || idOf(x.raw) != f.Cursor.ID {
			return fmt.Errorf("cursor %s: %w; there is no event %s at sequence %d. Check the address, or use another cursor", f.Cursor.path, ErrOtherLedger, f.Cursor.ID, f.Cursor.Seq)
		}
		return nil
	}
}

// idOf returns the id of an event, or "" if it has none.
func idOf(raw []byte) string {
	var doc struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(raw, &doc) != nil {
		return ""
	}
	return doc.ID
}

// take adds the event of an entry to a batch, unless it is omitted or not valid, and returns the
// position after it, or at if the entry has no id. at is the position before it.
func (f *Forwarder) take(x *entry, batch *[]Record, at Position) Position {
	id := idOf(x.raw)
	e, err := eventlog.OpenBytes(x.raw, eventlog.Every)
	if err == nil && !f.All && slices.Contains(ocsf.Intermediate, e.Name) {
		return Position{x.seq, id}
	}
	if err == nil {
		err = add(batch, x.seq, e, f.Version)
	}
	if err != nil {
		f.Rejected++
		f.Log.Error("an entry of the ledger is not a valid event and is not delivered", "seq", x.seq, "err", err)
	}
	if id == "" {
		return at // a position needs an id, so it stays at the entry before
	}
	return Position{x.seq, id}
}

func add(batch *[]Record, seq uint64, e *contract.Event, version string) error {
	o, err := ocsf.Map(seq, e, version)
	if err != nil {
		return err
	}
	line, err := o.JSON()
	if err == nil {
		*batch = append(*batch, Record{Event: o, Line: line})
	}
	return err
}

// deliver delivers a batch, which may be empty, and then stores the position at.
func (f *Forwarder) deliver(ctx context.Context, batch []Record, at Position) error {
	if len(batch) > 0 {
		if err := f.Target.Deliver(ctx, batch); err != nil {
			return err
		}
	}
	if err := f.Cursor.set(at); err != nil {
		return err
	}
	f.Delivered += len(batch)
	return nil
}
