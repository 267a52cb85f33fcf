package egressbroker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/proxy"
)

// call is the proxy of one call.
type call struct {
	cause *contract.Event // the request
	inbox string
	out   egress.Opened
	stop  context.CancelFunc
	note  *journal
	done  chan struct{} // closed when egress_closed was recorded or dropped (see append), and the proxy is removed

	mu       sync.Mutex
	reason   string // why the proxy is closed; "" until the first call of end
	listed   int    // flows and denials with an event of their own
	unlisted int64
	written  chan struct{}        // closed when the events about flows were recorded or dropped
	facts    chan *contract.Event // events about flows, until egress_closed
}

const (
	maxListed = 100         // maximum number of flows and denials of a call that have events of their own; egress_closed counts the others
	beyond    = time.Minute // time from a call's deadline until its proxy is closed if the call has no outcome
	note      = ".json"     // extension of the journal of a proxy
	maxPath   = 107         // maximum length of a unix socket's path in bytes (unix(7))
)

// maxOpenings is the maximum number of attempts to open a proxy, of which each but the last found
// that another proxy of the call had been opened.
const maxOpenings = 4

// opened records egress_opened and then opens the proxy of a call. If this instance
// already has a proxy of the call, opened returns it if the request has the same inbox,
// and a refusal otherwise. It also refuses a call if another request opened a proxy that
// is not closed (see past), and a call whose byte allowance is used up, whose rules are
// invalid, or whose socket would have too long a path. The past of the call is read only if
// there was an earlier request or if the ledger rejects egress_opened, because the first request
// of a call, which is not older than maxAge, has no other past.
func (s *Service) opened(ctx context.Context, e *contract.Event, seq uint64, req *egress.Request, a *contract.Allowed, at uint64) (out egress.Opened, refusal string, err error) {
	release, err := s.reserve(ctx, e.CallID)
	if err != nil {
		return out, "", err
	}
	defer release()
	if c := s.callOf(e.CallID); c != nil {
		if c.inbox != req.Inbox {
			return out, "the call has a proxy already", nil
		}
		return c.out, "", nil
	}
	var before past
	again, err := s.ledger().repeated(ctx, e, at, seq)
	for range maxOpenings {
		if err == nil && again {
			before, err = s.ledger().pastOf(ctx, e, at, req.Inbox)
		}
		if err != nil {
			return out, "", err
		}
		out, refusal, err = s.attempt(ctx, e, seq, req, a, at, before)
		if taken := (*eventlog.TakenError)(nil); !errors.As(err, &taken) {
			return out, refusal, err
		}
		again, err = true, nil
	}
	return out, "", fmt.Errorf("%d other proxies of call %s were opened meanwhile", maxOpenings, e.CallID)
}

// attempt opens the proxy of a call, given the past of the call. It returns an
// *eventlog.TakenError if another proxy of the call was opened that before does not have.
func (s *Service) attempt(ctx context.Context, e *contract.Event, seq uint64, req *egress.Request, a *contract.Allowed, at uint64, before past) (out egress.Opened, refusal string, err error) {
	rules := netrule.Intersect(netrule.OfIntent(a.Decision.Intent), s.ceiling)
	c := &call{cause: e, inbox: req.Inbox, done: make(chan struct{}), written: make(chan struct{}), facts: make(chan *contract.Event, maxListed)}
	limits := proxy.Limits{Bytes: allowance(a)}
	switch {
	case before.other:
		return out, "the call has a proxy already", nil
	case limits.Bytes > 0 && before.used >= limits.Bytes:
		return out, "the byte allowance of the call is used up", nil
	case limits.Bytes > 0:
		limits.Bytes -= before.used
	}
	life, stop := context.WithDeadline(context.Background(), deadline(a, s.env.Emit.Now()))
	c.stop = stop
	defer func() {
		if s.callOf(e.CallID) != c {
			stop()
		}
	}()
	secrets := &credentials{life: life, fetch: s.fetch, cause: e, a: a, allowed: at}
	p, err := proxy.New(proxy.Config{Rules: rules, Addresses: s.addresses, Limits: limits, Credential: secrets.get, Begin: func(f proxy.Flow) { s.begun(c, f) }, Record: func(f proxy.Flow) { s.flow(c, f) }})
	if err != nil {
		return out, err.Error(), nil
	}
	path := filepath.Join(s.Dir, egress.SocketName(e.CallID))
	if len(path) > maxPath {
		return out, "the path of the call's socket, " + path + ", is too long: use a shorter folder for sockets", nil
	}
	fact := s.fact(e, events.EgressOpenedName, contract.Bytes(&events.EgressOpened{Authority: digest(p.CA()), CallID: e.CallID, DecisionID: a.Decision.ID,
		Hosts: hosts(rules), LimitBytes: limits.Bytes, To: req.To}))
	l, err := s.listen(ctx, c, path, seq, fact, before)
	if err != nil {
		return out, "", err
	}
	c.out = egress.Opened{Socket: path, Authority: string(p.CA())}
	s.mu.Lock()
	s.open[e.CallID] = c
	s.mu.Unlock()
	go c.write(s.append)
	go s.serve(life, c, p, l)
	return c.out, "", nil
}

// reserve waits until no other request for the call is handled in opened, and reserves the
// call until release is called. It returns the error of ctx if that ends first. The lock of
// the service is not held meanwhile, because opened reads and writes the ledger.
func (s *Service) reserve(ctx context.Context, callID string) (release func(), err error) {
	for {
		s.mu.Lock()
		other := s.opening[callID]
		if other == nil {
			done := make(chan struct{})
			if s.opening == nil {
				s.opening = map[string]chan struct{}{}
			}
			s.opening[callID] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.opening, callID)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// callOf returns the call with an open proxy and the id, or nil.
func (s *Service) callOf(callID string) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[callID]
}

// listen makes the journal of a call, records that its proxy is opened, and makes the
// socket. If it fails after it made the journal, the journal remains without a lock, and a
// repetition of the request or sweep continues with it. After an *eventlog.TakenError, which
// means that before is not the past of the call any longer, nothing was recorded, and the journal
// is removed.
func (s *Service) listen(ctx context.Context, c *call, path string, seq uint64, fact *contract.Event, before past) (l net.Listener, err error) {
	if err := s.clear(ctx, path+note); err != nil { // the journal of an earlier attempt, whose event may be on the ledger
		return nil, err
	}
	if c.note, err = newJournal(path+note, seq, fact.ID); err != nil {
		return nil, err
	}
	if err := s.ledger().claim(ctx, fact, before); err != nil {
		if taken := (*eventlog.TakenError)(nil); errors.As(err, &taken) {
			return nil, errors.Join(err, c.note.remove())
		}
		return nil, errors.Join(err, c.note.file.Close()) // it may have been recorded
	}
	listen := s.Listen
	if listen == nil {
		listen = unixSocket
	}
	if l, err = listen(path); err != nil {
		_ = c.note.file.Close()
	}
	return l, err
}

// unixSocket makes the socket of a proxy. Access to it is limited by the permissions of its
// folder.
func unixSocket(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// serve serves a call's proxy until the call or ctx ends, or the proxy fails. Then it
// appends egress_closed, and removes the proxy. If append drops the event, the journal
// remains, and a sweep records that the proxy is closed.
func (s *Service) serve(ctx context.Context, c *call, p *proxy.Proxy, l net.Listener) {
	defer close(c.done)
	if err := p.Serve(ctx, l); err != nil {
		s.env.Log.Error("the proxy of a call failed", "call", c.cause.CallID, "err", err)
	}
	c.end("expired")
	close(c.facts)
	<-c.written
	t := p.Totals()
	c.mu.Lock()
	data := events.EgressClosed{BytesIn: t.BytesIn, BytesOut: t.BytesOut, CallID: c.cause.CallID, Denied: t.Denied, Flows: t.Flows, Reason: c.reason, Unlisted: c.unlisted}
	c.mu.Unlock()
	end := c.note.remove
	s.ledger().marked(c.note)
	if !s.append(closing(s, c.cause, c.note.opened, &data)) {
		end = c.note.file.Close // a sweep finds the journal without a lock, and records that the proxy is closed
	}
	if err := end(); err != nil {
		s.env.Log.Warn("file of a closed proxy not removed", "err", err)
	}
	s.mu.Lock()
	delete(s.open, c.cause.CallID)
	s.mu.Unlock()
}

// closing returns the event egress_closed of a proxy, given the id of its event
// egress_opened. Its id depends on that alone, so that a process which is killed after it
// stored the event, and a sweep after that, record one end.
func closing(s *Service, request *contract.Event, opened string, data *events.EgressClosed) *contract.Event {
	e := s.fact(request, events.EgressClosedName, contract.Bytes(data))
	e.ID = contract.IDEgressFact + opened
	return e
}

// end closes the proxy for a reason, unless it is being closed already. It does not wait.
func (c *call) end(reason string) {
	c.mu.Lock()
	if c.reason == "" {
		c.reason = reason
	}
	c.mu.Unlock()
	c.stop()
}

// closeAll closes every proxy, and waits until that is recorded, or append has dropped the
// event.
func (s *Service) closeAll() {
	s.mu.Lock()
	calls := slices.Collect(maps.Values(s.open))
	s.mu.Unlock()
	for _, c := range calls {
		c.end("stopped")
		<-c.done
	}
}

// begun writes the start of a flow to the journal of the call, for the first maxListed
// flows.
func (s *Service) begun(c *call, f proxy.Flow) {
	if f.ID > maxListed {
		return
	}
	if err := c.note.begin(f); err != nil {
		s.env.Log.Error("the start of a flow was not written: if this process is killed, the flow is not recorded", "call", c.cause.CallID, "err", err)
	}
}

// flow queues the event of a flow or a denial. If the call has maxListed events already,
// flow only increments the count of the others. If the journal contains the start of the
// flow, flow also writes its end there.
func (s *Service) flow(c *call, f proxy.Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.ID > 0 && f.ID <= maxListed {
		defer s.noted(c, f)
	}
	if c.listed == maxListed {
		c.unlisted++
		return
	}
	c.listed++
	d := events.FlowEnded{BytesIn: f.BytesIn, BytesOut: f.BytesOut, CallID: c.cause.CallID, Credential: f.Credential, Host: f.Host, Method: f.Method, Mode: string(f.Mode),
		MS: f.Duration.Milliseconds(), Path: f.Path, Port: int64(f.Port), QueryDigest: f.Query, Reason: string(f.Reason), Status: int64(f.Status)}
	if f.Address.IsValid() {
		d.Address = f.Address.String()
	}
	if f.Denied {
		denied := events.FlowDenied(d)
		c.facts <- s.fact(c.cause, events.FlowDeniedName, contract.Bytes(&denied))
		return
	}
	c.facts <- s.fact(c.cause, events.FlowEndedName, contract.Bytes(&d))
}

// write appends the events of the call's flows until there are no more.
func (c *call) write(append func(*contract.Event) (stored bool)) {
	defer close(c.written)
	for e := range c.facts {
		append(e)
	}
}

// appendTime is the default of Service.patience.
const appendTime = time.Minute

// append appends an event, and reports whether it is stored. After an error it tries
// again every second, for at most s.patience; the event is then dropped, which is logged
// with the number of events dropped until now.
func (s *Service) append(e *contract.Event) (stored bool) {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(s.patience, appendTime))
	defer cancel()
	for {
		_, err := s.env.Emit.Append(ctx, e)
		if err == nil {
			return true
		}
		s.env.Log.Warn("event not stored yet", "event", e.Name, "call", e.CallID, "err", err)
		select {
		case <-ctx.Done():
			s.env.Log.Error("event dropped: the ledger has no record of it", "event", e.Name, "call", e.CallID, "dropped", s.dropped.Add(1), "err", err)
			return false
		case <-time.After(time.Second):
		}
	}
}

// noted writes the end of a flow to the journal of the call, after its event was queued or
// the flow was counted.
func (s *Service) noted(c *call, f proxy.Flow) {
	if err := c.note.write(entry{End: f.ID}); err != nil {
		s.env.Log.Warn("the end of a flow was not written", "call", c.cause.CallID, "err", err)
	}
}

// abandoned records the open flows of the proxy of a journal that no other process has
// locked, and that the proxy is closed. What the flows transferred is not known. It records
// nothing if the journal names no request, or one that the ledger has lost.
func (s *Service) abandoned(ctx context.Context, j *journal) error {
	request, open, err := j.read()
	if err != nil || request.Request == 0 {
		return err
	}
	en, err := s.env.Emit.Log.Get(ctx, request.Request)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil // the ledger lost its end
	}
	if err != nil {
		return err
	}
	e, err := eventlog.Open(en, requests.Filters...)
	if err != nil {
		return err
	}
	opened := cmp.Or(request.Opened, e.ID) // journals of earlier releases have no id
	for _, f := range open {
		flow := events.FlowEnded{CallID: e.CallID, Credential: f.Credential, Host: f.Host, Method: f.Method, Mode: f.Mode, Path: f.Path, Port: int64(f.Port), Reason: string(proxy.BrokerFailed)}
		fact := s.fact(e, events.FlowEndedName, contract.Bytes(&flow))
		fact.ID = contract.IDEgressFact + opened + "-" + strconv.FormatInt(f.Begin, 10)
		if _, err := s.env.Emit.Append(ctx, fact); err != nil && !errors.Is(err, eventlog.ErrIDConflict) { // another instance was killed after it recorded this
			return err
		}
	}
	fact := closing(s, e, opened, &events.EgressClosed{CallID: e.CallID, Reason: "restarted"})
	known, err := s.ledger().recorded(ctx, fact, j, request.Request, request.Marks)
	if err != nil || known {
		return err
	}
	s.ledger().marked(j)
	if _, err = s.env.Emit.Append(ctx, fact); errors.Is(err, eventlog.ErrIDConflict) { // stored meanwhile
		return nil
	}
	return err
}

// hosts returns the hosts of the rules, each once, with the port if the rule names one.
func hosts(rules []netrule.Rule) []string {
	out := []string{}
	for _, r := range rules {
		h := r.Host
		if r.Port != 0 {
			h = net.JoinHostPort(h, strconv.FormatInt(r.Port, 10))
		}
		if !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	return out
}

// allowance returns the number of bytes that are reserved for the egress of a call, which its
// flows share; 0 means no limit.
func allowance(a *contract.Allowed) int64 {
	if b := a.Decision.Intent.Budget; b != nil {
		return b.Amounts.EgressBytes
	}
	return 0
}

// deadline returns the time at which a call's proxy is closed if the call has no outcome
// until then. It is calculated from the deadline of the intent, or from that of the call
// if the intent has none, or from now if neither has one.
func deadline(a *contract.Allowed, now time.Time) time.Time {
	for _, t := range []string{a.Decision.Intent.Deadline, a.Call.Deadline} {
		if at, err := contract.ParseTime(t); err == nil {
			return at.Add(beyond)
		}
	}
	return now.Add(beyond)
}

// digest returns the SHA-256 of a certificate in PEM, over its DER form, in hexadecimal.
func digest(certificate []byte) string {
	block, _ := pem.Decode(certificate)
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}
