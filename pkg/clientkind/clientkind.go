// Package clientkind names the kinds of the actions of coding agents, which their clients
// execute themselves, and declares the tool of each. A hook of a client proposes the
// actions with normalised args, so that one rule applies to every client.
package clientkind

import (
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// The kinds of actions. A call of a tool of an MCP server has a kind of its own, which MCP
// returns.
const (
	Shell     = "client.shell"
	FileRead  = "client.file.read"
	FileWrite = "client.file.write"
	FileEdit  = "client.file.edit"
	WebFetch  = "client.web.fetch"
	WebSearch = "client.web.search"
	Subagent  = "client.subagent"
	Session   = "client.session" // an event of a session that causes no effect, such as a prompt
	Other     = "client.other"   // a tool of the client that has no kind of its own

	Prefix    = "client." // prefix of every kind
	mcp       = "client.mcp"
	mcpPrefix = mcp + "."
)

// MCP returns the kind of the calls of a tool of an MCP server. Characters of the names that are
// not ASCII letters, digits, "_" or "-" are replaced by "_", as is an empty name, so different
// tools may have the same kind; the args contain the exact names.
func MCP(server, tool string) string { return mcpPrefix + token(server) + "." + token(tool) }

func token(s string) string {
	if s == "" {
		return "_"
	}
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, s)
}

// Family returns the kind under which the tool of a kind is registered: one tool covers
// the calls of all tools of MCP servers. For every other kind it returns "".
func Family(kind string) string {
	if strings.HasPrefix(kind, mcpPrefix) {
		return mcp
	}
	return ""
}

// The values of the member zone of a path.
const (
	ZoneWorkspace = "workspace" // in the workspace
	ZoneRoot      = "root"      // the workspace itself
	ZoneAbove     = "above"     // a folder that contains the workspace
	ZoneOutside   = "outside"
	ZoneDevice    = "device" // a device that keeps nothing, such as /dev/null
)

// common are the properties that the args of all kinds have.
const common = `"agent":{"type":"string"},"cwd":{"type":"string"},"subagent":{"type":"string"},"workspace":{"type":"string"}`

const paths = `{"type":"array","items":{"type":"object","additionalProperties":false,"required":["guarded","path","secret","zone"],"properties":{"guarded":{"type":"boolean"},"path":{"type":"string"},"secret":{"type":"boolean"},"zone":{"enum":["workspace","root","above","outside","device"]}}}}`

const texts = `{"type":"array","items":{"type":"string"}}`

// declared lists the tools: kind, class of the effect, description, the names of the
// required args besides agent and workspace, and the schemas of the args besides common.
var declared = []struct{ kind, class, description, required, properties string }{
	{Shell, "E3", "A command line that a coding agent runs.", `"command","commands","hosts","opaque","reads","writes"`,
		`"command":{"type":"string"},"commands":{"type":"array","items":{"type":"object","additionalProperties":false,"required":["args","effect","program"],"properties":{"args":` + texts + `,"effect":{"type":"string"},"program":{"type":"string"}}}},"hosts":` + texts + `,"opaque":` + texts + `,"reads":` + paths + `,"writes":` + paths},
	{FileRead, "E0", "A file or folder that a coding agent reads.", `"paths"`, `"paths":` + paths},
	{FileWrite, "E2", "A file that a coding agent writes.", `"paths"`, `"content_digest":{"type":"string"},"paths":` + paths},
	{FileEdit, "E2", "Files that a coding agent changes.", `"paths"`, `"content_digest":{"type":"string"},"paths":` + paths},
	{WebFetch, "E1", "A page that a coding agent fetches.", `"host","url"`, `"host":{"type":"string"},"url":{"type":"string"}`},
	{WebSearch, "E1", "A search on the web by a coding agent.", `"query"`, `"query":{"type":"string"}`},
	{Subagent, "E1", "An agent that a coding agent starts.", `"prompt_digest","type"`, `"prompt_digest":{"type":"string"},"type":{"type":"string"}`},
	{Session, "E0", "An event of a session of a coding agent.", `"event"`, `"call_id":{"type":"string"},"event":{"type":"string"},"input_digest":{"type":"string"},"output_digest":{"type":"string"},"prompt_digest":{"type":"string"},"transcript_digest":{"type":"string"}`},
	{Other, "E3", "A tool of a coding agent that has no kind of its own.", `"input","tool"`, `"input":{},"tool":{"type":"string"}`},
	{mcp, "E3", "A tool of an MCP server that a coding agent calls itself.", `"input","server","tool"`, `"input":{},"server":{"type":"string"},"tool":{"type":"string"}`},
}

// outcome is the schema of the outputs that hooks report. The member released
// is set in the output of a call that was proposed without the intention to
// report its outcome.
const outcome = `{"type":"object","additionalProperties":false,"properties":{"bytes":{"type":"integer"},"content":{},"files":{"type":"array","items":{"type":"object","additionalProperties":false,"required":["path"],"properties":{"after":{"type":"string"},"after_text":{"type":"string"},"before":{"type":"string"},"before_text":{"type":"string"},"path":{"type":"string"},"stated":{"type":"boolean"}}}},"files_error":{"type":"string"},"files_omitted":{"type":"integer"},"input_digest":{"type":"string"},"output_digest":{"type":"string"},"ran_digest":{"type":"string"},"released":{"const":true}}}`

// Tools returns the tools of the kinds, for the executor that registers them. The caller
// owns the slice.
func Tools(executor string) []contract.Tool {
	var out []contract.Tool
	for _, d := range declared {
		schema := fmt.Sprintf(`{"type":"object","additionalProperties":false,"required":["agent","workspace",%s],"properties":{%s,%s}}`, d.required, common, d.properties)
		out = append(out, contract.Tool{Description: d.description, Class: d.class, Executor: executor, Kind: d.kind, Tool: d.kind, Version: "v1",
			InputSchema: canonical(schema), OutputSchema: canonical(outcome)})
	}
	return out
}

// canonical returns the canonical form of a schema of this package.
func canonical(doc string) contract.Raw {
	b, err := canon.Transform(nil, []byte(doc))
	if err != nil {
		panic(err) // the schemas of this package are JSON; TestTools calls Tools
	}
	return b
}
