package sessionrunner

import (
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// HeldConfig configures held sandboxes: containers that one call creates and later calls
// use.
type HeldConfig struct {
	Max       int // maximum number of held sandboxes of this instance; 0 means that none are offered
	PerTenant int // maximum number of open held sandboxes of a tenant, on all instances
}

// The kinds of calls for held sandboxes; heldKinds begins each of them.
const (
	heldKinds     = "tool.sandbox."
	kindCreate    = "tool.sandbox.create"
	kindExec      = "tool.sandbox.exec"
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
)

// heldTool describes one tool for held sandboxes. Its input schema has the properties
// props, of which required are required.
type heldTool struct {
	kind, class, about, props, required, output string
	ceiling                                     bool // the tool document has a sandbox, so that policy lowers the limits
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
}

// tool returns the tool document.
func (t heldTool) tool() contract.Tool {
	name := t.kind[len("tool."):]
	out := contract.Tool{Description: t.about, Class: t.class, Executor: "session-runner", Kind: t.kind, Tool: name, Version: "v1",
		InputSchema:  contract.Raw(`{"additionalProperties":false,"properties":{` + t.props + `},"required":[` + t.required + `],"type":"object"}`),
		OutputSchema: contract.Raw(`{"additionalProperties":true,"properties":{` + t.output + `},"type":"object"}`)}
	if t.ceiling {
		out.Sandbox = &contract.Sandbox{CPUMillis: 1000, MemoryMiB: 512, OutputBytes: outputBytes, Pids: 128, Tier: heldTier, WallMS: maxExecMS}
	}
	return out
}
