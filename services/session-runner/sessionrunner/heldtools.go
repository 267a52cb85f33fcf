package sessionrunner

import (
	"net"
	"slices"
	"strconv"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// HeldConfig configures held sandboxes: containers that one call creates and later calls
// use.
type HeldConfig struct {
	Max       int      // maximum number of held sandboxes of this instance; 0 means that none are offered
	PerTenant int      // maximum number of open held sandboxes of a tenant, on all instances
	Hosts     []string // hosts that commands with egress may reach at most; none means that the tools for them are not offered, but exec_egress with ModelURL
	GitSecret string   // secret that the egress-broker adds to the requests of repo.fetch and repo.push, as the value after Basic; "" means none

	// ModelURL is the URL of an API of models, which commands with egress may call: its base URL
	// without /v1. "" means none.
	ModelURL    string
	ModelSecret string // secret that the egress-broker adds to these requests; "" means none
	ModelHeader string // header field that gets the secret; "" means Authorization, with Bearer before the secret
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
	kindAttach    = "tool.sandbox.attach"
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

// withEgress reports whether calls of a kind have a proxy.
func withEgress(kind string) bool {
	return slices.ContainsFunc(heldTools, func(t heldTool) bool { return t.kind == kind && t.egress })
}

// heldTool describes one tool for held sandboxes. Its input schema has the properties
// props, of which required are required.
type heldTool struct {
	kind, class, about, props, required, output string
	example                                     string // arguments of a call, for the documentation
	ceiling                                     bool   // the tool document states limits, which policy can lower
	egress                                      bool   // the tool document names the configured hosts; see HeldConfig.tools for when it is offered
}

// sandboxProp is the property that names a sandbox.
const sandboxProp = `"sandbox":{"description":"id of the sandbox; without it the newest open one of the session","maxLength":64,"type":"string"}`

var heldTools = []heldTool{
	{kind: kindCreate, class: "E1", ceiling: true, about: "Creates a sandbox that outlives the call: a container without a network, for later calls of the same session.",
		example: `{"image":"shell","memory_mib":64}`,
		props: `"cpu_millis":{"maximum":1000000,"minimum":1,"type":"integer"},"disk_mib":{"default":64,"description":"size of /work, in memory","maximum":65536,"minimum":1,"type":"integer"},` +
			`"idle_ms":{"default":600000,"description":"time without use after which it ends","maximum":86400000,"minimum":1000,"type":"integer"},` +
			`"image":{"description":"NAME@sha256:DIGEST, sha256:DIGEST, or a NAME of images.lock","maxLength":200,"pattern":"^[a-z0-9][a-z0-9._/:-]{0,127}(@sha256:[0-9a-f]{64})?$","type":"string"},` +
			`"life_ms":{"default":3600000,"description":"time after which it ends in any case","maximum":86400000,"minimum":1000,"type":"integer"},"memory_mib":{"maximum":1048576,"minimum":8,"type":"integer"},"pids":{"maximum":32768,"minimum":2,"type":"integer"},"unpinned":{"default":false,"description":"image may be the NAME of the archive NAME.tar, whose bytes may change","type":"boolean"}`,
		required: `"image"`, output: `"created":{"type":"string"},"expires":{"type":"string"},"image":{"type":"string"},"sandbox":{"type":"string"}`},
	{kind: kindExec, class: "E1", ceiling: true, about: "Runs a command in a sandbox and returns its exit code and output, or starts it.",
		example: `{"command":["ls","-A","/work"]}`,
		props: `"command":{"items":{"maxLength":65536,"type":"string"},"maxItems":256,"minItems":1,"type":"array"},"detach":{"default":false,"description":"return when the command has started","type":"boolean"},` +
			`"dir":{"maxLength":4096,"type":"string"},"env":{"description":"NAME=value","items":{"maxLength":65536,"pattern":"^[^=]+=","type":"string"},"maxItems":256,"type":"array"},` + sandboxProp +
			`,"stdin":{"maxLength":262144,"type":"string"}` + stdinFromProp + terminalProp + `,"timeout_ms":{"maximum":86400000,"minimum":1,"type":"integer"}`,
		required: `"command"`, output: `"exec":{"type":"string"},"exit_code":{"type":"integer"},"status":{"type":"string"}`},
	{kind: kindAttach, class: "E1", about: "Attaches the caller to the terminal of a command in a sandbox, for input and output, until it leaves or the command ends. Its input is not recorded, but the number of its bytes.",
		example:  `{"exec":"x-0123456789","key_digest":"2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}`,
		props:    `"exec":{"description":"without it the newest command with a terminal","maxLength":64,"type":"string"},"key_digest":{"description":"SHA-256, in hexadecimal, of the key that the requests of this attachment present","pattern":"^[0-9a-f]{64}$","type":"string"},` + sandboxProp,
		required: `"key_digest"`, output: `"ended":{"type":"string"},"exit_code":{"type":"integer"},"input_bytes":{"type":"integer"},"output_bytes":{"type":"integer"},"output_sha256":{"type":"string"},"status":{"type":"string"}`},
	{kind: kindEgress, class: "E2", ceiling: true, egress: true, about: "Runs a command in a sandbox, which may reach the permitted hosts meanwhile, and returns its exit code and output.",
		example:  `{"command":["git","ls-remote","https://git.example.com/team/tides.git"]}`,
		props:    commandProp + `,"dir":{"maxLength":4096,"type":"string"},"env":{"description":"NAME=value","items":{"maxLength":65536,"pattern":"^[^=]+=","type":"string"},"maxItems":256,"type":"array"},` + sandboxProp + terminalProp + stdinProps,
		required: `"command"`, output: `"exec":{"type":"string"},"exit_code":{"type":"integer"},"status":{"type":"string"}`},
	{kind: kindLogs, class: "E0", about: "Returns output of a command in a sandbox from a position on.",
		example: `{"exec":"x-0123456789","stream":"stderr","wait_ms":1000}`,
		props: `"cursor":{"default":0,"minimum":0,"type":"integer"},"exec":{"maxLength":64,"type":"string"},"limit":{"default":65536,"maximum":262144,"minimum":1,"type":"integer"},` + sandboxProp +
			`,"stream":{"default":"stdout","enum":["stdout","stderr"],"type":"string"},"wait_ms":{"default":0,"description":"time to wait for output after the cursor","maximum":60000,"minimum":0,"type":"integer"}`,
		required: `"exec"`, output: `"cursor":{"type":"integer"},"status":{"type":"string"}`},
	{kind: kindWrite, class: "E1", about: "Writes a file in a sandbox.",
		example:  `{"content":"fair winds\n","path":"/work/note.txt"}`,
		props:    `"append":{"default":false,"type":"boolean"},` + contentProp + `"path":{"maxLength":4096,"minLength":1,"type":"string"},` + sandboxProp,
		required: `"path"`, output: `"bytes":{"type":"integer"}`},
	{kind: kindRead, class: "E0", about: "Returns the content of a file in a sandbox from an offset on.",
		example:  `{"path":"/work/note.txt"}`,
		props:    `"limit":{"default":65536,"maximum":262144,"minimum":1,"type":"integer"},"offset":{"default":0,"minimum":0,"type":"integer"},"path":{"maxLength":4096,"minLength":1,"type":"string"},` + sandboxProp,
		required: `"path"`, output: `"offset":{"type":"integer"},"size":{"type":"integer"}`},
	{kind: kindFiles, class: "E0", about: "Lists a folder in a sandbox.",
		example: `{"path":"/work"}`,
		props:   `"path":{"default":"/work","maxLength":4096,"minLength":1,"type":"string"},` + sandboxProp, output: `"files":{"type":"array"}`},
	{kind: kindList, class: "E0", about: "Lists the caller's sandboxes.",
		example: `{"ended":true}`,
		props:   `"ended":{"default":false,"description":"also those that ended in the last hour","type":"boolean"}`, output: `"sandboxes":{"type":"array"}`},
	{kind: kindKeepAlive, class: "E0", about: "Starts the idle time of a sandbox again. Its life does not become longer.",
		example: `{}`,
		props:   sandboxProp, output: `"expires":{"type":"string"}`},
	{kind: kindTerminate, class: "E1", about: "Ends a sandbox and removes its container.",
		example: `{}`,
		props:   sandboxProp, output: `"sandbox":{"type":"string"}`},
	{kind: kindCommand, class: "E1", ceiling: true, about: "Runs a command in the session's sandbox and returns its exit code and output.",
		example: `{"clone_path":"/work/repo","command":["make","test"]}`,
		props:   commandProp + `,` + rootProp + stdinProps, required: `"command"`, output: runOutput},
	{kind: kindPython, class: "E1", ceiling: true, about: "Runs Python code, or a command, in the session's sandbox, whose image has python3.",
		example: `{"code":"print(6 * 7)"}`,
		props:   commandProp + `,` + rootProp + stdinProps + `,"code":{"maxLength":262144,"type":"string"}`, output: runOutput},
	{kind: kindNode, class: "E1", ceiling: true, about: "Runs JavaScript code, or a command, in the session's sandbox, whose image has node.",
		example: `{"code":"console.log(6 * 7)"}`,
		props:   commandProp + `,` + rootProp + stdinProps + `,"code":{"maxLength":262144,"type":"string"}`, output: runOutput},
	{kind: kindFSRead, class: "E0", about: "Returns a file in the session's sandbox, of at most 256 KiB.",
		example: `{"clone_path":"/work/repo","path":"README.md"}`,
		props:   pathProp + rootProp, required: `"path"`, output: `"content":{"type":"string"},"encoding":{"type":"string"},"sha256":{"type":"string"},"size":{"type":"integer"}`},
	{kind: kindFSWrite, class: "E1", about: "Writes a file in the session's sandbox, and makes its folders.",
		example: `{"clone_path":"/work/repo","content":"fair winds\n","path":"notes/a.txt"}`,
		props:   contentProp + pathProp + rootProp, required: `"path"`, output: `"sha256":{"type":"string"},"size":{"type":"integer"}`},
	{kind: kindFSList, class: "E0", about: "Lists the files in a folder of the session's sandbox, at most 5000, without those in .git.",
		example: `{"clone_path":"/work/repo","glob":"*.go","recursive":true}`,
		props:   `"glob":{"description":"pattern of the last part of the names","maxLength":255,"type":"string"},"path":{"default":".","maxLength":4096,"type":"string"},"recursive":{"default":false,"type":"boolean"},` + rootProp,
		output:  `"count":{"type":"integer"},"files":{"items":{"type":"string"},"type":"array"},"truncated":{"type":"boolean"}`},
	{kind: kindFSPatch, class: "E1", about: "Replaces texts of a file in the session's sandbox. Nothing is changed if one of them does not occur.",
		example: `{"clone_path":"/work/repo","edits":[{"newText":"fair winds","oldText":"foul winds"}],"path":"notes/a.txt"}`,
		props: `"edits":{"items":{"additionalProperties":false,"properties":{"newText":{"type":"string"},"oldText":{"minLength":1,"type":"string"}},"required":["newText","oldText"],"type":"object"},"maxItems":100,"type":"array"},` +
			`"occurrences":{"description":"number of occurrences to replace; all without it","minimum":0,"type":"integer"},"replace":{"type":"string"},"search":{"type":"string"},` + pathProp + rootProp,
		required: `"path"`, output: `"applied":{"type":"integer"},"sha256":{"type":"string"}`},
	{kind: kindFSDelete, class: "E1", about: "Deletes a file or a folder in the session's sandbox.",
		example: `{"clone_path":"/work/repo","path":"notes"}`,
		props:   pathProp + rootProp, required: `"path"`, output: `"deleted":{"type":"boolean"},"path":{"type":"string"}`},
	{kind: kindGitCommit, class: "E1", about: "Commits the changes in a git repository in the session's sandbox.",
		example:  `{"clone_path":"/work/repo","message":"Add a note"}`,
		props:    `"all":{"default":true,"description":"also changes that are not staged","type":"boolean"},"author":{"default":"binnacle-agent","maxLength":200,"type":"string"},"email":{"default":"agent@binnacle.invalid","maxLength":200,"type":"string"},"message":{"maxLength":65536,"minLength":1,"type":"string"},` + rootProp,
		required: `"message"`, output: `"commit":{"type":"string"}`},
	{kind: kindGitDiff, class: "E0", about: "Returns the changes of tracked files in a git repository in the session's sandbox: those that are not staged or, with staged, those that are staged and not committed.",
		example: `{"clone_path":"/work/repo","staged":true}`,
		props:   `"staged":{"default":false,"type":"boolean"},` + rootProp, output: `"diff":{"type":"string"},"files_changed":{"type":"integer"}`},
	{kind: kindGitLog, class: "E0", about: "Returns the newest commits of a git repository in the session's sandbox.",
		example: `{"clone_path":"/work/repo","count":3}`,
		props:   `"count":{"default":10,"maximum":100,"minimum":1,"type":"integer"},` + rootProp, output: `"commits":{"type":"array"},"count":{"type":"integer"}`},
	{kind: kindRepoFetch, class: "E1", ceiling: true, egress: true, about: "Clones a git repository over HTTP or HTTPS into the session's sandbox, and describes it.",
		example: `{"url":"https://git.example.com/team/tides.git"}`,
		props: `"clone_path":{"default":"/work/repo","description":"folder in the sandbox, which is empty or does not exist","maxLength":4096,"type":"string"},"depth":{"default":1,"description":"number of commits; 0 means all","maximum":100000,"minimum":0,"type":"integer"},` +
			`"ref":{"default":"","description":"branch, tag, or id of a commit; without it the default branch","maxLength":255,"type":"string"},` + sandboxProp + `,"url":{"description":"address of the repository","maxLength":2048,"minLength":1,"type":"string"}`,
		required: `"url"`, output: `"branch":{"type":"string"},"clone_path":{"type":"string"},"commit":{"type":"string"},"files":{"type":"integer"},"tree":{"items":{"type":"string"},"type":"array"},"truncated":{"type":"boolean"},"url":{"type":"string"}`},
	{kind: kindRepoMap, class: "E0", about: "Returns the lines that begin definitions in a git repository in the session's sandbox, by file, as many as fit.",
		example: `{"clone_path":"/work/repo","token_budget":500}`,
		props:   `"token_budget":{"default":1500,"description":"length of the map, in tokens of 4 bytes","maximum":60000,"minimum":50,"type":"integer"},` + rootProp, output: `"files_covered":{"type":"integer"},"files_total":{"type":"integer"},"map":{"type":"string"},"tokens_estimated":{"type":"integer"},"truncated":{"type":"boolean"}`},
	{kind: kindRepoPush, class: "E3", ceiling: true, egress: true, about: "Pushes the current commit of a git repository in the session's sandbox to a branch of its remote repository.",
		example: `{"branch":"notes","clone_path":"/work/repo"}`,
		props:   `"branch":{"default":"","description":"without it the current one","maxLength":255,"type":"string"},"force":{"default":false,"description":"replace the remote branch, if it is as it was when it was fetched","type":"boolean"},"remote":{"default":"origin","maxLength":255,"minLength":1,"type":"string"},` + rootProp,
		output:  `"branch":{"type":"string"},"commit":{"type":"string"},"url":{"type":"string"}`},
}

// Properties and outputs of several tools.
const (
	commandProp   = `"command":{"items":{"maxLength":65536,"type":"string"},"maxItems":256,"minItems":1,"type":"array"}`
	pathProp      = `"path":{"description":"relative to clone_path","maxLength":4096,"minLength":1,"type":"string"},`
	rootProp      = `"clone_path":{"default":"/work","description":"folder in the sandbox","maxLength":4096,"type":"string"},` + sandboxProp
	stdinFromProp = `,"stdin_artifact":{"description":"id of an artifact of the caller, of at most 32 MiB, instead of stdin","maxLength":67,"type":"string"}`
	stdinProps    = `,"stdin":{"maxLength":262144,"type":"string"}` + stdinFromProp + `,"timeout_ms":{"maximum":600000,"minimum":1,"type":"integer"}`
	terminalProp  = `,"terminal":{"additionalProperties":false,"description":"size of the terminal that the command gets, for sandbox.attach; its standard error is then part of its standard output","properties":{"columns":{"maximum":1000,"minimum":1,"type":"integer"},"rows":{"maximum":1000,"minimum":1,"type":"integer"}},"required":["columns","rows"],"type":"object"}`
	contentProp   = `"base64":{"default":false,"type":"boolean"},"content":{"maxLength":524288,"type":"string"},"content_artifact":{"description":"id of an artifact of the caller, of at most 32 MiB, instead of content","maxLength":67,"type":"string"},`
	runOutput     = `"exit_code":{"type":"integer"},"stderr":{"type":"string"},"stdout":{"type":"string"},"truncated":{"type":"boolean"}`
)

// tools returns the documents of the tools that the configuration offers.
func (c *HeldConfig) tools() (out []contract.Tool) {
	for _, t := range heldTools {
		if !t.egress || len(c.Hosts) > 0 || t.kind == kindEgress && c.egress() {
			out = append(out, t.tool(c))
		}
	}
	return out
}

// HeldTools returns the documents of all tools for held sandboxes, without the hosts that a
// configuration names, and the arguments of an example call of each tool, by the tool's name.
func HeldTools() (tools []contract.Tool, examples map[string]string) {
	examples = map[string]string{}
	for _, t := range heldTools {
		tools = append(tools, t.tool(&HeldConfig{}))
		examples[tools[len(tools)-1].Tool] = t.example
	}
	return tools, examples
}

// tool returns the tool document with the hosts of the configuration.
func (t heldTool) tool(cfg *HeldConfig) contract.Tool {
	name := t.kind[len("tool."):]
	out := contract.Tool{Description: t.about, Class: t.class, Executor: services.SessionRunner, Kind: t.kind, Tool: name, Version: "v1",
		InputSchema:  canonical(`{"additionalProperties":false,"properties":{` + t.props + `},"required":[` + t.required + `],"type":"object"}`),
		OutputSchema: canonical(`{"additionalProperties":true,"properties":{` + t.output + `},"type":"object"}`)}
	if t.ceiling {
		out.Sandbox = &contract.Sandbox{CPUMillis: 1000, MemoryMiB: 512, OutputBytes: outputBytes, Pids: 128, Tier: heldTier, WallMS: maxExecMS}
	}
	if t.egress {
		out.Egress, out.Reserve = cfg.Hosts, &contract.Amounts{EgressBytes: execEgress}
		if t.kind == kindEgress {
			out.EgressRules, _ = cfg.modelRules() // a service with an invalid URL does not start
		} else if rules := gitRules(cfg.Hosts, cfg.GitSecret, t.kind == kindRepoPush); len(rules) > 0 {
			out.Egress, out.EgressRules = nil, rules
		}
	}
	return out
}

// egress reports whether commands in held sandboxes may have egress.
func (c *HeldConfig) egress() bool { return len(c.Hosts) > 0 || c.ModelURL != "" }

// gitRules returns the rules that permit the requests with which git reads the repositories on
// hosts and, if push is true, writes them; and that add a secret to them unless it is empty. A
// host with another port than 443 is reached without TLS, and gets the secret only if its
// address is in egress-broker.networks. There is no rule for the host "*".
func gitRules(hosts []string, secret string, push bool) (out []contract.EgressRule) {
	paths := []string{"/**/info/refs", "/**/git-upload-pack"}
	if push {
		paths = append(paths, "/**/git-receive-pack")
	}
	var credential *contract.EgressCredential
	if secret != "" {
		credential = &contract.EgressCredential{Secret: secret, Header: "Authorization", Format: "Basic {}"}
	}
	for _, h := range hosts {
		if h == "*" {
			continue
		}
		r := contract.EgressRule{Host: h, Mode: contract.EgressTerminate, Paths: paths, Credential: credential}
		if host, port, err := net.SplitHostPort(h); err == nil {
			n, err := strconv.ParseInt(port, 10, 64)
			if r.Host, r.Port = host, n; err == nil && n != 443 {
				r.Mode = contract.EgressHTTP
			}
		}
		out = append(out, r)
	}
	return out
}

// canonical returns a schema in canonical form. It returns a schema that is not JSON
// unchanged; TestHeldTools checks that there is none.
func canonical(schema string) contract.Raw {
	out, err := canon.Transform(nil, []byte(schema))
	if err != nil {
		return contract.Raw(schema)
	}
	return out
}
