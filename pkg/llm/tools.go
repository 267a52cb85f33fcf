package llm

import (
	"fmt"
	"slices"
	"strings"
)

// tool is one offered tool: the names by which policy decides, and its place in the
// request, doc[from:to].
type tool struct {
	names    []string
	from, to int
	inner    []tool // tools of a namespace; nil for any other tool
}

// tools reads the list of tools at r.i. null counts as an empty list. A value of any
// other type is refused, and so is a list of more than maxTools tools.
func (r *reader) tools(namespace string) (out []tool) {
	switch r.next() {
	case 'n':
		r.skip()
	case '[':
		r.list(func(int) {
			if len(out) >= maxTools {
				r.refuse("more than %d tools", maxTools)
				return
			}
			out = append(out, r.tool(namespace))
		})
	default:
		r.refuse("want a list")
	}
	return out
}

// toolRead holds the members of a tool that determine its name.
type toolRead struct {
	typ, name, label       string
	function, custom       string // names in the members function and custom
	hasFunction, hasCustom bool
	inner, allowed         int    // indexes of the values of tools and allowed_tools; 0: absent
	foreign                string // name of a member that names tools in another API
	members                int
	unknown                string // name of a member that toolShape does not list
}

// tool reads the tool at r.i and determines the names by which policy decides. A
// function or custom tool has its own name, after the namespace and a dot if it is in a
// namespace. A tool that the provider defines has its type as name, and also its own
// name if it has one, so that a rule applies in every API; without a type and a name, it
// has the name of its only member. An MCP server that the provider calls has its type
// and "mcp" as names, and "mcp.LABEL.TOOL" for each tool, with the server's label; TOOL
// is "*" if the request does not list the tools. A namespace has the names of its tools.
func (r *reader) tool(namespace string) (out tool) {
	if r.next() != '{' {
		r.refuse("want an object")
		return out
	}
	out.from = r.i
	var t toolRead
	r.object(toolShape, func(k known) bool { t.members++; return r.toolMember(&t, k.name) }, func(name []byte) {
		t.members++
		t.unknown = string(name)
		r.skip()
	})
	if r.err != nil {
		return out
	}
	out.to = r.i
	if t.typ == "namespace" {
		r.namespace(&t, namespace, &out)
		return out
	}
	hosted := r.hosted
	r.hosted = false
	out.names = r.nameOf(&t)
	if namespace != "" && (r.hosted || t.typ != "" && t.typ != "function" && t.typ != "custom") {
		r.refuse("a namespace holds functions and custom tools")
	}
	r.hosted = r.hosted || hosted
	if namespace != "" {
		for i := range out.names {
			out.names[i] = namespace + "." + out.names[i]
		}
	}
	return out
}

// namespace reads the tools of a namespace into out.inner and their names into
// out.names. Namespaces cannot be nested.
func (r *reader) namespace(t *toolRead, outer string, out *tool) {
	if outer != "" || t.hasFunction || t.hasCustom || t.name == "" || t.inner == 0 {
		r.refuse("a namespace needs a name and tools, and cannot be nested")
		return
	}
	r.again(t.inner, func() {
		r.push(step{name: "tools"})
		out.inner = r.tools(t.name)
		r.deep--
	})
	for _, in := range out.inner {
		out.names = append(out.names, in.names...)
	}
}

// nonEmpty reads a name into *to. It refuses an empty name and any value that is not a
// string; null sets *to to "".
func (r *reader) nonEmpty(to *string) {
	s, ok, null := r.text()
	if !ok && !null || ok && s == "" {
		r.refuse("want a name")
	}
	*to = s
}

// toolMember reads a member of a tool if the tool's name may depend on it. It reports
// whether it consumed the value.
func (r *reader) toolMember(t *toolRead, name string) bool {
	switch name {
	case "type":
		r.nonEmpty(&t.typ)
	case "name":
		r.nonEmpty(&t.name)
	case "server_label", "mcp_server_name":
		r.nonEmpty(&t.label)
	case "function":
		r.wrapped(&t.function, &t.hasFunction)
	case "custom":
		r.wrapped(&t.custom, &t.hasCustom)
	case "tools":
		t.inner = r.i
		r.skip()
	case "allowed_tools":
		t.allowed = r.i
		r.skip()
	case "functionDeclarations", "function_declarations", "toolSpec", "tool_spec":
		t.foreign = name
		r.skip()
	default:
		return false
	}
	return true
}

// wrapped reads the name from the object that defines a tool, such as the member
// function, and sets *has. It treats null as absent, and refuses any other value and an
// object without a name.
func (r *reader) wrapped(to *string, has *bool) {
	if r.next() != '{' {
		if raw := r.skip(); raw[0] != 'n' {
			r.refuse("want an object")
		}
		return
	}
	*has = true
	r.object(function, func(k known) bool {
		if k.name == "name" {
			r.nonEmpty(to)
			return true
		}
		return false
	}, nil)
	if *to == "" {
		r.refuse("has no name")
	}
}

// nameOf returns the names of a tool. It refuses a tool that has no name or whose name
// is ambiguous.
func (r *reader) nameOf(t *toolRead) []string {
	if why := t.ambiguous(); why != "" {
		r.refuse("the tool can be named in more than one way: %s", why)
		return nil
	}
	switch {
	case t.hasFunction:
		return []string{t.function}
	case t.hasCustom:
		return []string{t.custom}
	}
	switch t.typ {
	case "mcp", "mcp_toolset":
		return r.server(t)
	case "", "function", "custom":
		return r.plain(t)
	}
	r.hosted = r.hosted || !clients(t.typ)
	if t.name != "" && t.name != t.typ {
		return []string{t.typ, t.name}
	}
	return []string{t.typ}
}

// ambiguous returns why a tool could have more than one name, or "".
func (t *toolRead) ambiguous() string {
	wrapped := t.hasFunction || t.hasCustom
	switch {
	case t.foreign != "":
		return t.foreign + " belongs to another API"
	case t.inner != 0:
		return "tools within a tool need the type namespace"
	case t.hasFunction && t.hasCustom:
		return "function and custom"
	case wrapped && t.name != "":
		return "name, and a name in function or custom"
	case t.hasFunction && t.typ != "" && t.typ != "function", t.hasCustom && t.typ != "custom":
		return fmt.Sprintf("its type is %q, and it holds function or custom", t.typ)
	}
	return ""
}

// plain returns the name of a tool that is not of a provider's type: the member name or,
// if the tool has no type and its only member is unknown, the name of that member. It
// refuses a tool without a name.
func (r *reader) plain(t *toolRead) []string {
	if t.name != "" {
		return []string{t.name}
	}
	if t.typ == "" && t.members == 1 && t.unknown != "" { // Gemini: {"google_search":{}}
		r.hosted = true
		return []string{t.unknown}
	}
	r.refuse("the tool has no name")
	return nil
}

// clients reports whether the caller, and not the provider, executes the tools of a type
// that the provider defines. Unlike a tool that the provider runs, such a tool adds no
// input to the same request.
func clients(typ string) bool {
	return slices.ContainsFunc([]string{"apply_patch", "bash", "computer", "local_shell", "memory", "shell", "text_editor"}, func(p string) bool { return strings.HasPrefix(typ, p) })
}

// server returns the names of an MCP server and of its tools; see the method tool.
func (r *reader) server(t *toolRead) []string {
	label := t.label
	if label == "" {
		label = t.name
	}
	if label == "" {
		r.refuse("the MCP server has no label")
		return nil
	}
	r.hosted = true
	names := []string{t.typ}
	if t.typ != "mcp" {
		names = append(names, "mcp")
	}
	allowed := []string{}
	if t.allowed != 0 {
		r.again(t.allowed, func() { allowed = r.allowed() })
	}
	if len(allowed) == 0 {
		allowed = []string{"*"}
	}
	for _, a := range allowed {
		names = append(names, "mcp."+label+"."+a)
	}
	return names
}

// allowed reads the names of the tools to which an MCP server is restricted: a list of
// names, or an object with the member tool_names; read_only is ignored. An empty result
// means that the names are not restricted.
func (r *reader) allowed() (out []string) {
	names := func() {
		if r.next() != '[' {
			r.skip()
			return
		}
		r.list(func(int) {
			s, ok, _ := r.text()
			if !ok || s == "" {
				r.refuse("want a name")
			}
			out = append(out, s)
		})
	}
	if r.next() != '{' {
		names()
		return out
	}
	r.object(members("tool_names read_only"), func(k known) bool {
		if k.name == "tool_names" {
			names()
			return true
		}
		return false
	}, nil)
	return out
}

// servers reads the member mcp_servers of Anthropic's API.
func (r *reader) servers() (out []tool) {
	if r.next() != '[' {
		if raw := r.skip(); raw[0] != 'n' {
			r.refuse("want a list")
		}
		return nil
	}
	r.list(func(int) {
		from := blank(r.doc, r.i)
		t := toolRead{typ: "mcp"}
		if r.next() != '{' {
			r.refuse("want an object")
			r.skip()
			return
		}
		r.object(mcpServer, func(k known) bool {
			switch k.name {
			case "name":
				t.name, _, _ = r.text()
				return true
			case "tool_configuration":
				if r.next() != '{' {
					return false
				}
				r.object(k.in, func(k known) bool {
					if k.name == "allowed_tools" {
						t.allowed = r.i
					}
					return false
				}, nil)
				return true
			}
			return false
		}, nil)
		if r.err == nil {
			out = append(out, tool{names: r.server(&t), from: from, to: r.i})
		}
	})
	return out
}

// choices reads a tool_choice or function_call. It returns the names of the tools in it,
// and the types in it that only a tool of the provider can have.
func (r *reader) choices() (names []string) {
	var one func()
	one = func() {
		if r.next() != '{' {
			r.skip()
			return
		}
		var typ, name string
		r.object(choice, func(k known) bool {
			switch k.name {
			case "type":
				typ, _, _ = r.text()
			case "name":
				name, _, _ = r.text()
			case "function", "custom":
				if r.next() != '{' {
					return false
				}
				r.object(function, func(k known) bool {
					if k.name == "name" {
						if s, _, _ := r.text(); s != "" {
							names = append(names, s)
						}
						return true
					}
					return false
				}, nil)
			case "allowed_tools":
				if r.next() != '{' {
					return false
				}
				one()
			case "tools":
				if r.next() != '[' {
					return false
				}
				r.list(func(int) { one() })
			default:
				return false
			}
			return true
		}, nil)
		if name != "" {
			names = append(names, name)
		}
		if !slices.Contains([]string{"", "auto", "any", "none", "required", "tool", "function", "custom", "namespace", "allowed_tools"}, typ) {
			names = append(names, typ)
		}
	}
	one()
	return names
}
