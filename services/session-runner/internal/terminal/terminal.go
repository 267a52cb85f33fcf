// Package terminal holds the terminal of a command in a held sandbox between the command and the
// clients that attach to it: a bounded queue of input, the last bytes of output, and one
// attachment at a time. Input is stored nowhere else, and only its length is reported.
package terminal

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/held"
)

// Limits of a terminal.
const (
	MaxInput = 64 << 10 // bytes of input that the command has not read
	MaxRead  = 64 << 10 // bytes of output in one response
	rate     = 1 << 20  // bytes of output per second to one attachment, so that a terminal cannot fill the stream of queries
	maxKept  = 128 << 10
	maxOld   = 16 // attachments that are remembered
)

// Values of State.Ended and Report.Ended.
const (
	Left      = "left"             // the client detached
	Displaced = "displaced"        // a later call attached to the terminal
	Silent    = "silent"           // the client sent no request for a long time
	Time      = "time"             // the call of the attachment had its maximum time
	Cancelled = contract.Cancelled // the call of the attachment was cancelled
	Command   = "command"          // the command ended
)

// Errors of Do.
var (
	ErrOrder  = errors.New("want the number after the last one that was taken")
	ErrSignal = errors.New("want HUP, INT, QUIT or TERM")
	ErrLong   = fmt.Errorf("want at most %d bytes", MaxInput)
)

// signals are the signals that a client may send.
var signals = map[string]syscall.Signal{"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM}

// Controls change the terminal of a running command.
type Controls interface {
	Resize(columns, rows uint32) error
	Signal(syscall.Signal) error
}

// Terminal is the terminal of one command. It implements io.Reader: the command reads its input.
// It is safe for concurrent use.
type Terminal struct {
	output *held.Ring

	mu       sync.Mutex
	more     *sync.Cond // input was added or ended
	input    []byte
	closed   bool // no input follows
	controls Controls
	size     [2]uint32 // to set when the command starts
	all      []*Attachment
	done     chan struct{}
	status   string
	exit     int
}

// New returns the terminal of a command whose output is written to a ring.
func New(output *held.Ring) *Terminal {
	t := &Terminal{output: output, done: make(chan struct{}), status: held.ExecRunning}
	t.more = sync.NewCond(&t.mu)
	return t
}

// Read implements io.Reader. It waits for input, and returns io.EOF after End.
func (t *Terminal) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.input) == 0 && !t.closed {
		t.more.Wait()
	}
	if t.closed {
		return 0, io.EOF
	}
	n := copy(p, t.input)
	t.input = append(t.input[:0], t.input[n:]...)
	return n, nil
}

// Started passes the controls of the command. Before, sizes are noted and signals wait.
func (t *Terminal) Started(c Controls) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.controls = c
	if t.size != [2]uint32{} {
		_ = c.Resize(t.size[0], t.size[1])
	}
}

// End records how the command ended, and ends its input.
func (t *Terminal) End(status string, exit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.status, t.exit, t.closed, t.input, t.controls = status, exit, true, nil, nil
	t.more.Broadcast()
	close(t.done)
}

// Done returns a channel that is closed when the command has ended.
func (t *Terminal) Done() <-chan struct{} { return t.done }

// Attachment is what one call of sandbox.attach permits to one client.
type Attachment struct {
	t                   *Terminal
	call, actor, digest string
	gone                chan struct{} // closed at its end

	// The members below are guarded by t.mu.
	ended string
	n     int64 // last input that was taken
	used  time.Time
	ready time.Time // when the next output may be read
	in    int64
	next  int64 // position after the bytes that the client has read
	out   int64
	sum   hash.Hash
	kept  []byte
}

// Attach begins the attachment of a call, and ends the one before. digest is the SHA-256 of the key
// of its client, in hexadecimal.
func (t *Terminal) Attach(call, actor, digest string) *Attachment {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.all {
		a.end(Displaced)
	}
	a := &Attachment{t: t, call: call, actor: actor, digest: digest, gone: make(chan struct{}), used: time.Now(), sum: sha256.New()}
	t.all = append(t.all, a)
	if len(t.all) > maxOld {
		t.all = append([]*Attachment{}, t.all[1:]...)
	}
	return a
}

// Of returns the attachment of a call for a principal that has its key, or nil.
func (t *Terminal) Of(call, actor, key string) *Attachment {
	sum := sha256.Sum256([]byte(key))
	digest := hex.EncodeToString(sum[:])
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.all {
		if a.call == call && a.actor == actor && subtle.ConstantTimeCompare([]byte(a.digest), []byte(digest)) == 1 {
			return a
		}
	}
	return nil
}

// end ends the attachment, unless it has ended. t.mu is held.
func (a *Attachment) end(reason string) {
	if a.ended == "" {
		a.ended = reason
		close(a.gone)
	}
}

// End ends the attachment, unless it has ended. Its client can still read the output.
func (a *Attachment) End(reason string) {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	a.end(reason)
}

// Gone returns a channel that is closed at the end of the attachment.
func (a *Attachment) Gone() <-chan struct{} { return a.gone }

// Idle returns the time since the last request of the client.
func (a *Attachment) Idle() time.Duration {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	return time.Since(a.used)
}

// Complete reports whether the client has read all output.
func (a *Attachment) Complete() bool {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	return a.next >= a.t.output.Written()
}

// Report describes an attachment for the record of its call.
type Report struct {
	Ended    string `json:"ended"`
	Status   string `json:"status"` // of the command
	ExitCode int    `json:"exit_code"`
	In       int64  `json:"input_bytes"`
	Out      int64  `json:"output_bytes"`  // that the client has read
	Sum      string `json:"output_sha256"` // of these bytes
	Kept     []byte `json:"-"`             // the first of them
}

// Report returns the report of the attachment.
func (a *Attachment) Report() Report {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	return Report{Ended: a.ended, Status: a.t.status, ExitCode: a.t.exit, In: a.in, Out: a.out, Sum: hex.EncodeToString(a.sum.Sum(nil)), Kept: a.kept}
}

// Request is one request of a client. N is the number of the input, or 0.
type Request struct {
	N             int64
	Data          []byte
	Columns, Rows uint32
	Signal        string
	Close         bool
	Cursor, Limit int64
	Wait          time.Duration
}

// State is the response to a Request.
type State struct {
	Attached bool
	Ended    string
	N        int64
	Data     []byte
	Cursor   int64
	Skipped  int64
	Status   string
	ExitCode int
}

// Do takes the input of a request, and then reads output. Input that the queue has no room for, or
// that precedes the start of the command if it is a signal, is not taken: the client repeats it.
// With a wait it returns when there is output after the cursor, the command or the attachment has
// ended, the time has passed or ctx is done.
func (a *Attachment) Do(ctx context.Context, q *Request) (State, error) {
	if err := a.take(q); err != nil {
		return State{}, err
	}
	if q.Limit > 0 {
		a.wait(ctx, q)
	}
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	out := State{Attached: a.ended == "", Ended: a.ended, N: a.n, Cursor: q.Cursor, Status: a.t.status, ExitCode: a.t.exit}
	if q.Limit > 0 {
		out.Data, out.Cursor, out.Skipped = a.t.output.Read(q.Cursor, min(q.Limit, MaxRead))
		a.read(out.Data, out.Cursor)
	}
	return out, nil
}

// read notes the bytes up to a position that the client has read, once each. t.mu is held.
func (a *Attachment) read(data []byte, end int64) {
	a.ready = time.Now().Add(time.Duration(len(data)) * time.Second / rate)
	if fresh := min(end-a.next, int64(len(data))); fresh > 0 {
		b := data[int64(len(data))-fresh:]
		a.sum.Write(b)
		a.out, a.next = a.out+fresh, end
		a.kept = append(a.kept, b[:min(len(b), maxKept-len(a.kept))]...)
	}
}

// take takes the input of a request.
func (a *Attachment) take(q *Request) error {
	t := a.t
	t.mu.Lock()
	defer t.mu.Unlock()
	a.used = time.Now()
	signal, known := signals[q.Signal]
	switch {
	case q.Signal != "" && !known:
		return ErrSignal
	case len(q.Data) > MaxInput:
		return ErrLong
	case q.N > a.n+1 || q.N < 0:
		return ErrOrder
	}
	full := len(t.input)+len(q.Data) > MaxInput || known && t.controls == nil
	if a.ended == "" && !t.closed && q.N == a.n+1 && !full {
		a.n = q.N
		a.in += int64(len(q.Data))
		t.input = append(t.input, q.Data...)
		t.more.Broadcast()
		if q.Columns > 0 && q.Rows > 0 {
			t.resize(q.Columns, q.Rows)
		}
		if known {
			_ = t.controls.Signal(signal) // the command may just have ended
		}
	}
	if q.Close {
		a.end(Left)
	}
	return nil
}

// resize changes the size of the terminal, at the start of the command if it has not started.
// t.mu is held.
func (t *Terminal) resize(columns, rows uint32) {
	if t.size = [2]uint32{columns, rows}; t.controls != nil {
		_ = t.controls.Resize(columns, rows) // the command may just have ended
	}
}

// wait waits for output after the cursor of a request; see Do.
func (a *Attachment) wait(ctx context.Context, q *Request) {
	a.t.mu.Lock()
	pause := time.Until(a.ready)
	a.t.mu.Unlock()
	limit := time.NewTimer(q.Wait)
	defer limit.Stop()
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return
	}
	for {
		more := a.t.output.Wake()
		if a.t.output.Written() > q.Cursor {
			return
		}
		select {
		case <-more:
		case <-a.t.done:
			return
		case <-a.gone:
			return
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
