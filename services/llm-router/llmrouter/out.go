package llmrouter

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/redact"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// out sends a call's response in frames to the gateway instance that forwards it to the
// caller, if the caller receives frames. To limit the number of messages, it gathers
// bytes that do not fill a frame, see minGather. At most llm.Window bytes may be sent
// that the caller has not yet read. A write beyond this limit blocks, so the provider's
// response is read more slowly. out is safe for concurrent use.
type out struct {
	ctx     context.Context
	w       *execute.Work
	credits *transient.Stream // receives the counts of bytes that the caller has read; nil if the caller receives no frames
	under   *atomic.Int64     // number of calls in progress in this instance

	mu       sync.Mutex
	tee      *[]byte   // collects all bytes for the cache; nil if the response is not cached
	said     *llm.Head // head of the response that is sent; nil until an attempt is selected
	claimed  *attempt  // attempt whose response is sent; nil until one is selected
	head     *llm.Head // head to send with the first frame; nil once sending it was attempted
	held     []byte    // bytes that are not yet sent
	last     time.Time // time at which the last frame was sent
	timer    *time.Timer
	sent     int64 // bytes in all frames, including one that waits for room in the window
	credited int64 // bytes that the caller has read, according to the newest credit
	err      error // first error; later writes return it
}

// Bytes that do not fill a frame are queued until minGather after the last frame if up to
// a hundred calls are in progress, until maxGather if there are five hundred or more, and
// in between for a time in proportion to their number. This limits the number of messages
// per second. The first frame and the end of a response are sent at once.
const (
	minGather = 10 * time.Millisecond
	maxGather = 50 * time.Millisecond
)

// gather returns the time after the last frame at which queued bytes that do not fill a
// frame are sent. calls is the number of calls in progress.
func gather(calls int64) time.Duration {
	return min(max(time.Duration(calls)*minGather/100, minGather), maxGather)
}

const (
	// maxFrame is the maximum content of one frame, in bytes.
	maxFrame = llm.Window / 4
	// stallAfter is how long a write waits for the next credit of the caller before it
	// fails.
	stallAfter = 60 * time.Second
)

var (
	errStalled = errors.New("the caller stopped reading")
	errLost    = errors.New("another attempt answered first")
)

// newOut returns the writer of a call's response and counts the call as in progress
// until close is called.
func newOut(ctx context.Context, w *execute.Work, transport *transient.Transport, under *atomic.Int64) *out {
	o := &out{ctx: ctx, w: w, under: under}
	under.Add(1)
	if w.Call.Stream {
		o.credits = transport.Open(llm.CreditID(w.Call.ID), w.Proposer)
	}
	return o
}

// claim selects a as the attempt whose response is sent, with the head h, unless a is
// already selected. It keeps h and modifies it. It returns errLost if another attempt
// was selected before.
func (o *out) claim(a *attempt, h *llm.Head) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.claimed != nil && o.claimed != a {
		return errLost
	}
	if o.claimed == nil {
		o.claimed = a
		h.Instance = o.w.Instance
		redactHead(o.w.Redactor(), h)
		if o.tee != nil {
			h.Headers[headerCache] = "miss"
		}
		o.head, o.said = h, h
	}
	return nil
}

// redactHead removes provider keys from the header values, and from the message and Param
// of an error.
func redactHead(r *redact.Redactor, h *llm.Head) {
	for k, v := range h.Headers {
		h.Headers[k] = r.String(v)
	}
	if h.Fault != nil {
		h.Fault.Message, h.Fault.Param = r.String(h.Fault.Message), r.String(h.Fault.Param)
	}
}

// claimedBy reports whether a is the attempt whose response is sent.
func (o *out) claimedBy(a *attempt) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.claimed == a
}

// begun reports whether an attempt has been selected as the one whose response is sent.
func (o *out) begun() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.claimed != nil
}

// write queues bytes for the caller, with the call's secrets redacted, to be sent within
// maxGather or as soon as the window permits. It blocks while a frame waits for room in
// the window. It returns the first error of any frame. If the caller receives no frames,
// the bytes are only collected for the cache.
func (o *out) write(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	b = o.w.Redactor().Text(b)
	if o.tee != nil {
		*o.tee = append(*o.tee, b...)
	}
	if o.credits == nil || len(b) == 0 {
		return o.err
	}
	o.held = append(o.held, b...)
	wait := gather(o.under.Load()) - time.Since(o.last)
	switch {
	case o.head != nil || wait <= 0 || len(o.held) >= maxFrame:
		o.flush(nil)
	case o.timer == nil:
		o.timer = time.AfterFunc(wait, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.timer = nil
			if len(o.held) > 0 {
				o.flush(nil)
			}
		})
	}
	return o.err
}

// finish sends the queued bytes and then end, which the gateway delivers to the caller
// only when the outcome is on the ledger. It returns the first error of any frame.
func (o *out) finish(end []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	end = o.w.Redactor().Text(end)
	if o.tee != nil {
		*o.tee = append(*o.tee, end...)
	}
	if o.credits != nil {
		o.flush(end)
	}
	return o.err
}

// flush sends the queued bytes and end, in frames of at most maxFrame bytes. If a frame
// cannot be sent, it sets o.err and drops the rest. o.mu must be held.
func (o *out) flush(end []byte) {
	for o.err == nil {
		f := llm.Frame{Head: o.head, Data: o.held[:min(len(o.held), maxFrame)]}
		o.held = o.held[len(f.Data):]
		f.End = end[:min(len(end), maxFrame-len(f.Data))]
		end = end[len(f.End):]
		var b []byte
		if b, o.err = f.Append(nil); o.err == nil {
			o.err = o.admit(int64(len(f.Data) + len(f.End)))
		}
		if o.err == nil {
			o.err = o.w.Frame(b)
		}
		o.head, o.last = nil, time.Now()
		if len(o.held)+len(end) == 0 {
			break
		}
	}
	o.held = nil
}

// admit blocks until n more bytes fit into the window. It returns errStalled if it
// receives no credit for stallAfter or the stream of credits fails, the error of o.ctx
// if that ends first, or an error for a credit that is not a number. o.mu must be held.
func (o *out) admit(n int64) error {
	o.sent += n
	for o.sent-o.credited > llm.Window {
		ctx, cancel := context.WithTimeout(o.ctx, stallAfter)
		f, err := o.credits.Next(ctx)
		cancel()
		if err != nil {
			if o.ctx.Err() != nil {
				return o.ctx.Err()
			}
			return errStalled
		}
		if o.credited, err = strconv.ParseInt(string(f.Data), 10, 64); err != nil {
			return err
		}
	}
	return nil
}

// close sends the queued bytes and releases the timer and the stream of credits. It must
// be called exactly once.
func (o *out) close() {
	o.under.Add(-1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
	}
	if len(o.held) > 0 {
		o.flush(nil)
	}
	if o.credits != nil {
		o.credits.Close()
	}
}
