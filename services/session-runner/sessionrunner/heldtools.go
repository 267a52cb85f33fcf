package sessionrunner

import (
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// HeldConfig configures held sandboxes: containers that one call creates and later calls
// use.
type HeldConfig struct {
	Max       int      // maximum number of held sandboxes of this instance; 0 means that none are offered
	PerTenant int      // maximum number of open held sandboxes of a tenant, on all instances
	Hosts     []string // hosts that commands with egress may reach at most; none means that the tool for them is not offered
}

// The kinds of calls that operate a held sandbox; operateKinds begins each of them.
const (
	operateKinds  = "tool.sandbox."
	kindCreate    = "tool.sandbox.create"
	kindExec      = "tool.sandbox.exec"
	kindEgress    = "tool.sandbox.exec_egress"
	kindLogs      = "tool.sandbox.logs"
	kindWrite     = "tool.sandbox.write_file"
	kindRead      = "tool.sandbox.read_file"
	kindFiles     = "tool.sandbox.list_files"
	kindList      = "tool.sandbox.list"
	kindKeepAlive = "tool.sandbox.keep_alive"
	kindTerminate = "tool.sandbox.terminate"
)

// heldTier is the tier of held sandboxes.
const heldTier = "container"

// Limits of the arguments and outputs of calls for held sandboxes.
const (
	maxFile     = 256 << 10 // bytes of a file or output in one call
	outputBytes = 1 << 20   // bytes of each output stream of a command that are cached
	maxExecMS   = 600_000   // time of a command that a call waits for
	execEgress  = 64 << 20  // bytes that a command with egress reserves of a budget
)

// isHeld reports whether calls of a kind are for held sandboxes.
func isHeld(kind string) bool {
	return slices.ContainsFunc(heldTools, func(t heldTool) bool { return t.kind == kind })
}

// heldTool describes one tool for held sandboxes. Its input schema has the properties
// props, of which required are required.
type heldTool struct {
	kind, class, about, props, required, output string
	ceiling                                     bool // the tool document states limits, which policy can lower
	egress                                      bool // the tool document names the configured hosts; without any, the tool is not offered
}

// sandboxProp is the property that names a sandbox.
const sandboxProp = `"sandbox":{"description":"id of the sandbox; without it the newest open one of the session","maxLength":64,"type":"string"}`

var heldTools = []heldTool{
	{kind: kindCreate, class: "E1", ceiling: true, about: "Creates a sandbox that outlives the call: a container without a network, for later calls of the same session.",
		props: `"cpu_millis":{"maximum":1000000,"minimum":1,"type":"integer"},"disk_mib":{"default":64,"description":"size of /work, in memory","maximum":65536,"minimum":1,"type":"integer"},` +
			`"idle_ms":{"default":600000,"description":"time without use after which it ends","maximum":86400000,"minimum":1000,"type":"integer"},` +
			`"image":{"description":"NAME@sha256:DIGEST, sha256:DIGEST, or a NAME of images.lock","maxLength":200,"pattern":"^[a-z0-9][a-z0-9._/:-]{0,127}(@sha256:[0-9a-f]{64})?$","type":"string"},` +
			`"life_ms":{"default":3600000,"description":"time after which it ends in any case","maximum":86400000,"minimum":1000,"type":"integer"},"memory_mib":{"maximum":1048576,"minimum":8,"type":"integer"},"pids":{"maximum":32768,"minimum":2,"type":"integer"},"unpinned":{"default":false,"description":"image may be the NAME of the archive NAME.tar, whose bytes may change","type":"boolean"}`,
		required: `"image"`, output: `"created":{"type":"string"},"expires":{"type":"string"},"image":{"type":"string"},"sandbox":{"type":"string"}`},
	{kind: kindExec, class: "E1", ceiling: true, about: "Runs a command in a sandbox and returns its exit code and output, or starts it.",
		props: `"command":{"items":{"maxLength":65536,"type":"string"},"maxItems":256,"minItems":1,"type":"array"},"detach":{"default":false,"description":"return when the command has started","type":"boolean"},` +
			`"dir":{"maxLength":4096,"type":"string"},"env":{"description":"NAME=value","items":{"maxLength":65536,"pattern":"^[^=]+=","type":"string"},"maxItems":256,"type":"array"},` + sandboxProp +
			`,"stdin":{"maxLength":262144,"type":"string"},"timeout_ms":{"maximum":86400000,"minimum":1,"type":"integer"}`,
		required: `"command"`, output: `"exec":{"type":"string"},"exit_code":{"type":"integer"},"status":{"type":"string"}`},
	{kind: kindEgress, class: "E2", ceiling: true, egress: true, about: "Runs a command in a sandbox, which may reach the permitted hosts meanwhile, and returns its exit code and output.",
		props:    commandProp + `,"dir":{"maxLength":4096,"type":"string"},"env":{"description":"NAME=value","items":{"maxLength":65536,"pattern":"^[^=]+=","type":"string"},"maxItems":256,"type":"array"},` + sandboxProp + stdinProps,
		required: `"command"`, output: `"exec":{"type":"string"},"exit_code":{"type":"integer"},"status":{"type":"string"}`},
	{kind: kindLogs, class: "E0", about: "Returns output of a command in a sandbox from a position on.",
		props: `"cursor":{"default":0,"minimum":0,"type":"integer"},"exec":{"maxLength":64,"type":"string"},"limit":{"default":65536,"maximum":262144,"minimum":1,"type":"integer"},` + sandboxProp +
			`,"stream":{"default":"stdout","enum":["stdout","stderr"],"type":"string"},"wait_ms":{"default":0,"description":"time to wait for output after the cursor","maximum":60000,"minimum":0,"type":"integer"}`,
		required: `"exec"`, output: `"cursor":{"type":"integer"},"status":{"type":"string"}`},
	{kind: kindWrite, class: "E1", about: "Writes a file in a sandbox.",
		props:    `"append":{"default":false,"type":"boolean"},"base64":{"default":false,"type":"boolean"},"content":{"maxLength":524288,"type":"string"},"path":{"maxLength":4096,"minLength":1,"type":"string"},` + sandboxProp,
		required: `"content","path"`, output: `"bytes":{"type":"integer"}`},
	{kind: kindRead, class: "E0", about: "Returns the content of a file in a sandbox from an offset on.",
		props:    `"limit":{"default":65536,"maximum":262144,"minimum":1,"type":"integer"},"offset":{"default":0,"minimum":0,"type":"integer"},"path":{"maxLength":4096,"minLength":1,"type":"string"},` + sandboxProp,
		required: `"path"`, output: `"offset":{"type":"integer"},"size":{"type":"integer"}`},
	{kind: kindFiles, class: "E0", about: "Lists a folder in a sandbox.",
		props: `"path":{"default":"/work","maxLength":4096,"minLength":1,"type":"string"},` + sandboxProp, output: `"files":{"type":"array"}`},
	{kind: kindList, class: "E0", about: "Lists the caller's sandboxes.",
		props: `"ended":{"default":false,"description":"also those that ended in the last hour","type":"boolean"}`, output: `"sandboxes":{"type":"array"}`},
	{kind: kindKeepAlive, class: "E0", about: "Starts the idle time of a sandbox again. Its life does not become longer.",
		props: sandboxProp, output: `"expires":{"type":"string"}`},
	{kind: kindTerminate, class: "E1", about: "Ends a sandbox and removes its container.",
		props: sandboxProp, output: `"sandbox":{"type":"string"}`},
	{kind: kindCommand, class: "E1", ceiling: true, about: "Runs a command in the session's sandbox and returns its exit code and output.",
		props: commandProp + `,` + rootProp + stdinProps, required: `"command"`, output: runOutput},
	{kind: kindPython, class: "E1", ceiling: true, about: "Runs Python code, or a command, in the session's sandbox, whose image has python3.",
		props: commandProp + `,` + rootProp + stdinProps + `,"code":{"maxLength":262144,"type":"string"}`, output: runOutput},
	{kind: kindNode, class: "E1", ceiling: true, about: "Runs JavaScript code, or a command, in the session's sandbox, whose image has node.",
		props: commandProp + `,` + rootProp + stdinProps + `,"code":{"maxLength":262144,"type":"string"}`, output: runOutput},
	{kind: kindFSRead, class: "E0", about: "Returns a file in the session's sandbox, of at most 256 KiB.",
		props: pathProp + rootProp, required: `"path"`, output: `"content":{"type":"string"},"encoding":{"type":"string"},"sha256":{"type":"string"},"size":{"type":"integer"}`},
	{kind: kindFSWrite, class: "E1", about: "Writes a file in the session's sandbox, and makes its folders.",
		props: `"base64":{"default":false,"type":"boolean"},"content":{"maxLength":524288,"type":"string"},` + pathProp + rootProp, required: `"content","path"`, output: `"sha256":{"type":"string"},"size":{"type":"integer"}`},
	{kind: kindFSList, class: "E0", about: "Lists the files in a folder of the session's sandbox, at most 5000, without those in .git.",
		props:  `"glob":{"description":"pattern of the last part of the names","maxLength":255,"type":"string"},"path":{"default":".","maxLength":4096,"type":"string"},"recursive":{"default":false,"type":"boolean"},` + rootProp,
		output: `"count":{"type":"integer"},"files":{"items":{"type":"string"},"type":"array"},"truncated":{"type":"boolean"}`},
	{kind: kindFSPatch, class: "E1", about: "Replaces texts of a file in the session's sandbox. Nothing is changed if one of them does not occur.",
		props: `"edits":{"items":{"additionalProperties":false,"properties":{"newText":{"type":"string"},"oldText":{"minLength":1,"type":"string"}},"required":["newText","oldText"],"type":"object"},"maxItems":100,"type":"array"},` +
			`"occurrences":{"description":"number of occurrences to replace; all without it","minimum":0,"type":"integer"},"replace":{"type":"string"},"search":{"type":"string"},` + pathProp + rootProp,
		required: `"path"`, output: `"applied":{"type":"integer"},"sha256":{"type":"string"}`},
	{kind: kindFSDelete, class: "E1", about: "Deletes a file or a folder in the session's sandbox.",
		props: pathProp + rootProp, required: `"path"`, output: `"deleted":{"type":"boolean"},"path":{"type":"string"}`},
	{kind: kindGitCommit, class: "E1", about: "Commits the changes in a git repository in the session's sandbox.",
		props:    `"all":{"default":true,"description":"also changes that are not staged","type":"boolean"},"author":{"default":"binnacle-agent","maxLength":200,"type":"string"},"email":{"default":"agent@binnacle.invalid","maxLength":200,"type":"string"},"message":{"maxLength":65536,"minLength":1,"type":"string"},` + rootProp,
		required: `"message"`, output: `"commit":{"type":"string"}`},
	{kind: kindGitDiff, class: "E0", about: "Returns the changes of tracked files in a git repository in the session's sandbox: those that are not staged or, with staged, those that are staged and not committed.",
		props: `"staged":{"default":false,"type":"boolean"},` + rootProp, output: `"diff":{"type":"string"},"files_changed":{"type":"integer"}`},
	{kind: kindGitLog, class: "E0", about: "Returns the newest commits of a git repository in the session's sandbox.",
		props: `"count":{"default":10,"maximum":100,"minimum":1,"type":"integer"},` + rootProp, output: `"commits":{"type":"array"},"count":{"type":"integer"}`},
}

// Properties and outputs of several tools.
const (
	commandProp = `"command":{"items":{"maxLength":65536,"type":"string"},"maxItems":256,"minItems":1,"type":"array"}`
	pathProp    = `"path":{"description":"relative to clone_path","maxLength":4096,"minLength":1,"type":"string"},`
	rootProp    = `"clone_path":{"default":"/work","description":"folder in the sandbox","maxLength":4096,"type":"string"},` + sandboxProp
	stdinProps  = `,"stdin":{"maxLength":262144,"type":"string"},"timeout_ms":{"maximum":600000,"minimum":1,"type":"integer"}`
	runOutput   = `"exit_code":{"type":"integer"},"stderr":{"type":"string"},"stdout":{"type":"string"},"truncated":{"type":"boolean"}`
)

// tools returns the documents of the tools that the configuration offers.
func (c *HeldConfig) tools() (out []contract.Tool) {
	for _, t := range heldTools {
		if !t.egress || len(c.Hosts) > 0 {
			out = append(out, t.tool(c.Hosts))
		}
	}
	return out
}

// tool returns the tool document. hosts are those of a tool with egress.
func (t heldTool) tool(hosts []string) contract.Tool {
	name := t.kind[len("tool."):]
	out := contract.Tool{Description: t.about, Class: t.class, Executor: "session-runner", Kind: t.kind, Tool: name, Version: "v1",
		InputSchema:  canonical(`{"additionalProperties":false,"properties":{` + t.props + `},"required":[` + t.required + `],"type":"object"}`),
		OutputSchema: canonical(`{"additionalProperties":true,"properties":{` + t.output + `},"type":"object"}`)}
	if t.ceiling {
		out.Sandbox = &contract.Sandbox{CPUMillis: 1000, MemoryMiB: 512, OutputBytes: outputBytes, Pids: 128, Tier: heldTier, WallMS: maxExecMS}
	}
	if t.egress {
		out.Egress, out.Reserve = hosts, &contract.Amounts{EgressBytes: execEgress}
	}
	return out
}

// canonical returns a schema in canonical form. A test checks that each is JSON.
func canonical(schema string) contract.Raw {
	out, err := canon.Transform(nil, []byte(schema))
	if err != nil {
		return contract.Raw(schema)
	}
	return out
}
