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

// out sends a call's answer to its caller, in frames to the instance that waits for
// them. The first is sent at once; later ones are gathered for 10 to 50 ms, since
// the cost is per message, and longer the more calls run. Bytes that the caller
// has not taken yet are bounded by llm.Window: a write beyond that waits, and so
// slows down the provider.
type out struct {
	ctx     context.Context
	w       *execute.Work
	credits *transient.Stream // nil: the caller takes no frames
	under   *atomic.Int64     // calls under way

	mu       sync.Mutex
	tee      *[]byte // gets what is sent, where it is to be kept
	said     *llm.Head
	claimed  *attempt
	head     *llm.Head
	held     []byte
	last     time.Time
	timer    *time.Timer
	sent     int64
	credited int64
	err      error
}

// Frames of a call are at least 10 ms apart for up to a hundred running calls, and
// 50 ms for five hundred and more: people do not notice it, and the cost of many
// streams stays bounded.
const (
	minGather = 10 * time.Millisecond
	maxGather = 50 * time.Millisecond
)

func gather(calls int64) time.Duration {
	return min(max(time.Duration(calls)*minGather/100, minGather), maxGather)
}

const (
	maxFrame = llm.Window / 4
	// stallAfter is how long a caller may take nothing of what waits for it.
	stallAfter = 60 * time.Second
)

var (
	errStalled = errors.New("the caller stopped reading")
	errLost    = errors.New("another attempt answered first")
)

func newOut(ctx context.Context, w *execute.Work, box *transient.Box, under *atomic.Int64) *out {
	o := &out{ctx: ctx, w: w, under: under}
	under.Add(1)
	if w.Call.Stream {
		o.credits = box.Open(llm.CreditID(w.Call.ID), w.Proposer)
	}
	return o
}

// claim makes a the attempt that answers; of several only the first may.
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

// redactHead removes provider keys from what a provider's headers and errors say.
func redactHead(r *redact.Redactor, h *llm.Head) {
	for k, v := range h.Headers {
		h.Headers[k] = r.String(v)
	}
	if h.Fault != nil {
		h.Fault.Message, h.Fault.Param = r.String(h.Fault.Message), r.String(h.Fault.Param)
	}
}

// claimedBy reports whether a is the attempt that answers.
func (o *out) claimedBy(a *attempt) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.claimed == a
}

// begun reports whether some attempt answers.
func (o *out) begun() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.claimed != nil
}

// write sends bytes on, soon.
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

// finish sends what is held, and then end, which the gateway holds back until the
// outcome is on the ledger.
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

// flush sends what is held, and end. The lock is held.
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

// admit waits until n more bytes fit into the window.
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

// close ends the way, whether or not it was used.
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
