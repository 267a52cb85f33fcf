package hook

// limits lists, by client, the limitations of its hooks, above all when a tool runs although its
// hook did not permit it. They were observed with the named versions; those without a version were
// not.
var limits = map[string][]string{
	"claude-code": {
		"Claude Code 2.1.330: a hook that does not answer before its timeout, or that cannot be started, does not stop the tool; install sets a timeout that is longer than the hook waits",
		"Claude Code 2.1.330: --bare, disableAllHooks and other settings turn hooks off; managed settings can forbid that",
		"Claude Code 2.1.330: hooks run at the same time; if another hook rewrites the input of a tool, policy decides on the rewritten input in the hook of PermissionRequest, which runs only if the client's own rules require a permission; if a rule or another hook permits the tool first, it runs with that input, and its outcome is recorded as executed_other_args",
	},
	"codex": {
		"Codex 0.169.0: hooks run only after their user has trusted them (/hooks), or with --dangerously-bypass-hook-trust",
		"Codex 0.169.0: the model's provider executes web_search; write_stdin types into a program that runs, so a program that reads commands, such as an interactive shell, runs what the model types without a hook",
		"Codex 0.169.0: it cannot ask its user in response to a hook",
		"Codex 0.169.0: a hooks.json with a member other than description and hooks is ignored with a warning, so no hook of it runs; install refuses such a file, and doctor does not call it installed",
		"Codex 0.169.0: hooks run at the same time, and codex exec runs no second hook before a tool; if another hook rewrites the input of a tool, the tool runs with it, and its outcome is recorded as executed_other_args",
	},
	"opencode": {
		"OpenCode 1.18.33: tools of MCP servers that are not in its configuration when it starts are calls of kind client.other",
		"OpenCode 1.18.33: plugins run one after the other; a tool fails if a plugin after ours changes its args",
		"OpenCode 1.18.33: it cannot ask its user in response to a hook; it has no file with a transcript, so no digest of one is recorded; a session ends (SessionEnd) when it is deleted, and each turn with the event Stop",
		"OpenCode 1.18.33: plugins do not learn of a subagent that an earlier process started, so the events of one that is resumed have a session of their own",
	},
	"cursor": {
		"Cursor: the documents follow descriptions of its format by others and were not tried with the program; its hooks are installed with failClosed, so that a tool does not run if its hook failed",
		"Cursor: no hook asks its user, and none is installed for the events of its subagents, or for its second events before a tool (beforeShellExecution, beforeMCPExecution, beforeReadFile)",
		"Cursor: completions in the editor (Tab) and what its background agents do on other machines run no hook of this machine; tools whose names have no kind of their own are calls of kind client.other",
	},
	"vscode": {
		"VS Code: the documents follow its documentation (a preview) and were not tried with the program; a hook that fails with another status than 2, or does not answer before its timeout, does not stop the tool",
		"VS Code: there is no event for the end of a session; each turn ends with the event Stop",
		"VS Code: there is no event for a tool that failed, so its call ends with the outcome unknown; tools whose names have no kind of their own, such as editFiles, are calls of kind client.other",
		"VS Code also runs the hooks in .claude/settings.json: install either those of claude-code or these",
	},
	"gemini-cli": {
		"Gemini CLI 0.61.0: a hook that is killed, that ends with status 1, or that does not answer before its timeout does not stop the tool; install sets a timeout that is longer than the hook waits",
		"Gemini CLI 0.61.0: the hooks of a project run only in a folder that its user has trusted (or with GEMINI_CLI_TRUST_WORKSPACE=true); with --skip-trust, tools run without them; those of the user run everywhere",
		"Gemini CLI 0.61.0: it has no events of subagents, and the documents of their tools do not name them; it does not wait for the hook at the end of a session",
		"Gemini CLI 0.61.0: hooks run one after the other, because ours state so, and policy decides on the input as the hooks before ours have rewritten it; if a hook after ours rewrites it (those of a project follow those of the user), or one before ours omits members of the input, the tool runs with it, which is recorded as an event ran_without_decision",
		"Gemini CLI 0.61.0: it cannot ask its user in response to a hook",
	},
}

// unasked lists, by client, the tools that the named version runs without its hook before a tool, of
// those that it offers to a model in a new project. A test in e2e compares the lists with the clients.
var unasked = map[string]struct {
	version string
	tools   []string
}{
	"claude-code": {"Claude Code 2.1.330", nil},
	"codex":       {"Codex 0.169.0", []string{"web_search", "write_stdin"}},
	"gemini-cli":  {"Gemini CLI 0.61.0", nil},
	"opencode":    {"OpenCode 1.18.33", nil},
}

// Unasked returns the tools that a client runs without its hook before a tool, sorted. known is false
// if that was not tried with the client. The caller must not modify the slice.
func Unasked(client string) (version string, tools []string, known bool) {
	u, known := unasked[client]
	return u.version, u.tools, known
}

// The ways in which a hook before a tool can fail.
const (
	failsStatus  = "status"  // it ends with exit status 1
	failsKilled  = "killed"  // its process is killed
	failsSlow    = "slow"    // it does not answer before its timeout
	failsMissing = "missing" // its program does not exist
)

// open lists, by client, the failures of a hook before a tool with which the version in unasked runs
// the tool, sorted. A test in e2e compares the lists with the clients.
var open = map[string][]string{
	"claude-code": {failsKilled, failsMissing, failsSlow, failsStatus},
	"codex":       {failsKilled, failsMissing, failsSlow, failsStatus},
	"gemini-cli":  {failsKilled, failsSlow, failsStatus},
	"opencode":    {},
}

// FailsOpen returns the failures of a hook before a tool with which a client runs the tool: status
// (exit status 1), killed, slow (no answer before the timeout) and missing (no such program). known is
// false if that was not tried with the client. The caller must not modify the slice.
func FailsOpen(client string) (failures []string, known bool) {
	failures, known = open[client]
	return failures, known
}

// commonLimit applies to all clients.
const commonLimit = "a program that the agent starts is not governed itself: what it does follows from the command line alone as far as it can be parsed; a sandbox limits it"

// Limits returns the limitations of a client's hooks, the common one first. The caller owns the
// slice.
func Limits(client string) []string { return append([]string{commonLimit}, limits[client]...) }
