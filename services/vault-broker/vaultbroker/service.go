// Package vaultbroker stores secrets and releases them, sealed, to the executor that a
// verified decision names, or to the egress-broker that opened the call's proxy. It also
// stores the content keys of tenants. No event, log line or error contains a value. With
// the encrypted files only one instance runs at a time, because it owns them; with
// HashiCorp Vault, several instances share the values.
package vaultbroker

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/consumer"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/running"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/hashivault"
)

// Config is the vault-broker's configuration: where values are stored, and its keys. It
// contains secret keys and must not be logged.
type Config struct {
	Dir     string // folder of the encrypted files; "" if values are stored in Vault
	Vault   Vault  // Vault server that stores values or, with Dir, has the key Transit
	Transit Transit
	KEK     []byte // key-encryption key, 32 bytes
	// SealSeeds reads the X25519 private keys that open sealed values, for each of them, so that the
	// key can be replaced at run time; their public keys are published.
	SealSeeds func() ([][]byte, error)
	TokenCA   string // PEM file of the authority of the token endpoints' certificates; "" = the system's
	// ClientDocument is the URL of a client-id metadata document that describes the mesh, or "".
	ClientDocument string
}

// Vault describes a Vault server and how the broker logs in to it.
type Vault = hashivault.Config

// Service implements run.Service. It releases a secret only for a decision that it has
// verified itself, and records the release before it sends the value.
type Service struct {
	Config

	env     *run.Env
	keeper  *keeper // of secrets
	content *contentKeeper
	leases  *leases       // of credentials that Vault issues; nil if values are stored in files
	rewrap  time.Duration // interval of rewrapped; 0 = rewrapTime

	calls *running.Checker // checks requests
	// send sends the response to a request to the inbox of an instance, in a tenant.
	send func(ctx context.Context, tenant, to, inbox string, f transient.Frame) error
	// via returns a transport to token endpoints; see tokens.
	via func(tenant, call string) http.RoundTripper
}

var requests = bus.Work{Name: "requests", Filters: bus.Filters("", contract.EventSecretRequested), Ends: bus.Filters("", contract.EventEffectRecorded), AckWait: 5 * time.Second, MaxAckPending: 1024}

// Declaration implements run.Service. The service executes calls and handles requests
// for secrets. It also reads cancellations and freezes. An instance that uses encrypted
// files is the only one.
func (s *Service) Declaration() bus.Declaration {
	slots, alone := 4, ""
	if s.Dir != "" {
		slots, alone = 1, "store secrets in Vault, which several instances share (vault-broker.store: vault)"
	}
	return bus.Declaration{Service: services.VaultBroker, Slots: slots, Alone: alone, Work: []bus.Work{bus.ExecutorWork(services.VaultBroker), requests, leased}, Readers: []bus.Reader{bus.ExecutorControl(services.VaultBroker)}}
}

var putTool = contract.Tool{
	Description: "Stores a secret. The value travels sealed beside the call, never in its arguments.", Class: "E1", Executor: services.VaultBroker, Kind: "vault.put", Tool: "vault.put", Version: "v1",
	InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{"name":{"maxLength":64,"minLength":1,"type":"string"}},"required":["name"],"type":"object"}`),
	OutputSchema: contract.Raw(`{"properties":{"fingerprint":{"type":"string"},"name":{"type":"string"}},"required":["fingerprint","name"],"type":"object"}`),
}

func tools() []contract.Tool {
	return slices.Concat([]contract.Tool{putTool}, secretTools, contentTools, erasureTools)
}

// unseal opens a value that is sealed to one of the keys of SealSeeds. The error is that of the
// current key.
func (s *Service) unseal(info string, sealed []byte) ([]byte, error) {
	seeds, err := s.SealSeeds()
	if err != nil {
		return nil, err
	}
	var first error
	for _, seed := range seeds {
		k, err := seal.FromSeed(seed)
		if err == nil {
			var value []byte
			if value, err = k.Open(info, sealed); err == nil {
				return value, nil
			}
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// Run implements run.Service. It opens the stores before it reports that it is ready,
// since no request can be handled without them. If they cannot be opened, the error
// begins with "vault: ".
func (s *Service) Run(ctx context.Context, env *run.Env, ready func()) error {
	s.env = env
	s.send = func(ctx context.Context, tenant, to, inbox string, f transient.Frame) error {
		return env.Transport.In(tenant).Send(ctx, to, inbox, f)
	}
	s.calls = running.New(env.Emit.Log, env.Trust.At, env.Cell, env.Emit.Now, env.Epoch)
	tokenTLS, err := tlsOf(s.TokenCA)
	if err != nil {
		return err
	}
	s.via = func(tenant, call string) http.RoundTripper {
		t := endpoint.New(env.Queries.In(tenant), egress.EndpointOAuth, call)
		t.TLSClientConfig = tokenTLS
		return toEndpoint{t, egress.EndpointOAuth}
	}
	if _, err := s.SealSeeds(); err != nil {
		return err
	}
	cell, err := env.Cell.Now(ctx)
	if err != nil {
		return err
	}
	if s.Transit.Key != "" {
		if s.KEK, err = s.unwrapped(ctx); err != nil {
			return fmt.Errorf("vault: %w", err)
		}
	}
	// Values without a tenant in their names were stored when the mesh had one tenant.
	vault, err := s.open(cmp.Or(cell.Original, cell.Tenant))
	if err != nil {
		return fmt.Errorf("vault: %w", err)
	}
	if s.Dir != "" {
		if err := s.content.repeat(ctx, s.Dir); err != nil {
			return fmt.Errorf("vault: %w", err)
		}
	}
	s.keeper.tokens.document = s.ClientDocument
	if err := catalog.Register(ctx, env.Emit, env.Cell.Now, services.VaultBroker, tools()); err != nil {
		return err
	}
	env.ReportWork(requests.Consumer(services.VaultBroker))
	s.serveContentKeys()
	(&macs{of: s.unseal, kek: s.KEK, counts: lru.Cache[*atomic.Int64]{Max: maxMACCalls}}).serve(env.Transport)
	x := s.executor()
	if vault != nil {
		stop := loggedIn(ctx, vault)
		defer stop()
		env.Report(func(context.Context) run.Health { return run.Health{Name: "vault", OK: vault.Err() == nil} })
	}
	defer s.keeper.tokens.running.Wait()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return x.Run(ctx) })
	if s.Transit.Key != "" {
		g.Go(func() error { return s.rewrapped(ctx) })
	}
	g.Go(func() error {
		return consumer.Run(ctx, env.Conn, services.VaultBroker, requests, 16, s.request)
	})
	if s.leases != nil {
		env.ReportWork(leased.Consumer(services.VaultBroker))
		g.Go(func() error {
			return consumer.Run(ctx, env.Conn, services.VaultBroker, leased, maxLeases, func(hold context.Context, d *consumer.Delivery) {
				s.leases.hold(hold, ctx.Done(), d)
			})
		})
	}
	ready()
	return g.Wait()
}

// loggedIn runs a client of Vault until stop is called, which waits for its end. The client does
// not end with ctx, because an access token may have to be stored after that.
func loggedIn(ctx context.Context, c *hashivault.Client) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// executor returns the executor of the service's calls.
func (s *Service) executor() *execute.Executor {
	x := execute.New(s.env, 16, tools(), func(ctx context.Context, w *execute.Work) execute.Result {
		switch w.Call.Kind {
		case putTool.Kind, kindStore:
			return s.put(ctx, w)
		case kindRotate, contentkeys.KindDestroy:
			return s.content.changeContentKey(ctx, w)
		case contentkeys.KindEraseSubject, contentkeys.KindEraseTenant:
			return s.content.eraseContent(ctx, w)
		}
		return s.keeper.manage(ctx, w)
	})
	x.ReRunable = rerunnable
	return x
}

// put executes a call that stores a secret. The gateway that proposed the call holds the
// sealed value, and sends it only if the ledger contains the event that allows the call.
func (s *Service) put(ctx context.Context, w *execute.Work) execute.Result {
	args, bad := s.keeper.parse(w.Args)
	if bad != nil {
		return *bad
	}
	sealed, err := rpc.Do(ctx, s.env.Queries.In(w.Event.Tenant).To(w.Event.Origin), query.SealedValueQuery.Of(w.Proposer), query.SealedValueRequest{CallID: w.Call.ID})
	if err != nil {
		s.env.Log.Warn("the value to be stored cannot be fetched", "call", w.Call.ID, "err", err)
		return execute.Fail(contract.CodeValueMissing, "the gateway no longer has a value for this call; store the secret again")
	}
	value, err := s.unseal(secret.PutInfo(w.Event.Tenant, args.Name, w.Call.ID), sealed.Value)
	if err != nil {
		return execute.Fail(contract.CodeValueMalformed, "the sealed value cannot be opened for this call")
	}
	defer clear(value)
	res := s.keeper.storeOrLogin(ctx, w, args, value)
	if w.Call.Kind == putTool.Kind && res.ErrorCode == "" {
		var stored struct{ Fingerprint string }
		if err := json.Unmarshal(res.Output, &stored); err != nil {
			return execute.Fail(contract.CodeInternal, "the output of the call could not be made")
		}
		c := canon.Object(nil)
		c.Str("fingerprint", stored.Fingerprint)
		c.Str("name", args.Name)
		res.Output = c.End() // what the tool's output schema has
	}
	return res
}

// request handles one event secret_requested. It logs and terminates a malformed
// request. Otherwise it acknowledges the event, unless release returns an error; in that
// case the event is redelivered.
func (s *Service) request(ctx context.Context, d *consumer.Delivery) {
	var req secret.Request
	e, err := d.Open()
	if err == nil {
		err = contract.Decode(e.Data, &req)
	}
	if err != nil || req.CallID != e.CallID || !secret.ValidInbox(req.Inbox) {
		s.env.Log.Error("not a secret request", "subject", d.Subject, "err", err)
		d.Term()
		return
	}
	s.env.Emit.See(e.Lamport)
	if err := s.release(ctx, e, d.Seq, &req); err != nil {
		s.env.Log.Warn("secret request will be redelivered", "subject", d.Subject, "err", err)
		d.Nak(250 * time.Millisecond)
		return
	}
	d.Ack()
}

// release records secret_released or secret_refused for the request in the event e at
// sequence seq, waits until that event is durable, and then sends the sealed values or the
// refusal. It returns an error if the request must be redelivered.
func (s *Service) release(ctx context.Context, e *contract.Event, seq uint64, req *secret.Request) error {
	released, list, refusal, err := s.check(ctx, e, seq, req)
	defer released.clear()
	if err != nil {
		return err
	}
	answer := secret.Sealed{Refused: refusal.reason, Code: refusal.code}
	var fact *contract.Event
	if refusal.reason != "" {
		fact = s.env.Emit.New(events.SecretRefusedName, e.Session, contract.Bytes(&events.SecretRefused{Access: list, CallID: req.CallID, DecisionID: req.DecisionID, Reason: refusal.reason, To: req.To}), e)
	} else {
		plain := released.document()
		sealed, err := seal.To(req.Recipient, secret.RequestInfo(e.Tenant, req), plain)
		clear(plain)
		if err != nil {
			return err
		}
		answer.Sealed = base64.StdEncoding.EncodeToString(sealed)
		fact = s.env.Emit.New(events.SecretReleasedName, e.Session, contract.Bytes(&events.SecretReleased{Access: list, CallID: req.CallID, DecisionID: req.DecisionID, Secrets: released.prints(), To: req.To}), e)
	}
	fact.ID = contract.IDSecretFact + e.ID
	if err := s.record(ctx, fact); err != nil {
		return err
	}
	if refusal.reason == "" {
		s.keeper.recordUses(ctx, e, released)
	}
	if err := s.env.Conn.Durable(ctx); err != nil {
		return err
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return s.send(ctx, e.Tenant, req.To, req.Inbox, transient.Frame{Kind: transient.Sealed, Data: body})
}

// record appends fact, the event secret_released or secret_refused about a request,
// unless an earlier delivery of the request recorded an event of the same name. An event
// of another service or with another name that is stored under the message id does not
// count, since values must not be released without secret_released on the ledger.
func (s *Service) record(ctx context.Context, fact *contract.Event) error {
	own := func(e *contract.Event) bool {
		return e.Service() == fact.Service() && e.Name == fact.Name && e.CallID == fact.CallID && e.Cause == fact.Cause
	}
	_, err := eventlog.Contend(ctx, s.env.Emit.Log, fact.ID, own, func(id string) (uint64, error) {
		fact.ID = id
		return s.env.Emit.Append(ctx, fact)
	})
	if errors.Is(err, eventlog.ErrIDConflict) {
		return nil
	}
	return err
}

// check returns the requested values of the event's tenant, or the reason for which the
// request must be refused, and the results of the access list. Both the decision on the ledger
// and the access list as it is now must permit the values. check returns an error if the
// request must be redelivered, for example because the ledger cannot be read or written, the
// access list is malformed, or the store cannot be read and the request is younger than
// patience.
func (s *Service) check(ctx context.Context, e *contract.Event, seq uint64, req *secret.Request) (out values, list []events.AccessResult, no refusal, err error) {
	g, reason, err := s.permission(ctx, e, seq, req)
	if err != nil || reason != "" {
		return nil, nil, refusal{reason: reason}, err
	}
	c, reason, err := s.listed(ctx, e, g, req.Names)
	if err != nil || reason != "" {
		return nil, c.results, refusal{reason: reason}, err
	}
	read, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	for _, name := range req.Names {
		v, no, err := s.value(read, e, g, name)
		if err != nil || no.reason != "" {
			return out, c.results, no, err
		}
		out = append(out, v)
	}
	reason, err = s.spend(ctx, e, g, &c) // last, so that a value that cannot be read uses up nothing
	return out, c.results, refusal{reason: reason}, err
}

// permission returns the secrets that the requester may have for the call, or the reason
// for a refusal. The executor at which the call runs may have the secrets that the intent
// grants. The egress-broker that opened the call's proxy may have the secrets that the
// intent's egress rules add to requests.
func (s *Service) permission(ctx context.Context, e *contract.Event, seq uint64, req *secret.Request) (g *grant, refusal string, err error) {
	executor, instance := e.Service(), e.Source
	at := uint64(max(req.Allowed, 0))
	var a *contract.Allowed
	if e.Service() == services.EgressBroker {
		instance = ""
		a, executor, err = s.proxied(ctx, e, at, seq)
	} else {
		a, err = s.calls.Allowed(ctx, e, executor, at, seq)
	}
	if err != nil {
		return nil, "", err
	}
	if refusal, err := s.calls.Check(ctx, e, a, at, executor, instance); refusal != "" || err != nil {
		return nil, refusal, err
	}
	g = &grant{approved: guard.ApprovedCall(&a.Decision), from: at, executor: executor, rejected: req.Rejected}
	if err := contract.Decode(a.Decision.Facts, &g.facts); err != nil {
		return nil, "the facts of the decision cannot be read", nil
	}
	if executor == e.Service() {
		g.uses = guard.UsesOf(a.Decision.Intent.Secrets, nil)
		return g, "", nil
	}
	open, err := s.opened(ctx, e, at)
	if err != nil || !open {
		return nil, "the call has no proxy at the requester", err
	}
	g.uses = guard.UsesOf(nil, a.Decision.Intent.EgressRules)
	return g, "", nil
}

// proxied returns the data of the event at which policy allowed a call that may have a proxy, and
// the executor of the call: the session-runner, or the mcp-router for a server that is a command.
func (s *Service) proxied(ctx context.Context, e *contract.Event, at, seq uint64) (a *contract.Allowed, executor string, err error) {
	for _, executor = range []string{services.SessionRunner, services.MCPRouter} {
		if a, err = s.calls.Allowed(ctx, e, executor, at, seq); a != nil || err != nil {
			break
		}
	}
	return a, executor, err
}

// opened reports whether the egress-broker that made a request has recorded, after sequence
// from, that it opened the call's proxy.
func (s *Service) opened(ctx context.Context, e *contract.Event, from uint64) (bool, error) {
	filter := bus.Filter{Tenant: e.Tenant, Service: services.EgressBroker, Event: contract.EventEgressOpened, Key: e.Session}.String()
	_, err := eventlog.FirstOf(ctx, s.env.Emit.Log, from, eventlog.OfCall(e.CallID, func(o *contract.Event) bool { return o.Source == e.Source }), filter)
	if errors.Is(err, eventlog.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
