package binnacle.p1

import rego.v1

guard_mode := {"mode": "guard", "hosts": ["proxy.golang.org", ".example.com"], "installs": ["npm ci"], "mcp": ["client.mcp.tickets.read"], "programs": [], "search": false, "tools": ["TodoWrite"], "write_folders": ["/scratch"]}

strict_mode := object.union(guard_mode, {"mode": "strict"})

path(p, zone) := {"path": p, "secret": false, "guarded": false, "zone": zone}

inside := path("/w/a", "workspace")

shell(more) := {"kind": "client.shell", "args": object.union({"agent": "a", "workspace": "/w", "command": "", "commands": [], "reads": [], "writes": [], "hosts": [], "opaque": []}, more)}

run(effect) := {"program": "p", "args": ["x"], "effect": effect}

reason(facts, mode) := r if {
	r := answer.reason_code with input as facts with data.binnacle.coding as mode
} else := "none"

test_modes_without_rules if {
	every m in {"off", "watch"} {
		reason(shell({"reads": [object.union(inside, {"secret": true})]}), object.union(guard_mode, {"mode": m})) == "none"
	}
}

test_secret_files_are_unread if {
	every x in [shell({"reads": [object.union(inside, {"secret": true})]}), {"kind": "client.file.read", "args": {"agent": "a", "paths": [object.union(inside, {"secret": true})]}}] {
		reason(x, guard_mode) == "DENY_SECRET_FILE"
	}
}

test_nothing_outside_is_written if {
	reason(shell({"writes": [path("/etc/x", "outside")]}), guard_mode) == "DENY_WRITE_OUTSIDE_WORKSPACE"
	reason({"kind": "client.file.write", "args": {"agent": "a", "paths": [path("/etc/x", "outside")]}}, guard_mode) == "DENY_WRITE_OUTSIDE_WORKSPACE"
	reason(shell({"writes": [path("/scratch/x", "outside")]}), guard_mode) == "none"
	reason(shell({"writes": [path("/scratchy/x", "outside")]}), guard_mode) == "DENY_WRITE_OUTSIDE_WORKSPACE"
	reason(shell({"reads": [path("/etc/x", "outside")]}), guard_mode) == "none"
	reason(shell({"reads": [path("/etc/x", "outside")]}), strict_mode) == "ESCALATE_OUTSIDE_WORKSPACE"
}

test_workspace_is_not_deleted if {
	reason(shell({"commands": [run("delete")], "writes": [path("/w", "root")]}), guard_mode) == "DENY_DELETE_ABOVE_WORKSPACE"
	reason(shell({"commands": [run("delete")], "writes": [inside]}), guard_mode) == "none"
}

test_agent_configuration_is_unchanged if {
	reason({"kind": "client.file.edit", "args": {"agent": "a", "paths": [object.union(inside, {"guarded": true})]}}, guard_mode) == "DENY_AGENT_CONFIGURATION"
}

test_force_push if reason(shell({"commands": [run("force_push")]}), guard_mode) == "DENY_FORCE_PUSH"

test_unparsed if {
	reason(shell({"opaque": ["x"]}), guard_mode) == "ESCALATE_UNPARSED_COMMAND"
	reason(shell({"opaque": ["x"]}), strict_mode) == "DENY_UNPARSED_COMMAND"
}

test_installs_and_network if {
	reason(shell({"commands": [run("install")]}), guard_mode) == "ESCALATE_INSTALL"
	reason(shell({"commands": [{"program": "npm", "args": ["ci"], "effect": "install"}]}), guard_mode) == "none"
	reason(shell({"hosts": ["evil.test"]}), guard_mode) == "ESCALATE_NETWORK"
	reason(shell({"hosts": ["a.example.com"]}), guard_mode) == "none"
	reason({"kind": "client.web.fetch", "args": {"agent": "a", "host": "evil.test", "url": "x"}}, guard_mode) == "ESCALATE_NETWORK"
	reason({"kind": "client.web.search", "args": {"agent": "a", "query": "x"}}, guard_mode) == "ESCALATE_NETWORK"
}

test_other_tools if {
	reason({"kind": "client.other", "args": {"agent": "a", "tool": "TodoWrite"}}, strict_mode) == "none"
	reason({"kind": "client.other", "args": {"agent": "a", "tool": "New"}}, guard_mode) == "ESCALATE_UNKNOWN_TOOL"
	reason({"kind": "client.mcp.tickets.read", "args": {"agent": "a"}}, strict_mode) == "none"
	reason({"kind": "client.mcp.tickets.delete", "args": {"agent": "a"}}, guard_mode) == "ESCALATE_UNKNOWN_TOOL"
}

test_strict_asks_for_changes if {
	reason(shell({"commands": [run("run")]}), strict_mode) == "ESCALATE_CHANGE"
	reason(shell({"commands": [run("run")]}), guard_mode) == "none"
	reason(shell({"commands": [run("read")], "reads": [inside]}), strict_mode) == "none"
	reason({"kind": "client.file.edit", "args": {"agent": "a", "paths": [inside]}}, strict_mode) == "none"
}

test_other_kinds_are_not_concerned if reason({"kind": "client.lookup", "args": {"secret": true}}, strict_mode) == "none"
