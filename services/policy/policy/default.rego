# The policy a fresh mesh starts with. Nothing is allowed that no rule names.
package binnacle.p1

import rego.v1

# What a caller's token must hold, by kind.
scope_of := {
	"tool.": "tools:call",
	"image.": "cell:admin",
	"pack.": "cell:admin",
	"client.": "tools:call",
	"llm.": "llm:call",
	"vault.": "vault:write",
	"judge.": "judge:run",
	"policy.": "policy:admin",
	"tenant.": "cell:admin",
	"mcp.": "cell:admin",
	"resource.": "tools:call",
	"prompt.": "tools:call",
	"completion.": "tools:call",
}

# What principals say about what is their own needs no scope beside a token.
own_affairs := {"policy.accept_invitation", "policy.approve_device", "policy.end_login", "policy.open_login", "policy.register_passkey", "policy.remove_passkey", "policy.renew_login", "policy.report_groups", "policy.consent_key", "policy.withdraw_consent", "policy.grant_session", "policy.revoke_session"}

# What these erase is gone for ever.
erasures := {"vault.destroy_content_key", "vault.erase", "vault.erase_subject", "vault.erase_tenant"}

required_scope := "approvals:vote" if {
	input.kind == "policy.vote"
} else := "vault:erase" if {
	input.kind in erasures
} else := scope if {
	some prefix, scope in scope_of
	startswith(input.kind, prefix)
}

# Who executes a call itself needs to be trusted with its effect.
unfit if {
	input.report_within_ms > 0
	not "calls:decide" in input.scopes
}

web if "web" in input.labels

sends if count(input.about.egress_hosts) > 0

# The kinds of calls that govern others.
privileged if startswith(input.kind, "policy.")

privileged if startswith(input.kind, "tenant.")

# An image that is named without a digest may change between two calls.
unpinned if {
	input.kind in {"tool.sandbox.create", "image.pull"}
	input.args.unpinned == true
}

# Labels of data that a model may receive only if its provider accepts them.
held := {"secret", "user_file"}

leaks if {
	startswith(input.kind, "llm.")
	some label in input.labels
	label in held
	not accepted(label)
}

accepted(label) if label in input.accepts

accepted(_) if "*" in input.accepts

# The first rule that matches answers.
answer := {"verdict": "DENY", "reason_code": "NO_POLICY_DEFINED"} if {
	not required_scope
} else := {"verdict": "DENY", "reason_code": "MISSING_REQUIREMENT"} if {
	not required_scope in input.scopes
	not input.kind in own_affairs
} else := {"verdict": "DENY", "reason_code": "MISSING_REQUIREMENT"} if {
	unfit
} else := {"verdict": "DENY", "reason_code": "DENY_UNPINNED_IMAGE"} if {
	unpinned
} else := {"verdict": "DENY", "reason_code": "TAINTED_PRIVILEGED_INVOKE_DENY"} if {
	web
	privileged
} else := {"verdict": "DENY", "reason_code": "TAINTED_CREDENTIAL_ACCESS_DENY"} if {
	web
	count(input.about.secrets) > 0
} else := {"verdict": "DENY", "reason_code": "TAINTED_INPUT_HIGH_RISK_DENY"} if {
	web
	input.about.class == "E4"
} else := {"verdict": "DENY", "reason_code": "TAINTED_DATA_EGRESS_DENY"} if {
	"secret" in input.labels
	sends
} else := {"verdict": "DENY", "reason_code": "TAINTED_MODEL_EGRESS_DENY"} if {
	leaks
	not input.kind in {"llm.models", "llm.delete_response"} # which send nothing of the caller's
} else := {"verdict": "ESCALATE", "reason_code": "TAINTED_HIGH_RISK_ESCALATE"} if {
	web
	sends
} else := {"verdict": "ESCALATE", "reason_code": "TAINTED_HIGH_RISK_ESCALATE"} if {
	web
	input.about.class == "E3"
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_ERASURE"} if {
	input.kind in erasures # one person proposes, another approves
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_MAIL"} if {
	input.kind == "tool.mail.send" # what is sent cannot be taken back
} else := {"verdict": "ALLOW", "reason_code": "RULE_SCOPED_CALL"}
