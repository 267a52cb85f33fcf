// Package egressbroker carries the network traffic of sandboxes, and the requests of services to
// the endpoints that the operator has configured. If the session-runner requests a proxy for a call
// whose verified intent permits requests to hosts, it opens one on a unix socket, records its
// flows, and closes it at the end of the call. Services reach the proxy of an endpoint through
// queries.
package egressbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/internal/address"
)

// Config is the egress-broker's configuration.
type Config struct {
	Dir      string   // folder of the sockets, which the session-runner must see under the same path
	Hosts    []string // only these hosts can be reached by calls: exact names, "*.suffix" or "*"
	Networks []string // special-use networks that may be dialled, such as 10.0.0.0/8
	Exports  string   // folder of the sockets for programs that export events; not used without the endpoint exports
	// Endpoints has the URLs to which services may send requests, by the name of the
	// endpoint; see EndpointsOf. Paths and queries are not used.
	Endpoints map[string][]string
	// Listen, if set, returns the listener of a proxy in place of a unix socket with the path.
	Listen func(path string) (net.Listener, error)
}

// Service implements run.Service. Several instances may run at a time. Each proxy belongs to
// one instance and is closed when that instance stops.
type Service struct {
	Config

	env       *run.Env
	calls     *running.Checker // checks requests
	fetch     Fetch            // requests secrets
	addresses address.Policy
	ceiling   []netrule.Rule // limits the rules of every call
	endpoints endpoints
	resolve   func(ctx context.Context, host string) ([]netip.Addr, error) // see proxy.Config
	patience  time.Duration                                                // longest time for which append tries to append an event; 0 = appendTime
	dropped   atomic.Int64                                                 // events that were not appended

	mu      sync.Mutex               // not held while the ledger is read or written
	open    map[string]*call         // by call id
	opening map[string]chan struct{} // calls whose proxy is being opened, by id; closed afterwards
}

// networks parses networks in CIDR notation.
func networks(texts []string) (out []netip.Prefix, err error) {
	for _, n := range texts {
		p, err := netip.ParsePrefix(n)
		if err != nil {
			return nil, fmt.Errorf("egress-broker.networks: %q is not a network such as 10.0.0.0/8", n)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// requesters returns the filters of the requests for proxies: those of the session-runner, and those
// of the mcp-router for servers that are commands.
func requesters() []string {
	return append(bus.Filters(services.SessionRunner, contract.EventEgressRequested), bus.Filters(services.MCPRouter, contract.EventEgressRequested)...)
}

var requests = bus.Work{Name: "requests", Filters: requesters(), Ends: bus.Filters("", contract.EventEffectRecorded), AckWait: 5 * time.Second, MaxAckPending: 1024}

// outcomes is the reader of the outcomes of calls that may have a proxy.
var outcomes = bus.Reader{Name: "outcomes", Stream: bus.Events, Filters: append(bus.OutcomesOf(services.SessionRunner), bus.Filters(services.MCPRouter, contract.EventEffectRecorded)...)}

// Declaration implements run.Service.
func (*Service) Declaration() bus.Declaration {
	return bus.Declaration{Service: services.EgressBroker, Slots: 4, Work: []bus.Work{requests}, Readers: []bus.Reader{outcomes}}
}

// Run implements run.Service.
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env, s.open = env, map[string]*call{}
	s.calls = running.New(env.Emit.Log, env.Trust.At, env.Cell, env.Emit.Now, env.Epoch)
	s.fetch = secret.FromBroker(env.Emit, env.Transport, env.Instance)
	dir, err := filepath.Abs(filepath.Join(s.Dir, env.Instance)) // the session-runner may have another working folder
	if err != nil {
		return err
	}
	s.Dir = dir
	if s.addresses.Allowed, err = networks(s.Networks); err != nil {
		return err
	}
	s.endpoints.s = s
	if s.endpoints.named, err = parseEndpoints(s.Endpoints); err != nil {
		return err
	}
	s.ceiling = netrule.CeilingOf(s.Hosts)
	if err := netrule.CheckCeiling(s.ceiling); err != nil {
		return fmt.Errorf("egress-broker.hosts: %w", err)
	}
	if err := os.MkdirAll(s.Dir, 0o711); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	if err := s.sweep(ctx); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	last, err := env.Emit.Log.Last(ctx, bus.EveryEvent)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return err
	}
	env.ReportWork(requests.Consumer(services.EgressBroker))
	ended := follow.New(env.Conn, env.Instance, outcomes, s.ended)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return ended.Run(ctx, last.Seq+1) })
	g.Go(func() error { return s.sweeps(ctx) })
	g.Go(func() error {
		select {
		case <-ended.Ready():
		case <-ctx.Done():
			return nil
		}
		return consumer.Run(ctx, env.Conn, services.EgressBroker, requests, 16, s.request)
	})
	g.Go(func() error {
		if err := s.endpoints.serveExports(ctx); err != nil {
			return fmt.Errorf("egress-broker.exports: %w", err)
		}
		return nil
	})
	s.endpoints.tunnels.serve(&s.endpoints, env.Transport)
	ready()
	err = g.Wait()
	s.endpoints.tunnels.Close()
	s.closeAll()
	return err
}

// sweepEvery is the time between two sweeps.
const sweepEvery = time.Minute

// sweeps calls sweep every sweepEvery until ctx is done. It logs the errors.
func (s *Service) sweeps(ctx context.Context) error {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
				s.env.Log.Error("proxies of processes that have ended", "err", err)
			}
		}
	}
}

// sweep records that the proxies and flows of processes that have ended are closed, of this
// and of the other instances with the same folder, and removes their files.
func (s *Service) sweep(ctx context.Context) error {
	notes, err := filepath.Glob(filepath.Join(filepath.Dir(s.Dir), "*", "*"+note))
	if err != nil {
		return err
	}
	for _, path := range notes {
		if err := s.clear(ctx, path); err != nil {
			return err
		}
	}
	return s.endpoints.sweep(ctx)
}

// clear records that the proxy of a journal is closed, unless a process has the journal locked,
// and removes the files of the proxy. It returns nil if there is no such journal.
func (s *Service) clear(ctx context.Context, path string) error {
	j, err := left(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && j == nil {
		return nil // closed meanwhile, or open
	}
	if err != nil {
		return err
	}
	err = s.abandoned(ctx, j)
	if err == nil {
		_ = os.Remove(strings.TrimSuffix(path, note)) // the socket; it may be missing
		err = j.remove()
	}
	if err != nil {
		return errors.Join(err, j.file.Close())
	}
	return nil
}

// ended closes the proxy of the call whose outcome an entry records, if it is
// open here.
func (s *Service) ended(en eventlog.Entry) error {
	s.mu.Lock()
	none := len(s.open) == 0
	s.mu.Unlock()
	if none {
		return nil
	}
	e, err := eventlog.Open(en, outcomes.Filters...)
	if err != nil {
		return nil // not an outcome; audit raises the alarm
	}
	if c := s.callOf(e.CallID); c != nil && c.cause.Tenant == e.Tenant && c.cause.Session == e.Session {
		c.end("call_ended")
	}
	return nil
}

// request handles one event egress_requested.
func (s *Service) request(ctx context.Context, d *consumer.Delivery) {
	var req egress.Request
	e, err := d.Open()
	if err == nil {
		err = contract.Decode(e.Data, &req)
	}
	if err != nil || req.CallID != e.CallID || !egress.ValidInbox(req.Inbox) {
		s.env.Log.Error("not a request for egress", "subject", d.Subject, "err", err)
		d.Term()
		return
	}
	s.env.Emit.See(e.Lamport)
	if err := s.answer(ctx, e, d.Seq, &req); err != nil {
		s.env.Log.Warn("request for egress will be redelivered", "subject", d.Subject, "err", err)
		d.Nak(250 * time.Millisecond)
		return
	}
	d.Ack()
}

// answer opens the proxy of a call, or refuses it, and sends the response. It returns an error
// if the request must be redelivered.
func (s *Service) answer(ctx context.Context, e *contract.Event, seq uint64, req *egress.Request) error {
	out, refusal, err := s.decide(ctx, e, seq, req)
	if err != nil {
		return err
	}
	if refusal != "" {
		out = egress.Opened{Refused: refusal}
		_, err = s.env.Emit.Append(ctx, s.fact(e, events.EgressRefusedName, contract.Bytes(&events.EgressRefused{CallID: req.CallID, Reason: refusal, To: req.To})))
	}
	if err != nil {
		return err
	}
	if err := s.env.Conn.Durable(ctx); err != nil {
		return err
	}
	body, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return s.env.Transport.In(e.Tenant).Send(ctx, req.To, req.Inbox, transient.Frame{Kind: transient.Sealed, Data: body})
}

// decide opens the proxy of a call, or returns the reason for a refusal. An error means that
// the request must be redelivered.
func (s *Service) decide(ctx context.Context, e *contract.Event, seq uint64, req *egress.Request) (out egress.Opened, refusal string, err error) {
	a, at, refusal, err := s.check(ctx, e, seq)
	if err != nil || refusal != "" {
		return out, refusal, err
	}
	if out, refusal, err = s.opened(ctx, e, seq, req, a, at); err != nil || refusal != "" {
		return out, refusal, err
	}
	refusal, err = s.again(ctx, e, a, at)
	return out, refusal, err
}

// again checks a request again when its proxy is open, and closes the proxy if the
// request is refused now: ended may have read the outcome of the call before the proxy
// was open.
func (s *Service) again(ctx context.Context, e *contract.Event, a *contract.Allowed, at uint64) (refusal string, err error) {
	refusal, err = s.calls.Check(ctx, e, a, at, e.Service(), e.Source)
	if refusal == "" || err != nil {
		return "", err
	}
	if c := s.callOf(e.CallID); c != nil {
		c.end("call_ended")
	}
	return refusal, nil
}

// fact returns an event about a call whose cause is the request.
func (s *Service) fact(request *contract.Event, name string, data []byte) *contract.Event {
	return s.env.Emit.New(name, request.Session, data, request)
}

// maxAge is the maximum age of a request. Its requester waits for at most 20 seconds (egress.Open),
// and openings of the call by later requests are within the ledger's duplicate window (see
// opened), also if the clocks differ by up to three minutes.
const maxAge = 2 * time.Minute

// check returns the decision that allowed the call of the request in the event e at
// sequence seq, and the decision's sequence, or the reason for a refusal. It relies on the
// ledger only, because a request is not authenticated: policy must have allowed the call
// with hosts or rules, and the requester must be running it. A request older than maxAge is
// refused.
func (s *Service) check(ctx context.Context, e *contract.Event, seq uint64) (a *contract.Allowed, at uint64, refusal string, err error) {
	if made, err := contract.ParseTime(e.Time); err != nil || s.env.Emit.Now().Sub(made) > maxAge {
		return nil, 0, "the request is too old: its requester does not wait for it any longer", nil
	}
	a, at, err = s.calls.Find(ctx, e, e.Service(), seq)
	if err != nil {
		return nil, 0, "", err
	}
	refusal, err = s.calls.Check(ctx, e, a, at, e.Service(), e.Source)
	if err == nil && refusal == "" && len(netrule.OfIntent(a.Decision.Intent)) == 0 {
		refusal = "the intent permits no requests"
	}
	return a, at, refusal, err
}
