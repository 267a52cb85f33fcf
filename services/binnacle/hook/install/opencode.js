// Written by `binnacle hook install opencode`; `binnacle hook uninstall opencode` removes it.
// A hook that fails, or does not answer, denies the tool.
import { spawnSync } from "node:child_process"

const command = "COMMAND"

function hook(event, directory, input, args, output) {
  const doc = { hook_event_name: event, session_id: input.sessionID, cwd: directory, tool_name: input.tool, tool_use_id: input.callID, tool_input: args, tool_response: output }
  const r = spawnSync(command, { shell: true, input: JSON.stringify(doc), encoding: "utf8" })
  if (r.status !== 0) return { permit: false, reason: (r.stderr || "the hook failed").trim() }
  try {
    return JSON.parse(r.stdout)
  } catch {
    return { permit: false, reason: "binnacle: the hook's answer cannot be read" }
  }
}

export const Binnacle = async ({ directory }) => ({
  "tool.execute.before": async (input, output) => {
    const answer = hook("PreToolUse", directory, input, output.args)
    if (answer.permit !== true) throw new Error(answer.reason || "binnacle: denied")
  },
  "tool.execute.after": async (input, output) => {
    hook("PostToolUse", directory, input, input.args, { output: output.output, title: output.title })
  },
})
