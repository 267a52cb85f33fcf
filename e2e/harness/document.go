package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Document checks the exchanges with a gateway against the OpenAPI document that the
// gateway serves. It is stricter than the document, which lets clients ignore additional
// members: if a schema in components lists properties and does not specify
// additionalProperties, a member that the schema does not list is an error. A Document
// is safe for concurrent use.
type Document struct {
	Addr string // address of a proxy in front of the gateway; the proxy checks every exchange

	t        testing.TB
	doc      map[string]any
	compiler *jsonschema.Compiler
	paths    []route
	mu       sync.Mutex
	done     map[string]bool // ids of the operations that have succeeded
}

// route is a path template of the document with its operations.
type route struct {
	path    string
	matches *regexp.Regexp
	ops     map[string]any // by method in lower case
}

// Checked returns the document of a mesh, with a proxy in front of its gateway. The test
// fails for each exchange through the proxy that uses an operation of the document and
// does not conform to it. If a request fails, only its response is checked.
func Checked(t testing.TB, m *Mesh) *Document {
	t.Helper()
	r, err := m.Do(t.Context(), http.MethodGet, "/openapi.json", "", "")
	if err != nil || r.Status != http.StatusOK {
		t.Fatal(err, r)
	}
	d := &Document{t: t, done: map[string]bool{}, compiler: jsonschema.NewCompiler()}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(r.Body))
	if err != nil {
		t.Fatal(err)
	}
	d.doc = doc.(map[string]any)
	for _, s := range d.at("components", "schemas") {
		if s := s.(map[string]any); s["properties"] != nil && s["additionalProperties"] == nil {
			s["additionalProperties"] = false
		}
	}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	d.compiler.AssertContent()
	if err := d.compiler.AddResource(resource, d.doc); err != nil {
		t.Fatal(err)
	}
	for path, ops := range d.at("paths") {
		d.paths = append(d.paths, route{path, pattern(path), ops.(map[string]any)})
	}
	slices.SortFunc(d.paths, func(a, b route) int { // the path with fewer parameters is the more specific one
		return strings.Count(a.path, "{") - strings.Count(b.path, "{")
	})
	target, err := url.Parse(m.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ModifyResponse = d.inspect
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, body)))
	}))
	t.Cleanup(srv.Close)
	d.Addr = strings.TrimPrefix(srv.URL, "http://")
	return d
}

// bodyKey is the key under which a request's context holds its body.
type bodyKey struct{}

const resource = "urn:binnacle:openapi"

// pattern returns an expression that matches the paths of a template. Only the
// parameters model and rest may contain slashes.
func pattern(path string) *regexp.Regexp {
	return regexp.MustCompile("^" + regexp.MustCompile(`\\\{([a-z]+)\\\}`).ReplaceAllStringFunc(regexp.QuoteMeta(path), func(p string) string {
		if p == `\{model\}` || p == `\{rest\}` {
			return ".+"
		}
		return "[^/]+"
	}) + "$")
}

func (d *Document) at(names ...string) map[string]any {
	x := d.doc
	for _, n := range names {
		x, _ = x[n].(map[string]any)
	}
	return x
}

// Operations returns the ids of all operations of the document.
func (d *Document) Operations() (ids []string) {
	for _, p := range d.paths {
		for _, op := range p.ops {
			ids = append(ids, op.(map[string]any)["operationId"].(string))
		}
	}
	slices.Sort(ids)
	return ids
}

// Succeeded reports whether an exchange of the operation through the proxy had a
// response with a status below 400.
func (d *Document) Succeeded(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done[id]
}

// inspect checks a response of the gateway and, if its status is below 400, the request.
// The frames of an event stream are not checked. A violation fails the test; the
// returned error is that of reading the response.
func (d *Document) inspect(r *http.Response) error {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var body []byte
	if kind != "text/event-stream" {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	request, _ := r.Request.Context().Value(bodyKey{}).([]byte)
	if err := d.check(r, kind, request, body); err != nil {
		d.t.Errorf("%s %s: %d %s: %v\nrequest  %.2000s\nresponse %.3000s", r.Request.Method, r.Request.URL, r.StatusCode, kind, err, request, body)
	}
	return nil
}

func (d *Document) check(r *http.Response, kind string, request, body []byte) error {
	path, op := d.find(r.Request)
	if op == nil {
		return nil // the document has no such operation, so there is nothing to check
	}
	id, _ := op["operationId"].(string)
	pointer := "#/paths/" + escape(path) + "/" + strings.ToLower(r.Request.Method)
	if r.StatusCode < 400 {
		d.mu.Lock()
		d.done[id] = true
		d.mu.Unlock()
		if err := d.checkRequest(op, pointer, r.Request, request); err != nil {
			return fmt.Errorf("the request that succeeded: %w", err)
		}
	}
	responses := op["responses"].(map[string]any)
	name := strconv.Itoa(r.StatusCode)
	if responses[name] == nil {
		name = name[:1] + "XX"
	}
	if responses[name] == nil {
		return errors.New("the document does not have this status")
	}
	pointer, resp := d.follow(pointer+"/responses/"+name, responses[name].(map[string]any))
	return d.checkBody(resp, pointer, kind, body)
}

// find returns the path template and the operation of a request, or "" and nil if the
// document has none for it.
func (d *Document) find(r *http.Request) (string, map[string]any) {
	for _, p := range d.paths {
		if op, ok := p.ops[strings.ToLower(r.Method)].(map[string]any); ok && p.matches.MatchString(r.URL.EscapedPath()) {
			return p.path, op
		}
	}
	return "", nil
}

// follow returns pointer and x or, if x is a reference ($ref), the reference and the
// object to which it refers.
func (d *Document) follow(pointer string, x map[string]any) (string, map[string]any) {
	if ref, ok := x["$ref"].(string); ok {
		return ref, d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
	return pointer, x
}

func (d *Document) checkRequest(op map[string]any, pointer string, r *http.Request, body []byte) error {
	want, ok := op["requestBody"].(map[string]any)
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if !ok || kind != "application/json" {
		return d.checkQuery(op, r)
	}
	if err := d.checkBody(want, pointer+"/requestBody", kind, body); err != nil {
		return err
	}
	return d.checkQuery(op, r)
}

// checkQuery returns an error for a query parameter that the operation does not have.
func (d *Document) checkQuery(op map[string]any, r *http.Request) error {
	params, _ := op["parameters"].([]any)
	for name := range r.URL.Query() {
		if !slices.ContainsFunc(params, func(p any) bool {
			p2, _ := p.(map[string]any)
			return p2["in"] == "query" && p2["name"] == name
		}) {
			return fmt.Errorf("the document does not have the parameter %s", name)
		}
	}
	return nil
}

// checkBody checks the content type of a body, and the content of JSON and NDJSON,
// against x, which is the requestBody or response object at pointer in the document. It
// accepts an empty body without a content type.
func (d *Document) checkBody(x map[string]any, pointer, kind string, body []byte) error {
	content, _ := x["content"].(map[string]any)
	if len(content) == 0 || len(body) == 0 && kind == "" {
		if len(body) > 0 {
			return errors.New("the document has no body here")
		}
		return nil
	}
	if content[kind] == nil {
		return fmt.Errorf("the document has %v here", slices.Sorted(maps.Keys(content)))
	}
	pointer += "/content/" + escape(kind)
	switch kind {
	case "application/json":
		return d.validate(pointer+"/schema", body)
	case "application/x-ndjson":
		for line := range bytes.Lines(body) {
			if err := d.validate(pointer+"/x-binnacle-line", line); err != nil {
				return fmt.Errorf("line %.500s: %w", line, err)
			}
		}
	}
	return nil
}

func (d *Document) validate(pointer string, body []byte) error {
	d.mu.Lock()
	s, err := d.compiler.Compile(resource + pointer)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	x, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(x)
}

// escape returns a member's name as one token of a JSON pointer in a URI.
func escape(name string) string {
	return url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
}
