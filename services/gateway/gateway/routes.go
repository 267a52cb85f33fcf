package gateway

import (
	"log/slog"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/accesslog"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// need is what a request must show before its body is read.
type need struct {
	caller bool     // a valid credential
	calls  bool     // a scope that can allow a call at all
	scopes []string // one of these; empty = any
	opaque bool     // the body is not one JSON document
}

var (
	open    = need{}
	known   = need{caller: true}
	calling = need{caller: true, calls: true} // policy decides which calls
)

func holds(scopes ...string) need { return need{caller: true, scopes: scopes} }

// opaque is n for a route whose body is not one JSON document.
func opaque(n need) need { n.opaque = true; return n }

// reading are the scopes that allow no call.
var reading = []string{token.Audit, token.Cosign, token.Health}

// missing is the scope that a caller lacks, in words; empty = none.
func (n need) missing(who *caller) string {
	if n.calls && !slices.ContainsFunc(who.scopes, func(s string) bool { return !slices.Contains(reading, s) }) {
		return "that allows calls"
	}
	if len(n.scopes) > 0 && !slices.ContainsFunc(n.scopes, func(s string) bool { return slices.Contains(who.scopes, s) }) {
		return n.scopes[0]
	}
	return ""
}

// route is one entrance.
type route struct {
	method, path string
	need         need
	handle       echo.HandlerFunc
}

// table is the whole HTTP surface; a test compares it with the OpenAPI
// document.
func (s *Service) table() []route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	model, audit := holds(token.LLM), holds(token.Audit)
	mcp := s.mcpHandler()
	return []route{
		{get, "/healthz", open, s.healthz},
		{get, "/readyz", open, s.readyz},
		{get, "/metrics", open, s.metrics.handler(s)},
		{get, "/openapi.json", open, openapi},
		{get, "/version", open, s.version},

		{post, "/v1/chat/completions", model, s.llm(llm.Chat)},
		{post, "/v1/completions", model, s.llm(llm.Completions)},
		{post, "/v1/embeddings", model, s.llm(llm.Embeddings)},
		{post, "/v1/messages", model, s.llm(llm.Messages)},
		{post, "/v1/messages/count_tokens", model, s.llm(llm.CountTokens)},
		{post, "/v1/responses", model, s.llm(llm.Responses)},
		{get, "/v1/responses/:id", known, s.response},
		{del, "/v1/responses/:id", model, s.deleteResponse},
		{get, "/v1/responses/:id/input_items", known, s.inputItems},
		{get, "/v1/models", known, s.models},
		{get, "/v1/models/*", known, s.models},
		{get, "/api/v1/packs", known, s.listPacks},
		{get, "/api/v1/packs/:name", known, s.getPack},
		{post, "/api/v1/packs/:name", calling, s.runPack},
		{post, "/api/v1/calls", calling, s.call},
		{post, "/api/v1/secrets", holds(token.Vault), s.putSecret},
		{get, "/api/v1/llm/stats", audit, s.usageOf("stats")},
		{get, "/api/v1/llm/spend", audit, s.usageOf("spend")},
		{post, "/api/v1/keys", holds(token.Admin), s.createKey},
		{get, "/api/v1/keys", holds(token.Admin), s.listKeys},
		{post, "/api/v1/keys/:id/consent", calling, s.consentKey},
		{del, "/api/v1/keys/:id/consent", calling, s.withdrawConsent},
		{post, "/api/v1/tokens/revocations", holds(token.Admin), s.revokeToken},
		{post, "/api/v1/judgements", calling, s.judgement},
		{get, "/api/v1/calls/:id", known, s.callState},
		{post, "/api/v1/decide", holds(token.Decide), s.decide},
		{post, "/api/v1/intents/:id/outcome", holds(token.Decide), s.report},

		{get, "/api/v1/approvals", holds(token.Vote), s.approvals},
		{get, "/api/v1/approvals/:call", holds(token.Vote), s.approval},
		{post, "/api/v1/approvals/:call/votes", calling, s.vote},
		{get, "/api/v1/policies", audit, s.asked("policies")},
		{get, "/api/v1/limits", audit, s.asked("limits")},
		{get, "/api/v1/identities", audit, s.identities},
		{get, "/api/v1/trust/keys", known, s.trustKeys},

		{get, "/helm/receipts", audit, s.receipts},
		{get, "/helm/proofgraph", audit, s.proofgraph},
		{get, "/api/v1/proofgraph/sessions", audit, s.sessions},
		{get, "/api/v1/proofgraph/sessions/:id/receipts", audit, s.sessionReceipts},
		{get, "/api/v1/proofgraph/receipts/:hash", audit, s.receiptByDigest},
		{get, "/api/v1/sessions/:id/evidence", audit, s.evidence},
		{post, "/api/v1/evidence/export", audit, s.exportEvidence},
		{post, "/api/v1/evidence/verify", opaque(audit), s.verifyEvidence},
		{post, "/api/v1/conformance/run", audit, s.runConformance},
		{get, "/api/v1/conformance/reports/:id", audit, s.conformanceReport},
		{get, "/api/v1/events", audit, s.events},
		{get, "/api/v1/search", audit, s.search},
		{get, "/api/v1/ledger", audit, s.ledger},
		{get, "/api/v1/ledger/:seq/proof", audit, s.proof},
		{get, "/api/v1/contents/:commitment", audit, s.content},
		{get, "/log/checkpoint", audit, s.logCheckpoint},
		{get, "/log/consistency", audit, s.logConsistency},
		{get, "/log/tile/:level/:tile", audit, s.logTile},
		{get, "/log/tile/:level/:tile/*", audit, s.logTile},
		{post, "/log/cosignatures", holds(token.Cosign), s.logCosign},
		{get, "/api/v1/views/:service", audit, s.viewDump},

		{get, "/mcp/v1/capabilities", holds(token.Tools), s.capabilities},
		{post, "/mcp/v1/execute", calling, s.execute},
		{get, "/mcp", calling, mcp},
		{post, "/mcp", calling, mcp},
		{del, "/mcp", calling, mcp},
	}
}

func (s *Service) routes() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.fail
	e.Use(middleware.RecoverWithConfig(middleware.RecoverConfig{DisableStackAll: true, DisablePrintStack: true,
		LogErrorFunc: func(_ echo.Context, err error, stack []byte) error {
			s.env.Log.Error("request panicked", "err", err, "stack", string(stack))
			return err
		}}))
	e.Use(s.metrics.middleware)
	e.Use(accesslog.Middleware(func() *slog.Logger { return s.env.Log }, routeOf, accessFacts))
	e.Use(unreadBody)
	for _, r := range s.table() {
		e.Add(r.method, r.path, s.enter(r.need, r.handle))
	}
	return e
}
