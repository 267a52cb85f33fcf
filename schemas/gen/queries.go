package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// querySchema is the content of one file of queries/<service> other than types.json: the
// JSON Schema of an object with the member request and, unless the response is bytes,
// the member response. The members that begin with x- are extensions; they hold the
// properties of the query that the schema itself cannot express.
type querySchema struct {
	ID          string          `json:"$id"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Answer      string          `json:"x-answer"`      // kind of the response: one, list or bytes
	Callers     []string        `json:"x-callers"`     // names of the services that may send the query
	Scope       string          `json:"x-scope"`       // tenants for which the query may be sent: tenant, cell or both
	View        string          `json:"x-view"`        // view that the response is read from; empty: none
	DeadlineMS  int64           `json:"x-deadline-ms"` // time that an instance has for the response, in milliseconds
	Errors      []string        `json:"x-errors"`      // error codes in addition to those that every query can return
	Properties  map[string]node `json:"properties"`
}

// node is a JSON Schema of the subset that queries use.
type node struct {
	Ref             string          `json:"$ref"`
	Type            any             `json:"type"` // a name, or a list of a name and "null"
	Title           string          `json:"title"`
	Description     string          `json:"description"`
	Items           *node           `json:"items"`
	Closed          json.RawMessage `json:"additionalProperties"`
	Required        []string        `json:"required"`
	Properties      map[string]node `json:"properties"`
	Format          string          `json:"format"`
	ContentEncoding string          `json:"contentEncoding"`
	GoType          string          `json:"x-go-type"` // Go type to use instead of a generated one
}

// sharedQueries is the folder of the queries that several services answer by shared
// code. Their Go types are in pkg/core/query.
const sharedQueries = "mesh"

// querySet holds all queries and the types that they share.
type querySet struct {
	queries map[string][]querySchema   // by service, sorted by verb
	types   map[string]map[string]node // by service and name
}

// queryFiles returns the files generated from queries/*/*.json under root, Go files and
// the reference page, by their path relative to the module. codes holds the known error
// codes.
func queryFiles(root fs.FS, codes map[string]bool) (map[string][]byte, error) {
	set, err := readQueries(root, codes)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{"../docs/reference/queries.md": set.page()}
	for service := range set.queries {
		src, err := set.source(service)
		if err != nil {
			return nil, fmt.Errorf("queries/%s: %w", service, err)
		}
		pkg := strings.ReplaceAll(service, "-", "")
		file := pkg + "/zz_queries.go"
		if service == sharedQueries {
			file = "../pkg/core/query/zz_mesh.go"
		}
		out[file] = src
	}
	return out, nil
}

// readQueries reads all query schemas and shared types under root, and checks the query
// schemas.
func readQueries(root fs.FS, codes map[string]bool) (*querySet, error) {
	files, err := fs.Glob(root, "queries/*/*.json")
	if err != nil {
		return nil, err
	}
	set := &querySet{map[string][]querySchema{}, map[string]map[string]node{}}
	for _, f := range files {
		raw, err := fs.ReadFile(root, f)
		if err != nil {
			return nil, err
		}
		service, verb := path.Base(path.Dir(f)), strings.TrimSuffix(path.Base(f), ".json")
		if verb == "types" {
			var t struct {
				Defs map[string]node `json:"$defs"`
			}
			if err := json.Unmarshal(raw, &t); err != nil {
				return nil, fmt.Errorf("%s: %w", f, err)
			}
			set.types[service] = t.Defs
			continue
		}
		var q querySchema
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		if err := q.check(service, verb, codes); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		set.queries[service] = append(set.queries[service], q)
	}
	return set, nil
}

// scopes maps the values of x-scope to the constants of pkg/core/query.
var scopes = map[string]string{"tenant": "OfTenant", "cell": "OfCell", "both": "OfBoth"}

// check returns an error if the members of a file contradict each other or its name, if
// a required one is missing, or if an error code is not in codes.
func (q *querySchema) check(service, verb string, codes map[string]bool) error {
	_, hasResponse := q.Properties["response"]
	_, hasRequest := q.Properties["request"]
	for _, c := range q.Errors {
		if !codes[c] {
			return fmt.Errorf("x-errors: %s is not in errors.json", c)
		}
	}
	switch {
	case q.ID != "urn:binnacle:query:"+service+":"+verb || q.Title != queryName(verb):
		return errors.New("file name, $id and title must agree")
	case !hasRequest || hasResponse == (q.Answer == "bytes") || !slices.Contains([]string{"one", "list", "bytes"}, q.Answer):
		return errors.New("request is required; x-answer must be one or list, with a response, or bytes, without one")
	case scopes[q.Scope] == "":
		return errors.New("x-scope must be tenant, cell or both")
	case q.Description == "" || len(q.Callers) == 0 || q.DeadlineMS <= 0:
		return errors.New("description, x-callers and x-deadline-ms are required")
	}
	return nil
}

func (q *querySchema) verb() string { return q.ID[strings.LastIndexByte(q.ID, ':')+1:] }

// source renders the Go file of a service's queries.
func (set *querySet) source(service string) ([]byte, error) {
	g := &goFile{set: set, service: service, done: map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(set.types[service])) {
		d := set.types[service][name]
		if d.GoType == "" && d.Title != name {
			return nil, fmt.Errorf("types.json: the title of %s must be its name", name)
		}
		if _, err := g.typeOf(&d); err != nil {
			return nil, fmt.Errorf("types.json: %s: %w", name, err)
		}
	}
	for i := range set.queries[service] {
		if err := g.query(&set.queries[service][i]); err != nil {
			return nil, fmt.Errorf("%s: %w", set.queries[service][i].verb(), err)
		}
	}
	body := g.vars.String() + ")\n" + g.types.String()
	imports := ""
	for _, i := range [][2]string{{"json.", "encoding/json"}, {"time.", "time"}, {"contract.", core + "contract"}, {"guard.", core + "guard"}, {"proofgraph.", core + "proofgraph"}, {"query.", core + "query"}} {
		if strings.Contains(body, i[0]) && !(service == sharedQueries && i[0] == "query.") {
			imports += fmt.Sprintf("%q\n", i[1])
		}
	}
	pkg := strings.ReplaceAll(service, "-", "")
	if service == sharedQueries {
		pkg = "query"
	}
	return format.Source([]byte("// Code generated by schemas/gen from schemas/queries/" + service + "; DO NOT EDIT.\n\npackage " + pkg + "\n\nimport (\n" + imports + ")\n\nvar (\n" + body))
}

const core = "github.com/binnacle-mesh/binnacle/pkg/core/"

// goFile is a Go file that is being generated.
type goFile struct {
	set         *querySet
	service     string
	vars, types bytes.Buffer
	done        map[string]bool // names of the structs that are already written
}

// query writes a query's descriptor and the types of its request and response.
func (g *goFile) query(q *querySchema) error {
	request := q.Properties["request"]
	in, err := g.typeOf(&request)
	if err != nil {
		return err
	}
	kind, params := "Bytes", in
	if response, ok := q.Properties["response"]; ok {
		if q.Answer == "list" {
			if response.Items == nil {
				return errors.New("the response of a list must be an array")
			}
			response = *response.Items
		}
		out, err := g.typeOf(&response)
		if err != nil {
			return err
		}
		kind, params = map[string]string{"one": "Query", "list": "List"}[q.Answer], in+", "+out
	}
	own, service := "query.", g.service
	if g.service == sharedQueries {
		own, service = "", ""
	}
	fmt.Fprintf(&g.vars, "\t// %sQuery is %s.%s. %s\n", q.Title, g.service, q.verb(), q.Description)
	fmt.Fprintf(&g.vars, "\t%sQuery = %s%s[%s]{Info: %sInfo{Service: %q, Verb: %q, Callers: %#v, Scope: %s%s, View: %q, Deadline: %d * time.Millisecond}}\n\n",
		q.Title, own, kind, params, own, service, q.verb(), q.Callers, own, scopes[q.Scope], q.View, q.DeadlineMS)
	return nil
}

// typeOf returns the Go type for a schema, and writes the structs that the type uses. It
// supports references to shared types, x-go-type, strings, integers, numbers, booleans,
// arrays, closed objects with a title, and objects whose additionalProperties is a
// schema, which are maps. A list of a type and "null" counts as the type. Any other
// schema is an error.
func (g *goFile) typeOf(n *node) (string, error) {
	if n.Ref != "" {
		return g.refOf(n.Ref)
	}
	if n.GoType != "" {
		return n.GoType, nil
	}
	kind, _ := n.Type.(string)
	if list, ok := n.Type.([]any); ok && len(list) == 2 && list[1] == "null" {
		kind, _ = list[0].(string)
	}
	switch {
	case kind == "string" && n.ContentEncoding == "base64":
		return "[]byte", nil
	case kind == "string":
		return "string", nil
	case kind == "integer" && n.Format == "uint64":
		return "uint64", nil
	case kind == "integer":
		return "int64", nil
	case kind == "number":
		return "float64", nil
	case kind == "boolean":
		return "bool", nil
	case kind == "array" && n.Items != nil:
		item, err := g.typeOf(n.Items)
		return "[]" + item, err
	case kind == "object" && string(n.Closed) == "false" && n.Title != "":
		return n.Title, g.structOf(n)
	case kind == "object" && len(n.Closed) > 0 && n.Closed[0] == '{':
		var value node
		if err := json.Unmarshal(n.Closed, &value); err != nil {
			return "", err
		}
		t, err := g.typeOf(&value)
		return "map[string]" + t, err
	}
	return "", fmt.Errorf("type %v, title %q: outside the subset that queries use", n.Type, n.Title)
}

// refOf returns the Go type for a reference to a shared type.
func (g *goFile) refOf(ref string) (string, error) {
	service, name, ok := strings.Cut(strings.TrimPrefix(ref, "urn:binnacle:types:"), "#/$defs/")
	d, known := g.set.types[service][name]
	if !ok || !known || service != g.service && service != sharedQueries {
		return "", fmt.Errorf("%s: want a type of this service's types.json, or of %s's", ref, sharedQueries)
	}
	if service == g.service || d.GoType != "" {
		return g.typeOf(&d)
	}
	return "query." + d.Title, nil
}

// structOf writes the struct type for an object, once per title. An object without a
// description is an error.
func (g *goFile) structOf(n *node) error {
	if g.done[n.Title] {
		return nil
	}
	g.done[n.Title] = true
	var b bytes.Buffer
	if n.Description == "" {
		return fmt.Errorf("%s has no description", n.Title)
	}
	fmt.Fprintf(&b, "\n// %s is %s\ntype %s struct {\n", n.Title, strings.ToLower(n.Description[:1])+n.Description[1:], n.Title)
	for _, k := range slices.Sorted(maps.Keys(n.Properties)) {
		p := n.Properties[k]
		t, err := g.typeOf(&p)
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		tag, comment := k, ""
		if !slices.Contains(n.Required, k) {
			tag += ",omitempty"
		}
		if p.Description != "" {
			comment = " // " + p.Description
		}
		fmt.Fprintf(&b, "\t%s %s `json:%q`%s\n", queryName(k), t, tag, comment)
	}
	b.WriteString("}\n")
	g.types.Write(b.Bytes())
	return nil
}

func queryName(k string) string {
	if name := map[string]string{"ids": "IDs", "ok": "OK"}[k]; name != "" {
		return name
	}
	return goName(k)
}

// page returns the content of docs/reference/queries.md.
func (set *querySet) page() []byte {
	var b bytes.Buffer
	b.WriteString(`# Query reference

Generated by ` + "`make gen`" + ` from ` + "`schemas/queries`" + `. A query reads; it passes over the stream
TRANSIENT from one instance of a service to an instance of another, and records no
event. Every query has a deadline. A response that was read from a view states the view's
position on the ledger at that time, and the number of entries after it that the view had
not read (` + "`view`" + ` of each frame: name, position, lag). Queries of ` + "`mesh`" + ` are answered by
several services.

A query fails with a code of [errors.md](errors.md). Each can fail with
` + "`invalid_input`" + ` (the request does not fit the schema), ` + "`denied`" + ` (the caller is not
among those listed), ` + "`query_unknown`" + ` (the instance is of a release that lacks the
query), ` + "`unavailable`" + ` and ` + "`timeout`" + `; the table lists further codes.

A query is sent for one tenant. Its scope names the tenants for which it may be sent:
` + "`tenant`" + ` (one that the operator created, or the original one), ` + "`cell`" + ` (the tenant of
the mesh itself) or ` + "`both`" + `. For any other tenant it fails with ` + "`not_found`" + `. While a
ledger has one tenant, that tenant is also the cell.

A member that a release adds to a request or to a response is optional, and readers
skip members that they do not know, so instances of two releases can run at
the same time during an upgrade.

| query | callers | scope | response | view | codes | what it returns |
|---|---|---|---|---|---|---|
`)
	kinds := map[string]string{"one": "one document", "list": "items, in parts", "bytes": "bytes, in parts"}
	for _, service := range slices.Sorted(maps.Keys(set.queries)) {
		for _, q := range set.queries[service] {
			fmt.Fprintf(&b, "| [`%s.%s`](../../schemas/queries/%s/%s.json) | %s | %s | %s | %s | %s | %s |\n", service, q.verb(), service, q.verb(),
				strings.Join(q.Callers, ", "), q.Scope, kinds[q.Answer], orDash(q.View), orDash(strings.Join(q.Errors, ", ")), q.Description)
		}
	}
	return b.Bytes()
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return "`" + s + "`"
}
