// Package edgetest runs a whole gateway over an in-memory ledger, without a server, for
// tests of the gateway's APIs. Functions that a test provides replace policy and the
// executors. Only tests use it.
package edgetest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/blob"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/emit"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog/memlog"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/rpc/rpctest"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/pkg/tracing"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth/authtest"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/decide"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/llmapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// Tenant is the original tenant of the mesh, and Other is a second tenant. Executor is
// the executor of the tools whose kinds do not begin with "llm.".
const (
	Tenant   = "t"
	Other    = "u"
	Executor = services.SessionRunner
)

// Call is a proposed call, as passed to Mesh.Execute.
type Call struct {
	contract.Call
	Proposal *contract.Event
	Args     []byte
	mesh     *Mesh
}

// Mesh is a gateway with its ledger and the test's replacements of the other services.
// Its methods except Register are safe for concurrent use while the test does not change
// its fields.
type Mesh struct {
	testing.TB
	Ledger  *Ledger
	Service *gateway.Service
	Tenants *authtest.Registry // has the tenants Tenant and Other
	Blobs   *blob.Store        // the gateway's store; it has no connection, so it reads inline content only

	// Execute is called with each proposal, in the goroutine that appends it. If it is
	// nil, each call succeeds with its args as output.
	Execute func(c *Call)
	// Answers holds the responses of other services by "service verb", or by "service verb
	// of u" for queries of the tenant Other only. A response is a value, or a func(args
	// json.RawMessage) (any, error).
	Answers map[string]any
	// Artifacts is the store of artifacts. It is empty at first.
	Artifacts *Artifacts
	// PostErr, if not nil, is the error with which the gateway's posts fail. The frames of
	// failed posts are not in Posted.
	PostErr error

	handler http.Handler
	seed    []byte
	mu      sync.Mutex
	queried []string
	posted  []string
	streams map[string]*Stream
	tools   map[string]string // digests of the tool documents, by kind
}

// Artifacts is a store of the parts of artifacts in memory, by their keys. Its methods are
// safe for concurrent use.
type Artifacts struct {
	mu    sync.Mutex
	parts map[string][]byte
}

// Len returns the number of parts.
func (a *Artifacts) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.parts)
}

// Put implements artifact.Store.
func (a *Artifacts) Put(_ context.Context, key string, part []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parts[key] = bytes.Clone(part)
	return nil
}

// Get implements artifact.Store.
func (a *Artifacts) Get(_ context.Context, key string) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if part, ok := a.parts[key]; ok {
		return part, nil
	}
	return nil, artifact.ErrNotFound
}

// Ledger is an in-memory ledger that calls a function for each entry that Append adds.
type Ledger struct {
	memlog.Log
	// Pause is the time for which Scan waits before each entry.
	Pause time.Duration

	appended func(eventlog.Entry)
}

// Scan implements eventlog.Log.
func (l *Ledger) Scan(ctx context.Context, filter string, from uint64) iter.Seq2[eventlog.Entry, error] {
	return func(yield func(eventlog.Entry, error) bool) {
		for en, err := range l.Log.Scan(ctx, filter, from) {
			if l.Pause > 0 {
				time.Sleep(l.Pause)
			}
			if !yield(en, err) {
				return
			}
		}
	}
}

// Append implements eventlog.Log.
func (l *Ledger) Append(ctx context.Context, subject, id string, data []byte) (uint64, error) {
	before := l.Size()
	seq, err := l.Log.Append(ctx, subject, id, data)
	if err == nil && seq > before {
		l.appended(eventlog.Entry{Seq: seq, Subject: subject, Data: data})
	}
	return seq, err
}

// New returns a mesh whose catalog contains tools of the given kinds.
func New(t testing.TB, cfg gateway.Config, tools ...string) *Mesh {
	return NewWith(t, cfg, nil, tools...)
}

// NewWith returns a mesh like New, with a lender for calls that their callers execute.
func NewWith(t testing.TB, cfg gateway.Config, l decide.Lender, tools ...string) *Mesh {
	m := &Mesh{TB: t, Tenants: authtest.New(Tenant, Other), seed: make([]byte, ed25519.SeedSize), Answers: map[string]any{"audit makers": map[string]string{}}, streams: map[string]*Stream{}, tools: map[string]string{}, Artifacts: &Artifacts{parts: map[string][]byte{}}}
	m.Ledger, m.Blobs = &Ledger{appended: m.appended}, &blob.Store{Tenant: Tenant}
	cfg.TokenKeys = token.Fixed(ed25519.NewKeyFromSeed(m.seed).Public().(ed25519.PublicKey))
	env := &run.Env{Service: services.Gateway, Instance: "gw1", RootKID: "k-root", Trust: &run.Trust{}, Tracer: &tracing.Tracer{},
		Emit: &emit.Emitter{Log: m.Ledger, Tenant: Tenant, Source: "gateway/gw1", Now: time.Now}, Blobs: m.Blobs,
		Log: slog.New(slog.DiscardHandler)}
	var err error
	if m.Service, err = gateway.New(cfg, env, gateway.Outside{Queries: m.client(), Tenants: m.Tenants, Open: m.open, Post: m.post, Lender: l, Artifacts: m.Artifacts}); err != nil {
		t.Fatal(err)
	}
	m.handler = m.Service.Handler()
	m.root()
	for _, kind := range tools {
		m.Register(kind)
	}
	return m
}

// root delivers to the gateway the event that publishes the root key. The tenant of that
// event, Tenant, is then the tenant of the mesh's own events. The event is not on the
// ledger.
func (m *Mesh) root() {
	m.Helper()
	e := m.by("provision").New(contract.EventKeyPublished, "k-root", []byte("{}"), nil)
	b, err := e.Encode()
	if err != nil {
		m.Fatal(err)
	}
	if err := m.Service.Deliver(eventlog.Entry{Subject: e.Subject(), Data: b}); err != nil {
		m.Fatal(err)
	}
}

// Register adds a tool of a kind to the catalog. Its input and its output are objects
// with the optional string member text.
func (m *Mesh) Register(kind string) {
	m.Helper()
	executor := executorOf(kind)
	tool := &contract.Tool{Kind: kind, Tool: strings.TrimPrefix(kind, "tool."), Executor: executor, Version: "1", Description: "a tool",
		InputSchema:  []byte(`{"additionalProperties":false,"properties":{"text":{"type":"string"}},"type":"object"}`),
		OutputSchema: []byte(`{"properties":{"text":{"type":"string"}},"type":"object"}`)}
	m.tools[kind] = contract.Digest(tool)
	m.Record(executor, contract.EventToolRegistered, "-", contract.Bytes(tool), nil)
}

// Record appends an event whose source is the given service. The event has the caller
// and the call of cause, if cause is not nil.
func (m *Mesh) Record(service, name, key string, doc []byte, cause *contract.Event) *contract.Event {
	m.Helper()
	return m.RecordFor("", service, name, key, doc, cause)
}

// RecordFor appends an event like Record, addressed to an executor.
func (m *Mesh) RecordFor(executor, service, name, key string, doc []byte, cause *contract.Event) *contract.Event {
	m.Helper()
	e := m.by(service).New(name, key, doc, cause)
	e.Target = executor
	return m.append(e)
}

// RecordIn appends an event of the given service in a tenant. The event has no cause.
func (m *Mesh) RecordIn(tenant, service, name, key string, doc []byte) *contract.Event {
	m.Helper()
	return m.append(m.by(service).In(tenant).New(name, key, doc, nil))
}

func (m *Mesh) by(service string) *emit.Emitter {
	return &emit.Emitter{Log: m.Ledger, Tenant: Tenant, Source: service + "/" + service[:2] + "1", Now: time.Now}
}

func (m *Mesh) append(e *contract.Event) *contract.Event {
	m.Helper()
	if _, err := m.by(e.Service()).Append(context.Background(), e); err != nil {
		m.Fatal(err)
	}
	return e
}

// read lists the events of services other than policy that are delivered to the gateway.
// All events of policy are delivered.
var read = []string{contract.EventEffectRecorded, contract.EventToolRegistered, contract.EventToolRetired}

// appended delivers an entry to the gateway if the gateway's readers would receive it,
// and executes the call if the entry is a proposal.
func (m *Mesh) appended(en eventlog.Entry) {
	e, err := eventlog.Open(en, eventlog.Every)
	if err != nil {
		m.Error(err)
		return
	}
	if e.Service() == services.Policy || slices.Contains(read, e.Name) {
		if err := m.Service.Deliver(en); err != nil {
			m.Error(err)
		}
	}
	if e.Name != contract.EventCallProposed {
		return
	}
	c := &Call{Proposal: e, mesh: m}
	if err := contract.Decode(e.Data, &c.Call); err != nil {
		m.Error(err)
		return
	}
	if c.Args, err = (&blob.Store{}).Open(context.Background(), &c.Call.Args); err != nil {
		m.Error(err)
		return
	}
	if m.Execute == nil {
		c.Succeed(c.Args)
		return
	}
	m.Execute(c)
}

// executorOf returns the service that executes calls of a kind in a test mesh.
func executorOf(kind string) string {
	if strings.HasPrefix(kind, "llm.") {
		return services.LLMRouter
	}
	return Executor
}

// Succeed records that the call succeeded with an output.
func (c *Call) Succeed(output []byte) {
	content, _ := blob.Refer(output, "application/json")
	c.End(executorOf(c.Kind), contract.Effect{Status: contract.Succeeded, OutputDigest: content.Commitment}, &content, contract.Allow, contract.ReasonRuleScopedCall)
}

// Fail records that the call ended with the given status and error of its executor.
func (c *Call) Fail(status, code, message string) {
	c.End(executorOf(c.Kind), contract.Effect{Status: status, ErrorCode: code, ErrorMessage: message}, nil, contract.Allow, contract.ReasonRuleScopedCall)
}

// Deny records that policy denied the call.
func (c *Call) Deny(reason string) {
	c.End("policy", contract.Effect{Status: contract.Denied}, nil, contract.Deny, reason)
}

// End records an outcome of the call, with the given service as its source.
func (c *Call) End(service string, eff contract.Effect, output *contract.Content, verdict, reason string) {
	eff.CallID, eff.Tool, eff.EffectType, eff.Instance = c.ID, c.Tool, c.Kind, service[:2]+"1"
	rec := contract.Recorded{Effect: eff, Output: output}
	rec.Receipt.ID, rec.Receipt.CallID, rec.Receipt.DecisionID = contract.IDReceipt+c.ID, c.ID, contract.IDDecision+c.ID
	rec.Receipt.Verdict, rec.Receipt.ReasonCode, rec.Receipt.ArgsDigest = verdict, reason, c.Call.Args.Commitment
	c.mesh.Record(service, contract.EventEffectRecorded, c.Proposal.Session, contract.Bytes(&rec), c.Proposal)
}

// Allow records that the call is allowed and returns that event. If the caller executes
// the call, the intent is addressed to the caller.
func (c *Call) Allow() *contract.Event {
	a := contract.Allowed{Call: c.Call}
	intent := &contract.ExecutionIntent{}
	intent.ID, intent.CallID, intent.ArgsDigest, intent.Executor = contract.IDIntent+c.ID, c.ID, c.Call.Args.Commitment, Executor
	if c.ReportWithin > 0 {
		intent.Executor = contract.CallerExecutor
	}
	d := &a.Decision
	d.ID, d.CallID, d.Session, d.Verdict, d.Facts, d.Intent = contract.IDDecision+c.ID, c.ID, c.Proposal.Session, contract.Allow, []byte("{}"), intent
	d.ArgsDigest, d.ToolDigest = intent.ArgsDigest, c.mesh.tools[c.Kind]
	return c.mesh.RecordFor(intent.Executor, "policy", contract.EventAllowed, c.Proposal.Session, contract.Bytes(&a), c.Proposal)
}

// Escalate records that the call waits for approval.
func (c *Call) Escalate() {
	x := contract.Escalated{Call: c.Call, Expires: "2099-01-01T00:00:00.000Z"}
	x.Decision.ID, x.Decision.ReasonCode, x.Decision.Facts = contract.IDDecision+c.ID, contract.ReasonApprovalRequired, []byte("{}")
	c.mesh.Record("policy", contract.EventEscalated, c.Proposal.Session, contract.Bytes(&x), c.Proposal)
}

// Queries returns the gateway's queries of other services.
func (m *Mesh) Queries() *queries.Services { return queries.New(m.client()) }

// client returns a query client without a transport. It responds to a query with the
// value in Answers. For a query without a value in Answers, it responds from the ledger
// if the query is one of audit's index of calls, and otherwise with an error.
func (m *Mesh) client() *rpc.Client {
	return &rpc.Client{Live: func(_ context.Context, service string) (rpc.Instance, error) {
		return rpc.Instance{Name: service + "-1"}, nil
	},
		Send: func(ctx context.Context, service, _, verb string, args any) (rpc.Frames, error) {
			return m.respond(transient.Tenant(ctx), service, verb, args)
		}}
}

func (m *Mesh) respond(tenant, service, verb string, args any) (rpc.Frames, error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	name := service + " " + verb
	answer, known := m.Answers[name]
	if tenant == Other {
		name += " of " + tenant
		if theirs, ok := m.Answers[name]; ok {
			answer, known = theirs, true
		}
	}
	m.queried = append(m.queried, name)
	m.mu.Unlock()
	if f, ok := answer.(func(json.RawMessage) (any, error)); ok {
		answer, err = f(raw)
	} else if !known && service == "audit" {
		answer, err = m.index(verb, raw)
	} else if !known {
		err = fmt.Errorf("service %s has no running instance", service)
	}
	if err != nil {
		return rpctest.Response(nil, err), nil
	}
	doc, err := transient.Encode(answer)
	return rpctest.Response(json.RawMessage(doc), nil), err
}

// Queried returns the queries since the last call of Queried, each as "service verb" or,
// for the tenant Other, as "service verb of u".
func (m *Mesh) Queried() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.queried
	m.queried = nil
	return out
}

// index returns the response to a query for an event of a call, which it reads from the
// ledger.
func (m *Mesh) index(verb string, raw json.RawMessage) (any, error) {
	var q struct {
		CallID string `json:"call_id"`
	}
	if err := json.Unmarshal(raw, &q); err != nil {
		return nil, err
	}
	names := map[string][]string{"proposal": {contract.EventCallProposed}, "decision": {contract.EventAllowed}, "late_report": {contract.EventOutcomeReported},
		"cancellation": {contract.EventCancelRequested}, "deferral": {contract.EventCallDeferred},
		"call": {contract.EventCallProposed, contract.EventEscalated, contract.EventAllowed, contract.EventEffectStarted, contract.EventStartExpired, contract.EventEffectRecorded}}[verb]
	if names == nil {
		return nil, errors.New("service audit has no running instance")
	}
	var found json.RawMessage
	for en := range m.Ledger.Scan(context.Background(), bus.Filter{}.String(), 1) {
		e, err := eventlog.Open(en, eventlog.Every)
		if err != nil || e.CallID != q.CallID {
			continue
		}
		for _, name := range names {
			if e.Name == name {
				found = en.Data
			}
		}
	}
	if found == nil {
		return nil, rpc.Errorf(contract.CodeNotFound, "no such call")
	}
	return found, nil
}

// Stream is the stream of the frames of one call, which the test's executor sends. It
// implements llmapi.Frames.
type Stream struct {
	wake chan struct{}
	mu   sync.Mutex
	sent []transient.Frame
	gap  error
}

// Wake implements llmapi.Frames.
func (s *Stream) Wake() <-chan struct{} { return s.wake }

// Try implements llmapi.Frames.
func (s *Stream) Try() (f transient.Frame, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sent) > 0 {
		f, s.sent = s.sent[0], s.sent[1:]
		return f, true, nil
	}
	return f, false, s.gap
}

// Close implements llmapi.Frames.
func (s *Stream) Close() {}

func (s *Stream) put(f *transient.Frame, gap error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gap = gap; f != nil {
		s.sent = append(s.sent, *f)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (m *Mesh) open(call, _ string) llmapi.Frames {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &Stream{wake: make(chan struct{}, 1)}
	m.streams[call] = s
	return s
}

func (m *Mesh) post(_, id string, _ int64, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.PostErr != nil {
		return m.PostErr
	}
	m.posted = append(m.posted, id+" "+string(data))
	return nil
}

// Posted returns the frames that the gateway posted, each as "id data".
func (m *Mesh) Posted() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.posted)
}

func (c *Call) stream() *Stream {
	c.mesh.mu.Lock()
	defer c.mesh.mu.Unlock()
	return c.mesh.streams[c.ID]
}

// Send sends a frame of the call's response to the gateway.
func (c *Call) Send(f llm.Frame) {
	b, err := f.Append(nil)
	if err != nil {
		c.mesh.Error(err)
	}
	c.SendBytes(b)
}

// SendBytes sends b to the gateway in place of an encoded llm.Frame of the call's
// response. It does not check b, so that a test can send a malformed frame.
func (c *Call) SendBytes(b []byte) {
	c.stream().put(&transient.Frame{Kind: transient.Data, Data: b}, nil)
}

// Lose makes the stream of the call's frames fail with transient.ErrGap.
func (c *Call) Lose() { c.stream().put(nil, transient.ErrGap) }

// Token mints a bearer token for an actor of the tenant Tenant with the given scopes.
func (m *Mesh) Token(actor string, scopes ...string) string {
	m.Helper()
	return m.TokenIn(Tenant, actor, scopes...)
}

// TokenIn mints a bearer token like Token, for an actor of the given tenant.
func (m *Mesh) TokenIn(tenant, actor string, scopes ...string) string {
	m.Helper()
	raw, err := token.Mint(m.seed, tenant, actor, "-", scopes, time.Now(), time.Hour)
	if err != nil {
		m.Fatal(err)
	}
	return raw
}

// Response is the recorded response to a request.
type Response struct {
	*httptest.ResponseRecorder
	Doc map[string]any // the JSON object with which the body begins, decoded; nil if it begins with none
}

// Error returns the code of the error in the body, or "".
func (r *Response) Error() string { return r.errorMember("code") }

// Param returns the param of the error in the body, or "".
func (r *Response) Param() string { return r.errorMember("param") }

func (r *Response) errorMember(name string) string {
	e, _ := r.Doc["error"].(map[string]any)
	v, _ := e[name].(string)
	return v
}

// Do sends a request with a bearer token, unless it is "", and headers of the form
// "Name: value", and returns the response.
func (m *Mesh) Do(method, path, bearer, body string, headers ...string) *Response {
	m.Helper()
	return m.DoIn(context.Background(), method, path, bearer, body, headers...)
}

// DoIn is like Do, with ctx as the context of the request. To simulate a client that
// disconnects, the test cancels ctx.
func (m *Mesh) DoIn(ctx context.Context, method, path, bearer, body string, headers ...string) *Response {
	m.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req := httptest.NewRequestWithContext(ctx, method, path, in)
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	r := &Response{ResponseRecorder: httptest.NewRecorder()}
	m.handler.ServeHTTP(r.ResponseRecorder, req)
	_ = json.NewDecoder(bytes.NewReader(r.Body.Bytes())).Decode(&r.Doc)
	return r
}

// Events returns the names of a call's events in the order of the ledger.
func (m *Mesh) Events(call string) (names []string) {
	for en := range m.Ledger.Scan(context.Background(), bus.Filter{}.String(), 1) {
		if e, err := eventlog.Open(en, eventlog.Every); err == nil && e.CallID == call {
			names = append(names, e.Name)
		}
	}
	return names
}
