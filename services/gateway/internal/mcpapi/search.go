package mcpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// The tools that a virtual server with search lists instead of its own: one finds tools by
// words, and the other calls one of them. So a model reads the schemas of the tools that it
// needs, instead of thousands.
const (
	searchName = "search_tools"
	callName   = "call_tool"
)

// Numbers of tools that searchName returns.
const (
	searchLimit = 10 // unless the request sets another one
	searchMax   = 50
)

// maxQuery is the maximum length of a query in bytes.
const maxQuery = 1024

// searchTools are the tools that are listed at a virtual server with search.
var searchTools = []*mcp.Tool{
	{Name: callName, Description: "Calls a tool that " + searchName + " has found. The result is that of the tool.",
		InputSchema: json.RawMessage(`{"additionalProperties":false,"properties":{"arguments":{"description":"arguments of the tool, as its input schema requires","type":"object"},"name":{"description":"name of the tool","type":"string"}},"required":["name"],"type":"object"}`)},
	{Name: searchName, Description: "Finds tools by words of their names, descriptions and parameters, and returns them with their input schemas, the best match first. Call them with " + callName + ".",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
		InputSchema: json.RawMessage(`{"additionalProperties":false,"properties":{"limit":{"default":10,"maximum":50,"minimum":1,"type":"integer"},"query":{"description":"words, such as: create issue","maxLength":1024,"type":"string"}},"required":["query"],"type":"object"}`)},
}

// unwrap returns the name and the arguments in the arguments of a call of callName, or the
// reason why they are invalid.
func unwrap(raw []byte) (name string, args []byte, reason string) {
	var in struct {
		Name      *string
		Arguments json.RawMessage
	}
	if json.Unmarshal(raw, &in) != nil || in.Name == nil {
		return "", nil, "arguments.name: name the tool to call"
	}
	if len(in.Arguments) == 0 || string(in.Arguments) == "null" {
		in.Arguments = json.RawMessage(`{}`)
	}
	if in.Arguments[0] != '{' {
		return "", nil, "arguments.arguments: want an object"
	}
	return *in.Name, in.Arguments, ""
}

// found is the result of searchName.
type found struct {
	Tools []*mcp.Tool `json:"tools"`
	Total int         `json:"total"` // number of tools that match
}

// search handles a call of searchName. It is neither proposed nor recorded, because it returns
// only tools that tools/list would return for a virtual server without search.
func search(ctx context.Context, e *edge, q toolCall) (*mcp.CallToolResult, error) {
	visible, err := e.visible(ctx, q.extra, q.session)
	if err != nil {
		return nil, err
	}
	return e.catalog().words().answer(q.args, visible), nil
}

// answer returns the result of searchName for its arguments, with the tools whose kinds are
// visible. A nil visible means all.
func (x *index) answer(raw []byte, visible func(kind string) bool) *mcp.CallToolResult {
	var in struct {
		Query string
		Limit int
	}
	if err := json.Unmarshal(raw, &in); err != nil || strings.TrimSpace(in.Query) == "" {
		return toolError(contract.CodeInvalidInput, "arguments.query: give words of names, descriptions or parameters of tools", nil)
	}
	if len(in.Query) > maxQuery {
		return toolError(contract.CodeInvalidInput, "arguments.query: want at most 1024 bytes", nil)
	}
	if in.Limit < 0 || in.Limit > searchMax {
		return toolError(contract.CodeInvalidInput, "arguments.limit: want 1 to 50", nil)
	}
	at := filter(x.find(in.Query), visible, toolKind)
	out := found{Tools: at[:min(len(at), cmp.Or(in.Limit, searchLimit))], Total: len(at)}
	b, err := json.Marshal(out)
	if err != nil {
		return toolError(contract.CodeInternal, err.Error(), nil)
	}
	return plain(b)
}

// Weights of the parts of a tool in which a word is found.
const (
	inName        = 4
	inParameter   = 2
	inDescription = 1
)

// index finds tools by words. It is not modified.
type index struct {
	tools []*mcp.Tool
	words []map[string]int // by tool: the greatest weight of each word
	count map[string]int   // by word: number of tools
}

// newIndex returns the index of tools.
func newIndex(tools []*mcp.Tool) *index {
	x := &index{tools: tools, count: map[string]int{}}
	for _, t := range tools {
		of := map[string]int{}
		add := func(text string, weight int) {
			for _, w := range wordsOf(text) {
				of[w] = max(of[w], weight)
			}
		}
		add(t.Name, inName)
		add(t.Title, inName)
		add(t.Description, inDescription)
		var schema struct {
			Properties map[string]struct{ Description string }
		}
		if raw, ok := t.InputSchema.(json.RawMessage); ok && json.Unmarshal(raw, &schema) == nil {
			for name, p := range schema.Properties {
				add(name, inParameter)
				add(p.Description, inDescription)
			}
		}
		for w := range of {
			x.count[w]++
		}
		x.words = append(x.words, of)
	}
	return x
}

// find returns the tools that have a word of a query, the best match first. A word counts more
// the fewer tools have it.
func (x *index) find(query string) []*mcp.Tool {
	type match struct {
		tool  *mcp.Tool
		score float64
	}
	wanted := wordsOf(query)
	var all []match
	for i, t := range x.tools {
		score := 0.0
		for _, w := range wanted {
			if n := x.words[i][w]; n > 0 {
				score += float64(n) * math.Log1p(float64(len(x.tools))/float64(x.count[w]))
			}
		}
		if score > 0 {
			all = append(all, match{t, score})
		}
	}
	slices.SortStableFunc(all, func(a, b match) int { return cmp.Compare(b.score, a.score) })
	out := make([]*mcp.Tool, len(all))
	for i, m := range all {
		out[i] = m.tool
	}
	return out
}

// wordsOf returns the different words of a text in lower case. Words are divided by
// characters that are neither letters nor digits, and before an upper-case letter that
// follows a lower-case one. The final "s" of a word with more than three bytes is removed,
// unless the word ends in "ss", so that a plural counts as its singular.
func wordsOf(text string) []string {
	var out []string
	seen := map[string]bool{}
	var b strings.Builder
	end := func() {
		w := b.String()
		b.Reset()
		if len(w) > 3 && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") {
			w = strings.TrimSuffix(w, "s")
		}
		if w != "" && !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	small := false
	for _, r := range text {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) || small && unicode.IsUpper(r) {
			end()
		}
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			b.WriteRune(unicode.ToLower(r))
		}
		small = unicode.IsLower(r)
	}
	end()
	return out
}
