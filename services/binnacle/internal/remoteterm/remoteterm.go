// Package remoteterm is the client's side of the terminal of a command in a sandbox: it sends what
// is typed, prints the output from a cursor on, and continues both after requests that failed.
package remoteterm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Input is one input to the terminal.
type Input struct {
	Data          []byte
	Columns, Rows int    // new size; 0 means unchanged
	Signal        string // HUP, INT, QUIT or TERM
	Close         bool   // detach
}

// Request is the body of a request, as in the API.
type Request struct {
	Close   bool   `json:"close,omitempty"`
	Columns int    `json:"columns,omitempty"`
	Cursor  int64  `json:"cursor"`
	Data    []byte `json:"data,omitempty"`
	Key     string `json:"key"`
	Limit   int64  `json:"limit,omitempty"`
	N       int64  `json:"n,omitempty"`
	Rows    int    `json:"rows,omitempty"`
	Sandbox string `json:"sandbox"`
	Signal  string `json:"signal,omitempty"`
	WaitMS  int64  `json:"wait_ms,omitempty"`
}

// State is the response to a Request.
type State struct {
	Attached bool   `json:"attached"`
	Cursor   int64  `json:"cursor"`
	Data     []byte `json:"data"`
	Reason   string `json:"reason"` // why the attachment has ended
	ExitCode int    `json:"exit_code"`
	N        int64  `json:"n"`
	Skipped  int64  `json:"skipped"`
	Status   string `json:"status"`
}

// Running is the State.Status of a command that has not ended.
const Running = "running"

// Client attaches to a terminal by Run, once after the other. Its exported fields are set before the
// first use.
type Client struct {
	Do       func(context.Context, *Request) (*State, error)
	Retry    func(error) bool // whether a later request may succeed
	Patience time.Duration    // time without a successful request after which Run fails
	Out      io.Writer

	cursor int64
	unsent *Input // was not taken before the last Run ended
}

// Limits of the requests.
const (
	readSize  = 64 << 10
	readWait  = 20 * time.Second
	firstWait = 20 * time.Millisecond
	lastWait  = 500 * time.Millisecond
)

// Run sends the inputs and prints output until the attachment or the command has ended, and returns
// the last state. After the end of the command it has printed all output. It continues where the
// last Run has ended.
func (c *Client) Run(ctx context.Context, inputs <-chan Input) (*State, error) {
	whole := ctx
	ctx, cancel := context.WithCancelCause(whole)
	var sending sync.WaitGroup
	sending.Go(func() {
		if err := c.send(whole, ctx.Done(), inputs); err != nil {
			cancel(err)
		}
	})
	defer sending.Wait()
	defer cancel(nil)
	for {
		s, err := c.repeat(ctx, &Request{Cursor: c.cursor, Limit: readSize, WaitMS: readWait.Milliseconds()})
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return nil, err
		}
		if s.Skipped > 0 {
			fmt.Fprintf(c.Out, "\r\n[%d bytes of output are missing here]\r\n", s.Skipped)
		}
		if _, err := c.Out.Write(s.Data); err != nil {
			return nil, err
		}
		c.cursor = s.Cursor
		if len(s.Data) == 0 && (!s.Attached || s.Status != Running) {
			return s, nil
		}
	}
}

// send sends inputs until there are no more, stop is closed or the attachment has ended. Each has a
// number, so that the mesh takes it once although it may be sent again. An input that the mesh has
// not taken is the first one of the next Run.
func (c *Client) send(ctx context.Context, stop <-chan struct{}, inputs <-chan Input) error {
	for n := int64(1); ; n++ {
		in, ok := c.next(stop, inputs)
		if !ok {
			return nil
		}
		q := &Request{N: n, Data: in.Data, Columns: in.Columns, Rows: in.Rows, Signal: in.Signal, Close: in.Close}
		for pause := firstWait; ; pause = min(2*pause, lastWait) {
			s, err := c.repeat(ctx, q)
			if err == nil && s.N >= n {
				break
			}
			if err != nil || !s.Attached || s.Status != Running {
				c.unsent = &in
				return err
			}
			sleep(ctx, pause) // the command does not read its input
		}
	}
}

// next returns the next input to send. ok is false if there is none, or stop is closed.
func (c *Client) next(stop <-chan struct{}, inputs <-chan Input) (in Input, ok bool) {
	if c.unsent != nil {
		in, c.unsent = *c.unsent, nil
		return in, true
	}
	select {
	case <-stop:
		return in, false
	case in, ok = <-inputs:
		return in, ok
	}
}

// repeat sends a request until it succeeds, Retry returns false or c.Patience has passed.
func (c *Client) repeat(ctx context.Context, q *Request) (*State, error) {
	began := time.Now()
	for pause := firstWait; ; pause = min(2*pause, lastWait) {
		s, err := c.Do(ctx, q)
		if err == nil || ctx.Err() != nil || !c.Retry(err) {
			return s, err
		}
		if time.Since(began) > c.Patience {
			return nil, errors.Join(fmt.Errorf("the terminal could not be reached for %v", c.Patience), err)
		}
		sleep(ctx, pause)
	}
}

// sleep waits for a time or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Escape finds the sequence ~. at the beginning of a line, by which a person leaves the terminal, as
// in ssh. Its zero value is at the beginning of a line.
type Escape struct {
	inLine bool // the last byte did not end a line
	tilde  bool // a ~ at the beginning of a line is held back
}

// Filter returns the bytes to send, and whether the person leaves. ~~ at the beginning of a line is
// one ~.
func (e *Escape) Filter(in []byte) (out []byte, leave bool) {
	for _, b := range in {
		switch {
		case e.tilde && b == '.':
			return out, true
		case e.tilde:
			e.tilde = false
			out = append(out, '~')
			if b == '~' {
				e.inLine = true
				continue
			}
		case b == '~' && !e.inLine:
			e.tilde = true
			continue
		}
		e.inLine = b != '\r' && b != '\n'
		out = append(out, b)
	}
	return out, false
}
