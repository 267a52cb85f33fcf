package mcprouter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/server"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/internal/upstream"
)

// Kinds of the calls that manage servers.
const (
	kindAdd      = mcpdoc.KindAdd
	kindDiscover = "mcp.discover"
	kindList     = "mcp.list"
	kindRefresh  = "mcp.refresh"
	kindRemove   = "mcp.remove"
)

// named is the input schema of calls about one server.
const named = `{"additionalProperties":false,"properties":{"name":{"maxLength":32,"type":"string"}},"required":["name"],"type":"object"}`

const strings128 = `{"items":{"maxLength":128,"type":"string"},"maxItems":2000,"type":"array"}`

// adminTools are the documents of the calls that manage servers and virtual servers.
var adminTools = append([]contract.Tool{
	admin(kindAdd, "E2", "Adds an MCP server to the mesh, or replaces its settings, and offers its tools, resources and prompts.",
		`{"additionalProperties":false,"properties":{"args":{"items":{"maxLength":4096,"type":"string"},"maxItems":128,"type":"array"},"class":{"enum":["E0","E1","E2","E3","E4"]},"command":{"maxLength":4096,"type":"string"},"concurrency":{"maximum":256,"minimum":1,"type":"integer"},"descriptions":{"items":{"additionalProperties":false,"properties":{"text":{"maxLength":8192,"type":"string"},"tool":{"maxLength":128,"type":"string"}},"required":["text","tool"],"type":"object"},"maxItems":2000,"type":"array"},"env":{"items":{"additionalProperties":false,"properties":{"name":{"maxLength":128,"type":"string"},"value":{"maxLength":4096,"type":"string"}},"required":["name","value"],"type":"object"},"maxItems":128,"type":"array"},"exclude":`+strings128+`,"files":{"items":{"additionalProperties":false,"properties":{"name":{"maxLength":128,"type":"string"},"secret":{"maxLength":64,"type":"string"}},"required":["name","secret"],"type":"object"},"maxItems":16,"type":"array"},"headers":{"items":{"additionalProperties":false,"properties":{"name":{"maxLength":64,"type":"string"},"prefix":{"maxLength":64,"type":"string"},"secret":{"maxLength":64,"type":"string"}},"required":["name","secret"],"type":"object"},"maxItems":16,"type":"array"},"hosts":{"items":{"maxLength":260,"type":"string"},"maxItems":32,"type":"array"},"image":{"maxLength":256,"type":"string"},"include":`+strings128+`,"name":{"maxLength":32,"type":"string"},"names":{"enum":["bare","prefixed"]},"renames":{"items":{"additionalProperties":false,"properties":{"name":{"maxLength":96,"type":"string"},"tool":{"maxLength":128,"type":"string"}},"required":["name","tool"],"type":"object"},"maxItems":2000,"type":"array"},"sessions":{"enum":["per_session","shared"]},"timeout_ms":{"maximum":600000,"minimum":1,"type":"integer"},"transport":{"enum":["http","sse","stdio"]},"url":{"maxLength":2048,"type":"string"}},"required":["name"],"type":"object"}`),
	admin(kindDiscover, "E0", "Sends a request without a token to an MCP server, and returns which authorization servers issue access tokens for it (RFC 9728).",
		`{"additionalProperties":false,"properties":{"transport":{"enum":["http","sse"]},"url":{"maxLength":2048,"type":"string"}},"required":["url"],"type":"object"}`),
	admin(kindList, "E0", "Lists the MCP servers of the mesh, with their settings, their health and what they offer.", `{"additionalProperties":false,"type":"object"}`),
	admin(kindRefresh, "E2", "Lists again what an MCP server offers: new tools are offered, changed ones are denied until they are approved, and those that are gone are retired.", named),
	admin(kindRemove, "E2", "Removes an MCP server from the mesh and retires its tools.", named),
}, virtualTools...)

// listWithin is the time of a call that lists a server, as far as its sandbox is concerned.
const listWithin = time.Minute

// admin returns the document of a call that manages servers. The calls that connect to a
// server, mcp.add and mcp.refresh, may use the secrets of every server, and start one that is a
// command.
func admin(kind, class, description, input string) contract.Tool {
	t := contract.Tool{Class: class, Description: description, Executor: Name, Kind: kind, Tool: kind, Version: "v1", Rerunnable: true,
		InputSchema: contract.Raw(input), OutputSchema: contract.Raw(`{"additionalProperties":true,"type":"object"}`)}
	if kind == kindAdd || kind == kindRefresh {
		t.Secrets = []contract.SecretGrant{{Name: server.SecretPrefix + "*"}}
		t.Sandbox = server.Ceiling(listWithin.Milliseconds())
	}
	return t
}

// adminCalls are the handlers of the calls that manage servers and virtual servers.
var adminCalls = map[string]func(*Service, context.Context, *execute.Work) execute.Result{
	kindAdd: (*Service).add, kindDiscover: (*Service).discover, kindList: (*Service).list, kindRefresh: (*Service).refresh, kindRemove: (*Service).remove,
	kindPublish: (*Service).publish, kindUnpublish: (*Service).unpublish,
}

// changes is the output of the calls that add, refresh and remove a server.
type changes struct {
	Server   string           `json:"server"`
	Protocol string           `json:"protocol,omitempty"` // protocol version of the session with the server
	Offered  []string         `json:"offered"`            // kinds that were not offered before
	Changed  []change         `json:"changed"`            // documents that differ from the registered ones; they are denied until they are approved
	Retired  []string         `json:"retired"`
	LeftOut  []server.Problem `json:"left_out"`
}

// change is a changed document.
type change struct {
	Kind   string   `json:"kind"`
	Digest string   `json:"digest"` // digest of the new document, which its approval names
	Fields []string `json:"fields"` // members of the document that differ
}

// add adds a server.
func (s *Service) add(ctx context.Context, w *execute.Work) execute.Result {
	cfg := &events.ServerAdded{}
	if err := json.Unmarshal(w.Args, cfg); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	if err := server.Check(cfg); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	cfg.CallID = w.Call.ID
	return s.update(ctx, w, cfg, true)
}

// discover returns the authorization servers of a server that may not have been added yet.
func (s *Service) discover(ctx context.Context, w *execute.Work) execute.Result {
	cfg := &events.ServerAdded{}
	if err := json.Unmarshal(w.Args, cfg); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	if _, err := server.Host(cfg.Url); err != nil {
		return execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	p, err := upstream.Discover(ctx, cfg.Url, run.Version(), cfg.Transport == server.SSE)
	if err != nil {
		cfg.Name = cfg.Url
		return failed(ctx, cfg, err)
	}
	return output(p)
}

// refresh lists a server again.
func (s *Service) refresh(ctx context.Context, w *execute.Work) execute.Result {
	cfg, res := s.known(ctx, w)
	if cfg == nil {
		return res
	}
	return s.update(ctx, w, cfg, false)
}

// known returns the settings of the server that the arguments name, or nil and the result
// with which the call fails.
func (s *Service) known(ctx context.Context, w *execute.Work) (*events.ServerAdded, execute.Result) {
	var args struct{ Name string }
	if err := json.Unmarshal(w.Args, &args); err != nil {
		return nil, execute.Fail(contract.CodeInvalidInput, "%v", err)
	}
	if err := s.view.follower.Poll(ctx); err != nil {
		return nil, execute.Fail(contract.CodeUnavailable, "the servers cannot be read: %v", err)
	}
	cfg := s.view.server(args.Name)
	if cfg == nil {
		return nil, execute.Fail(contract.CodeNotFound, "no MCP server has the name %q: `binnacle mcp list` lists them", args.Name)
	}
	return cfg, execute.Result{}
}

// update lists a server, records its settings if record is set, and registers what it
// offers.
func (s *Service) update(ctx context.Context, w *execute.Work, cfg *events.ServerAdded, record bool) execute.Result {
	secrets := map[string]string{}
	for _, name := range ownSecrets(cfg) {
		v, err := w.Secret(ctx, name)
		if err != nil {
			return execute.Refused(err)
		}
		secrets[name] = v
	}
	out := changes{Server: cfg.Name, Offered: []string{}, Changed: []change{}, Retired: []string{}, LeftOut: []server.Problem{}}
	var docs []contract.Tool
	err := renewed(ctx, w, cfg, secrets, upstream.Rejected, func(secrets map[string]string) (err error) {
		docs, err = s.listed(withWork(ctx, w, secrets), cfg, headers(cfg, secrets), &out)
		return err
	})
	if err != nil {
		return failed(ctx, cfg, err)
	}
	if err := s.view.follower.Poll(ctx); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the catalog cannot be read: %v", err)
	}
	if taken := s.taken(cfg.Name, docs); len(taken) > 0 {
		return execute.Fail(contract.CodeConflict, "names of MCP server %s are taken: %s: give the server another name, set names to prefixed, or exclude the tools", cfg.Name, strings.Join(taken, "; "))
	}
	if record {
		if err := s.record(ctx, cfg.Name, events.ServerAddedName, contract.Bytes(cfg)); err != nil {
			return execute.Fail(contract.CodeUnavailable, "the settings cannot be recorded: %v", err)
		}
	}
	if err := s.register(ctx, cfg.Name, docs, &out); err != nil {
		return execute.Fail(contract.CodeUnavailable, "not every tool was registered; run `binnacle mcp refresh %s`: %v", cfg.Name, err)
	}
	return output(&out)
}

// ownSecrets returns the names of the secrets that this service sends to a server: those of its
// headers or, if it is a command, those of its files. The egress-broker adds the headers of a command.
func ownSecrets(cfg *events.ServerAdded) (out []string) {
	if cfg.Transport != server.Stdio {
		for _, h := range cfg.Headers {
			out = append(out, h.Secret)
		}
	}
	for _, f := range cfg.Files {
		out = append(out, f.Secret)
	}
	return out
}

// listed returns the documents of a server, and adds to out the protocol version and what
// the mesh does not offer. It uses a session of its own, because the settings may not be
// in force yet.
func (s *Service) listed(ctx context.Context, cfg *events.ServerAdded, h http.Header, out *changes) ([]contract.Tool, error) {
	up := newUpstream(s, cfg)
	defer up.Close()
	var docs []contract.Tool
	err := up.Do(ctx, "", h, nil, func(ctx context.Context, x upstream.Session) error {
		out.Protocol = x.InitializeResult().ProtocolVersion
		l, err := x.List(ctx)
		if err != nil {
			return err
		}
		all, problems := server.Documents(cfg, (*server.Listing)(l))
		out.LeftOut = append(out.LeftOut, problems...)
		for _, t := range all {
			if err := s.checker.Valid(&t); err != nil {
				out.LeftOut = append(out.LeftOut, server.Problem{Name: t.Tool, Reason: err.Error()})
				continue
			}
			docs = append(docs, t)
		}
		return nil
	})
	return docs, err
}

// taken describes at most ten of the documents whose aggregate key a tool of another
// server or service has already. Each description names that tool and its owner.
func (s *Service) taken(name string, docs []contract.Tool) []string {
	owners := map[string]string{}
	for _, t := range s.view.catalog.Tools() {
		owner := "service " + t.Executor
		if o := mcpdoc.Of(&t); o != nil {
			if o.Server == name {
				continue
			}
			owner = "MCP server " + o.Server
		}
		owners[catalog.Key(t.Kind)] = t.Tool + " of " + owner
	}
	var out []string
	for _, t := range docs {
		if o, ok := owners[catalog.Key(t.Kind)]; ok {
			out = append(out, fmt.Sprintf("%s of MCP server %s is %s", t.Tool, name, o))
		}
	}
	return out[:min(len(out), 10)]
}

// register registers those of docs that are new or changed, retires the registered
// documents of the server that are not among docs, and adds the changes to out.
func (s *Service) register(ctx context.Context, name string, docs []contract.Tool, out *changes) error {
	have := s.view.offered(name)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range docs {
		t := &docs[i]
		old, ok := have[t.Kind]
		delete(have, t.Kind)
		switch {
		case !ok:
			out.Offered = append(out.Offered, t.Kind)
		case !bytes.Equal(contract.Bytes(&old), contract.Bytes(t)):
			out.Changed = append(out.Changed, change{t.Kind, contract.Digest(t), differ(&old, t)})
		default:
			continue
		}
		g.Go(func() error { return s.offer(ctx, t) })
	}
	for _, kind := range slices.Sorted(maps.Keys(have)) {
		t := have[kind]
		out.Retired = append(out.Retired, kind)
		g.Go(func() error { return catalog.Withdraw(ctx, s.env.Emit, s.env.Cell.Now, Name, &t) })
	}
	return g.Wait()
}

// differ returns the names of the members in which two documents differ.
func differ(a, b *contract.Tool) []string {
	var x, y map[string]json.RawMessage
	if json.Unmarshal(contract.Bytes(a), &x) != nil || json.Unmarshal(contract.Bytes(b), &y) != nil {
		return nil
	}
	var out []string
	for k := range y {
		if !bytes.Equal(x[k], y[k]) {
			out = append(out, k)
		}
	}
	for k := range x {
		if _, ok := y[k]; !ok {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// remove removes a server.
func (s *Service) remove(ctx context.Context, w *execute.Work) execute.Result {
	cfg, res := s.known(ctx, w)
	if cfg == nil {
		return res
	}
	out := changes{Server: cfg.Name, Offered: []string{}, Changed: []change{}, Retired: []string{}, LeftOut: []server.Problem{}}
	if err := s.register(ctx, cfg.Name, nil, &out); err != nil {
		return execute.Fail(contract.CodeUnavailable, "not every tool was retired; call again: %v", err)
	}
	if err := s.record(ctx, cfg.Name, events.ServerRemovedName, contract.Bytes(&events.ServerRemoved{CallID: w.Call.ID, Name: cfg.Name})); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the removal cannot be recorded: %v", err)
	}
	return output(&out)
}

// record appends an event about a server, unless the newest one is the same event of
// the same call, and then updates the view.
func (s *Service) record(ctx context.Context, name, event string, data []byte) error {
	key := mcpdoc.Key(name)
	_, err := handle.DoCell(ctx, s.env.Emit.Log, s.env.Cell.Now, Name, key, func(h []*contract.Event) (*contract.Event, error) {
		if n := len(h); n > 0 && h[n-1].Name == event && bytes.Equal(h[n-1].Data, data) {
			return nil, nil
		}
		return s.env.Emit.New(event, key, data, nil), nil
	})
	if err != nil {
		return err
	}
	return s.view.follower.Poll(ctx)
}

// listedServer is a server in the output of mcp.list.
type listedServer struct {
	*events.ServerAdded
	Health  upstream.Health `json:"health"` // of the instance that executed the call
	Tools   []listedTool    `json:"tools"`
	Retired bool            `json:"-"`
}

// listedTool describes a registered document of a server in the output of mcp.list.
type listedTool struct {
	Kind        string   `json:"kind"`
	Description string   `json:"description"`
	Digest      string   `json:"digest"`
	Pinned      string   `json:"pinned_digest"`       // of the approved document in the tenant of the call
	Approved    bool     `json:"approved"`            // whether both digests are equal
	Resources   []string `json:"resources,omitempty"` // URIs
	Templates   []string `json:"templates,omitempty"` // URI templates
}

// listTool returns the description of a document in the output of mcp.list.
func listTool(t *contract.Tool, tools catalog.Tools) listedTool {
	digest := contract.Digest(t)
	pinned, _ := tools.Approved(t.Kind)
	o := mcpdoc.Of(t)
	return listedTool{t.Kind, t.Description, digest, pinned, !tools.Drifted(t, digest), members(o.Resources, "uri"), members(o.Templates, "uriTemplate")}
}

// members returns the member with the name of each object that has it as a string.
func members(objects []json.RawMessage, name string) (out []string) {
	for _, raw := range objects {
		var x map[string]json.RawMessage
		var s string
		if json.Unmarshal(raw, &x) == nil && json.Unmarshal(x[name], &s) == nil {
			out = append(out, s)
		}
	}
	return out
}

// list lists the servers.
func (s *Service) list(ctx context.Context, w *execute.Work) execute.Result {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := s.view.follower.Poll(ctx); err != nil {
		return execute.Fail(contract.CodeUnavailable, "the servers cannot be read: %v", err)
	}
	out := struct {
		Instance string         `json:"instance"`
		Servers  []listedServer `json:"servers"`
		Version  string         `json:"version"`
		Virtual  []*published   `json:"virtual"`
	}{w.Instance, []listedServer{}, run.Version(), nil}
	tools := s.view.catalog.In(w.Event.Tenant)
	out.Virtual = s.allPublished(tools)
	for _, cfg := range s.view.all() {
		x := listedServer{ServerAdded: cfg, Health: s.pool(cfg).Health(), Tools: []listedTool{}}
		offered := s.view.offered(cfg.Name)
		for _, kind := range slices.Sorted(maps.Keys(offered)) {
			t := offered[kind]
			x.Tools = append(x.Tools, listTool(&t, tools))
		}
		out.Servers = append(out.Servers, x)
	}
	return output(out)
}

// output returns the result with a document as output.
func output(doc any) execute.Result {
	b, err := json.Marshal(doc)
	if err != nil {
		return execute.Fail(contract.CodeInternal, "%v", err)
	}
	return execute.Result{EffectType: "mcp.servers", Output: b}
}
