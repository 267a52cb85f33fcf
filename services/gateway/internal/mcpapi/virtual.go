package mcpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

// A client names a virtual server with the query parameter virtualQuery of the URL or with the
// header virtualHeader. It can then use only the offers of the virtual server.
const (
	virtualQuery  = "server"
	virtualHeader = "X-Binnacle-MCP-Server"
)

// virtualOf returns the name of the virtual server that a request names, or "" if it names
// none. The error is 404 if there is no such server, or if its document is not approved for
// the tenant, and 400 if the URL and the header name different ones.
func (s *API) virtualOf(r *http.Request, tenant string) (string, error) {
	name, header := r.URL.Query().Get(virtualQuery), r.Header.Get(virtualHeader)
	if name != "" && header != "" && name != header {
		return "", apierr.BadRequest(virtualHeader, "the URL names another virtual server: remove one of the two")
	}
	if name == "" {
		name = header
	}
	if name == "" {
		return "", nil
	}
	v, reason := s.virtual(name, tenant)
	if v == nil {
		return "", apierr.NotFound(reason)
	}
	return name, nil
}

// virtual returns a virtual server, or nil and the reason if it cannot be used in a tenant.
func (s *API) virtual(name, tenant string) (v *mcpdoc.Virtual, reason string) {
	t, digest := s.Tools.Lookup(mcpdoc.VirtualKind(name))
	v = mcpdoc.VirtualOf(t)
	switch {
	case v == nil:
		return nil, "no virtual MCP server has this name: `binnacle mcp list` lists them"
	case s.Tools.In(tenant).Drifted(t, digest):
		return nil, "virtual MCP server " + name + " has changed: approve it with `binnacle policy approve-tool " + t.Kind + "`"
	}
	return v, ""
}

// chosen returns the part of the offers that a virtual server has. If v is nil, the result is
// empty.
func (o *offers) chosen(v *mcpdoc.Virtual) *offers {
	out := &offers{generation: o.generation, virtual: v, tools: []*mcp.Tool{}, prompts: []*mcp.Prompt{}, resources: []*mcp.Resource{}, templates: []*mcp.ResourceTemplate{},
		byPrompt: map[string]promptOf{}, byURI: map[string]string{}, byTool: map[string]bool{}}
	if v == nil {
		return out
	}
	out.own = slices.Contains(v.Resources, mcpdoc.Own)
	for _, t := range o.tools {
		if mcpdoc.Matches(v.Tools, t.Name) {
			out.tools, out.byTool[t.Name] = append(out.tools, t), true
		}
	}
	for _, t := range o.headed {
		if out.byTool[t.Name] && !v.Search {
			out.headed = append(out.headed, t)
		}
	}
	for _, p := range o.prompts {
		if mcpdoc.Matches(v.Prompts, p.Name) {
			out.prompts, out.byPrompt[p.Name] = append(out.prompts, p), o.byPrompt[p.Name]
		}
	}
	for _, r := range o.resources {
		if slices.Contains(v.Resources, o.byURI[r.URI]) {
			out.resources, out.byURI[r.URI] = append(out.resources, r), o.byURI[r.URI]
		}
	}
	for i, p := range o.patterns {
		if slices.Contains(v.Resources, p.server) {
			out.patterns = append(out.patterns, o.patterns[i])
		}
	}
	for _, t := range o.templates {
		if slices.ContainsFunc(out.patterns, func(p pattern) bool { return p.template == t.URITemplate }) {
			out.templates = append(out.templates, t)
		}
	}
	return out
}

// choose returns the tool and the arguments that a request calls at a virtual server, and
// whether the result is that of search. A request for callName names both in its arguments.
// The refusal is not nil if the virtual server does not offer the tool, was removed or has
// changed, or if the arguments of callName are invalid. Such a call is not proposed.
func choose(e *edge, name string, args []byte) (tool string, arguments []byte, search bool, refusal *mcp.CallToolResult) {
	o := e.catalog()
	if o.virtual == nil {
		return "", nil, false, toolError(contract.CodeNotFound, "virtual MCP server "+e.virtualName+" was removed or has changed", nil)
	}
	if o.virtual.Search {
		switch name {
		case searchName:
			return name, args, true, nil
		case callName:
			var reason string
			if name, args, reason = unwrap(args); reason != "" {
				return "", nil, false, toolError(contract.CodeInvalidInput, reason, nil)
			}
		}
	}
	if !o.byTool[name] {
		return "", nil, false, toolError(contract.CodeNotFound, "virtual MCP server "+e.virtualName+" does not offer the tool "+strings.ToValidUTF8(name[:min(len(name), 128)], "")+": list its tools", nil)
	}
	return name, args, false, nil
}
