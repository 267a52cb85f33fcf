# Rules for coding agents whose hooks are installed. The mode is in data.json:
#
#   off, watch  no rule applies; the other bundles decide
#   guard       denies harmful actions; people must approve installs, network access, unknown
#               tools, and commands that cannot be parsed or may write outside of the workspace
#   strict      as guard, but denies commands that cannot be parsed; people must approve
#               everything except reading and editing in the workspace
#
# The rules never allow: a call that none of them denies or escalates is decided by the
# bundles after this one.
package binnacle.p1

import rego.v1

coding := data.binnacle.coding

args := input.args

active if {
	startswith(input.kind, "client.")
	args.agent
	coding.mode in {"guard", "strict"}
}

strict if coding.mode == "strict"

paths contains p if some p in args.paths

paths contains p if some p in args.reads

paths contains p if some p in args.writes

written contains p if some p in args.writes

written contains p if {
	input.kind in {"client.file.write", "client.file.edit"}
	some p in args.paths
}

effects contains c.effect if some c in args.commands

secret if {
	some p in paths
	p.secret
}

guarded if {
	some p in written
	p.guarded
}

deletes_root if {
	"delete" in effects
	some p in args.writes
	p.zone in {"root", "above"}
}

outside(p) if {
	p.zone in {"outside", "above"}
	not permitted(p.path)
}

permitted(path) if {
	some folder in coding.write_folders
	startswith(path, concat("", [trim_suffix(folder, "/"), "/"]))
}

writes_outside if {
	some p in written
	outside(p)
}

# A command with one of these effects may write each path that it names.
may_write_outside if {
	some e in {"run", "code", "install", "network", "force_push"}
	e in effects
	some p in args.reads
	outside(p)
}

unparsed if count(args.opaque) > 0

known_host(host) if host in coding.hosts

known_host(host) if {
	some suffix in coding.hosts
	startswith(suffix, ".")
	endswith(host, suffix)
}

network if {
	some host in args.hosts
	not known_host(host)
}

network if {
	input.kind == "client.web.fetch"
	not known_host(args.host)
}

network if {
	input.kind == "client.web.search"
	not coding.search
}

installs if {
	some c in args.commands
	c.effect == "install"
	not concat(" ", array.concat([c.program], c.args)) in coding.installs
}

unknown_tool if {
	input.kind == "client.other"
	not args.tool in coding.tools
}

unknown_tool if {
	startswith(input.kind, "client.mcp.")
	not input.kind in coding.mcp
}

# In the mode strict, people must approve commands that change something.
changes if {
	some c in args.commands
	not c.effect in {"none", "read"}
	not c.program in coding.programs
}

changes if {
	input.kind == "client.shell"
	some p in args.writes
	p.zone != "device"
}

leaves if {
	some p in paths
	outside(p)
}

# The answer is that of the first rule that matches.
answer := {"verdict": "DENY", "reason_code": "DENY_SECRET_FILE"} if {
	active
	secret
} else := {"verdict": "DENY", "reason_code": "DENY_DELETE_ABOVE_WORKSPACE"} if {
	active
	deletes_root
} else := {"verdict": "DENY", "reason_code": "DENY_WRITE_OUTSIDE_WORKSPACE"} if {
	active
	writes_outside
} else := {"verdict": "DENY", "reason_code": "DENY_AGENT_CONFIGURATION"} if {
	active
	guarded
} else := {"verdict": "DENY", "reason_code": "DENY_FORCE_PUSH"} if {
	active
	"force_push" in effects
} else := {"verdict": "DENY", "reason_code": "DENY_UNPARSED_COMMAND"} if {
	active
	strict
	unparsed
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_UNPARSED_COMMAND"} if {
	active
	unparsed
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_INSTALL"} if {
	active
	installs
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_NETWORK"} if {
	active
	network
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_OUTSIDE_WORKSPACE"} if {
	active
	may_write_outside
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_UNKNOWN_TOOL"} if {
	active
	unknown_tool
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_CHANGE"} if {
	active
	strict
	changes
} else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_OUTSIDE_WORKSPACE"} if {
	active
	strict
	leaves
}
