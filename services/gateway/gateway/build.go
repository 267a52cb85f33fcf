package gateway

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/handout"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/approvals"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/artifacts"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/await"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/conformance"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/decide"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/health"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/keys"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/labels"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/ledgerapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/llmapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/logins"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/mcpapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/metrics"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/observe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/pipelines"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/policyapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/queries"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/reported"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/resources"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/secrets"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/sessions"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/tlog"
)

// parts holds the APIs of the gateway and the components that they share.
type parts struct {
	gate        *auth.Gate
	prop        *propose.Proposer
	lender      *handout.Lender // nil if the instance has no signing key
	calls       *calls.API
	models      *llmapi.API
	mcp         *mcpapi.API
	packs       *packs.API
	decide      *decide.API
	observe     *observe.API
	keys        *keys.API
	logins      *logins.API
	pages       *logins.Pages
	secrets     *secrets.API
	approvals   *approvals.API
	artifacts   *artifacts.API
	pipelines   *pipelines.API
	policy      *policyapi.API
	ledger      *ledgerapi.API
	tlog        *tlog.API
	conformance *conformance.API
	health      *health.API
	queries     *queries.Services
}

// Outside holds the connections to other services that tests replace. The connections to
// the ledger and to this instance's inbox are in run.Env.
type Outside struct {
	Queries *rpc.Client  // queries other services
	Tenants auth.Tenants // the registry of tenants; if nil, that of the run.Env
	// Open subscribes to the frames that the service named by from sends for a call.
	// Frames that were sent before are not delivered.
	Open func(call, from string) llmapi.Frames
	// Post sends frame n of the stream id to the inbox of an instance, without waiting
	// until the frame is stored.
	Post func(to, id string, n int64, data []byte) error
	// Lender hands out intents if the instance has no signing key. If it has one, a
	// handout.Lender is used instead.
	Lender decide.Lender
	// Artifacts stores the content of artifacts; nil if the instance has no connection.
	Artifacts artifact.Store
}

// outsideOf returns an Outside with the query client and the transport of a running instance. If
// store is nil, all artifacts are in the stream ARTIFACTS; otherwise only those that the
// session-runner uploads are there, and store has the others.
func outsideOf(env *run.Env, store artifact.Collected) Outside {
	out := Outside{Queries: env.Queries,
		Open: func(call, from string) llmapi.Frames { return env.Transport.Open(call, from) },
		Post: func(to, id string, n int64, data []byte) error { return env.Transport.Post(to, id, n, data) }}
	switch {
	case env.Conn == nil:
	case store == nil:
		out.Artifacts = artifact.Sealed{Collected: artifact.Stream{Conn: env.Conn}, Keys: env.Blobs.Keys}
	default:
		artifact.Connect(store, env.Endpoint(egress.EndpointArtifacts))
		out.Artifacts = artifact.Sealed{Collected: artifact.Split{Collected: store, Service: services.SessionRunner, Own: artifact.Stream{Conn: env.Conn}}, Keys: env.Blobs.Keys}
	}
	return out
}

// New returns a gateway over env without running it: Handler serves its requests, and
// Deliver applies the ledger entries that Run would read. Tests use it to test a gateway
// without a server. New returns an error if cfg is invalid.
func New(cfg Config, env *run.Env, out Outside) (*Service, error) {
	s := &Service{Config: cfg}
	if err := s.configure(env); err != nil {
		return nil, err
	}
	s.build(env, out)
	return s, nil
}

// Handler returns a handler that serves the gateway's routes. The handler is safe for
// concurrent use.
func (s *Service) Handler() http.Handler { return s.routes() }

// Deliver applies a ledger entry to the gateway's views and delivers it to the calls
// that wait for it. Its error joins the errors of both.
func (s *Service) Deliver(en eventlog.Entry) error {
	return errors.Join(s.apply(en), s.prop.Deliver(en))
}

// turn is the time for which a call counts as one that needs a processor; see fair.Turns.
const turn = 50 * time.Millisecond

// build creates the APIs of the gateway and connects them.
func (s *Service) build(env *run.Env, out Outside) {
	s.env, s.metrics = env, metrics.New()
	s.tools.Keys = env.Trust.At
	if env.Metrics != nil {
		s.metrics.Register(env.Metrics)
	}
	var ledger eventlog.Log
	if env.Emit != nil {
		ledger = env.Emit.Log
	}
	s.queries = queries.New(out.Queries)
	s.gate = &auth.Gate{TokenKeys: s.TokenKeys, LoginKeys: logins.KeyOf(env.Trust.At), Tenants: out.Tenants, Authority: &s.authority, Limits: s.Bodies, PublicURL: s.PublicURL, Approvals: s.ApprovalPage, Exceeded: s.metrics.CountExceeded,
		Turns: fair.Turns{Places: runtime.GOMAXPROCS(0), Hold: turn}}
	if out.Tenants == nil {
		s.gate.Tenants = env.Cell
	}
	if s.view != nil {
		s.gate.Known = s.view.Ready()
	}
	if env.SignKey() != nil {
		s.lender = &handout.Lender{Conn: env.Conn, Emit: env.Emit, Recorder: env.Recorder(), Keys: env.Trust.At, Tenants: env.Cell.Check, Cell: env.Cell.Now, Instance: env.Instance}
	}
	in := &sessions.Resolver{Ledger: ledger, Grants: &s.authority}
	heirs := &labels.Reader{Ledger: ledger, Queries: s.queries}
	s.prop = &propose.Proposer{Emit: env.Emit, Blobs: env.Blobs, Conn: env.Conn, Instance: env.Instance, Reader: outcomesReader}
	s.calls = &calls.API{Gate: s.gate,
		Maker: &calls.Maker{CallTimeout: s.CallTimeout, Sessions: in, Labels: heirs, Queries: s.queries, Tools: &s.tools.Catalog, Capture: s.capture, Pseudonym: env.Pseudonym},
		Runner: &calls.Runner{Queries: s.queries, Proposer: s.prop, Past: &await.Past{Ledger: ledger, Instance: env.Instance, Proposer: s.prop},
			Tools: &s.tools.Catalog, Probe: &s.probe, Metrics: s.metrics, Blobs: env.Blobs, Ledger: ledger, Log: env.Log, Suspended: s.gate.Suspended}}
	s.prop.ExecutorOf = s.calls.ExecutorOf
	s.models = &llmapi.API{Capture: s.capture, CallTimeout: s.CallTimeout, Gate: s.gate, Calls: s.calls, Labels: heirs, Queries: s.queries,
		Metrics: s.metrics, Blobs: env.Blobs, Tracer: env.Tracer, Log: env.Log,
		Open: out.Open, Post: out.Post}
	s.calls.ModelRequest = s.models.Request
	reads, packsRead := &fair.Places{N: ledgerapi.MaxStreams}, &fair.Places{N: ledgerapi.MaxPacks}
	s.calls.Streams = reads
	s.mcp = &mcpapi.API{Own: &resources.Reader{Gate: s.gate, Queries: s.queries, Ledger: ledger, Store: out.Artifacts, Packs: packsRead, Streams: reads}, Version: s.Version, Gate: s.gate, Calls: s.calls, Sessions: in, Labels: heirs, Tools: &s.tools.Catalog, Overlays: &s.authority, ApprovalPage: s.approvalPage(), Blobs: env.Blobs, Logged: s.logToolCall, Durable: env.Conn.Durable,
		Open: func(call, from string) mcpapi.Frames { return out.Open(call, from) }}
	s.packs = &packs.API{Gate: s.gate, Calls: s.calls, Tools: &s.tools.Catalog}
	reports := &reported.Store{Blobs: env.Blobs, Capture: s.capture}
	s.decide = &decide.API{Gate: s.gate, Calls: s.calls, Queries: s.queries, Probe: &s.probe, Tools: &s.tools.Catalog,
		Metrics: s.metrics, Reports: reports, Emit: env.Emit, Log: env.Log}
	if s.decide.Lender = out.Lender; s.lender != nil { // assigning a nil *handout.Lender would make the interface non-nil
		s.decide.Lender = s.lender
	}
	s.observe = &observe.API{Gate: s.gate, Sessions: in, Ledger: ledger, Emit: env.Emit, Reports: reports, Tools: &s.tools.Catalog, Instance: env.Instance}
	s.keys = &keys.API{Gate: s.gate, Calls: s.calls, Queries: s.queries, Authority: &s.authority}
	s.logins = &logins.API{Gate: s.gate, Calls: s.calls, Queries: s.queries, Ledger: ledger, Key: env.SignKey, Keys: env.Trust.Keys, Passwords: s.Passwords, Clients: s.clients, Resources: []string{mcpapi.Path},
		Original: func() string {
			if env.Cell == nil {
				return ""
			}
			return env.Cell.Original()
		}}
	s.pages = &logins.Pages{API: s.logins, Provider: s.provider}
	s.secrets = &secrets.API{Gate: s.gate, Calls: s.calls, Trust: env.Trust, Ledger: ledger, Transport: env.Transport}
	s.artifacts = &artifacts.API{Gate: s.gate, Calls: s.calls, Queries: s.queries, Env: env, Store: out.Artifacts, Uploads: &fair.Places{N: artifacts.MaxUploads}}
	s.pipelines = &pipelines.API{Gate: s.gate, Calls: s.calls, Queries: s.queries, Tools: &s.tools.Catalog}
	s.approvals = &approvals.API{Gate: s.gate, Calls: s.calls, Queries: s.queries}
	s.policy = &policyapi.API{Gate: s.gate, Queries: s.queries, Trust: env.Trust}
	s.ledger = &ledgerapi.API{RootKID: env.RootKID, Gate: s.gate, Queries: s.queries, Sessions: in, Ledger: ledger, Blobs: env.Blobs,
		Verifiers: fair.New(ledgerapi.MaxVerifying), Streams: reads, Packs: packsRead,
		Catalog: &s.tools, Authority: &s.authority, Position: func() uint64 { return s.view.Position() }}
	s.tlog = &tlog.API{Gate: s.gate, Queries: s.queries}
	s.conformance = &conformance.API{RootKID: env.RootKID, Gate: s.gate, Blobs: env.Blobs, Emit: env.Emit}
	s.health = &health.API{Instance: env.Instance, Version: s.Version, Durability: s.Durability, Expect: s.Expect, Gate: s.gate,
		Ledger: ledger, Queries: out.Queries, Health: env.Health,
		Live: func(ctx context.Context, service string) ([]string, error) { return bus.Live(ctx, env.Conn, service) }}
}
