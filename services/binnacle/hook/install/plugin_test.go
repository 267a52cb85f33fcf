package install_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/install"
)

// driver calls the hooks of the plugin as OpenCode 1.18.33 does, for a session in which one tool runs,
// one is denied, one fails, a subagent runs one, and one of an MCP server runs, and for a session that is
// deleted. It tries to change the args of a permitted tool.
const driver = `
const { Binnacle } = await import(process.argv[2])
const h = await Binnacle({ directory: "/w" })
const call = (sessionID, callID) => ({ tool: "bash", sessionID, callID })
const event = (type, properties) => h.event({ event: { type, properties } })
const ended = (sessionID, callID, state) => event("message.part.updated", { part: { type: "tool", ...call(sessionID, callID), state } })
const before = async (c, args) => {
  try { await h["tool.execute.before"](c, { args }) } catch (e) { console.log("refused:", e.message) }
}
await event("session.created", { info: { id: "main" } })
await h["chat.message"]({ sessionID: "main" }, { parts: [{ type: "text", text: "one" }, { type: "text", text: "added", synthetic: true }, { type: "file" }, { type: "text", text: "two" }] })
await before(call("main", "runs"), { command: "ls" })
await h["tool.execute.after"]({ ...call("main", "runs"), args: { command: "ls" } }, { output: "o", title: "t" })
await ended("main", "runs", { status: "completed" })
await h.config({ mcp: { "a.b": {}, "a.b_c": {}, apply: {} } })
const args = { of: [{ n: 1 }] }
await before({ ...call("main", "mcp"), tool: "a_b_c_run_all" }, args)
try { args.of[0].n = 2 } catch (e) { console.log("not changed:", e.name) }
await before({ ...call("main", "patch"), tool: "apply_patch" }, {})
await before(call("main", "denied"), { command: "deny" })
await ended("main", "denied", { status: "error", error: "denied" })
await before(call("main", "fails"), { command: "fail" })
await ended("main", "fails", { status: "running" })
await ended("main", "fails", { status: "error", error: "why" })
await ended("main", "fails", { status: "error", error: "why" })
await event("message.part.updated", { part: { type: "text", text: "x" } })
await event("session.created", { info: { id: "child", parentID: "main" } })
await h["chat.message"]({ sessionID: "child" }, { parts: [{ type: "text", text: "part" }] })
await before(call("child", "runs"), { command: "ls" })
await event("session.idle", { sessionID: "child" })
await event("session.deleted", { info: { id: "child", parentID: "main" } })
await event("session.idle", { sessionID: "main" })
await event("session.deleted", { info: { id: "main" } })
`

// failures calls the hook before a tool for command lines whose hook fails, and for one whose hook
// does not.
const failures = `
import { rmSync } from "node:fs"
const { Binnacle } = await import(process.argv[2])
const h = await Binnacle({ directory: "/w" })
for (const command of ["runs", "status", "killed", "blocked", "silent", "other", "missing"]) {
  if (command === "missing") rmSync(process.argv[3])
  await h["tool.execute.before"]({ tool: "bash", sessionID: "main", callID: command }, { args: { command } }).then(() => console.log("ran:", command), () => {})
}
`

// runPlugin installs the plugin of OpenCode for the user of x, with a hook that runs a script of a
// shell, runs a program in JavaScript with the paths of plugin and script, and returns its output.
func runPlugin(t *testing.T, x *install.Target, hook, program string) string {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("Node.js is missing; install the Debian package nodejs")
	}
	script := filepath.Join(x.Home, "hook.sh")
	put(t, script, hook)
	x.Command = "sh " + script + " # binnacle hook run opencode"
	change(t, x, true)
	plugin := filepath.Join(x.Home, "plugin.mjs")
	text, err := os.ReadFile(x.Path())
	if err != nil {
		t.Fatal(err)
	}
	put(t, plugin, string(text))
	put(t, filepath.Join(x.Home, "driver.mjs"), program)
	out, err := exec.Command(node, filepath.Join(x.Home, "driver.mjs"), plugin, script).CombinedOutput()
	if err != nil {
		t.Errorf("%s %v", out, err)
	}
	return string(out)
}

// TestPluginFailures checks that a tool of OpenCode does not run if its hook ends with an exit status
// other than 0, is killed, prints nothing or something else than an answer, or does not exist.
func TestPluginFailures(t *testing.T) {
	out := runPlugin(t, target(t, "opencode"), `case $(cat) in
*'"command":"status"'*) echo '{"permit":true}'; exit 1 ;;
*'"command":"blocked"'*) echo '{"permit":true}'; exit 2 ;;
*'"command":"killed"'*) echo '{"permit":true}'; kill -9 $$ ;;
*'"command":"silent"'*) ;;
*'"command":"other"'*) echo yes ;;
*) echo '{"permit":true}' ;;
esac
`, failures)
	if out != "ran: runs\n" {
		t.Errorf("%q, want only the tool whose hook did not fail", out)
	}
}

// TestPlugin checks which documents the plugin of OpenCode passes to its hook, and that a tool does
// not run unless the answer permits it.
func TestPlugin(t *testing.T) {
	x := target(t, "opencode")
	docs := filepath.Join(x.Home, "docs")
	out := runPlugin(t, x, fmt.Sprintf(`doc=$(cat)
printf '%%s\n' "$doc" >>%s
case $doc in
*'"hook_event_name":"PreToolUse"'*'"command":"deny"'*) echo '{"permit":false,"reason":"no"}' ;;
*) echo '{"permit":true}' ;;
esac
`, docs), driver)
	if out != "not changed: TypeError\nrefused: no\n" {
		t.Errorf("%q", out)
	}
	got, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	const main = `,"session_id":"main","cwd":"/w"`
	const child = main + `,"agent_id":"child"`
	tool := func(id, command, result string) string {
		return fmt.Sprintf(`,"tool_name":"bash","tool_use_id":%q,"tool_input":{"command":%q}%s`, id, command, result)
	}
	want := []string{
		`{"hook_event_name":"SessionStart"` + main,
		`{"hook_event_name":"UserPromptSubmit"` + main + `,"prompt":"one\ntwo"`,
		`{"hook_event_name":"PreToolUse"` + main + tool("runs", "ls", ""),
		`{"hook_event_name":"PostToolUse"` + main + tool("runs", "ls", `,"tool_response":{"output":"o","title":"t"}`),
		`{"hook_event_name":"PreToolUse"` + main + `,"tool_name":"mcp__a_b_c__run_all","tool_use_id":"mcp","tool_input":{"of":[{"n":1}]}`,
		`{"hook_event_name":"PreToolUse"` + main + `,"tool_name":"apply_patch","tool_use_id":"patch","tool_input":{}`,
		`{"hook_event_name":"PreToolUse"` + main + tool("denied", "deny", ""),
		`{"hook_event_name":"PreToolUse"` + main + tool("fails", "fail", ""),
		`{"hook_event_name":"PostToolUseFailure"` + main + tool("fails", "fail", `,"error":"why"`),
		`{"hook_event_name":"SubagentStart"` + child + `,"prompt":"part"`,
		`{"hook_event_name":"PreToolUse"` + child + tool("runs", "ls", ""),
		`{"hook_event_name":"SubagentStop"` + child,
		`{"hook_event_name":"Stop"` + main,
		`{"hook_event_name":"SessionEnd"` + main,
	}
	if want := strings.Join(want, "}\n") + "}\n"; string(got) != want {
		t.Errorf("documents:\n%s\nwant:\n%s", got, want)
	}
}
