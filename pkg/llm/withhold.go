package llm

import (
	"bytes"
	"fmt"
	"slices"
)

// Withhold removes the tools with any of the names from a request. It also removes
// tool_choice and function_call if they name such a tool, and these two and
// parallel_tool_calls if it removes every tool of the member tools or functions. Other
// members are unchanged. Withhold does not change body, but returns body itself if there
// is nothing to remove. Its error is that of Peek, or means that a tool cannot be
// removed separately, such as a tool of a stored prompt.
func Withhold(kind string, body []byte, names []string) ([]byte, error) {
	p, err := read(kind, body)
	if err != nil {
		return nil, err
	}
	gone := func(t *tool) bool {
		return slices.ContainsFunc(t.names, func(n string) bool { return slices.Contains(names, n) })
	}
	left := true
	for _, o := range p.offers {
		if !slices.ContainsFunc(o.tools, func(t tool) bool { return gone(&t) }) {
			continue
		}
		switch {
		case o.list:
			var list []byte
			if list = keep(p.doc, o.tools, gone); list == nil {
				body = edit(body, o.member, nil)
				left = left && o.member != "tools" && o.member != "functions"
			} else {
				body = edit(body, o.member, list)
			}
		case o.member == "tool_choice" || o.member == "function_call" || o.member == "web_search_options" || o.member == "search_parameters":
			body = edit(body, o.member, nil)
		default:
			return nil, fmt.Errorf("%s: offers tools that are withheld here, and cannot be sent without them", o.member)
		}
	}
	for _, f := range []string{"tool_choice", "parallel_tool_calls", "function_call"} {
		if !left {
			body = edit(body, f, nil)
		}
	}
	return body, nil
}

// keep returns the JSON list of the tools that remain, or nil if none does. If only some
// tools of a namespace are withheld, the namespace remains with its other tools.
func keep(doc []byte, tools []tool, gone func(*tool) bool) []byte {
	var kept [][]byte
	for i := range tools {
		t := &tools[i]
		raw := doc[t.from:t.to]
		switch {
		case !gone(t):
		case t.inner == nil:
			continue
		default:
			inner := keep(doc, t.inner, gone)
			if inner == nil {
				continue
			}
			raw = edit(raw, "tools", inner)
		}
		kept = append(kept, raw)
	}
	if kept == nil {
		return nil
	}
	return append(append([]byte("["), bytes.Join(kept, []byte(","))...), ']')
}

// edit replaces the value of a member of an object, or removes the member and a comma
// beside it if value is nil. Every other byte is unchanged, except that blanks beside a
// removed member may be removed too. Without such a member it returns doc.
func edit(doc []byte, member string, value []byte) []byte {
	i, comma := blank(doc, blank(doc, 0)+1), -1
	for doc[i] != '}' {
		if doc[i] == ',' {
			comma = i
			i = blank(doc, i+1)
		}
		end := closing(doc, i)
		from := blank(doc, blank(doc, end+1)+1)
		to := skip(doc, from)
		switch {
		case unquote(doc[i:end+1]) != member:
		case value != nil:
			return slices.Concat(doc[:from], value, doc[to:])
		case comma >= 0:
			return slices.Concat(doc[:comma], doc[to:])
		default:
			if to = blank(doc, to); doc[to] == ',' {
				to = blank(doc, to+1)
			}
			return slices.Concat(doc[:i], doc[to:])
		}
		i = blank(doc, to)
	}
	return doc
}
