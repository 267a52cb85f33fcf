package llm

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/tidwall/sjson"
)

// Withhold takes the tools that go by any of the names out of a request, as Peek
// reads it, and leaves every other byte as it is. A tool that cannot be taken
// out by itself, such as those of a stored prompt, is an error.
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
				body, err = sjson.DeleteBytes(body, o.member)
				left = left && o.member != "tools" && o.member != "functions"
			} else {
				body, err = sjson.SetRawBytes(body, o.member, list)
			}
		case o.member == "tool_choice" || o.member == "function_call" || o.member == "web_search_options" || o.member == "search_parameters":
			body, err = sjson.DeleteBytes(body, o.member)
		default:
			return nil, fmt.Errorf("%s: offers tools that are withheld here, and cannot be sent without them", o.member)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, f := range []string{"tool_choice", "parallel_tool_calls", "function_call"} {
		if !left {
			if body, err = sjson.DeleteBytes(body, f); err != nil {
				return nil, err
			}
		}
	}
	return body, nil
}

// keep is the list of the tools that stay; nil: none does.
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
			var err error
			if raw, err = sjson.SetRawBytes(bytes.Clone(raw), "tools", inner); err != nil {
				continue // what cannot be written is not offered
			}
		}
		kept = append(kept, raw)
	}
	if kept == nil {
		return nil
	}
	return append(append([]byte("["), bytes.Join(kept, []byte(","))...), ']')
}
