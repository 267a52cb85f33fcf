package work

import (
	"fmt"
	"slices"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// The kinds of calls for artifacts.
const (
	kindPut     = "tool.artifact.put"
	kindGet     = "tool.artifact.get"
	kindInfo    = "tool.artifact.info"
	kindList    = "tool.artifact.list"
	kindLink    = "tool.artifact.link"
	kindHold    = "tool.artifact.hold"
	kindRelease = "tool.artifact.release"
	kindDelete  = "tool.artifact.delete"
)

// Limits of the arguments and outputs of calls for artifacts.
const (
	maxInline = 1 << 20   // bytes of content in the arguments of a call, as text or base64
	maxPart   = 256 << 10 // bytes of content in the output of a call
)

// artifactProp is the property that names an artifact.
const artifactProp = `"artifact":{"description":"id of the artifact","pattern":"^` + contract.IDArtifact + `[0-9a-f]{64}$","type":"string"}`

// exampleArtifact is the id of an artifact in the examples.
const exampleArtifact = contract.IDArtifact + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// digestProp returns the property for a digest.
func digestProp(name, about string) string {
	return fmt.Sprintf(`%q:{"description":%q,"pattern":"^sha256:[0-9a-f]{64}$","type":"string"}`, name, about)
}

// tool describes one tool for artifacts or memory. Its input schema has the properties props,
// of which required are required.
type tool struct {
	kind, class, about, props, required, output string
	example                                     string // arguments of a call, for the documentation
	again                                       bool   // the call may run again after a crash
}

var artifactTools = []tool{
	{kind: kindPut, class: "E1", again: true, about: "Stores content as an artifact: text or base64 in the arguments, or an upload that the gateway received.",
		example: `{"content":"fair winds","media_type":"text/plain","name":"note.txt"}`,
		props: `"base64":{"default":false,"description":"content is base64","type":"boolean"},"content":{"maxLength":1048576,"type":"string"},` + digestProp("digest", "SHA-256 of the uploaded content") + `,` +
			digestProp("index", "SHA-256 of the index of the uploaded content") + `,"inputs":{"description":"artifacts that it was made from","items":{"pattern":"^` + contract.IDArtifact + `[0-9a-f]{64}$","type":"string"},"maxItems":64,"type":"array"},` +
			`"labels":{"description":"NAME=VALUE","items":{"pattern":"` + artifact.LabelPattern + `","type":"string"},"maxItems":16,"type":"array"},` +
			`"media_type":{"default":"application/octet-stream","maxLength":255,"pattern":"^[!-~]+/[ -~]+$","type":"string"},"name":{"default":"artifact","maxLength":255,"minLength":1,"pattern":"^[^/\\x00-\\x1f]+$","type":"string"},` +
			`"retain_s":{"default":0,"description":"time in seconds after which it may be removed; 0 means no end","maximum":3153600000,"minimum":0,"type":"integer"},"size":{"minimum":0,"type":"integer"},` +
			`"upload":{"description":"id of an upload that the gateway received","maxLength":64,"pattern":"^` + contract.IDUpload + `[A-Za-z0-9_-]+$","type":"string"}`,
		output: `"artifact":{"type":"string"},"size":{"type":"integer"}`},
	{kind: kindGet, class: "E0", again: true, about: "Returns content of an artifact from an offset on, at most 256 KiB.",
		example: `{"artifact":"` + exampleArtifact + `"}`,
		props:   artifactProp + `,"limit":{"default":65536,"maximum":262144,"minimum":1,"type":"integer"},"offset":{"default":0,"minimum":0,"type":"integer"}`, required: `"artifact"`,
		output: `"artifact":{"type":"string"},"size":{"type":"integer"}`},
	{kind: kindInfo, class: "E0", again: true, about: "Describes an artifact: size, type, owner, the call that made it, and the artifacts that it was made from.",
		example: `{"artifact":"` + exampleArtifact + `"}`, props: artifactProp, required: `"artifact"`, output: `"artifact":{"type":"string"}`},
	{kind: kindList, class: "E0", again: true, about: "Lists the artifacts of the caller, newest first.",
		example: `{"label":"team=books","limit":20}`,
		props:   `"before":{"description":"id of an upload, after which the list begins","maxLength":64,"type":"string"},"label":{"description":"NAME=VALUE: only artifacts with this label","pattern":"` + artifact.LabelPattern + `","type":"string"},"limit":{"default":100,"maximum":1000,"minimum":1,"type":"integer"}`, output: `"artifacts":{"type":"array"}`},
	{kind: kindLink, class: "E1", again: true, about: "Permits a signed link to an artifact, which anyone may use until it expires. The gateway makes the link.",
		example: `{"artifact":"` + exampleArtifact + `","ttl_s":600}`,
		props:   artifactProp + `,"ttl_s":{"default":900,"description":"time in seconds for which the link is valid","maximum":604800,"minimum":1,"type":"integer"}`, required: `"artifact"`, output: `"expires":{"type":"string"}`},
	{kind: kindHold, class: "E1", again: true, about: "Puts an artifact on hold: it is not removed before its release.",
		example: `{"artifact":"` + exampleArtifact + `","reason":"audit of 2026"}`, props: artifactProp + `,"reason":{"default":"","maxLength":1024,"type":"string"}`, required: `"artifact"`, output: `"artifact":{"type":"string"}`},
	{kind: kindRelease, class: "E1", again: true, about: "Ends a hold of an artifact: the caller's or, with policy:admin, that of another principal.",
		example: `{"artifact":"` + exampleArtifact + `"}`, props: artifactProp + `,"holder":{"maxLength":255,"type":"string"}`, required: `"artifact"`, output: `"artifact":{"type":"string"}`},
	{kind: kindDelete, class: "E1", again: true, about: "Deletes the caller's uploads of an artifact.",
		example: `{"artifact":"` + exampleArtifact + `"}`, props: artifactProp, required: `"artifact"`, output: `"artifact":{"type":"string"}`},
}

// tools returns the documents of the service's tools.
func tools() []contract.Tool {
	var out []contract.Tool
	for _, t := range slices.Concat(artifactTools, memoryTools) {
		out = append(out, contract.Tool{Description: t.about, Class: t.class, Executor: services.Work, Kind: t.kind, Tool: t.kind[len("tool."):], Version: "v1", Rerunnable: t.again,
			InputSchema:  contract.Raw(fmt.Sprintf(`{"additionalProperties":false,"properties":{%s},"required":[%s],"type":"object"}`, t.props, t.required)),
			OutputSchema: contract.Raw(fmt.Sprintf(`{"additionalProperties":true,"properties":{%s},"type":"object"}`, t.output))})
	}
	return out
}

// Tools returns the documents of the tools for artifacts and memory, and the arguments of an
// example call of each tool, by the tool's name.
func Tools() (docs []contract.Tool, examples map[string]string) {
	examples = map[string]string{}
	for _, t := range slices.Concat(artifactTools, memoryTools) {
		examples[t.kind[len("tool."):]] = t.example
	}
	return tools(), examples
}
