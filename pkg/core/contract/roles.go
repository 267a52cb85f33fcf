package contract

import "slices"

// The roles of members. Each gives the logins of its holders the scopes that MemberScopes
// lists. A mesh may have other roles, which only the rules of its policies name.
const (
	RoleOwner     = "owner"
	RoleAdmin     = "admin"
	RoleDeveloper = "developer"
	RoleViewer    = "viewer"
	RoleAuditor   = "auditor"
)

// roleScopes lists the scopes that each role of a member, and the role "approver", gives. They
// are scopes of package token of the gateway, which this package cannot import; TestAll of package
// token compares them with its constants.
var roleScopes = []struct {
	role   string
	scopes []string
}{
	{RoleOwner, []string{"approvals:vote", "audit:read", "calls:decide", "health:read", "judge:run", "llm:call", "log:cosign", "policy:admin", "tools:call", "vault:erase", "vault:write"}},
	{RoleAdmin, []string{"approvals:vote", "audit:read", "calls:decide", "health:read", "judge:run", "llm:call", "policy:admin", "tools:call", "vault:write"}},
	{RoleDeveloper, []string{"calls:decide", "health:read", "judge:run", "llm:call", "tools:call"}},
	{RoleViewer, []string{"health:read"}},
	{RoleAuditor, []string{"audit:read", "health:read"}},
	{"approver", []string{"approvals:vote"}},
}

// MemberScopes returns the scopes that the roles give together, sorted. Besides the roles
// of members, only the role "approver" gives a scope. The caller owns the slice, which is
// empty and not nil if the roles give none.
func MemberScopes(roles []string) []string {
	out := []string{}
	for _, r := range roleScopes {
		if slices.Contains(roles, r.role) {
			out = append(out, r.scopes...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
