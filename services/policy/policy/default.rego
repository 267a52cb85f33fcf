# The policy a fresh mesh starts with. Nothing is allowed that no rule names.
package binnacle.p1

import rego.v1

default answer := {"verdict": "DENY", "reason_code": "DEFAULT_DENY"}

# The first rule that matches answers.
answer := {"verdict": "DENY", "reason_code": "SCOPE_MISSING"} if {
	not required_scope in input.scopes
} else := {"verdict": "ALLOW", "reason_code": "RULE_SCOPED_CALL"} if {
	some prefix, _ in scope_of
	startswith(input.kind, prefix)
}

# What a caller's token must hold, by kind.
scope_of := {
	"tool.": "tools:call",
	"llm.": "llm:call",
	"vault.": "vault:write",
	"judge.": "judge:run",
}

required_scope := scope if {
	some prefix, scope in scope_of
	startswith(input.kind, prefix)
}
