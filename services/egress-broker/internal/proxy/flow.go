package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// Flow is the record of one flow, or of a denial. Before the flow has ended, the members
// that are determined later are zero.
type Flow struct {
	ID         int64  // number of the flow in its call, from 1; 0 if it was denied before Config.Begin was called
	Host       string // in canonical form; empty if the request was not readable
	Port       int
	Method     string         // CONNECT in modes Passthrough and TCP, and for a tunnel that was denied
	Path       string         // escaped path, without the query
	Query      string         // SHA-256 of the query in hexadecimal; empty without a query
	Mode       string         // empty if the request was not readable, or is a CONNECT request that no rule allows
	Address    netip.AddrPort // address of the server; invalid if none was dialled
	Status     int            // of the response to the client; 0 if there was none, as for a malformed request that is not the first of its connection
	BytesOut   int64          // sent to the server: the head as in HTTP/1.1, the body and, after an upgrade, the bytes of the connection; or the bytes of a tunnel
	BytesIn    int64          // sent to the client, counted in the same way
	Duration   time.Duration
	Reason     netrule.Reason // why it was denied or ended early; empty otherwise
	Denied     bool           // no part of the request was sent to the server
	Credential string         // name of the secret that was added to the request; empty if none was
}

// flow is an open flow. Its context ends when the flow fails or has ended.
type flow struct {
	p     *Proxy
	ctx   context.Context
	start time.Time
	idle  *time.Timer
	stop  func() // ends the context

	out, in atomic.Int64

	mu     sync.Mutex
	rec    Flow
	unlock func() // ends blocked reads and writes on the client's side; nil if there are none
	ended  bool
}

// lastWrite is the time that a failed flow has to send its response.
const lastWrite = 2 * time.Second

// begin opens a flow. If the flow is denied, begin returns the reason. The caller must call
// end in either case.
func (p *Proxy) begin(ctx context.Context, rec Flow) (*flow, netrule.Reason) {
	ctx, cancel := context.WithCancel(ctx)
	f := &flow{p: p, start: time.Now(), rec: rec, stop: cancel}
	if d := p.cfg.Limits.Total; d > 0 {
		t := time.AfterFunc(d, func() { f.fail(TimedOut) })
		f.stop = func() { t.Stop(); cancel() }
	}
	f.ctx = context.WithValue(ctx, flowKey{}, f)
	f.idle = time.AfterFunc(p.cfg.Limits.Idle, func() { f.fail(TimedOut) })
	switch {
	case p.flows.Add(1) > int64(p.cfg.Limits.Flows):
		return f, f.deny(FlowsExceeded)
	case p.exhausted.Load():
		return f, f.deny(BytesExceeded)
	}
	return f, ""
}

type flowKey struct{}

func flowOf(ctx context.Context) *flow { f, _ := ctx.Value(flowKey{}).(*flow); return f }

// deny marks the flow as denied, and returns the reason.
func (f *flow) deny(r netrule.Reason) netrule.Reason {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rec.Reason, f.rec.Denied = r, true
	return r
}

// fail ends the flow early. The first reason counts.
func (f *flow) fail(r netrule.Reason) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	if f.rec.Reason == "" {
		f.rec.Reason = r
	}
	f.stop()
	if f.unlock != nil {
		f.unlock()
	}
}

// blame sets the reason if the flow has none: Cancelled if the call has ended, else r. It
// returns the reason of the flow.
func (f *flow) blame(r netrule.Reason) netrule.Reason {
	if f.p.ctx.Err() != nil {
		r = Cancelled
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rec.Reason == "" {
		f.rec.Reason = r
	}
	return f.rec.Reason
}

func (f *flow) set(change func(*Flow)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.rec)
}

// announce reports that the flow was allowed, before anything is sent.
func (f *flow) announce() {
	f.mu.Lock()
	f.rec.ID = f.p.allowed.Add(1)
	rec := f.rec
	f.mu.Unlock()
	if h := f.p.hidden.Load(); h != nil {
		rec.Path = h.redactor.String(rec.Path)
	}
	if f.p.cfg.Begin != nil {
		f.p.cfg.Begin(rec)
	}
}

// end closes the flow and records it. Later calls have no effect.
func (f *flow) end() {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return
	}
	f.ended = true
	f.rec.BytesOut, f.rec.BytesIn, f.rec.Duration = f.out.Load(), f.in.Load(), time.Since(f.start)
	rec := f.rec
	f.mu.Unlock()
	f.idle.Stop()
	f.stop()
	f.p.flows.Add(-1)
	f.p.record(rec)
}

// deny records the denial of a request for which no flow was opened.
func (p *Proxy) deny(rec Flow) {
	rec.Denied = true
	p.record(rec)
}

func (p *Proxy) record(rec Flow) {
	if h := p.hidden.Load(); h != nil {
		rec.Path = h.redactor.String(rec.Path)
	}
	p.mu.Lock()
	p.totals.Flows++
	if rec.Denied {
		p.totals.Denied++
	}
	p.totals.BytesOut += rec.BytesOut
	p.totals.BytesIn += rec.BytesIn
	p.mu.Unlock()
	if p.cfg.Record != nil {
		p.cfg.Record(rec)
	}
}

var errBytes = &failure{BytesExceeded, errors.New("the byte allowance of the call is used up")}

// take counts n bytes before they are passed on, and restarts the idle time of the flow.
// If the bytes exceed the allowance, it counts nothing, ends the flow and returns
// errBytes; the call then gets no more bytes.
func (f *flow) take(counter *atomic.Int64, n int) error {
	f.idle.Reset(f.p.cfg.Limits.Idle)
	if f.p.cfg.Limits.Bytes > 0 && (f.p.exhausted.Load() || f.p.left.Add(-int64(n)) < 0) {
		f.p.exhausted.Store(true)
		f.fail(BytesExceeded)
		return errBytes
	}
	counter.Add(int64(n))
	return nil
}

// release sets the function with which fail ends the reads and writes on the client's side of
// an HTTP request: reads fail at once, writes after lastWrite.
func (f *flow) release(w http.ResponseWriter, r *http.Request) {
	past, soon := time.Unix(1, 0), func() time.Time { return time.Now().Add(lastWrite) }
	conn := connOf(r.Context())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unlock = func() {
		if r.ProtoMajor == 2 {
			c := http.NewResponseController(w)
			_ = c.SetReadDeadline(past)
			_ = c.SetWriteDeadline(soon())
			return
		}
		_ = conn.SetReadDeadline(past)
		_ = conn.SetWriteDeadline(soon())
	}
}

// connAddr returns the remote address of a connection, or the zero AddrPort if it is not
// TCP.
func connAddr(c net.Conn) netip.AddrPort {
	if t, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		a := t.AddrPort()
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	return netip.AddrPort{}
}
