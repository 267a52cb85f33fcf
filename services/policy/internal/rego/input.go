package rego

import "github.com/binnacle-mesh/binnacle/pkg/core/contract"

// inputSchema is the JSON Schema that OPA's type checker compares references to
// the input with: a rule that reads a fact that does not exist does not compile.
// TestInputSchema compares it with guard.Facts.
var inputSchema = func() any {
	str := map[string]any{"type": "string"}
	strs := map[string]any{"type": "array", "items": str}
	boolean := map[string]any{"type": "boolean"}
	props := map[string]any{}
	for _, k := range []string{"actor", "args_digest", "break_glass", "catalog_digest", "client", "deadline", "delegation", "delegation_fault", "frozen", "kind",
		"mesh_tenant", "now", "on_behalf_of", "parent", "proposed", "proposer", "requested_session", "session", "session_owner", "tenant", "tool", "tool_pinned", "tool_schema_digest"} {
		props[k] = str
	}
	for _, k := range []string{"accepts", "labels", "roles", "scopes"} {
		props[k] = strs
	}
	for _, k := range []string{"dual_control", contract.EventLedgerTruncated, "operator", "outside_cell", "parent_live", "review_due", "revoked", "suspended", contract.EventTenantSuspended, "unverified"} {
		props[k] = boolean
	}
	props["report_within_ms"] = map[string]any{"type": "integer"}
	props["args"] = map[string]any{}
	props["key"] = map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{"fault": str, "id": str, "models": strs, "tags": strs}}
	props["delegator"] = map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{"roles": strs, "scopes": strs}}
	props["secret_access"] = map[string]any{"type": "array", "items": map[string]any{"type": "object", "additionalProperties": false,
		"properties": map[string]any{"approval": boolean, "entry": str, "result": str, "secret": str}}}
	props["ids"] = map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{"session": str}}
	props["about"] = map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{
		"class": str, "egress_hosts": strs, "executor": str, "labels": strs, "secrets": strs}}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": props}
}()
