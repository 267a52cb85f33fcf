package sessionrunner

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// A program reports its progress by lines of standard error. The instance keeps the last
// line of each running call and reads it when a gateway queries it, so that a program which
// writes without end costs one copy a line, and nothing on the network or the ledger.

// progress has the last reports of the running calls of an instance, and the positions of
// its calls that wait for a sandbox. It is safe for concurrent use.
type progress struct {
	mu     sync.Mutex
	all    map[[2]string]*report // by tenant and call
	queued map[[2]string]int     // by tenant and call
}

// wait sets the position at which a call began to wait for a sandbox; 0 means that it does
// not wait.
func (p *progress) wait(w *execute.Work, position int) {
	key := [2]string{w.Event.Tenant, w.Call.ID}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queued == nil {
		p.queued = map[[2]string]int{}
	}
	if p.queued[key] = position; position == 0 {
		delete(p.queued, key)
	}
}

// report is the last line by which the program of a call reported its progress.
type report struct {
	w    *execute.Work
	last atomic.Pointer[[]byte]
}

// begin registers a call whose program reports its progress. It returns the function that
// receives each line, and the one that removes the call.
func (p *progress) begin(w *execute.Work) (receive func(line []byte), end func()) {
	r, key := &report{w: w}, [2]string{w.Event.Tenant, w.Call.ID}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[[2]string]*report{}
	}
	p.all[key] = r
	return r.receive, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.all, key)
	}
}

// receive keeps a copy of a line.
func (r *report) receive(line []byte) {
	line = bytes.Clone(line)
	r.last.Store(&line)
}

// serve registers the query for the progress of a call and its place in the queue.
func (p *progress) serve(transport rpc.Registrar) {
	rpc.Serve(&rpc.Server{Transport: transport}, events.CallProgressQuery, func(ctx context.Context, q *events.CallProgressRequest) (events.CallProgressReport, error) {
		key := [2]string{transient.Tenant(ctx), q.CallID}
		p.mu.Lock()
		r, position := p.all[key], p.queued[key]
		p.mu.Unlock()
		if r == nil {
			return events.CallProgressReport{Queued: int64(position)}, nil
		}
		line := r.last.Load()
		if line == nil {
			return events.CallProgressReport{}, nil
		}
		return readProgress(*line, r.w.Redactor().String), nil
	})
}

// maxMessage is the maximum number of characters of the message of a report.
const maxMessage = 200

// readProgress reads a line of the form {"_progress":{"percent":40,"message":"…"}}, of which
// the message is optional. It returns a report with Reported false for a line that is longer
// than sandbox.MaxProgress, is not of this form, or has a percentage that is not from 0 to
// 100. hide removes secrets from the message. Characters that are not printable are removed,
// so that the message is safe for a terminal, and it is cut off after maxMessage characters.
func readProgress(line []byte, hide func(string) string) (out events.CallProgressReport) {
	var doc struct {
		Progress struct {
			Percent *float64 `json:"percent"`
			Message string   `json:"message"`
		} `json:"_progress"`
	}
	if len(line) > sandbox.MaxProgress || json.Unmarshal(line, &doc) != nil {
		return out
	}
	percent := doc.Progress.Percent
	if percent == nil || *percent < 0 || *percent > 100 {
		return out
	}
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, hide(doc.Progress.Message))
	if runes := []rune(text); len(runes) > maxMessage {
		text = string(runes[:maxMessage])
	}
	return events.CallProgressReport{Message: text, Percent: int64(*percent), Reported: true}
}
