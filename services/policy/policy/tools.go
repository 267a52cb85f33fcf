package policy

import (
	"fmt"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/govern"
	"github.com/binnacle-mesh/binnacle/services/policy/internal/tenant"
)

const (
	kindVote     = "policy.vote"
	kindActivate = "policy.activate"
	kindRollback = "policy.rollback"
	kindRetire   = "policy.retire"
)

// tools lists the tools that policy executes itself: the calls that govern the
// mesh. Their documents are on the ledger, so a changed description is a new tool
// document.
var tools = []contract.Tool{
	tool(kindActivate, "Puts a policy document in force: signed ceilings (p0), a signed OPA bundle (p1), or an overlay (p2). The stack is validated first.",
		`"layer":{"enum":["p0","p1","p2"]},"name":{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"},"precedence":{"type":"integer","minimum":1,"maximum":9999,"default":500},"bundle":{"type":"string","contentEncoding":"base64","maxLength":5600000},"document":{"type":"string","maxLength":65536},"object":{"type":"object","properties":{"commitment":{"type":"string","pattern":"^sha256:[0-9a-f]{64}$"},"size":{"type":"integer","minimum":1}},"required":["commitment","size"]},"url":{"type":"string","format":"uri","maxLength":2048}`, "layer"),
	tool(kindRollback, "Puts the document in force again that was before the present one of its layer and name.", `"layer":{"enum":["p0","p1","p2"]},"name":{"type":"string","maxLength":64}`, "layer"),
	tool(kindRetire, "Takes a bundle or an overlay out of force.", `"layer":{"enum":["p1","p2"]},"name":{"type":"string","minLength":1,"maxLength":64}`, "layer", "name"),
	tool("policy.approve_tool", "Accepts a tool document by its digest. Another digest of the kind is drift, and denied.",
		`"kind":{"type":"string","maxLength":128},"digest":{"type":"string","pattern":"^sha256:[0-9a-f]{64}$"}`, "kind", "digest"),
	tool("policy.set_limits", "Puts budgets, rate limits and concurrency limits in force, all of them, in place of those before.",
		`"limits":{"type":"array","maxItems":1000,"items":{"type":"object","properties":{"id":{"type":"string"},"level":{"type":"string"},"max":{"type":"integer"},"measure":{"type":"string"},"on_exceed":{"type":"string"},"subject":{"type":"string"},"window":{"type":"string"}},"required":["id","level","max","measure","window"]}}`, "limits"),
	tool("policy.freeze", "Stops everything: nothing starts, in flight or new, until policy.unfreeze. Answers when every live executor has acknowledged.", `"reason":{"type":"string","minLength":1,"maxLength":1000}`, "reason"),
	tool(guard.KindUnfreeze, "Ends the freeze.", `"reason":{"type":"string","minLength":1,"maxLength":1000}`, "reason"),
	tool(kindVote, "Votes on a call that waits for approval, as the caller, or with a ballot signed by the approver's own key or passkey.",
		`"call_id":{"type":"string","maxLength":128},"vote":{"enum":["grant","deny"]},"reason":{"type":"string","minLength":1,"maxLength":1000},"kid":{"type":"string","maxLength":64},"passkey":`+assertion+`,"sig":{"type":"string","maxLength":128}`, "call_id", "vote", "reason"),
	tool("policy.create_key", "Makes a virtual key for an actor: what it may be used for, which models, how much it may spend. The call holds the key's digest, never the key.",
		`"id":{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"},"actor":{"type":"string","minLength":1,"maxLength":128},"digest":{"type":"string","pattern":"^sha256:[0-9a-f]{64}$"},"scopes":{"type":"array","minItems":1,"maxItems":32,"items":{"type":"string","maxLength":64}},"kinds":{"type":"array","maxItems":32,"items":{"type":"string","minLength":1,"maxLength":128}},"models":{"type":"array","maxItems":256,"items":{"type":"string","minLength":1,"maxLength":256}},"tags":{"type":"array","maxItems":32,"items":{"type":"string","minLength":1,"maxLength":64}},"budget_usd_micros":{"type":"integer","minimum":0},"budget_window":{"enum":["day","month","total"],"default":"total"},"rate_calls":{"type":"integer","minimum":0},"rate_window":{"enum":["second","minute","hour","total"],"default":"minute"},"concurrent":{"type":"integer","minimum":0},"cache":{"type":"boolean"},`+ttl(govern.MaxTerm)+``, "id", "actor", "digest", "scopes"),
	tool("policy.consent_key", "Agrees, in person, that another principal makes a virtual key that calls as the caller: its id, its maker, and the most it may be used for.",
		`"id":{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"},"maker":{"type":"string","minLength":1,"maxLength":128},"scopes":{"type":"array","minItems":1,"maxItems":32,"items":{"type":"string","maxLength":64}},`+ttl(govern.MaxDelegation)+``, "id", "maker", "scopes", "ttl_ms"),
	tool("policy.withdraw_consent", "Takes a consent of the caller's back, and ends the virtual key made under it.", `"id":{"type":"string","maxLength":64}`, "id"),
	tool("policy.revoke_key", "Ends a virtual key.", `"id":{"type":"string","maxLength":64},"reason":{"type":"string","minLength":1,"maxLength":1000}`, "id", "reason"),
	tool(govern.KindRegister, "Says what a principal is. Only persons vote, and a second person approves who becomes one; registering again lifts a suspension.", `"principal":{"type":"string","minLength":1,"maxLength":128},"type":{"enum":["person","agent","service"]}`, "principal", "type"),
	tool("policy.suspend_principal", "Denies every call of a principal, whatever tokens it holds.", `"principal":{"type":"string","minLength":1,"maxLength":128},"reason":{"type":"string","minLength":1,"maxLength":1000}`, "principal", "reason"),
	tool("policy.resume_principal", "Ends a suspension.", `"principal":{"type":"string","minLength":1,"maxLength":128},"reason":{"type":"string","minLength":1,"maxLength":1000}`, "principal", "reason"),
	tool("policy.revoke_token", "Ends a bearer token, by its id, or all that a principal's credentials gave until now: its tokens, virtual keys made by it or for it, delegations, consents and session grants.",
		`"id":{"type":"string","minLength":1,"maxLength":128},"principal":{"type":"string","minLength":1,"maxLength":128},"reason":{"type":"string","minLength":1,"maxLength":1000}`, "reason"),
	tool("policy.grant_session", "Lets another principal make calls in a session of the caller's, for a time.",
		`"session":{"type":"string","pattern":"^`+contract.IDSession+`[A-Za-z0-9_-]{1,98}$"},"principal":{"type":"string","minLength":1,"maxLength":128},`+ttl(govern.MaxDelegation)+``, "session", "principal", "ttl_ms"),
	tool("policy.revoke_session", "Ends a session grant of the caller's.", `"session":{"type":"string","maxLength":100},"principal":{"type":"string","minLength":1,"maxLength":128}`, "session", "principal"),
	tool("policy.grant_role", "Gives a principal a role, for good or for a time.", `"principal":{"type":"string","minLength":1,"maxLength":128},"role":{"type":"string","maxLength":128},`+ttl(govern.MaxTerm)+``, "principal", "role"),
	tool("policy.revoke_role", "Takes a role away.", `"principal":{"type":"string","minLength":1,"maxLength":128},"role":{"type":"string","maxLength":128}`, "principal", "role"),
	tool("policy.delegate", "Lets another principal act on the caller's behalf, for some kinds, for a time.",
		`"delegate":{"type":"string","minLength":1,"maxLength":128},"kinds":{"type":"array","minItems":1,"maxItems":64,"items":{"type":"string","minLength":1,"maxLength":128}},`+ttl(govern.MaxDelegation)+``, "delegate", "kinds", "ttl_ms"),
	tool("policy.revoke_delegation", "Ends a delegation.", `"id":{"type":"string","maxLength":128}`, "id"),
	tool("policy.break_glass", "Lets the caller's escalated calls run without approval for a time. Another principal must review it.", `"reason":{"type":"string","minLength":1,"maxLength":1000},`+ttl(govern.MaxBreakGlass)+``, "reason", "ttl_ms"),
	tool(guard.KindReview, "Closes a break-glass grant after looking at what was done under it.",
		`"id":{"type":"string","maxLength":128},"verdict":{"enum":["justified","misused"]},"reason":{"type":"string","minLength":1,"maxLength":1000}`, "id", "verdict", "reason"),
	tool(govern.KindOpenLogin, "Opens a login of the caller, who has authenticated at a gateway. Only gateways make this call.",
		`"id":`+loginID+`,"method":{"enum":["code","password","oidc","device","passkey"]},"refresh":`+digest+`,"requested":`+loginScopes+`,`+ttl(govern.MaxLogin), "id", "method", "refresh", "ttl_ms"),
	tool(govern.KindRenewLogin, "Replaces the refresh token of a login of the caller, or ends the login if that token was used before. Only gateways make this call.",
		`"id":`+loginID+`,"used":`+digest+`,"next":`+digest, "id", "used", "next"),
	tool(govern.KindEndLogin, "Ends a login of the caller: its tokens are no longer valid.", `"id":`+loginID+`,"reason":{"type":"string","minLength":1,"maxLength":1000}`, "id", "reason"),
	tool(govern.KindApproveDevice, "Permits the program that shows a code to open one login of the caller, a registered person.",
		`"id":`+loginID+`,"code":`+digest+`,"requested":`+loginScopes+`,`+ttl(govern.MaxDevice), "id", "code", "ttl_ms"),
	tool(govern.KindInvite, "Invites a person, who links an identity of the identity provider at the first login with the code of the invitation, and is registered then. A second person approves.",
		`"id":`+invitationID+`,"principal":`+principalName+`,"code":`+digest+`,`+ttl(govern.MaxInvitation), "id", "principal", "code", "ttl_ms"),
	tool(govern.KindWithdraw, "Ends an invitation that was not accepted.", `"id":`+invitationID+`,"reason":`+why, "id", "reason"),
	tool(govern.KindAccept, "Links an identity of the identity provider to the caller, whom an invitation names. Only gateways make this call.",
		`"code":`+digest+`,"identity":`+digest+`,"issuer":{"type":"string","format":"uri","maxLength":1024}`, "code", "identity", "issuer"),
	tool(govern.KindUnlink, "Ends the link of a person to an identity, and all credentials of the person.", `"principal":`+principalName+`,"reason":`+why, "principal", "reason"),
	tool(govern.KindMapGroup, "Gives a role to the persons whose identity provider reports a group.", `"group":`+groupName+`,"role":{"type":"string","maxLength":128}`, "group", "role"),
	tool(govern.KindUnmapGroup, "Ends the mapping of a group to a role.", `"group":`+groupName+`,"role":{"type":"string","maxLength":128}`, "group", "role"),
	tool(govern.KindReportGroups, "States the groups of the caller, whom the identity provider has authenticated. Only gateways make this call.",
		`"identity":`+digest+`,"groups":{"type":"array","maxItems":64,"items":`+groupName+`}`, "identity", "groups"),
	tool(govern.KindRegisterPasskey, "Registers a passkey of the caller, which then signs votes. A second person approves. Only gateways make this call, for a person who is logged in by a browser.",
		`"aaguid":{"type":"string","pattern":"^[0-9a-f]{32}$"},"attestation":{"type":"string","minLength":1,"maxLength":32},"id":`+credentialID+`,"name":{"type":"string","minLength":1,"maxLength":64},"origin":{"type":"string","format":"uri","maxLength":512},"public_key":{"type":"string","minLength":1,"maxLength":1024},"rp_id":{"type":"string","minLength":1,"maxLength":253},"sign_count":{"type":"integer","minimum":0,"maximum":4294967295}`,
		"aaguid", "attestation", "id", "name", "origin", "public_key", "rp_id"),
	tool(govern.KindRemovePasskey, "Ends a passkey of the caller, or, with the scope policy:admin, of another person.", `"id":`+credentialID+`,"reason":`+why, "id", "reason"),
	tool(govern.KindGrantSecret, "Adds an entry to the access list of secrets: which principal may use which secrets, with which client and tool, for which requests, until when, for how many calls. A secret that the list has named is denied to everyone else.",
		`"secret":`+secretPattern+`,"subject":`+principalName+`,"client":`+principalName+`,"tool":`+principalName+`,"host":{"type":"string","maxLength":255},"methods":{"type":"array","maxItems":16,"items":{"type":"string","minLength":1,"maxLength":32}},"paths":{"type":"array","maxItems":16,"items":{"type":"string","minLength":1,"maxLength":512}},"max_uses":{"type":"integer","minimum":0},"approval":{"type":"boolean"},`+ttl(govern.MaxTerm), "secret", "subject"),
	tool(govern.KindWithdrawSecret, "Removes an entry from the access list of secrets. The secrets that it named stay denied to everyone whom no entry permits them.", `"id":{"type":"string","minLength":1,"maxLength":128}`, "id"),
	tool(govern.KindSecretDefault, "Sets whether a secret that the access list has never named is denied (deny), or released whenever the intent permits it (intent).", `"default":{"enum":["deny","intent"]}`, "default"),
	tool(tenant.KindCreate, "Creates a tenant: one environment of a project of an organization. The principal in admin is its first registered person. Only operators of the mesh create tenants.",
		`"organization":{"type":"string","maxLength":64},"project":{"type":"string","maxLength":64},"environment":{"type":"string","maxLength":64},"admin":{"type":"string","minLength":1,"maxLength":128},`+quota, "organization", "project", "environment", "admin"),
	tool(tenant.KindSuspend, "Suspends a tenant: none of its calls is allowed or started until tenant.resume.", `"tenant":{"type":"string","maxLength":128},"reason":{"type":"string","minLength":1,"maxLength":1000}`, "tenant", "reason"),
	tool(tenant.KindResume, "Ends the suspension of a tenant.", `"tenant":{"type":"string","maxLength":128},"reason":{"type":"string","minLength":1,"maxLength":1000}`, "tenant", "reason"),
	tool(tenant.KindSetQuota, "Replaces the quota of a tenant as a whole. For a member that is 0 or omitted, no limit applies, or to artifacts the configured one.", `"tenant":{"type":"string","maxLength":128},`+quota, "tenant", "quota"),
}

// Schemas of the arguments of calls about logins, members, passkeys and the access to secrets.
const (
	secretPattern = `{"type":"string","minLength":1,"maxLength":65}`
	invitationID  = `{"type":"string","pattern":"^` + contract.IDInvitation + `[A-Za-z0-9_-]{8,64}$"}`
	principalName = `{"type":"string","minLength":1,"maxLength":128}`
	groupName     = `{"type":"string","minLength":1,"maxLength":256}`
	why           = `{"type":"string","minLength":1,"maxLength":1000}`
	loginID       = `{"type":"string","pattern":"^` + contract.IDLogin + `[A-Za-z0-9_-]{8,64}$"}`
	loginScopes   = `{"type":"array","maxItems":32,"items":{"type":"string","maxLength":64}}`
	credentialID  = `{"type":"string","minLength":22,"maxLength":1364,"pattern":"^[A-Za-z0-9_-]+$"}`
	assertion     = `{"type":"object","properties":{"authenticator_data":` + base64URL + `,"client_data":` + base64URL + `,"credential_id":` + credentialID + `,"signature":` + base64URL + `},"required":["authenticator_data","client_data","credential_id","signature"],"additionalProperties":false}`
	base64URL     = `{"type":"string","maxLength":4096,"pattern":"^[A-Za-z0-9_-]+$"}`
	digest        = `{"type":"string","pattern":"^sha256:[0-9a-f]{64}$"}`
)

// quota is the property quota of an input schema: the limits on a tenant's use of each
// gateway and on the artifacts that it stores.
const quota = `"quota":{"type":"object","properties":{"artifact_bytes":{"type":"integer","minimum":0,"maximum":9007199254740991},"body_bytes":{"type":"integer","minimum":0,"maximum":9007199254740991},"calls_per_second":{"type":"integer","minimum":0,"maximum":9007199254740991},"in_flight":{"type":"integer","minimum":0,"maximum":9007199254740991}}}`

// ttl returns the property ttl_ms of an input schema: a time to live in milliseconds, of
// at most longest.
func ttl(longest time.Duration) string {
	return fmt.Sprintf(`"ttl_ms":{"type":"integer","minimum":1,"maximum":%d}`, longest.Milliseconds())
}

// tool returns the document of a governing call with these properties as its
// input schema.
func tool(kind, description, properties string, required ...string) contract.Tool {
	list := ""
	for i, r := range required {
		if i > 0 {
			list += ","
		}
		list += `"` + r + `"`
	}
	return contract.Tool{Class: "E2", Description: description, Executor: services.Policy, Kind: kind, Tool: kind, Version: "v1",
		InputSchema:  canonical(`{"type":"object","properties":{` + properties + `},"required":[` + list + `]}`),
		OutputSchema: canonical(`{"type":"object","additionalProperties":true}`)}
}
