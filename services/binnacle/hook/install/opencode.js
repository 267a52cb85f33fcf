// Written by `binnacle hook install opencode`; `binnacle hook uninstall opencode` removes it.
// A hook that fails, or does not answer, denies the tool.
import { spawnSync } from "node:child_process"

const command = "COMMAND"

export const Binnacle = async ({ directory }) => {
  const parents = new Map() // by the session of a subagent, the session that started it
  let servers = [] // MCP servers of the configuration, by their part of the names of their tools
  const own = ["apply_patch", "plan_enter", "plan_exit"] // tools of OpenCode itself whose names could be those of a server's tools
  const permitted = new Map() // by session and id, the args of each tool call that has not ended

  // The events of subagents are events of the session that a person began.
  const hook = (event, session, members) => {
    let root = session
    while (parents.has(root)) root = parents.get(root)
    const agent = root === session ? {} : { agent_id: session }
    const doc = { hook_event_name: event, session_id: root, cwd: directory, ...agent, ...members }
    const r = spawnSync(command, { shell: true, input: JSON.stringify(doc), encoding: "utf8" })
    if (r.status !== 0) return { permit: false, reason: (r.stderr || "the hook failed").trim() }
    try {
      return JSON.parse(r.stdout)
    } catch {
      return { permit: false, reason: "binnacle: the hook's answer cannot be read" }
    }
  }
  // No plugin after this one can change the args on which policy has decided: its assignment throws, so the tool fails.
  const freeze = (value) => {
    if (value !== null && typeof value === "object" && !Object.isFrozen(value)) Object.values(Object.freeze(value)).forEach(freeze)
    return value
  }
  const key = (call) => `${call.sessionID} ${call.callID}`
  const named = (name) => {
    const server = own.includes(name) ? undefined : servers.find((s) => name.startsWith(`${s}_`))
    return server === undefined ? name : `mcp__${server}__${name.slice(server.length + 1)}`
  }
  const tool = (call, args, result) => ({ tool_name: named(call.tool), tool_use_id: call.callID, tool_input: args, ...result })

  // A tool that fails has no hook of its own: its part of the message gets the status error.
  const failed = (part) => {
    if (part.type !== "tool" || part.state.status !== "error" || !permitted.has(key(part))) return
    const args = permitted.get(key(part))
    permitted.delete(key(part))
    hook("PostToolUseFailure", part.sessionID, tool(part, args, { error: part.state.error }))
  }

  return {
    config: async ({ mcp = {} }) => {
      servers = Object.keys(mcp).map((name) => name.replace(/[^a-zA-Z0-9_-]/g, "_")).sort((a, b) => b.length - a.length)
    },
    "tool.execute.before": async (input, output) => {
      const answer = hook("PreToolUse", input.sessionID, tool(input, output.args))
      if (answer.permit !== true) throw new Error(answer.reason || "binnacle: denied")
      permitted.set(key(input), freeze(output.args))
    },
    "tool.execute.after": async (input, output) => {
      permitted.delete(key(input))
      hook("PostToolUse", input.sessionID, tool(input, input.args, { tool_response: { output: output.output, title: output.title } }))
    },
    "chat.message": async ({ sessionID }, { parts }) => {
      const prompt = parts.filter((p) => p.type === "text" && !p.synthetic).map((p) => p.text).join("\n")
      hook(parents.has(sessionID) ? "SubagentStart" : "UserPromptSubmit", sessionID, { prompt })
    },
    event: async ({ event: { type, properties } }) => {
      switch (type) {
        case "session.created":
          if (properties.info.parentID) parents.set(properties.info.id, properties.info.parentID)
          else hook("SessionStart", properties.info.id, {})
          break
        case "session.idle":
          hook(parents.has(properties.sessionID) ? "SubagentStop" : "Stop", properties.sessionID, {})
          break
        case "session.deleted":
          if (!properties.info.parentID) hook("SessionEnd", properties.info.id, {})
          break
        case "message.part.updated":
          failed(properties.part)
      }
    },
  }
}
