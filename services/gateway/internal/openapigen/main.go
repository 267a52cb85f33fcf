// Command openapigen writes the gateway's OpenAPI 3.1 document and
// docs/reference/http.md. It generates both from one table of routes and from the Go
// types that the table names; the comments of the types and of their fields become
// descriptions. A test compares the routes of the document with those of the gateway.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/calls"
)

func main() {
	log.SetFlags(0)
	write("gateway/openapi.json", document("../.."))
	write("../../docs/reference/http.md", page())
}

// document returns the OpenAPI document. root is the folder of the repository.
func document(root string) []byte {
	s := &schemas{docs: comments{root: root, read: map[string]bool{}, byName: map[string]string{}}, named: map[string]object{}, types: map[string]reflect.Type{}}
	paths, ids := map[string]object{}, map[string]bool{}
	for _, op := range table {
		if ids[op.id] {
			log.Fatalf("two operations have the id %s", op.id)
		}
		ids[op.id] = true
		if paths[op.path] == nil {
			paths[op.path] = object{}
		}
		paths[op.path][strings.ToLower(op.method)] = op.render(s)
	}
	shared := object{
		"securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "a bearer token, or a virtual key"}},
		"parameters":      callParameters(),
		"headers":         callHeaders(),
		"responses":       failures(s),
		"schemas":         s.named,
	}
	s.check()
	b, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{"title": "Binnacle gateway", "version": "1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Calls of tools and language models that policy decides and a ledger records. A request whose x-binnacle-scope names a call becomes one: its answer names call, decision, receipt and verdict in X-Binnacle-* headers."},
		"servers":    []any{object{"url": "/"}},
		"paths":      paths,
		"components": shared,
	}, "", "  ")
	if err != nil {
		log.Fatal(err)
	}
	return append(b, '\n')
}

// required holds the scope that each operation requires, from the table of routes.
var required = gateway.Scopes()

func write(path string, b []byte) {
	if err := os.WriteFile(path, b, 0o644); err != nil {
		log.Fatal(err)
	}
}

// calls reports whether a request of the operation becomes a call.
func (op *operation) calls() bool { return strings.Contains(op.scope, "call ") }

func (op *operation) render(s *schemas) object {
	out := object{"summary": op.summary, "operationId": op.id, "responses": op.responses(s)}
	if op.scope != "" {
		out["security"] = []any{object{"bearer": []string{required[op.method+" "+op.path]}}}
		out["x-binnacle-scope"] = op.scope
	} else {
		out["security"] = []any{}
	}
	if params := op.parameters(); params != nil {
		out["parameters"] = params
	}
	if op.body != nil {
		out["requestBody"] = object{"required": true, "content": content(s, op.body)}
	}
	return out
}

func (op *operation) parameters() (params []any) {
	for part := range strings.SplitSeq(op.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			name = strings.TrimSuffix(name, "}")
			p := text(name, "")
			if name == "seq" || name == "level" {
				p = number(name, "")
			}
			params = append(params, p.must().render("path"))
		}
	}
	for _, q := range op.query {
		params = append(params, q.render("query"))
	}
	for _, h := range op.headers {
		params = append(params, h.render("header"))
	}
	if op.calls() && op.then != protocol {
		for _, h := range requestHeaders {
			params = append(params, object{"$ref": "#/components/parameters/" + component(h.name)})
		}
	}
	return params
}

func (p param) render(in string) object {
	schema := object{"type": p.kind}
	if p.enum != nil {
		schema["enum"] = p.enum
	}
	if p.format != "" {
		schema["format"] = p.format
	}
	out := object{"name": p.name, "in": in, "schema": schema}
	if p.about != "" {
		out["description"] = p.about
	}
	if p.required {
		out["required"] = true
	}
	return out
}

// virtualServer holds the query parameter of the routes of MCP.
var virtualServer = []param{text("server", "virtual MCP server to use; also in the header X-Binnacle-MCP-Server")}

// requestHeaders lists the headers of requests that become calls.
var requestHeaders = []param{
	text("X-Binnacle-Session", "session of the call: an id, or a name that the caller gives, \"s-\" and up to 98 of [A-Za-z0-9_-]; a new session without it"),
	text("X-Binnacle-Sandbox", "id of the held sandbox of the session that the call is for, in place of the argument sandbox of the tool"),
	text("X-Binnacle-Subject", "name of the data subject that the contents are about, up to 128 bytes: they are encrypted under its keys and can be erased alone. Refused unless the contents are encrypted. Not recorded"),
	number("X-Binnacle-Timeout", "seconds that the caller waits, 1 to 600, or up to 86400 for pipeline.run and 2678400 for pipeline.schedule; 90 without it, an hour for pipeline.run, and for an upload a second more for each 4 MiB; the call must start within them"),
	text("Idempotency-Key", "with it, a request that is sent again does not become a second call: its first outcome is the answer"),
	text("Prefer", "respond-async: answer at once if people must approve the call, and after a second if it has no outcome (RFC 7240)"),
	text("X-Binnacle-On-Behalf-Of", "principal for whom the caller acts; policy checks the claim"),
	text("X-Binnacle-Delegation", "id of the delegation under which it does"),
}

// responseHeaders lists the headers of the responses to requests that become calls.
var responseHeaders = []param{
	text("X-Binnacle-Session", "the caller's name for the session, or else its id"),
	text("X-Binnacle-Session-Id", "id of the session"),
	text("X-Binnacle-Call-Id", "id of the call"),
	text("X-Binnacle-Decision-Id", "id of the decision"),
	text("X-Binnacle-Receipt-Id", "id of the receipt"),
	text("X-Binnacle-Verdict", "ALLOW, DENY or ESCALATE"),
}

// component returns the name under which a header is stored in the document's
// components.
func component(header string) string { return strings.ReplaceAll(header, "-", "") }

func callParameters() object {
	out := object{}
	for _, h := range requestHeaders {
		out[component(h.name)] = h.render("header")
	}
	return out
}

func callHeaders() object {
	out := object{}
	for _, h := range responseHeaders {
		out[component(h.name)] = object{"description": h.about, "schema": object{"type": h.kind}}
	}
	return out
}

func (op *operation) responses(s *schemas) object {
	ok := object{"description": "done"}
	if op.answer != nil {
		ok["content"] = content(s, op.answer)
	}
	var headers object
	if op.calls() && op.then != protocol {
		headers = object{}
		for _, h := range responseHeaders {
			headers[h.name] = object{"$ref": "#/components/headers/" + component(h.name)}
		}
		ok["headers"] = headers
	}
	out := object{"200": ok}
	switch op.then {
	case creates:
		out = object{"201": ok}
	case waits:
		out["202"] = object{"description": "The call waits for people; Location and poll name the path of its state.", "headers": headers,
			"content": content(s, doc[calls.CallState]())}
	case checks:
		out["503"] = object{"description": "not ready", "content": ok["content"]}
	case protocol:
		out["202"] = object{"description": "accepted, without a body"}
		out["204"] = object{"description": "ended, without a body"}
		if op.answer == nil {
			delete(out, "200")
			delete(out, "202")
		}
	}
	if op.scope != "" {
		op.failures(out)
	}
	return out
}

// failures adds the error responses of an operation to out. It adds no default response,
// because a client generated by oapi-codegen would decode a body of JSON lines as the
// default response.
func (op *operation) failures(out object) {
	kind := ""
	switch op.then {
	case anthropic:
		kind = "Anthropic"
	case protocol:
		kind = "MCP"
	}
	for status, name := range map[string]string{"400": "Invalid", "401": "Unauthenticated", "403": "Forbidden", "404": "Missing", "4XX": "Refused", "503": "Unavailable", "5XX": "Failed"} {
		if status == "404" && !strings.Contains(op.path, "{") && op.then == plain && !op.calls() {
			continue // the path names nothing that could be missing; 4XX covers a 404 about something that a parameter or the body names, such as a session
		}
		out[status] = object{"$ref": "#/components/responses/" + kind + name}
	}
}

// failures returns the error responses that operations share, by their names in the
// document's components.
func failures(s *schemas) object {
	out := object{}
	for name, about := range map[string]string{
		"Invalid":         "The request is wrong; param names what, in a JSON body by its JSON pointer.",
		"Unauthenticated": "There is no valid credential.",
		"Forbidden":       "The credential lacks the scope, or policy denied the call: reason_code and receipt_id say more.",
		"Missing":         "Not found, or the caller may not read it.",
		"Unavailable":     "The mesh cannot answer now; Retry-After says when to send the request again.",
		"Refused":         "The request is refused otherwise: the body is too large (413), the output was erased or not stored (410), a limit is reached (429), another report or outcome is recorded (409), or the call was cancelled (499).",
		"Failed":          "The effect failed, or its outcome is not known yet (504).",
	} {
		usual := s.ref(reflect.TypeFor[apierr.Body]())
		out[name] = object{"description": about, "content": object{"application/json": object{"schema": usual}}}
		out["MCP"+name] = object{"description": about + " Errors of MCP's transport are text.", "content": object{"application/json": object{"schema": usual}, "text/plain": object{"schema": object{"type": "string"}}}}
		if name == "Unauthenticated" {
			out["Anthropic"+name] = out[name]
			continue
		}
		either := object{"oneOf": []any{s.ref(reflect.TypeFor[apierr.AnthropicBody]()), usual}}
		out["Anthropic"+name] = object{"description": about + " Errors of what precedes the call, such as a missing scope, have OpenAI's shape.", "content": object{"application/json": object{"schema": either}}}
	}
	return out
}

// content returns the description of a body that may have any of the given forms, by
// media type.
func content(s *schemas, forms []media) object {
	out := object{}
	for _, m := range forms {
		switch {
		case m.kind == ndjson:
			out[m.kind] = object{"schema": object{"type": "string", "description": "JSON lines: one document on each line, of the type in x-binnacle-line"}, "x-binnacle-line": s.ref(m.of[0])}
		case len(m.of) == 1:
			out[m.kind] = object{"schema": s.ref(m.of[0])}
		case len(m.of) > 1:
			var all []any
			for _, t := range m.of {
				all = append(all, s.ref(t))
			}
			out[m.kind] = object{"schema": object{"oneOf": all}}
		case m.kind == form:
			out[m.kind] = object{"schema": object{"type": "object", "required": []string{"bundle"}, "properties": object{"bundle": object{"type": "string", "format": "binary"}}}}
		case strings.HasPrefix(m.kind, "text/"):
			out[m.kind] = object{"schema": object{"type": "string"}}
		default:
			out[m.kind] = object{"schema": object{"type": "string", "format": "binary"}}
		}
	}
	return out
}

const preface = `# HTTP reference

Generated by ` + "`make gen`" + ` from the gateway's table of routes; the same table is
served as OpenAPI 3.1 at ` + "`/openapi.json`" + `, with the types that the last column names.
[How to generate a client](../how-to/client.md) from it.

"call" means that the request becomes a call: policy decides it, an executor
does it, and the response names call, decision, receipt and verdict in
` + "`X-Binnacle-*`" + ` headers. Errors are ` + "`{\"error\": {message, type, code, …}}`" + `.
Where the request is wrong, ` + "`param`" + ` names what: a member of a JSON body by its JSON
pointer in the body (RFC 6901, such as ` + "`/scopes/2`" + `), a body that is wrong as a whole
by ` + "`body`" + `, a header, a path or a query parameter by its name. Where an argument
violates the tool's schema, ` + "`code` is `invalid_input`" + ` and ` + "`pointer`" + ` is its
place in the call, ` + "`/args/…`" + `.

Credential and scope are checked before the body is read: a scope named here
must be held, and a call needs at least one scope other than ` + "`audit:read`" + `,
` + "`health:read` and `log:cosign`" + `. A body has at most 16 MiB and nests at most 128
deep, has no content encoding, arrives at 1 KiB a second or more and within two
minutes; a caller has at most 32 MiB of bodies in flight at one gateway, all
callers 64 MiB. Header lines have at most 64 KiB.

| method | path | needs | what it does | operation: body → answer |
|---|---|---|---|---|
`

// page returns the HTTP reference as Markdown.
func page() []byte {
	var b bytes.Buffer
	b.WriteString(preface)
	for _, op := range table {
		scope := op.scope
		if scope == "" {
			scope = "–"
		}
		q := ""
		for i, p := range op.query {
			if q += ", `" + p.name + "`"; i == 0 {
				q = " Query: `" + p.name + "`"
			}
		}
		if q != "" {
			q += "."
		}
		types := "`" + op.id + "`"
		if op.body != nil {
			types += ": " + typesOf(op.body) + " →"
		} else if op.answer != nil {
			types += ":"
		}
		if op.answer != nil {
			types += " " + typesOf(op.answer)
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s%s | %s |\n", op.method, op.path, strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(scope), op.summary, q, types)
	}
	return b.Bytes()
}

// typesOf returns the names of the types in the forms of a body, separated by "or". A
// form without types is represented by its media type.
func typesOf(forms []media) string {
	var out []string
	for _, m := range forms {
		if m.of == nil {
			out = append(out, m.kind)
		}
		for _, t := range m.of {
			list := t.Kind() == reflect.Slice && t.Name() == ""
			if list {
				t = t.Elem()
			}
			name := t.Name()
			if n := names[t]; n != "" {
				name = n
			}
			switch {
			case m.kind == ndjson:
				name = "lines of " + name
			case list:
				name = "list of " + name
			}
			out = append(out, name)
		}
	}
	return strings.Join(slices.Compact(out), " or ")
}
