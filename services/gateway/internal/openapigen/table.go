package main

import (
	"reflect"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/pipeline"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/schemas/audit"
	"github.com/binnacle-mesh/binnacle/schemas/llmrouter"
	"github.com/binnacle-mesh/binnacle/schemas/policy"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/approvals"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/artifacts"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/conformance"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/decide"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/health"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/keys"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/ledgerapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/llmapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/logins"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/mcpapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/observe"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/pipelines"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/policyapi"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/secrets"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/tlog"
)

// operation is the description of one route.
type operation struct {
	id, method, path, summary string
	scope                     string // required credential: scopes, "call <kind>" if policy decides, or any valid token; "": none
	query                     []param
	headers                   []param
	body, answer              []media // forms of the request's body and of the response's body; nil if there is none
	then                      behavior
}

// behavior is the way in which an operation responds in addition to its usual response.
type behavior int

const (
	plain     behavior = iota
	creates            // responds with 201
	waits              // responds with 202 and the state of the call if the call waits for votes
	anthropic          // errors have the shape of Anthropic's API
	checks             // a response with status 503 has the same content as one with status 200
	protocol           // MCP: the errors of its transport are text, and 202 and 204 have no body
)

// media is one form of a body: a media type and the type of its content.
type media struct {
	kind string
	of   []reflect.Type // one type, or alternatives; for lines, the type of one line; empty: text or bytes
}

// doc returns the form of a body that is a T in JSON.
func doc[T any]() []media { return []media{{"application/json", []reflect.Type{reflect.TypeFor[T]()}}} }

// formOf returns the form of a body that is a T as the fields of a form.
func formOf[T any]() []media {
	return []media{{"application/x-www-form-urlencoded", []reflect.Type{reflect.TypeFor[T]()}}}
}

// either returns the form of a body that is an A or a B in JSON.
func either[A, B any]() []media {
	return []media{{"application/json", []reflect.Type{reflect.TypeFor[A](), reflect.TypeFor[B]()}}}
}

// lines returns the form of a body of JSON lines, each of which is a T.
func lines[T any]() []media { return []media{{ndjson, []reflect.Type{reflect.TypeFor[T]()}}} }

// raw returns the forms of a body that is text or bytes with one of the media types.
func raw(kinds ...string) (out []media) {
	for _, k := range kinds {
		out = append(out, media{k, nil})
	}
	return out
}

const (
	ndjson = "application/x-ndjson"
	events = "text/event-stream"
	octets = "application/octet-stream"
	tar    = "application/x-tar"
	form   = "multipart/form-data"
)

const (
	auth   = "any valid token"
	reader = "audit:read"
	ofMesh = "cell:audit, as an operator of the mesh" // see auth.Need.OfMesh
	ofLog  = "audit:read or cell:audit"
)

// param is a path or query parameter, or a header.
type param struct {
	name, kind, about string
	enum              []string
	format            string
	required          bool
}

func text(name, about string) param { return param{name: name, kind: "string", about: about} }
func number(name, about string) param {
	return param{name: name, kind: "integer", about: about, format: "int64"}
}
func flag(name, about string) param { return param{name: name, kind: "boolean", about: about} }
func moment(name, about string) param {
	return param{name: name, kind: "string", about: about, format: "date-time"}
}
func oneOf(name, about string, values ...string) param {
	return param{name: name, kind: "string", about: about, enum: values}
}
func (p param) must() param { p.required = true; return p }

// Parameters that several operations have.
var (
	session = text("session", "id of the session, or the caller's name for it")
	owner   = text("owner", "principal whose name for the session it is; without it, the caller's own")
	limit   = number("limit", "greatest number of items, 0 to 100000; 1000 without it")
	offset  = number("offset", "number of items to skip")
	from    = moment("from", "start of the window, inclusive (RFC 3339)")
	to      = moment("to", "end of the window, exclusive (RFC 3339)")
	first   = number("from", "first ledger sequence")
	last    = number("to", "last ledger sequence")
	at      = number("at", "Lamport time; without it, now")
	epoch   = number("epoch", "closed epoch of the log, from 1; without it, the open one")
	version = text("Anthropic-Version", "with it, the answer has the shape of Anthropic's API")
)

// userCode is a parameter of the pages of logins.
var userCode = text("code", "code of a program, or id of an authorization request, that the person is to approve")

var table = []operation{
	{id: "getHealth", method: "GET", path: "/healthz", summary: "The process is alive.", answer: doc[health.Liveness]()},
	{id: "getReadiness", method: "GET", path: "/readyz", summary: "503 until every service is ready; cached for a second. With health:read, or from a peer on the gateway's own host, each service and view with its lag, and the durability mode.", answer: doc[health.Readiness](), then: checks},
	{id: "getMetrics", method: "GET", path: "/metrics", summary: "Prometheus metrics, brought up to date once a second; open to peers on the gateway's own host. A request that a proxy forwards does not count as one from that host.", scope: "health:read", answer: raw("text/plain")},
	{id: "getOpenAPI", method: "GET", path: "/openapi.json", summary: "This document.", answer: doc[gateway.Document]()},
	{id: "getVersion", method: "GET", path: "/version", summary: "What this gateway was built from.", answer: doc[run.Build]()},

	{id: "getTokenKeys", method: "GET", path: "/.well-known/jwks.json", summary: "Public keys that verify the access tokens of logins (RFC 7517).", answer: doc[logins.JWKS]()},
	{id: "getTokenMetadata", method: "GET", path: "/.well-known/oauth-authorization-server", summary: "Addresses of the token routes (RFC 8414).", answer: doc[logins.Metadata]()},
	{id: "getMCPMetadata", method: "GET", path: "/.well-known/oauth-protected-resource/mcp", summary: "MCP as a protected resource: its authorization server and scopes (RFC 9728).", answer: doc[mcpapi.ResourceMetadata]()},
	{id: "authorize", method: "GET", path: "/oauth/authorize", summary: "Begins the login of a program by an authorization code (RFC 6749, with PKCE): sends the browser to the page on which a person logs in and consents.", query: []param{text("response_type", "code").must(), text("client_id", "id of the program").must(), text("redirect_uri", "one of the program's").must(), text("code_challenge", "RFC 7636").must(), text("code_challenge_method", "S256").must(), text("scope", "scopes, separated by spaces; all of the person's without it"), text("state", "returned to the program"), text("resource", "URL that the tokens are limited to (RFC 8707): that of MCP; all of the API without it")}, answer: raw("text/html")},
	{id: "registerClient", method: "POST", path: "/oauth/register", summary: "Registers a program that may begin logins (RFC 7591), if gateway.oauth.registration permits it.", body: doc[logins.ClientMetadata](), answer: doc[logins.ClientMetadata](), then: creates},
	{id: "createTokens", method: "POST", path: "/oauth/token", summary: "Opens a login, or renews its tokens (RFC 6749, RFC 7636, RFC 8628).", body: formOf[logins.TokenRequest](), answer: doc[logins.TokenResponse]()},
	{id: "createDeviceCode", method: "POST", path: "/oauth/device", summary: "Begins the login of a program that shows a code (RFC 8628).", body: formOf[logins.DeviceRequest](), answer: doc[logins.DeviceResponse]()},
	{id: "revokeLogin", method: "POST", path: "/oauth/revoke", summary: "Ends the login of a refresh or access token (RFC 7009).", body: formOf[logins.TokenForm]()},
	{id: "introspectToken", method: "POST", path: "/oauth/introspect", summary: "State of a credential of the caller's tenant (RFC 7662).", scope: auth, body: formOf[logins.TokenForm](), answer: doc[logins.Introspection]()},
	{id: "approveDevice", method: "POST", path: "/api/v1/devices", summary: "Permits the program that shows a code to open one login of the caller.", scope: "call policy.approve_device", body: doc[logins.DeviceApproval](), answer: doc[calls.CallResponse](), then: waits},
	{id: "showLogin", method: "GET", path: "/auth/login", summary: "Page on which a person logs in, or which shows the login of the browser.", query: []param{userCode}, answer: raw("text/html")},
	{id: "loginInBrowser", method: "POST", path: "/auth/login", summary: "Opens a login for the browser, whose credential is a cookie. Only a page of the gateway sends this form.", body: formOf[logins.BrowserLogin](), answer: raw("text/html")},
	{id: "logoutInBrowser", method: "POST", path: "/auth/logout", summary: "Ends the login of the browser.", answer: raw("text/html")},
	{id: "showDevice", method: "GET", path: "/auth/device", summary: "Page on which a person who is logged in approves the code of a program (RFC 8628).", query: []param{userCode}, answer: raw("text/html")},
	{id: "approveDeviceInBrowser", method: "POST", path: "/auth/device", summary: "Permits the program that shows a code to open one login of the person who is logged in. Only a page of the gateway sends this form.", body: formOf[logins.BrowserApproval](), answer: raw("text/html")},
	{id: "showPasskeys", method: "GET", path: "/auth/passkeys", summary: "Page on which a person who is logged in registers and removes passkeys.", answer: raw("text/html")},
	{id: "changePasskeys", method: "POST", path: "/auth/passkeys", summary: "Registers or removes a passkey of the person who is logged in. A registration may wait for the approval of another person. Only a page of the gateway sends this form.", body: formOf[logins.PasskeyForm](), answer: raw("text/html")},
	{id: "showApprovals", method: "GET", path: "/auth/approvals", summary: "Page on which a person votes on calls that wait for approval.", query: []param{text("call", "id of the call to vote on; without it, the calls are listed")}, answer: raw("text/html")},
	{id: "voteInBrowser", method: "POST", path: "/auth/approvals", summary: "Votes on a call, with the signature of a passkey if the person has one. Only a page of the gateway sends this form.", body: formOf[logins.BallotForm](), answer: raw("text/html")},
	{id: "showConsent", method: "GET", path: "/auth/consent", summary: "Page on which a person who is logged in consents to the request of a program.", query: []param{text("request", "id of the authorization request")}, answer: raw("text/html")},
	{id: "consentInBrowser", method: "POST", path: "/auth/consent", summary: "Permits a program to open one login of the person who is logged in, or denies it. Only a page of the gateway sends this form.", body: formOf[logins.Consent](), answer: raw("text/html")},
	{id: "beginProviderLogin", method: "POST", path: "/auth/oidc", summary: "Sends the browser to the identity provider (OpenID Connect). Only a page of the gateway sends this form.", body: formOf[logins.ProviderLogin](), answer: raw("text/html")},
	{id: "finishProviderLogin", method: "GET", path: "/auth/callback", summary: "Opens a login for the browser that the identity provider sends back.", query: []param{text("code", "authorization code"), text("state", "the state that began the login"), text("iss", "issuer (RFC 9207)"), text("error", "why the identity provider refused the login")}, answer: raw("text/html")},

	{id: "createChatCompletion", method: "POST", path: "/v1/chat/completions", summary: "OpenAI chat completion, plain or streamed. model is provider/model, an alias or a virtual model.", scope: "llm:call, and call llm.chat", body: doc[llmapi.ProviderRequest](), answer: append(doc[llmapi.ProviderResponse](), raw(events)...)},
	{id: "createResponse", method: "POST", path: "/v1/responses", summary: "OpenAI response, plain or streamed.", scope: "llm:call, and call llm.responses", body: doc[llmapi.ProviderRequest](), answer: append(doc[llmapi.ProviderResponse](), raw(events)...)},
	{id: "getResponse", method: "GET", path: "/v1/responses/{id}", summary: "A stored response of the caller's.", scope: auth, answer: doc[llmapi.ProviderResponse]()},
	{id: "deleteResponse", method: "DELETE", path: "/v1/responses/{id}", summary: "Deletes a stored response of the caller's: it can no longer be read or continued. Its record on the ledger remains.", scope: "llm:call, and call llm.delete_response", answer: doc[llmapi.DeletedResponse]()},
	{id: "listInputItems", method: "GET", path: "/v1/responses/{id}/input_items", summary: "The input of a stored response of the caller's, newest first.", scope: auth, query: []param{number("limit", "1 to 100; 20 without it"), oneOf("order", "desc without it", "asc", "desc"), text("after", "id of the item after which the page begins")}, answer: doc[llmapi.ItemPage]()},
	{id: "createMessage", method: "POST", path: "/v1/messages", summary: "Anthropic message, plain or streamed. The token may be in X-Api-Key.", scope: "llm:call, and call llm.messages", body: doc[llmapi.ProviderRequest](), answer: append(doc[llmapi.ProviderResponse](), raw(events)...), then: anthropic},
	{id: "countTokens", method: "POST", path: "/v1/messages/count_tokens", summary: "Counts the tokens of an Anthropic message.", scope: "llm:call, and call llm.count_tokens", body: doc[llmapi.ProviderRequest](), answer: doc[llmapi.ProviderResponse](), then: anthropic},
	{id: "createEmbeddings", method: "POST", path: "/v1/embeddings", summary: "OpenAI embeddings.", scope: "llm:call, and call llm.embeddings", body: doc[llmapi.ProviderRequest](), answer: doc[llmapi.ProviderResponse]()},
	{id: "createCompletion", method: "POST", path: "/v1/completions", summary: "OpenAI text completion, plain or streamed.", scope: "llm:call, and call llm.completions", body: doc[llmapi.ProviderRequest](), answer: append(doc[llmapi.ProviderResponse](), raw(events)...)},
	{id: "listModels", method: "GET", path: "/v1/models", summary: "OpenAI model list.", scope: auth, headers: []param{version}, answer: either[llmapi.ModelPage, llmapi.AnthropicPage](), then: anthropic},
	{id: "getModel", method: "GET", path: "/v1/models/{model}", summary: "One model of the list; its name may contain slashes.", scope: auth, headers: []param{version}, answer: either[llmrouter.Model, llmapi.AnthropicModel](), then: anthropic},
	{id: "listPacks", method: "GET", path: "/api/v1/packs", summary: "The packs whose documents are approved.", scope: auth, answer: doc[[]packs.Pack]()},
	{id: "getPack", method: "GET", path: "/api/v1/packs/{name}", summary: "One pack with its schemas.", scope: auth, query: []param{flag("unapproved", "also a tool that is not a pack, or whose document is not approved")}, answer: doc[packs.Pack]()},
	{id: "runPack", method: "POST", path: "/api/v1/packs/{name}", summary: "Runs a pack; the body is its input. With Accept: text/event-stream as createCall.", scope: "call tool.<name>", body: doc[calls.Args](), answer: append(doc[calls.CallResponse](), raw(events)...), then: waits},
	{id: "listJobs", method: "GET", path: "/api/v1/calls", summary: "The caller's asynchronous calls that were answered before their outcome, newest first. before=SEQ of the last one continues.", scope: auth, query: []param{number("before", "seq of the last one of the page before"), number("limit", "1 to 100; 20 without it")}, answer: doc[[]calls.Job]()},
	{id: "createCall", method: "POST", path: "/api/v1/calls", summary: "Proposes any call. With Accept: text/event-stream, a call that takes longer than a second is answered with its progress: events state, and as the last one result or error.", scope: "call <kind>", body: doc[calls.CallRequest](), answer: append(doc[calls.CallResponse](), raw(events)...), then: waits},
	{id: "listArtifacts", method: "GET", path: "/api/v1/artifacts", summary: "The caller's artifacts, newest first; all=true, for readers of the ledger: those of all principals. before=UPLOAD of the last one continues.", scope: auth, query: []param{flag("all", "the artifacts of all principals"), text("before", "id of an upload"), text("label", "NAME=VALUE: only artifacts with this label"), number("limit", "1 to 1000; 100 without it")}, answer: doc[[]work.Artifact]()},
	{id: "putArtifact", method: "POST", path: "/api/v1/artifacts", summary: "Stores the body as an artifact, as it arrives. Its media type is that of the request.", scope: "tools:call", query: []param{text("labels", "NAME=VALUE, several joined by commas"), text("name", "file name"), number("retain_s", "time in seconds after which it may be removed; 0 means no end")}, body: raw(octets), answer: doc[calls.CallResponse](), then: waits},
	{id: "getArtifact", method: "GET", path: "/api/v1/artifacts/{id}", summary: "An artifact: owner, size, type, the call that made it, and the artifacts that it was made from. For its owner and for readers of the ledger.", scope: auth, answer: doc[work.Artifact]()},
	{id: "getArtifactContent", method: "GET", path: "/api/v1/artifacts/{id}/content", summary: "The content of an artifact, or a range of it.", scope: auth, headers: []param{text("Range", "as in RFC 9110, section 14")}, answer: raw(octets)},
	{id: "linkArtifact", method: "POST", path: "/api/v1/artifacts/{id}/link", summary: "Makes a signed link to an artifact, which needs no credential until it expires. The ledger has the call and not the link.", scope: "call tool.artifact.link", body: doc[artifacts.LinkRequest](), answer: doc[artifacts.LinkResponse](), then: waits},
	{id: "getLinkedArtifact", method: "GET", path: "/a/{link}", summary: "The content of an artifact by a signed link, or a range of it.", headers: []param{text("Range", "as in RFC 9110, section 14")}, answer: raw(octets)},
	{id: "listPipelines", method: "GET", path: "/api/v1/pipelines", summary: "The built-in pipelines, with the packs that the mesh lacks for them.", scope: auth, answer: doc[[]pipeline.Description]()},
	{id: "validatePipeline", method: "POST", path: "/api/v1/pipelines/validate", summary: "Checks the document of a pipeline against the packs of the mesh.", scope: "any scope that allows calls", body: doc[pipeline.Document](), answer: doc[pipelines.ValidateResponse]()},
	{id: "listPipelineRuns", method: "GET", path: "/api/v1/pipelines/runs", summary: "The caller's newest runs of pipelines, newest first; for readers of the ledger those of all principals.", scope: auth, query: []param{number("limit", "1 to 100; 50 without it")}, answer: doc[[]work.PipelineRun]()},
	{id: "runPipeline", method: "POST", path: "/api/v1/pipelines/runs", summary: "Runs a pipeline: the document, or a built-in one by name and digest. The output has the id of another run if that one has the same document and inputs and is in progress.", scope: "call tool.pipeline.run", body: doc[pipelines.RunRequest](), answer: doc[calls.CallResponse](), then: waits},
	{id: "getPipelineRun", method: "GET", path: "/api/v1/pipelines/runs/{id}", summary: "A run of a pipeline, with its steps, their calls and times, for its actor and for readers of the ledger. A run that has not begun, or that ended before it began, has the status of its call and no steps.", scope: auth, answer: doc[work.PipelineRun]()},
	{id: "getPipelineGraph", method: "GET", path: "/api/v1/pipelines/runs/{id}/graph", summary: "A run of a pipeline as a flowchart in Mermaid's syntax.", scope: auth, answer: raw("text/plain")},
	{id: "listPipelineSchedules", method: "GET", path: "/api/v1/pipelines/schedules", summary: "The caller's newest schedules of pipelines with their next times, those that go on before those that have ended; for readers of the ledger those of all principals.", scope: auth, query: []param{number("limit", "1 to 100; 50 without it")}, answer: doc[[]work.PipelineSchedule]()},
	{id: "getPipelineSchedule", method: "GET", path: "/api/v1/pipelines/schedules/{id}", summary: "A schedule of a pipeline, for its actor and for readers of the ledger. A schedule that has not begun has the status of its call.", scope: auth, answer: doc[work.PipelineSchedule]()},
	{id: "cancelPipelineRun", method: "DELETE", path: "/api/v1/pipelines/runs/{id}", summary: "Requests the cancellation of a run, which only its actor may. The calls of its steps are stopped.", scope: "any scope that allows calls", answer: doc[calls.CallState]()},
	{id: "listModelStats", method: "GET", path: "/api/v1/llm/stats", summary: "Success rates and percentiles of the latency of models in a window.", scope: reader, query: []param{from, to}, answer: doc[[]llmrouter.ModelStats]()},
	{id: "listSpend", method: "GET", path: "/api/v1/llm/spend", summary: "Tokens and money in a window, by key, model, tag, day, actor or provider.", scope: reader, query: []param{from, to, text("by", "dimensions to group by, separated by commas")}, answer: doc[[]llmrouter.Spend]()},
	{id: "createKey", method: "POST", path: "/api/v1/keys", summary: "Makes a virtual key and returns it. It cannot be read again: the ledger has only its digest.", scope: "policy:admin, and call policy.create_key", body: doc[keys.KeyRequest](), answer: doc[keys.KeyResponse]()},
	{id: "listKeys", method: "GET", path: "/api/v1/keys", summary: "Virtual keys: what they may be used for, and whether they are in force.", scope: "policy:admin", answer: doc[[]policy.VirtualKey]()},
	{id: "consentKey", method: "POST", path: "/api/v1/keys/{id}/consent", summary: "Agrees, with a token of one's own, that another principal makes a virtual key that calls as the caller.", scope: "call policy.consent_key", body: doc[keys.ConsentRequest](), answer: doc[calls.CallResponse](), then: waits},
	{id: "withdrawKeyConsent", method: "DELETE", path: "/api/v1/keys/{id}/consent", summary: "Takes the consent back, and ends the key made under it.", scope: "call policy.withdraw_consent", answer: doc[calls.CallResponse](), then: waits},
	{id: "revokeTokens", method: "POST", path: "/api/v1/tokens/revocations", summary: "Ends a bearer token by its id (jti), or all that a principal's credentials gave until now. In force within a second on every gateway.", scope: "policy:admin, and call policy.revoke_token", body: doc[keys.RevocationRequest](), answer: doc[calls.CallResponse](), then: waits},
	{id: "putSecret", method: "POST", path: "/api/v1/secrets", summary: "Stores a secret. The value travels sealed to the vault-broker and never reaches the ledger.", scope: "vault:write, and call vault.put, or vault.store if the request has a type or times", body: doc[secrets.SecretRequest](), answer: doc[secrets.SecretResponse](), then: waits},
	{id: "createJudgement", method: "POST", path: "/api/v1/judgements", summary: "Scores a recorded session against a YAML rubric.", scope: "call judge.score", body: doc[calls.JudgementRequest](), answer: doc[calls.CallResponse](), then: waits},
	{id: "getCall", method: "GET", path: "/api/v1/calls/{id}", summary: "The state of a call, for its caller and for readers of the ledger. Retry-After while it has not ended. With Accept: text/event-stream, an event state for each change, until it has ended.", scope: auth, answer: append(doc[calls.CallState](), raw(events)...)},
	{id: "explainCall", method: "GET", path: "/api/v1/calls/{id}/explanation", summary: "The decisions on a call, taken again with the documents that they name: the answer of each layer of policy.", scope: reader, answer: doc[calls.Explanation]()},
	{id: "cancelCall", method: "DELETE", path: "/api/v1/calls/{id}", summary: "Requests the cancellation of a call, which only its caller may. A running call is stopped, and one that has not started does not run; one that has ended is not changed.", scope: "any scope that allows calls", answer: doc[calls.CallState]()},
	{id: "useTerminal", method: "POST", path: "/api/v1/calls/{id}/terminal", summary: "Writes input to the terminal that a running call of sandbox.attach is attached to, and reads its output from a cursor on. Input is recorded nowhere; its number n makes a repeated request harmless. Requests that read may wait for output.", scope: "tools:call", body: doc[calls.TerminalRequest](), answer: doc[calls.TerminalState]()},
	{id: "decideCall", method: "POST", path: "/api/v1/decide", summary: "Decides a call that the caller executes itself: the signed decision with its intent, and no effect. Handing the intent out records effect_started; its outcome is due within report_within_ms. With call_id alone: continues a call that has been approved since.", scope: "calls:decide, and call <kind>", body: doc[decide.DecideRequest](), answer: doc[decide.DecideResponse](), then: waits},
	{id: "reportOutcome", method: "POST", path: "/api/v1/intents/{id}/outcome", summary: "Reports the outcome of a call that the caller executed itself, once. After the deadline the outcome stays unknown, and the report is a fact of its own.", scope: "calls:decide", body: doc[decide.OutcomeRequest](), answer: doc[decide.OutcomeResponse]()},
	{id: "recordObservation", method: "POST", path: "/api/v1/observations", summary: "Records an action of an agent that its client wrote into a journal while the mesh was away: the client's statement, without a decision or a receipt. An entry that was recorded before is not recorded again.", scope: "calls:decide", body: doc[observe.ObservationRequest](), answer: doc[observe.ObservationResponse]()},

	{id: "listApprovals", method: "GET", path: "/api/v1/approvals", summary: "The calls that wait for approval.", scope: "approvals:vote", answer: doc[[]policy.PendingCall]()},
	{id: "getApproval", method: "GET", path: "/api/v1/approvals/{call}", summary: "A call that waits for approval, with its arguments and the digest that a ballot signs.", scope: "approvals:vote", answer: doc[policy.PendingCall]()},
	{id: "vote", method: "POST", path: "/api/v1/approvals/{call}/votes", summary: "Votes on it, as the caller or with a signed ballot.", scope: "call policy.vote", body: doc[approvals.VoteRequest](), answer: doc[calls.CallResponse](), then: waits},
	{id: "listPolicies", method: "GET", path: "/api/v1/policies", summary: "The policy documents in force, by layer and precedence.", scope: reader, answer: doc[[]policy.PolicyDocument]()},
	{id: "getLimits", method: "GET", path: "/api/v1/limits", summary: "The limits in force, and the accounts that they bound.", scope: reader, answer: doc[policy.LimitsState]()},
	{id: "getIdentities", method: "GET", path: "/api/v1/identities", summary: "Principals, roles, delegations and break-glass grants, also ended ones, by lamport, or as they were at one; and the freeze.", scope: reader, query: []param{at}, answer: doc[policy.IdentitiesState]()},
	{id: "listTenants", method: "GET", path: "/api/v1/tenants", summary: "The tenants of the mesh.", scope: ofMesh, answer: doc[[]policy.Tenant]()},
	{id: "getTenant", method: "GET", path: "/api/v1/tenants/{tenant}", summary: "One tenant of the mesh.", scope: ofMesh, answer: doc[policy.Tenant]()},
	{id: "listTrustKeys", method: "GET", path: "/api/v1/trust/keys", summary: "The trust registry, with at=LAMPORT as it was at that Lamport time.", scope: auth, query: []param{at}, answer: doc[[]policyapi.KeyInfo]()},

	{id: "listReceipts", method: "GET", path: "/helm/receipts", summary: "Receipts as JSON lines, in ledger order.", scope: reader, query: []param{session, owner, limit, offset}, answer: lines[contract.Receipt]()},
	{id: "getProofGraph", method: "GET", path: "/helm/proofgraph", summary: "A session's proof graph.", scope: reader, query: []param{session.must(), owner}, answer: doc[ledgerapi.Graph]()},
	{id: "listSessions", method: "GET", path: "/api/v1/proofgraph/sessions", summary: "Sessions with their chain tips.", scope: reader, query: []param{limit, offset}, answer: doc[[]audit.Session]()},
	{id: "listSessionReceipts", method: "GET", path: "/api/v1/proofgraph/sessions/{id}/receipts", summary: "A session's receipts.", scope: reader, query: []param{owner}, answer: doc[[]contract.Receipt]()},
	{id: "getReceipt", method: "GET", path: "/api/v1/proofgraph/receipts/{hash}", summary: "The receipt of a digest, sha256:… or its hex digits.", scope: reader, answer: doc[contract.Receipt]()},
	{id: "getEvidence", method: "GET", path: "/api/v1/sessions/{id}/evidence", summary: "A session's evidence pack; witnessed=K seals it under a checkpoint that K witnesses cosigned; redact=args|output|all withholds payloads, but not those of the calls in disclose=ID,…; from=SIZE proves that the log grew from the checkpoint of that size.", scope: reader, query: []param{number("witnessed", "number of cosignatures that the checkpoint must have"), number("from", "size of an earlier checkpoint"), oneOf("redact", "payloads to withhold", "args", "output", "all"), text("disclose", "ids of calls whose payloads are shown, separated by commas"), owner}, answer: raw(tar)},
	{id: "exportEvidence", method: "POST", path: "/api/v1/evidence/export", summary: "A session's evidence pack, as a tar or compressed.", scope: reader, body: doc[ledgerapi.ExportRequest](), answer: raw(tar, "application/gzip")},
	{id: "exportTenant", method: "GET", path: "/api/v1/tenants/{tenant}/evidence", summary: "Every event of a tenant with proofs, and the hashes of all other events (ledger-format.md §12), for callers of the tenant, and with scope cell:audit for operators; witnessed=K binds it to a checkpoint that K witnesses cosigned; from=SIZE shows the root at an earlier checkpoint.", scope: reader, query: []param{number("witnessed", "number of cosignatures that the checkpoint must have"), number("from", "size of an earlier checkpoint")}, answer: lines[ledgerapi.ExportLine]()},
	{id: "verifyEvidence", method: "POST", path: "/api/v1/evidence/verify", summary: "Verifies an evidence pack of at most 16 MiB: the body, or the file bundle of a form. root=KID: under that root instead of the mesh's.", scope: reader, query: []param{text("root", "key id of the root")}, body: raw(tar, form), answer: doc[ledgerapi.Verification]()},
	{id: "runConformance", method: "POST", path: "/api/v1/conformance/run", summary: "Drives this gateway through the conformance gates with the caller's credential; responds when all have ended.", scope: reader, body: doc[conformance.ConformanceRequest](), answer: doc[conformance.ConformanceReport]()},
	{id: "getConformanceReport", method: "GET", path: "/api/v1/conformance/reports/{id}", summary: "The stored report of a conformance run.", scope: reader, answer: doc[conformance.ConformanceReport]()},
	{id: "listEvents", method: "GET", path: "/api/v1/events", summary: "Events as JSON lines {event, seq}; with follow=true the response does not end.", scope: reader, query: []param{session, owner, text("type", "name of the event, or its whole type"), text("since", "duration such as 5m, or a time (RFC 3339)"), first, last, flag("follow", "wait for new events at the end of the ledger")}, answer: lines[ledgerapi.EventLine]()},
	{id: "searchEvents", method: "GET", path: "/api/v1/search", summary: "Events that have all of these, newest first, as JSON lines {event, seq}; before=SEQ of the last line continues.", scope: reader, query: []param{text("actor", ""), text("client", ""), text("event", "name of the event"), text("reason", "reason code"), text("service", "producer of the event"), session, owner, text("status", "status of the effect"), text("tool", ""), text("verdict", ""), moment("since", "inclusive"), moment("until", "exclusive"), number("before", "ledger sequence, exclusive"), number("limit", "1 to 1000; 50 without it")}, answer: lines[audit.Found]()},
	{id: "listLedger", method: "GET", path: "/api/v1/ledger", summary: "Stored bytes of the events of all tenants, one event a line.", scope: ofMesh, query: []param{first, last}, answer: lines[ledgerapi.Event]()},
	{id: "getInclusionProof", method: "GET", path: "/api/v1/ledger/{seq}/proof", summary: "Leaf hash, inclusion proof and the checkpoint it leads to.", scope: reader, answer: doc[audit.Inclusion]()},
	{id: "getContent", method: "GET", path: "/api/v1/contents/{commitment}", summary: "A content object: 16 bytes of salt, then the content.", scope: reader, query: []param{number("size", "size of the content in bytes, without the salt").must(), text("tenant", "tenant of the content, for operators of the mesh; without it the caller's")}, answer: raw(octets)},
	{id: "getCheckpoint", method: "GET", path: "/log/checkpoint", summary: "The newest checkpoint: a C2SP signed note; witness=true: the one that all witnesses are to cosign now; witnessed=N: the newest that N witnesses have cosigned, with their lines; epoch=N: the last one of a closed epoch of the log.", scope: ofLog, query: []param{flag("witness", "the checkpoint that all witnesses are to cosign now"), number("witnessed", "number of cosignatures that it must have"), epoch}, answer: raw("text/plain")},
	{id: "getConsistencyProof", method: "GET", path: "/log/consistency", summary: "Proof that the tree of `to` leaves begins with that of `from` (RFC 6962); epoch=N: in a closed epoch of the log.", scope: ofLog, query: []param{number("from", "size of the smaller tree").must(), number("to", "size of the larger tree").must(), epoch}, answer: doc[audit.ConsistencyProof]()},
	{id: "getTile", method: "GET", path: "/log/tile/{level}/{tile}", summary: "Hashes of one tile in the C2SP tlog-tiles layout: level, then x001/x234/067, with .p/W for a partial one.", scope: ofMesh, answer: raw(octets)},
	{id: "getTileOf", method: "GET", path: "/log/tile/{level}/{tile}/{rest}", summary: "The same, for an index of more groups, or a partial tile. The slashes of rest need not be escaped.", scope: ofMesh, answer: raw(octets)},
	{id: "addCosignature", method: "POST", path: "/log/cosignatures", summary: "Stores a witness's cosignature over a checkpoint of this log.", scope: "log:cosign, as an operator of the mesh", body: doc[tlog.Cosignature](), answer: doc[audit.Witness]()},
	{id: "getView", method: "GET", path: "/api/v1/views/{service}", summary: "A live view in canonical form, with its position; audit's, which is large, as JSON lines.", scope: ofMesh, answer: append(doc[ledgerapi.LiveView](), lines[ledgerapi.ViewLine]()...)},

	{id: "getToolManifest", method: "GET", path: "/mcp/v1/capabilities", summary: "Tool manifest of the HELM surface.", scope: "tools:call", answer: doc[mcpapi.Manifest]()},
	{id: "executeTool", method: "POST", path: "/mcp/v1/execute", summary: "Runs a tool by the HELM surface: {method, params}.", scope: "call tool.<method>", body: doc[mcpapi.ExecuteRequest](), answer: doc[mcpapi.ExecuteResponse]()},
	{id: "streamMCP", method: "GET", path: "/mcp", summary: "MCP streamable HTTP: the session's event stream. Without a session, old clients open one here, by SSE (2024-11-05) or WebSocket.", scope: auth, query: virtualServer, answer: raw(events), then: protocol},
	{id: "sendMCP", method: "POST", path: "/mcp", summary: "MCP streamable HTTP: initialize, tools/list, tools/call, notifications.", scope: "call tool.<name>", query: virtualServer, body: doc[mcpapi.Message](), answer: append(doc[mcpapi.Message](), raw(events)...), then: protocol},
	{id: "endMCP", method: "DELETE", path: "/mcp", summary: "Ends an MCP session.", scope: auth, query: virtualServer, then: protocol},
}
