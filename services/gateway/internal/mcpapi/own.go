package mcpapi

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/resources"
)

// ownPrompt is a prompt of the mesh. It takes the id of a resource, whose content its message
// contains.
type ownPrompt struct{ description, argument, kind, text string }

// ownPrompts are the prompts of the mesh by their names.
var ownPrompts = map[string]ownPrompt{
	mcpdoc.Own + ".explain_call": {"Explains the outcome of a call from its receipt.", "call", resources.Receipt,
		"Explain this receipt of a governed call: what was called, what was decided and why, and how it ended. If it was denied or failed, state what its caller can change."},
	mcpdoc.Own + ".review_session": {"Reviews the calls of a session from their receipts.", "session", resources.Session,
		"Review these receipts of the calls of a session, in their order. List what was done, and each call that was denied, failed, or has an unknown outcome, with its reason code."},
}

// ownEdge serves requests about the resources and prompts of the mesh.
type ownEdge struct{ *edge }

// isOwn reports whether a URI or template is of the mesh's own resources.
func isOwn(uri string) bool { return strings.HasPrefix(uri, resources.Scheme) }

// ownCursor is the prefix of a cursor that selects a page of the mesh's own resources in the list
// of resources. The cursor of resources.Reader.List follows it.
const ownCursor = resources.Scheme + "artifacts?before="

// addOwn adds the mesh's own resources to the last page of a list. If they cannot be read now,
// the result has the cursor of a further page instead, so that the request for it returns the
// error, and the other resources are listed.
func (e ownEdge) addOwn(ctx context.Context, who *auth.Caller, res *mcp.ListResourcesResult) {
	page, err := e.ownResources(ctx, who, "")
	if err != nil {
		res.NextCursor = ownCursor
		return
	}
	res.Resources, res.NextCursor = append(res.Resources, page.Resources...), page.NextCursor
}

// ownResources returns a page of the mesh's own resources.
func (e ownEdge) ownResources(ctx context.Context, who *auth.Caller, cursor string) (*mcp.ListResourcesResult, error) {
	page, next, err := e.Own.List(ctx, who, cursor)
	if err != nil {
		return nil, wireError(err)
	}
	res := &mcp.ListResourcesResult{Resources: []*mcp.Resource{}}
	for _, x := range page {
		res.Resources = append(res.Resources, &mcp.Resource{URI: x.URI, Name: x.Name, MIMEType: x.MediaType, Size: x.Size})
	}
	if next != "" {
		res.NextCursor = ownCursor + next
	}
	return res, nil
}

// ownTemplates returns the templates of the mesh's own resources that a caller may read.
func ownTemplates(who *auth.Caller) (out []*mcp.ResourceTemplate) {
	for _, t := range resources.Templates(who) {
		out = append(out, &mcp.ResourceTemplate{URITemplate: t.URI(), Name: t.Name, Title: t.Title, Description: t.Description, MIMEType: t.MediaType})
	}
	return out
}

// ownPromptsOf returns the prompts of the mesh that a caller may get, except those whose names
// prompts of servers have.
func (o *offers) ownPromptsOf(who *auth.Caller) (out []*mcp.Prompt) {
	for _, name := range slices.Sorted(maps.Keys(ownPrompts)) {
		if p, ok := o.ownPrompt(who, name); ok {
			out = append(out, &mcp.Prompt{Name: name, Description: p.description, Arguments: []*mcp.PromptArgument{{Name: p.argument, Description: "id of the " + p.argument, Required: true}}})
		}
	}
	return out
}

// ownPrompt returns the prompt of the mesh with a name. It reports false if the offers contain no
// such prompt, or one of a server with the name, or if the caller may not read its resources.
func (o *offers) ownPrompt(who *auth.Caller, name string) (ownPrompt, bool) {
	p, ok := ownPrompts[name]
	if _, taken := o.byPrompt[name]; !ok || taken || !o.own {
		return p, false
	}
	return p, slices.ContainsFunc(resources.Templates(who), func(t resources.Template) bool { return t.Kind == p.kind })
}

// readOwn returns the content of a resource of the mesh.
func (e ownEdge) readOwn(ctx context.Context, who *auth.Caller, session *mcp.ServerSession, uri string) (*mcp.ReadResourceResult, error) {
	c, err := e.Own.Read(ctx, who, uri)
	if err != nil {
		return nil, ownError(session, uri, err)
	}
	x := &mcp.ResourceContents{URI: uri, MIMEType: c.MediaType}
	if c.Text() {
		x.Text = string(c.Data)
	} else {
		x.Blob = c.Data
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{x}}, nil
}

// ownError returns the error of a request for a resource of the mesh: that of notFound if it is
// not found, and otherwise that of wireError.
func ownError(session *mcp.ServerSession, uri string, err error) error {
	if x := refusal(err); x != nil && x.Status == http.StatusNotFound {
		return notFound(session, uri)
	}
	return wireError(err)
}

// getOwnPrompt returns the message of a prompt of the mesh.
func (e ownEdge) getOwnPrompt(ctx context.Context, who *auth.Caller, p ownPrompt, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	id := req.Params.Arguments[p.argument]
	if id == "" {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "arguments." + p.argument + ": name the " + p.argument + " by its id"}
	}
	res, err := e.readOwn(ctx, who, req.Session, p.kind+id)
	if wire := (*jsonrpc.Error)(nil); errors.As(err, &wire) && wire.Message == resourceNotFound {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "arguments." + p.argument + ": not found, or not yours to read"}
	}
	if err != nil {
		return nil, err
	}
	return &mcp.GetPromptResult{Description: p.description, Messages: []*mcp.PromptMessage{
		{Role: "user", Content: &mcp.TextContent{Text: p.text}},
		{Role: "user", Content: &mcp.EmbeddedResource{Resource: res.Contents[0]}}}}, nil
}

// completeOwn completes the argument of a template or prompt of the mesh. It reports false if the
// reference is to neither, if the offers do not contain the mesh's own, or if the caller may not get
// the prompt.
func (e ownEdge) completeOwn(ctx context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, bool, error) {
	o, ref, arg := e.catalog(), req.Params.Ref, req.Params.Argument
	who, err := callerOf(req.Extra)
	if err != nil || !o.own {
		return nil, false, err
	}
	kind, variable := "", resources.Variable
	if p, ok := o.ownPrompt(who, ref.Name); ref.Type == "ref/prompt" && ok {
		kind, variable = p.kind, p.argument
	} else if ref.Type == "ref/resource" {
		kind, _ = resources.Kind(ref.URI)
	}
	if kind == "" {
		return nil, false, nil
	}
	if arg.Name != variable {
		return nil, true, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "argument.name: want " + variable}
	}
	values, more, err := e.Own.Complete(ctx, who, kind, arg.Value)
	if err != nil {
		return nil, true, wireError(err)
	}
	if values == nil {
		values = []string{}
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: values, HasMore: more}}, true, nil
}

// followOwn subscribes to a resource of the mesh until life ends.
func (e ownEdge) followOwn(life context.Context, extra *mcp.RequestExtra, session *mcp.ServerSession, uri string) error {
	who, err := callerOf(extra)
	if err != nil {
		return err
	}
	if err := e.Own.Follow(life, who, uri, func() { updated(e.edge, session, uri) }); err != nil {
		return ownError(session, uri, err)
	}
	return nil
}

// updated notifies the client of a session that a resource has changed.
func updated(e *edge, session *mcp.ServerSession, uri string) {
	_ = e.srv.ResourceUpdated(context.Background(), &mcp.ResourceUpdatedNotificationParams{URI: uri, Meta: mcp.Meta{subscriber: session}}) // its error is always nil
}
