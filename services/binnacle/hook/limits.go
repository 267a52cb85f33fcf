package hook

// limits lists, by client, the limitations of its hooks, above all when a tool runs although its
// hook did not permit it. They were observed with the named versions; those without a version were
// not.
var limits = map[string][]string{
	"claude-code": {
		"Claude Code 2.1.330: a hook that does not answer before its timeout, or that cannot be started, does not stop the tool; install sets a timeout that is longer than the hook waits",
		"Claude Code 2.1.330: --bare, disableAllHooks and other settings turn hooks off; managed settings can forbid that",
		"Claude Code 2.1.330: hooks run at the same time; if another hook rewrites the input of a tool, the tool runs with it, and its outcome is recorded as executed_other_args",
	},
	"codex": {
		"Codex 0.169.0: hooks run only after their user has trusted them (/hooks), or with --dangerously-bypass-hook-trust",
		"Codex 0.169.0: no hook runs for its own searches of the web; it cannot ask its user in response to a hook",
		"Codex 0.169.0: a hooks.json with a member other than description and hooks is ignored with a warning, so no hook of it runs; install refuses such a file, and doctor does not call it installed",
		"Codex 0.169.0: hooks run at the same time; if another hook rewrites the input of a tool, the tool runs with it, and its outcome is recorded as executed_other_args",
	},
	"opencode": {
		"OpenCode 1.18.33: tools of MCP servers have no prefix of their own, so they are calls of kind client.other",
		"OpenCode 1.18.33: plugins run one after the other; what a plugin after ours rewrites is recorded as executed_other_args",
		"OpenCode 1.18.33: plugins do not learn of a subagent that an earlier process started, so the events of one that is resumed have a session of their own",
	},
	"cursor": {
		"Cursor: the documents follow descriptions of its format by others and were not tried with the program; its hooks are installed with failClosed, so that a tool does not run if its hook failed",
		"Cursor: completions in the editor (Tab) and what its background agents do on other machines run no hook of this machine; tools whose names have no kind of their own are calls of kind client.other",
	},
	"vscode": {
		"VS Code: the documents follow its documentation (a preview) and were not tried with the program; a hook that fails with another status than 2, or does not answer before its timeout, does not stop the tool",
		"VS Code: there is no event for a tool that failed, so its call ends with the outcome unknown; tools whose names have no kind of their own, such as editFiles, are calls of kind client.other",
		"VS Code also runs the hooks in .claude/settings.json: install either those of claude-code or these",
	},
	"gemini-cli": {
		"Gemini CLI: the documents follow its documentation and were not tried with the program",
	},
}

// commonLimit applies to all clients.
const commonLimit = "a program that the agent starts is not governed itself: what it does follows from the command line alone as far as it can be parsed; a sandbox limits it"

// Limits returns the limitations of a client's hooks, the common one first. The caller owns the
// slice.
func Limits(client string) []string { return append([]string{commonLimit}, limits[client]...) }
