package gateway

import (
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/accesslog"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/artifacts"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/body"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/browsers"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/durable"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/logins"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/mcpapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/metrics"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/quota"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// route is one HTTP route: its handler, and the credential and scopes that a request
// needs.
type route struct {
	method, path string
	need         auth.Need
	handle       echo.HandlerFunc
}

// table returns all HTTP routes of the gateway. A test compares them with the OpenAPI
// document.
func (s *Service) table() []route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	voting := logins.Voting{Pages: s.pages}
	audit, admin := auth.Holds(token.Audit), auth.Holds(token.Admin)
	// Routes with the need mesh can read data of every tenant. Routes with the need ofLog
	// read the log, which all tenants share, or the export of one tenant.
	mesh, ofLog := auth.Holds(token.CellAudit).OfMesh(), auth.Holds(token.Audit, token.CellAudit)
	// The handlers of the routes with these needs propose a call.
	calling, model, decides := auth.Calling.WithRecord(), auth.Holds(token.LLM).WithRecord(), auth.Holds(token.Decide).WithRecord()
	mcp := s.mcp.Handler()
	return []route{
		{get, "/healthz", auth.Open, s.health.Alive},
		{get, "/readyz", auth.Open, s.health.Ready},
		{get, "/metrics", auth.Open.Checking(token.Health), s.metrics.Handler(s.health, s.queries.OfMesh().Client)},
		{get, "/openapi.json", auth.Open, openapi},
		{get, "/version", auth.Open, s.health.VersionOf},

		{get, "/.well-known/jwks.json", auth.Open, s.logins.PublishKeys},
		{get, "/.well-known/oauth-authorization-server", auth.Open, s.logins.Describe},
		{get, mcpapi.MetadataPath, auth.Open, s.mcp.Metadata},
		{get, logins.AuthorizePath, auth.Open, s.pages.Authorize},
		{post, logins.RegisterPath, auth.Login, s.logins.Register},
		{post, "/oauth/token", auth.Login, s.logins.Token},
		{post, "/oauth/device", auth.Login, s.logins.Device},
		{post, "/oauth/revoke", auth.Login, s.logins.Revoke},
		{post, "/oauth/introspect", auth.Known.WithOpaqueBody(), s.logins.Introspect},
		{post, "/api/v1/devices", calling, s.logins.ApproveDevice},
		{get, logins.LoginPath, auth.Open, s.pages.Show},
		{post, logins.LoginPath, auth.Login, s.pages.ByPassword},
		{post, logins.LogoutPath, auth.Login, s.pages.Logout},
		{get, logins.DevicePath, auth.Open, s.pages.Device},
		{post, logins.DevicePath, auth.Login, s.pages.ApproveDevice},
		{get, logins.PasskeysPath, auth.Open, voting.Passkeys},
		{post, logins.PasskeysPath, auth.Login, voting.ChangePasskey},
		{get, auth.ApprovalsPath, auth.Open, voting.Ballot},
		{post, auth.ApprovalsPath, auth.Login, voting.Vote},
		{get, logins.ConsentPath, auth.Open, s.pages.Consent},
		{post, logins.ConsentPath, auth.Login, s.pages.Decide},
		{post, logins.ProviderPath, auth.Login, s.pages.Begin},
		{get, logins.CallbackPath, auth.Open, s.pages.Callback},

		{post, "/v1/chat/completions", model, s.models.Handler(llm.Chat)},
		{post, "/v1/completions", model, s.models.Handler(llm.Completions)},
		{post, "/v1/embeddings", model, s.models.Handler(llm.Embeddings)},
		{post, "/v1/messages", model, s.models.Handler(llm.Messages)},
		{post, "/v1/messages/count_tokens", model, s.models.Handler(llm.CountTokens)},
		{post, "/v1/responses", model, s.models.Handler(llm.Responses)},
		{get, "/v1/responses/:id", auth.Known, s.models.Response},
		{del, "/v1/responses/:id", model, s.models.DeleteResponse},
		{get, "/v1/responses/:id/input_items", auth.Known, s.models.InputItems},
		{get, "/v1/models", auth.Known, s.models.Models},
		{get, "/v1/models/*", auth.Known, s.models.Models},
		{get, "/api/v1/packs", auth.Known, s.packs.List},
		{get, "/api/v1/packs/:name", auth.Known, s.packs.Get},
		{post, "/api/v1/packs/:name", calling, s.packs.Run},
		{get, "/api/v1/calls", auth.Known, s.calls.List},
		{post, "/api/v1/calls", calling, s.calls.Call},
		{post, "/api/v1/secrets", auth.Holds(token.Vault).WithRecord(), s.secrets.Put},
		{get, "/api/v1/artifacts", auth.Known, s.artifacts.List},
		{post, "/api/v1/artifacts", auth.Holds(token.Tools).WithStreamedBody(), s.artifacts.Upload},
		{get, "/api/v1/artifacts/:id", auth.Known, s.artifacts.Info},
		{get, "/api/v1/artifacts/:id/content", auth.Known, s.artifacts.Content},
		{post, "/api/v1/artifacts/:id/link", calling, s.artifacts.Link},
		{get, artifacts.LinkPath + ":link", auth.Open, s.artifacts.Linked},
		{get, "/api/v1/pipelines", auth.Known, s.pipelines.List},
		{post, "/api/v1/pipelines/validate", auth.Calling, s.pipelines.Validate},
		{get, "/api/v1/pipelines/runs", auth.Known, s.pipelines.Runs},
		{post, "/api/v1/pipelines/runs", calling, s.pipelines.Run},
		{get, "/api/v1/pipelines/runs/:id", auth.Known, s.pipelines.Show},
		{get, "/api/v1/pipelines/runs/:id/graph", auth.Known, s.pipelines.Graph},
		{get, "/api/v1/pipelines/schedules", auth.Known, s.pipelines.Schedules},
		{get, "/api/v1/pipelines/schedules/:id", auth.Known, s.pipelines.Schedule},
		{del, "/api/v1/pipelines/runs/:id", auth.Calling.WithQuota(), s.pipelines.Cancel},
		{get, "/api/v1/llm/stats", audit, s.models.Stats},
		{get, "/api/v1/llm/spend", audit, s.models.Spend},
		{post, "/api/v1/keys", admin.WithRecord(), s.keys.Create},
		{get, "/api/v1/keys", admin, s.keys.List},
		{post, "/api/v1/keys/:id/consent", calling, s.keys.Consent},
		{del, "/api/v1/keys/:id/consent", calling, s.keys.Withdraw},
		{post, "/api/v1/tokens/revocations", admin.WithRecord(), s.keys.Revoke},
		{post, "/api/v1/judgements", calling, s.calls.Judgement},
		{get, "/api/v1/calls/:id", auth.Known, s.calls.State},
		{get, "/api/v1/calls/:id/explanation", audit, s.calls.Explain},
		{del, "/api/v1/calls/:id", auth.Calling.WithQuota(), s.calls.Cancel},
		{post, "/api/v1/calls/:id/terminal", auth.Holds(token.Tools), s.calls.Terminal},
		{post, "/api/v1/decide", decides, s.decide.Decide},
		{post, "/api/v1/intents/:id/outcome", auth.Holds(token.Decide).WithReport(), s.decide.Report},
		{post, "/api/v1/observations", auth.Holds(token.Decide).WithQuota(), s.observe.Record},

		{get, "/api/v1/approvals", auth.Holds(token.Vote), s.approvals.List},
		{get, "/api/v1/approvals/:call", auth.Holds(token.Vote), s.approvals.Get},
		{post, "/api/v1/approvals/:call/votes", calling, s.approvals.Vote},
		{get, "/api/v1/policies", audit, s.policy.Policies},
		{get, "/api/v1/limits", audit, s.policy.Limits},
		{get, "/api/v1/identities", audit, s.policy.Identities},
		{get, "/api/v1/tenants", mesh, s.policy.Tenants},
		{get, "/api/v1/tenants/:tenant", mesh, s.policy.Tenant},
		{get, "/api/v1/trust/keys", auth.Known, s.policy.TrustKeys},

		{get, "/helm/receipts", audit, s.ledger.Receipts},
		{get, "/helm/proofgraph", audit, s.ledger.ProofGraph},
		{get, "/api/v1/proofgraph/sessions", audit, s.ledger.ListSessions},
		{get, "/api/v1/proofgraph/sessions/:id/receipts", audit, s.ledger.SessionReceipts},
		{get, "/api/v1/proofgraph/receipts/:hash", audit, s.ledger.ReceiptByDigest},
		{get, "/api/v1/sessions/:id/evidence", audit, s.ledger.Evidence},
		{get, "/api/v1/tenants/:tenant/evidence", ofLog, s.ledger.TenantEvidence},
		{post, "/api/v1/evidence/export", audit, s.ledger.ExportEvidence},
		{post, "/api/v1/evidence/verify", audit.WithOpaqueBody(), s.ledger.VerifyEvidence},
		{post, "/api/v1/conformance/run", audit, s.conformance.Run},
		{get, "/api/v1/conformance/reports/:id", audit, s.conformance.Report},
		{get, "/api/v1/events", audit, s.ledger.Events},
		{get, "/api/v1/search", audit, s.ledger.Search},
		{get, "/api/v1/ledger", mesh, s.ledger.Entries},
		{get, "/api/v1/ledger/:seq/proof", audit, s.ledger.Proof},
		{get, "/api/v1/contents/:commitment", audit, s.ledger.Content},
		{get, "/log/checkpoint", ofLog, s.tlog.Checkpoint},
		{get, "/log/consistency", ofLog, s.tlog.Consistency},
		{get, "/log/tile/:level/:tile", mesh, s.tlog.Tile},
		{get, "/log/tile/:level/:tile/*", mesh, s.tlog.Tile},
		{post, "/log/cosignatures", auth.Holds(token.Cosign).OfMesh(), s.tlog.Cosign},
		{get, "/api/v1/views/:service", mesh, s.ledger.View},

		{get, "/mcp/v1/capabilities", auth.Holds(token.Tools), s.mcp.Capabilities},
		{post, "/mcp/v1/execute", calling, s.mcp.Execute},
		{get, mcpapi.Path, auth.Calling, mcp},
		{post, mcpapi.Path, auth.Calling, mcp},
		{del, mcpapi.Path, auth.Calling, mcp},
	}
}

// pathParameter matches a parameter in the path of a route.
var pathParameter = regexp.MustCompile(`:([a-z]+)`)

// documentPath returns the path of a route as the OpenAPI document names it.
func documentPath(path string) string {
	switch path {
	case "/v1/models/*":
		return "/v1/models/{model}"
	case "/log/tile/:level/:tile/*":
		path = "/log/tile/:level/:tile/:rest"
	}
	return pathParameter.ReplaceAllString(path, "{$1}")
}

// Scopes returns the scope that each operation requires, by method and path in the form of
// the OpenAPI document, such as "GET /api/v1/packs/{name}". The scope is "" for operations
// that require no credential.
func Scopes() map[string]string {
	s := &Service{}
	s.build(&run.Env{Log: slog.Default(), Trust: &run.Trust{}}, Outside{Queries: &rpc.Client{}})
	out := map[string]string{}
	for _, r := range s.table() {
		out[r.method+" "+documentPath(r.path)] = r.need.Scope()
	}
	return out
}

// routes returns the echo instance that serves the table of routes. Its middleware
// recovers from panics, counts requests, writes the access log, sets security headers,
// and closes connections whose request body was not read.
func (s *Service) routes() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = apierr.Handler(func() *slog.Logger { return s.env.Log })
	e.Use(middleware.RecoverWithConfig(middleware.RecoverConfig{DisableStackAll: true, DisablePrintStack: true,
		LogErrorFunc: func(_ echo.Context, err error, stack []byte) error {
			s.env.Log.Error("request panicked", "err", err, "stack", string(stack))
			return err
		}}))
	e.Use(s.metrics.Middleware)
	e.Use(accesslog.Middleware(func() *slog.Logger { return s.env.Log }, metrics.RouteOf, accessFacts))
	e.Use(secured)
	if s.AddressRate > 0 {
		e.Use((&quota.Addresses{Rate: s.AddressRate}).Middleware)
	}
	e.Use(browsers.CORS(s.Origins))
	e.Use(body.Unread)
	for _, r := range s.table() {
		handle := s.withheld(r.need, s.gate.Enter(r.need, decoded(r.handle)))
		if r.path == mcpapi.Path {
			handle = s.mcp.Challenged(handle)
		}
		e.Add(r.method, r.path, handle)
	}
	return e
}

// secured is middleware that sets response headers for browsers: with them, a browser does not guess
// the type of a response, embed it in a page, run scripts in it, or send its address to other sites.
// Only responses to pages of configured origins have headers of CORS (package browsers), so other
// pages cannot read responses. In responses over TLS, a header requires the browser to use only TLS
// for this host in the following year (RFC 6797).
func secured(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if c.IsTLS() {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		return next(c)
	}
}

// withheld returns a handler that calls handle and withholds its response until the
// ledger is durable. For open routes it returns handle, so that their responses are sent
// even while the ledger cannot be synced.
func (s *Service) withheld(need auth.Need, handle echo.HandlerFunc) echo.HandlerFunc {
	if !need.Caller && !need.Login {
		return handle
	}
	return durable.Handler(s.env.Conn.Durable, handle)
}

// decoded returns a handler that removes the percent-encoding from the path parameters
// and then calls handle. Echo does not remove it if the path contains an encoding that
// is not necessary, such as %3A, which generated clients send. A malformed encoding is
// an error (400).
func decoded(handle echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().URL.RawPath != "" {
			values := slices.Clone(c.ParamValues())
			for i, v := range values {
				var err error
				if values[i], err = url.PathUnescape(v); err != nil {
					return apierr.BadRequest(c.ParamNames()[i], "is not percent-encoded as RFC 3986 says")
				}
			}
			c.SetParamValues(values...)
		}
		return handle(c)
	}
}
