package services

import "github.com/binnacle-mesh/binnacle/pkg/core/contract"

// Names of the services.
const (
	Audit         = "audit"
	EgressBroker  = "egress-broker"
	Gateway       = contract.CallerExecutor
	Judge         = "judge"
	LLMRouter     = "llm-router"
	MCPRouter     = "mcp-router"
	Policy        = "policy"
	SessionRunner = "session-runner"
	VaultBroker   = "vault-broker"
	Work          = "work"

	// Provision is the identity that creates streams and publishes keys. It is not a
	// service: it has no bus declaration and answers no queries.
	Provision = "provision"
)

// Verbs that the queries for several views share.
const (
	viewVerb = "view"
	// KeysVerb is the verb of the query for the view of the key registry. Package run
	// answers this query in every service.
	KeysVerb = "keys_view"
)

// Names of the views.
const (
	ViewAudit     = "audit.view"
	ViewCatalog   = "gateway.catalog"
	ViewAuthority = "gateway.authority"
	ViewUsage     = "llm.usage"
	ViewState     = "policy.state"
	ViewBudget    = "policy.budget"
	ViewStarts    = "policy.starts"
	ViewSandboxes = "session.sandboxes"
	ViewArtifacts = "work.artifacts"
	ViewPipelines = "work.pipelines"
	ViewTools     = "work.catalog"
	ViewServers   = "mcp.servers"
)

// all is the registry. The scopes of the built-in policy and replay's report are in its
// order, and both are recorded or compared, so a new service is added after the other
// services that have a program.
var all = []Service{
	{
		Name: Audit, Slots: 1, Content: true, State: "audit", Rebuilt: true,
		Kinds:   []Kind{{Prefix: "audit"}},
		Uses:    []string{contract.UseCheckpoint, contract.UseManifest},
		Views:   []View{{Name: ViewAudit, Path: Audit, Verb: viewVerb, Lines: true}},
		Queried: []string{Judge, LLMRouter, Policy},
	},
	{
		Name: Gateway, Executes: true, Instance: "gw", Slots: 4, Content: true,
		Uses:  []string{contract.UseReceipt, contract.UseSnapshot, contract.UseToken}, // the gateway signs the receipts of calls that their callers execute, and the tokens of logins
		Files: []string{"passwords.json", "token.pub", "webhook.seed"},
		Views: []View{{Name: ViewCatalog, Path: Gateway, Snapshot: ViewCatalog}, {Name: ViewAuthority, Path: "gateway-authority", Snapshot: ViewCatalog}},
	},
	{
		Name: SessionRunner, Executes: true, Slots: 8, Content: true,
		Kinds: []Kind{{Prefix: "tool", Scope: "tools:call"}, {Prefix: "image", Scope: "cell:admin", Names: []string{"gc", "import", "list", "pull"}},
			{Prefix: "pack", Scope: "cell:admin", Names: []string{"install", "uninstall"}}},
		Uses:  []string{contract.UseReceipt},
		Views: []View{{Name: ViewSandboxes, Path: SessionRunner, Verb: viewVerb, Optional: true}},
	},
	{
		Name: LLMRouter, Executes: true, Slots: 8, Content: true,
		Kinds: []Kind{{Prefix: "client", Scope: "tools:call", Callers: true}, {Prefix: "llm", Scope: "llm:call"}},
		Uses:  []string{contract.UseReceipt, contract.UseSnapshot},
		Views: []View{{Name: ViewUsage, Path: LLMRouter, Verb: viewVerb, Snapshot: ViewUsage}},
	},
	{
		Name: VaultBroker, Executes: true, Slots: 4, State: "vault", Elsewhere: true,
		Kinds:   []Kind{{Prefix: "vault", Scope: "vault:write"}},
		Uses:    []string{contract.UseReceipt},
		Files:   []string{"vault.kek", "vault.seal"},
		Queried: []string{Audit, Judge, LLMRouter, Policy, SessionRunner, Work, MCPRouter},
	},
	{
		Name: Judge, Executes: true, Slots: 2, Content: true,
		Kinds: []Kind{{Prefix: "judge", Scope: "judge:run"}},
		Uses:  []string{contract.UseReceipt},
	},
	{
		Name: Policy, Executes: true, Slots: 8, Content: true,
		Kinds: []Kind{{Prefix: "policy", Scope: "policy:admin"}, {Prefix: "tenant", Scope: "cell:admin"}},
		Uses:  []string{contract.UseDecision, contract.UseReceipt, contract.UseSnapshot},
		Files: []string{"p0.json"},
		Views: []View{{Name: ViewState, Path: Policy, Verb: viewVerb, Snapshot: ViewState},
			{Name: ViewBudget, Path: "policy-budget", Verb: "budget_view", Snapshot: ViewBudget},
			{Name: ViewStarts, Path: "policy-starts", Verb: "starts_view", Snapshot: ViewStarts}},
	},
	{Name: EgressBroker, Slots: 4},
	{
		Name: Work, Executes: true, Slots: 4, Content: true,
		Kinds: []Kind{{Prefix: "work"}},
		Uses:  []string{contract.UseReceipt},
		Views: []View{{Name: ViewArtifacts, Path: Work, Verb: viewVerb, Optional: true},
			{Name: ViewPipelines, Path: "work-pipelines", Verb: "pipelines_view", Optional: true},
			{Name: ViewTools, Path: "work-catalog", Verb: "catalog_view", Optional: true}},
		Queried: []string{SessionRunner},
	},
	{
		Name: MCPRouter, Executes: true, Slots: 8, Content: true,
		Kinds: []Kind{{Prefix: "mcp", Scope: "cell:admin"}, {Prefix: "resource", Scope: "tools:call"}, {Prefix: "prompt", Scope: "tools:call"}, {Prefix: "completion", Scope: "tools:call"}},
		Uses:  []string{contract.UseReceipt},
		Views: []View{{Name: ViewServers, Path: MCPRouter, Verb: viewVerb, Optional: true}},
	},
	{Name: "lab", Reserved: true, Executes: true, Kinds: []Kind{{Prefix: "lab"}}},
}
