package mcpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/toolschema"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/packs"
)

// offers holds the tools, prompts and resources that a tenant's catalog or a virtual server offers
// over MCP, at one generation of the catalog. It is not modified.
type offers struct {
	generation uint64
	virtual    *mcpdoc.Virtual // the virtual server whose offers these are; nil if they are all of the tenant's
	own        bool            // the mesh's own resources and prompts are offered
	tools      []*mcp.Tool
	headed     []*mcp.Tool // the tools whose schemas name headers
	prompts    []*mcp.Prompt
	resources  []*mcp.Resource
	templates  []*mcp.ResourceTemplate
	byTool     map[string]bool     // names of the tools; nil if virtual is nil
	byPrompt   map[string]promptOf // by name in the mesh
	byURI      map[string]string   // server by URI of a resource
	patterns   []pattern           // of templates, most specific first
	words      func() *index       // index of the tools, made at its first use
}

// promptOf is the server of a prompt and the prompt's name there.
type promptOf struct{ server, name string }

// pattern is a template of a server.
type pattern struct {
	template, server string
	literal          int // bytes before the first expression
	match            *regexp.Regexp
}

// headerKeyword is a keyword in the schema of an argument. Its value is the name of a
// header that also contains the argument, so that proxies can read the argument.
var headerKeyword = []byte(`"x-mcp-header"`)

// offersKey identifies offers: those of a virtual server, or of the whole catalog if virtual is
// "", in a tenant.
type offersKey struct{ tenant, virtual string }

// catalog returns the current offers of the edge's virtual server or, if it has none, of the
// tenant's catalog.
func (e *edge) catalog() *offers {
	now := e.Tools.Generation()
	key := offersKey{e.tenant, e.virtualName}
	if o, ok := e.offers.Load(key); ok && o.(*offers).generation == now {
		return o.(*offers)
	}
	var o *offers
	if e.virtualName == "" {
		o = allOffers(e.Tools.In(e.tenant), now)
	} else {
		v, _ := e.virtual(e.virtualName, e.tenant)
		o = (&edge{API: e.API, tenant: e.tenant}).catalog().chosen(v)
		o.generation = now
	}
	o.words = sync.OnceValue(func() *index { return newIndex(o.tools) })
	e.offers.Store(key, o)
	return o
}

// allOffers returns the offers of a tenant's whole catalog, which is of the generation now.
func allOffers(tools catalog.Tools, now uint64) *offers {
	o := &offers{generation: now, own: true, tools: []*mcp.Tool{}, prompts: []*mcp.Prompt{}, resources: []*mcp.Resource{}, templates: []*mcp.ResourceTemplate{},
		byPrompt: map[string]promptOf{}, byURI: map[string]string{}}
	for _, t := range packs.Approved(tools) {
		x, err := toolOf(&t)
		if err != nil {
			slog.Warn("tool not listed over MCP", "kind", t.Kind, "err", err)
			continue
		}
		o.tools = append(o.tools, x)
		if bytes.Contains(t.InputSchema, headerKeyword) {
			o.headed = append(o.headed, x)
		}
	}
	for _, t := range federated(tools) {
		o.add(&t)
	}
	slices.SortStableFunc(o.patterns, func(a, b pattern) int { return b.literal - a.literal })
	return o
}

// federated returns the approved documents of MCP servers other than those of tools.
func federated(tools catalog.Tools) []contract.Tool {
	return slices.DeleteFunc(tools.Tools(), func(t contract.Tool) bool {
		return t.Executor != mcpdoc.Executor || strings.HasPrefix(t.Kind, mcpdoc.ToolPrefix) || tools.Drifted(&t, contract.Digest(&t))
	})
}

// object reports whether a JSON Schema describes an object, as MCP requires of the input
// schema of a tool.
func object(schema []byte) bool {
	var s struct{ Type any }
	return json.Unmarshal(schema, &s) == nil && s.Type == "object"
}

// toolOf returns a tool as MCP lists it. The input schema is that of the tool document. The output
// schema is the one that the MCP server declares or, for other tools, that of the tool document if
// it describes an object; otherwise the tool is listed without one. The error states why MCP does
// not permit the tool. The metadata of a pack states whether its calls report their progress, and its
// concurrency class, if its manifest declares one of them.
func toolOf(t *contract.Tool) (*mcp.Tool, error) {
	x := &mcp.Tool{}
	if o := mcpdoc.Of(t); o != nil {
		b, err := json.Marshal(o.Tool)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(b, x); err != nil {
			return nil, err
		}
		if s := o.Tool["outputSchema"]; s != nil {
			x.OutputSchema = s
		}
	} else if object(t.OutputSchema) {
		x.OutputSchema = json.RawMessage(t.OutputSchema)
	}
	if !object(t.InputSchema) {
		return nil, fmt.Errorf("the type of its input schema is not object")
	}
	x.Name, x.Description, x.InputSchema = t.Tool, t.Description, json.RawMessage(t.InputSchema)
	d := toolschema.DeclaredBy(t)
	if d.Progress {
		x.Meta = merge(x.Meta, mcp.Meta{"binnacle/progress": true})
	}
	if d.Concurrency != "" {
		x.Meta = merge(x.Meta, mcp.Meta{"binnacle/concurrency": d.Concurrency})
	}
	return x, nil
}

// add adds the prompt, the resources and the templates of a document.
func (o *offers) add(t *contract.Tool) {
	x := mcpdoc.Of(t)
	if x == nil {
		return
	}
	if name, ok := strings.CutPrefix(t.Kind, mcpdoc.PromptPrefix); ok {
		p := mcp.Prompt{}
		if b, err := json.Marshal(x.Prompt); err != nil || json.Unmarshal(b, &p) != nil {
			return
		}
		p.Name, p.Description = name, t.Description
		o.byPrompt[name] = promptOf{x.Server, x.Name}
		o.prompts = append(o.prompts, &p)
	}
	for _, raw := range x.Resources {
		var r mcp.Resource
		if json.Unmarshal(raw, &r) != nil || o.byURI[r.URI] != "" || isOwn(r.URI) {
			continue
		}
		o.byURI[r.URI] = x.Server
		o.resources = append(o.resources, &r)
	}
	for _, raw := range x.Templates {
		var t mcp.ResourceTemplate
		if json.Unmarshal(raw, &t) != nil || isOwn(t.URITemplate) {
			continue
		}
		o.templates = append(o.templates, &t)
		o.patterns = append(o.patterns, patternOf(t.URITemplate, x.Server))
	}
}

var expression = regexp.MustCompile(`\{[^}]*\}`)

// patternOf returns the pattern of a URI template (RFC 6570).
func patternOf(template, server string) pattern {
	p := pattern{template: template, server: server, literal: len(template)}
	var b strings.Builder
	at := 0
	for _, loc := range expression.FindAllStringIndex(template, -1) {
		p.literal = min(p.literal, loc[0])
		b.WriteString(regexp.QuoteMeta(template[at:loc[0]]))
		switch template[loc[0]+1] {
		case '+', '#', '/', '?', '&':
			b.WriteString(".*")
		default:
			b.WriteString("[^/]*")
		}
		at = loc[1]
	}
	b.WriteString(regexp.QuoteMeta(template[at:]))
	p.match = regexp.MustCompile("^" + b.String() + "$")
	return p
}

// serverOf returns the server of a resource, or "". No server has resources of the mesh's own
// scheme.
func (o *offers) serverOf(uri string) string {
	if isOwn(uri) {
		return ""
	}
	if s := o.byURI[uri]; s != "" {
		return s
	}
	for _, p := range o.patterns {
		if p.template == uri || p.match.MatchString(uri) {
			return p.server
		}
	}
	return ""
}

// pageSize is the maximum number of entries of a page of a list.
const pageSize = 2500

// page returns a page of a list and the cursor of the next page, which is "" after the
// last one. A cursor is the key of the last entry of a page; the cursor "" selects the
// first page. The error has the code of invalid parameters if no entry has the key now.
func page[T any](all []T, cursor string, key func(T) string) ([]T, string, error) {
	from := 0
	if cursor != "" {
		i := slices.IndexFunc(all, func(t T) bool { return key(t) == cursor })
		if i < 0 {
			return nil, "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "invalid cursor: list again from the beginning"}
		}
		from = i + 1
	}
	to := min(from+pageSize, len(all))
	next := ""
	if to < len(all) {
		next = key(all[to-1])
	}
	return all[from:to:to], next, nil
}

// listing is a request for a page of a list, with all elements of the list.
type listing[T any] struct {
	extra   *mcp.RequestExtra
	session *mcp.ServerSession
	cursor  string
	all     []T
	kind    func(T) string // kind of the calls of an element; nil if every caller may call it
	key     func(T) string // see page
}

// page returns the requested page of those elements that the caller may call, and the cursor of
// the next page.
func (l *listing[T]) page(ctx context.Context, e *edge) ([]T, string, error) {
	if l.kind == nil {
		return page(l.all, l.cursor, l.key)
	}
	visible, err := e.visible(ctx, l.extra, l.session)
	if err != nil {
		return nil, "", err
	}
	return page(filter(l.all, visible, l.kind), l.cursor, l.key)
}

func (e *edge) listTools(ctx context.Context, r *mcp.ListToolsRequest) (*mcp.ListToolsResult, error) {
	o := e.catalog()
	l := listing[*mcp.Tool]{extra: r.Extra, session: r.Session, all: o.tools, kind: toolKind, key: func(t *mcp.Tool) string { return t.Name }}
	if o.virtual != nil && o.virtual.Search {
		l.all, l.kind = searchTools, nil
	}
	if r.Params != nil {
		l.cursor = r.Params.Cursor
	}
	res := &mcp.ListToolsResult{}
	var err error
	res.Tools, res.NextCursor, err = l.page(ctx, e)
	cacheable(ctx, r, &res.Cacheable)
	return res, err
}

func (e *edge) listPrompts(ctx context.Context, r *mcp.ListPromptsRequest) (*mcp.ListPromptsResult, error) {
	l := listing[*mcp.Prompt]{extra: r.Extra, session: r.Session, all: e.catalog().prompts, kind: promptKind, key: func(t *mcp.Prompt) string { return t.Name }}
	if r.Params != nil {
		l.cursor = r.Params.Cursor
	}
	res := &mcp.ListPromptsResult{}
	var err error
	res.Prompts, res.NextCursor, err = l.page(ctx, e)
	if err == nil && res.NextCursor == "" {
		res.Prompts, err = withOwn(res.Prompts, r.Extra, e.catalog().ownPromptsOf)
	}
	cacheable(ctx, r, &res.Cacheable)
	return res, err
}

func (e *edge) listResources(ctx context.Context, r *mcp.ListResourcesRequest) (*mcp.ListResourcesResult, error) {
	o := e.catalog()
	who, err := callerOf(r.Extra)
	if err != nil {
		return nil, err
	}
	if r.Params != nil && o.own {
		if cursor, ok := strings.CutPrefix(r.Params.Cursor, ownCursor); ok {
			res, err := ownEdge{e}.ownResources(ctx, who, cursor)
			if err == nil {
				cacheable(ctx, r, &res.Cacheable)
			}
			return res, err
		}
	}
	l := listing[*mcp.Resource]{extra: r.Extra, session: r.Session, all: o.resources, kind: o.resourceKind, key: func(t *mcp.Resource) string { return t.URI }}
	if r.Params != nil {
		l.cursor = r.Params.Cursor
	}
	res := &mcp.ListResourcesResult{}
	res.Resources, res.NextCursor, err = l.page(ctx, e)
	if err == nil && res.NextCursor == "" && o.own {
		ownEdge{e}.addOwn(ctx, who, res)
	}
	cacheable(ctx, r, &res.Cacheable)
	return res, err
}

// withOwn returns the elements of the last page of a list, followed by the mesh's own elements
// that the caller may use.
func withOwn[T any](page []T, extra *mcp.RequestExtra, own func(*auth.Caller) []T) ([]T, error) {
	who, err := callerOf(extra)
	if err != nil {
		return nil, err
	}
	return append(page, own(who)...), nil // the capacity of a page is its length
}

func (e *edge) listTemplates(ctx context.Context, r *mcp.ListResourceTemplatesRequest) (*mcp.ListResourceTemplatesResult, error) {
	o := e.catalog()
	l := listing[*mcp.ResourceTemplate]{extra: r.Extra, session: r.Session, all: o.templates, kind: o.templateKind, key: func(t *mcp.ResourceTemplate) string { return t.URITemplate }}
	if r.Params != nil {
		l.cursor = r.Params.Cursor
	}
	res := &mcp.ListResourceTemplatesResult{}
	var err error
	res.ResourceTemplates, res.NextCursor, err = l.page(ctx, e)
	if err == nil && res.NextCursor == "" && o.own {
		res.ResourceTemplates, err = withOwn(res.ResourceTemplates, r.Extra, ownTemplates)
	}
	cacheable(ctx, r, &res.Cacheable)
	return res, err
}

// ask proposes a call about a server with args, and decodes its output into res. An
// error of the call is returned as wireError returns it.
func (e *edge) ask(ctx context.Context, p proposal, args any, res any) (mcp.Meta, error) {
	b, err := json.Marshal(args)
	if err == nil {
		p.args, err = canon.Transform(nil, b)
	}
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	p.tool, p.federated = p.kind, true
	out, err := e.propose(ctx, p)
	if err != nil {
		return nil, wireError(err)
	}
	if err := json.Unmarshal(out.output, res); err != nil {
		return nil, unreadable(err)
	}
	return out.meta, nil
}

// wireError returns err as an error of JSON-RPC, with the code and ids of the call. It
// returns err unchanged if err is neither an error of JSON-RPC nor one that refusal
// converts.
func wireError(err error) error {
	var wire *jsonrpc.Error
	if errors.As(err, &wire) { // the error of the MCP server
		return wire
	}
	x := refusal(err)
	if x == nil {
		return err
	}
	code := int64(jsonrpc.CodeInternalError)
	if x.Status >= 400 && x.Status < 500 {
		code = jsonrpc.CodeInvalidParams
	}
	data, _ := json.Marshal(map[string]string{"code": x.Code, "receipt_id": x.ReceiptID, "decision_id": x.DecisionID, "reason_code": x.ReasonCode})
	return &jsonrpc.Error{Code: code, Message: fmt.Sprintf("%s: %s", x.Code, x.Message), Data: data}
}

// readResource handles resources/read.
func (e *edge) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := requested(ctx)
	o := e.catalog()
	if isOwn(uri) && o.own {
		who, err := callerOf(req.Extra)
		if err != nil {
			return nil, err
		}
		return ownEdge{e}.readOwn(ctx, who, req.Session, uri)
	}
	server := o.serverOf(uri)
	if server == "" {
		return nil, notFound(req.Session, uri)
	}
	p := proposal{kind: mcpdoc.ResourcePrefix + server, extra: req.Extra, session: req.Session, meta: req.Params.Meta, state: req.Params.RequestState}
	p.responses, _ = json.Marshal(req.Params.InputResponses)
	var res *mcp.ReadResourceResult
	var m mcp.Meta
	err := e.rounds(ctx, &p, func() (in mcp.InputRequestMap, state string, err error) {
		res = &mcp.ReadResourceResult{}
		m, err = e.ask(ctx, p, map[string]string{"uri": uri}, res)
		return res.InputRequests, res.RequestState, err
	})
	if err != nil {
		return nil, err
	}
	res.Meta = merge(res.Meta, m)
	return res, nil
}

// notFound returns the error for a resource that does not exist, with the code that
// the session's protocol version defines for it.
func notFound(s *mcp.ServerSession, uri string) error {
	data, _ := json.Marshal(map[string]string{"uri": uri})
	code := int64(-32002)
	if p := s.InitializeParams(); p != nil && p.ProtocolVersion >= sessionless {
		code = jsonrpc.CodeInvalidParams
	}
	return &jsonrpc.Error{Code: code, Message: resourceNotFound, Data: data}
}

// resourceNotFound is the message of notFound.
const resourceNotFound = "Resource not found"

// getPrompt handles prompts/get.
func (e *edge) getPrompt(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	name := requested(ctx)
	o := e.catalog()
	who, err := callerOf(req.Extra)
	if err != nil {
		return nil, err
	}
	if own, ok := o.ownPrompt(who, name); ok {
		return ownEdge{e}.getOwnPrompt(ctx, who, own, req)
	}
	if _, ok := o.byPrompt[name]; !ok {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown prompt %q", name)}
	}
	p := proposal{kind: mcpdoc.PromptPrefix + name, extra: req.Extra, session: req.Session, meta: req.Params.Meta, state: req.Params.RequestState}
	p.responses, _ = json.Marshal(req.Params.InputResponses)
	args := req.Params.Arguments
	if args == nil {
		args = map[string]string{}
	}
	var res *mcp.GetPromptResult
	var m mcp.Meta
	err = e.rounds(ctx, &p, func() (in mcp.InputRequestMap, state string, err error) {
		res = &mcp.GetPromptResult{}
		m, err = e.ask(ctx, p, args, res)
		return res.InputRequests, res.RequestState, err
	})
	if err != nil {
		return nil, err
	}
	res.Meta = merge(res.Meta, m)
	return res, nil
}

// complete handles completion/complete.
func (e *edge) complete(ctx context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	ref := req.Params.Ref
	if ref == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "ref: name a prompt or a resource template"}
	}
	if res, own, err := (ownEdge{e}).completeOwn(ctx, req); own || err != nil {
		return res, err
	}
	all := e.catalog()
	server := ""
	out := *ref
	if ref.Type == "ref/prompt" {
		at := all.byPrompt[ref.Name]
		server, out.Name = at.server, at.name
	} else {
		server = all.serverOf(ref.URI)
	}
	if t, _ := e.Tools.Lookup(mcpdoc.CompletionPrefix + server); t == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "ref: no server completes arguments of it"}
	}
	args := map[string]any{"ref": &out, "argument": req.Params.Argument}
	if req.Params.Context != nil {
		args["context"] = req.Params.Context
	}
	res := &mcp.CompleteResult{}
	m, err := e.ask(ctx, proposal{kind: mcpdoc.CompletionPrefix + server, extra: req.Extra, session: req.Session, meta: req.Params.Meta, responses: json.RawMessage("null")}, args, res)
	if err != nil {
		return nil, err
	}
	if res.Completion.Values == nil {
		res.Completion.Values = []string{}
	}
	res.Meta = merge(res.Meta, m)
	return res, nil
}
