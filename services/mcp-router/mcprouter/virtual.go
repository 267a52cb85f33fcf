package mcprouter

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
)

// Kinds of the calls that manage virtual servers.
const (
	kindPublish   = "mcp.publish"
	kindUnpublish = "mcp.unpublish"
)

// virtualTools are the documents of the calls that manage virtual servers.
var virtualTools = []contract.Tool{
	admin(kindPublish, "E2", "Publishes a virtual MCP server, which offers a choice of the tools, prompts and resources of the mesh at /mcp?server=NAME, or replaces one.",
		`{"additionalProperties":false,"properties":{"description":{"maxLength":1024,"type":"string"},"name":{"maxLength":32,"type":"string"},"prompts":`+strings128+`,"resources":`+strings128+`,"search":{"type":"boolean"},"tools":`+strings128+`},"required":["name","tools"],"type":"object"}`),
	admin(kindUnpublish, "E2", "Removes a virtual MCP server.", named),
}

var virtualName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// published is the output of mcp.publish and mcp.unpublish, and a virtual server in that of
// mcp.list.
type published struct {
	Name        string `json:"name"`
	Kind        string `json:"kind"`
	Description string `json:"description"`
	Digest      string `json:"digest"`
	Approved    bool   `json:"approved"` // whether the document is the approved one in the tenant of the call
	mcpdoc.Virtual
	Offers []string `json:"offers"` // names of the tools that it offers now, in the order of their kinds
}

// publish publishes a virtual server.
func (s *Service) publish(ctx context.Context, w *execute.Work) execute.Result {
	var args struct {
		Name, Description string
		mcpdoc.Virtual
	}
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	if !virtualName.MatchString(args.Name) {
		return execute.Fail(contract.CodeInvalidInput, "name %q: want 1 to 32 characters of a-z, 0-9, _ and -, beginning with a letter or digit", args.Name)
	}
	if err := s.view.follower.Poll(ctx); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the catalog cannot be read: %v", err)
	}
	if err := s.exist(&args.Virtual); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	schema, err := args.Virtual.Schema()
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	kind := mcpdoc.VirtualKind(args.Name)
	t := contract.Tool{Class: "E0", Description: args.Description, Executor: Name, Kind: kind, Tool: kind, Version: "v1", Rerunnable: true,
		InputSchema: contract.Raw(`{"additionalProperties":false,"type":"object"}`), OutputSchema: schema}
	if err := s.offer(ctx, &t); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the virtual server cannot be recorded: %v", err)
	}
	if err := s.view.follower.Poll(ctx); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the catalog cannot be read: %v", err)
	}
	return output(s.published(&t, s.view.catalog.In(w.Event.Tenant)))
}

// exist returns an error if a virtual server names no tools, or if a member of it matches
// nothing that the mesh offers or, in the list of resources, is not the name of a server. The
// error begins with the list and, unless that is empty, the index of the member.
func (s *Service) exist(v *mcpdoc.Virtual) error {
	var tools, prompts []string
	servers := []string{mcpdoc.Own}
	for _, t := range s.view.catalog.Tools() {
		switch o := mcpdoc.Of(&t); {
		case strings.HasPrefix(t.Kind, mcpdoc.ToolPrefix):
			tools = append(tools, t.Tool)
		case o != nil && strings.HasPrefix(t.Kind, mcpdoc.PromptPrefix):
			prompts = append(prompts, strings.TrimPrefix(t.Kind, mcpdoc.PromptPrefix))
		case o != nil && t.Kind == mcpdoc.ResourcePrefix+o.Server:
			servers = append(servers, o.Server)
		}
	}
	if len(v.Tools) == 0 {
		return fmt.Errorf("tools: name at least one tool, or the beginning of names followed by *")
	}
	for _, list := range []struct {
		member     string
		want, have []string
	}{{"tools", v.Tools, tools}, {"prompts", v.Prompts, prompts}, {"resources", v.Resources, servers}} {
		for i, want := range list.want {
			if !slices.ContainsFunc(list.have, func(name string) bool { return mcpdoc.Matches([]string{want}, name) }) {
				return fmt.Errorf("%s[%d]: the mesh offers nothing with the name %q: `binnacle mcp list` lists the servers", list.member, i, want)
			}
		}
	}
	for i, name := range v.Resources {
		if strings.HasSuffix(name, "*") {
			return fmt.Errorf("resources[%d]: want the name of a server", i)
		}
	}
	return nil
}

// unpublish removes a virtual server.
func (s *Service) unpublish(ctx context.Context, w *execute.Work) execute.Result {
	var args struct{ Name string }
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	if err := s.view.follower.Poll(ctx); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the catalog cannot be read: %v", err)
	}
	t := s.view.tool(mcpdoc.VirtualKind(args.Name))
	if mcpdoc.VirtualOf(t) == nil {
		return execute.Fail(contract.CodeNotFound, "no virtual MCP server has the name %q: `binnacle mcp list` lists them", args.Name)
	}
	if err := catalog.Withdraw(ctx, s.env.Emit, s.env.Cell.Now, Name, t); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the removal cannot be recorded: %v", err)
	}
	return output(s.published(t, s.view.catalog.In(w.Event.Tenant)))
}

// published describes a virtual server to the callers of a tenant.
func (s *Service) published(t *contract.Tool, tools catalog.Tools) *published {
	digest := contract.Digest(t)
	p := &published{Name: strings.TrimPrefix(t.Kind, mcpdoc.VirtualKind("")), Kind: t.Kind, Description: t.Description, Digest: digest,
		Approved: !tools.Drifted(t, digest), Virtual: *mcpdoc.VirtualOf(t), Offers: []string{}}
	for _, x := range tools.Tools() {
		if strings.HasPrefix(x.Kind, mcpdoc.ToolPrefix) && mcpdoc.Matches(p.Tools, x.Tool) && !tools.Drifted(&x, contract.Digest(&x)) {
			p.Offers = append(p.Offers, x.Tool)
		}
	}
	return p
}

// allPublished describes the virtual servers to the callers of a tenant, in the order of
// their names.
func (s *Service) allPublished(tools catalog.Tools) []*published {
	out := []*published{}
	for _, t := range tools.Tools() {
		if mcpdoc.VirtualOf(&t) != nil {
			out = append(out, s.published(&t, tools))
		}
	}
	return out
}
