// Package server decides which parts of an MCP server the mesh offers: it checks the server's
// settings, and makes tool documents from the server's lists.
package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/mcpdoc"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// Values of the settings of a server.
const (
	HTTP       = "http"        // transport: streamable HTTP
	SSE        = "sse"         // transport: HTTP with SSE, of protocol version 2024-11-05
	Stdio      = "stdio"       // transport: standard input and output of a command in a sandbox
	Prefixed   = "prefixed"    // names of tools and prompts begin with the server's name and a dot
	Bare       = "bare"        // names of tools and prompts are those of the server
	Shared     = "shared"      // upstream sessions may be used by calls of any session
	PerSession = "per_session" // an upstream session is used by calls of one session only
)

// SecretPrefix begins the names of the secrets that servers may use.
const SecretPrefix = "mcp."

// Limits of settings and documents.
const (
	maxConcurrency = 256
	maxTimeoutMS   = 600_000
	maxDocument    = 256 << 10 // bytes of a tool document
)

var (
	serverName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)
	toolName   = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,96}$`)
	headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
)

// Check sets the defaults of settings that are absent. If a setting is invalid, it
// returns an error that names the setting and the fix.
func Check(s *events.ServerAdded) error {
	transport, concurrency := HTTP, int64(16)
	if s.Command != "" || s.Image != "" {
		transport, concurrency = Stdio, 1
	}
	s.Class, s.Names, s.Sessions, s.Transport = or(s.Class, "E3"), or(s.Names, Prefixed), or(s.Sessions, Shared), or(s.Transport, transport)
	if s.Concurrency == 0 {
		s.Concurrency = concurrency
	}
	if s.TimeoutMS == 0 {
		s.TimeoutMS = 60_000
	}
	switch {
	case !serverName.MatchString(s.Name):
		return fmt.Errorf("name %q: want 1 to 32 characters of a-z, 0-9, _ and -, beginning with a letter or digit", s.Name)
	case s.Name == mcpdoc.Own:
		return fmt.Errorf("name %q: it stands for the resources of the mesh itself: choose another", s.Name)
	case !slices.Contains([]string{HTTP, SSE, Stdio}, s.Transport):
		return fmt.Errorf("transport %q: want http, sse or stdio", s.Transport)
	case !slices.Contains([]string{Prefixed, Bare}, s.Names):
		return fmt.Errorf("names %q: want prefixed or bare", s.Names)
	case !slices.Contains([]string{Shared, PerSession}, s.Sessions):
		return fmt.Errorf("sessions %q: want shared or per_session", s.Sessions)
	case len(s.Class) != 2 || s.Class < "E0" || s.Class > "E4":
		return fmt.Errorf("class %q: want E0 to E4", s.Class)
	case s.Concurrency < 1 || s.Concurrency > maxConcurrency:
		return fmt.Errorf("concurrency %d: want 1 to %d", s.Concurrency, maxConcurrency)
	case s.TimeoutMS < 1 || s.TimeoutMS > maxTimeoutMS:
		return fmt.Errorf("timeout_ms %d: want 1 to %d", s.TimeoutMS, maxTimeoutMS)
	}
	if err := checkTransport(s); err != nil {
		return err
	}
	return checkOverrides(s)
}

// checkTransport checks the settings by which the server is reached.
func checkTransport(s *events.ServerAdded) error {
	if s.Transport == Stdio {
		return checkCommand(s)
	}
	if s.Command != "" || s.Image != "" || len(s.Args)+len(s.Env)+len(s.Hosts)+len(s.Files) > 0 {
		return fmt.Errorf("transport %s: a server with a URL has no command, args, env, hosts, files and image: remove them, or the transport", s.Transport)
	}
	if _, err := Host(s.Url); err != nil {
		return err
	}
	for _, h := range s.Headers {
		if err := checkHeader(h); err != nil {
			return err
		}
	}
	return nil
}

// checkOverrides returns an error if a name that replaces another one is invalid, or if two
// overrides of the same kind are for one tool.
func checkOverrides(s *events.ServerAdded) error {
	seen := map[string]bool{}
	for _, r := range s.Renames {
		switch {
		case !toolName.MatchString(r.Name):
			return fmt.Errorf("renames: name %q of %s: want 1 to 96 characters of A-Z, a-z, 0-9, _, . and -", r.Name, r.Tool)
		case seen[r.Tool]:
			return fmt.Errorf("renames: %s has two names: keep one", r.Tool)
		}
		seen[r.Tool] = true
	}
	clear(seen)
	for _, d := range s.Descriptions {
		if seen[d.Tool] {
			return fmt.Errorf("descriptions: %s has two descriptions: keep one", d.Tool)
		}
		seen[d.Tool] = true
	}
	return nil
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// reserved are the headers that the transport sets.
var reserved = []string{"accept", "connection", "content-length", "content-type", "host", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "transfer-encoding"}

func checkHeader(h events.Header) error {
	switch {
	case !headerName.MatchString(h.Name):
		return fmt.Errorf("headers: name %q: want letters, digits and hyphens", h.Name)
	case slices.Contains(reserved, strings.ToLower(h.Name)):
		return fmt.Errorf("headers: %s is set by the transport: remove it", h.Name)
	case !strings.HasPrefix(h.Secret, SecretPrefix):
		return fmt.Errorf("headers: secret %q of %s: want the name of a secret in the vault that begins with %s", h.Secret, h.Name, SecretPrefix)
	case len(h.Prefix) > 64 || strings.ContainsFunc(h.Prefix, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("headers: prefix of %s: want at most 64 printable ASCII characters", h.Name)
	}
	return nil
}

// Host returns the host of a server's URL, with the port if it has one. It is the host
// that the ceilings of the mesh must permit. It returns an error if the URL is not http
// or https, has no host, or has a user or a fragment.
func Host(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("url: want http:// or https:// and a host")
	}
	if u.User != nil || u.Fragment != "" {
		return "", errors.New("url: it must have neither a user nor a fragment: pass credentials as headers")
	}
	return u.Host, nil
}

// Listing holds the lists of a server, each element in the JSON form of the protocol, and
// whether the server has resources, completions and subscriptions.
type Listing struct {
	Tools, Resources, Templates, Prompts []json.RawMessage
	HasResources, HasCompletions         bool
	HasSubscriptions                     bool
}

// Problem is a part of a listing that the mesh does not offer.
type Problem struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Documents returns the tool documents of a server, sorted by kind, and the parts of the listing
// that the mesh does not offer, with the reasons. Tools that Exclude names, and those that
// Include lacks unless it is empty, are in neither. An override of a tool that the server does
// not list or that the settings exclude is a problem, too.
func Documents(s *events.ServerAdded, l *Listing) ([]contract.Tool, []Problem) {
	m := maker{settings: s, seen: map[string]string{}, listed: map[string]bool{}}
	if s.Transport != Stdio {
		m.host, _ = Host(s.Url) // checked by Check
	}
	m.names, m.texts = map[string]string{}, map[string]string{}
	for _, r := range s.Renames {
		m.names[r.Tool] = r.Name
	}
	for _, d := range s.Descriptions {
		m.texts[d.Tool] = d.Text
	}
	for _, raw := range l.Tools {
		m.tool(raw)
	}
	for _, rest := range []map[string]string{m.names, m.texts} {
		for _, tool := range slices.Sorted(maps.Keys(rest)) {
			if m.listed[tool] {
				continue
			}
			m.problems = append(m.problems, Problem{tool, "an override is for a tool that the server does not offer: correct or remove it"})
		}
	}
	if l.HasResources {
		m.add(mcpdoc.ResourcePrefix+s.Name, `{"additionalProperties":false,"properties":{"uri":{"maxLength":4096,"type":"string"}},"required":["uri"],"type":"object"}`,
			"Reads a resource of the MCP server "+s.Name+".", mcpdoc.Offer{Resources: l.Resources, Templates: l.Templates})
	}
	if l.HasSubscriptions && len(s.Hosts)+len(s.Files) == 0 { // a command with hosts or files runs once for each call
		m.add(mcpdoc.SubscriptionKind(s.Name), `{"additionalProperties":false,"properties":{"uri":{"maxLength":4096,"type":"string"}},"required":["uri"],"type":"object"}`,
			"Subscribes to changes of a resource of the MCP server "+s.Name+".", mcpdoc.Offer{})
	}
	for _, raw := range l.Prompts {
		m.prompt(raw)
	}
	if l.HasCompletions {
		m.add(mcpdoc.CompletionPrefix+s.Name, `{"additionalProperties":false,"properties":{"argument":{"additionalProperties":false,"properties":{"name":{"type":"string"},"value":{"type":"string"}},"required":["name","value"],"type":"object"},"context":{"additionalProperties":true,"type":"object"},"ref":{"additionalProperties":true,"type":"object"}},"required":["argument","ref"],"type":"object"}`,
			"Completes an argument of a prompt or resource template of the MCP server "+s.Name+".", mcpdoc.Offer{})
	}
	slices.SortFunc(m.docs, func(a, b contract.Tool) int { return strings.Compare(a.Kind, b.Kind) })
	return m.docs, m.problems
}

// maker makes the documents of one server.
type maker struct {
	settings *events.ServerAdded
	host     string
	docs     []contract.Tool
	problems []Problem
	seen     map[string]string // kinds of the documents, by aggregate key
	names    map[string]string // by name at the server: renames of tools
	texts    map[string]string // by name at the server: descriptions of tools
	listed   map[string]bool   // by name at the server: the server lists the tool
}

// tool adds the document of one tool, unless the settings exclude the tool, or
// the reason why it cannot be offered.
func (m *maker) tool(raw json.RawMessage) {
	var members map[string]json.RawMessage
	var t struct {
		Name        string
		Description string
		InputSchema json.RawMessage
	}
	if json.Unmarshal(raw, &members) != nil || json.Unmarshal(raw, &t) != nil {
		m.problems = append(m.problems, Problem{"", "a tool is malformed"})
		return
	}
	s := m.settings
	if len(s.Include) > 0 && !slices.Contains(s.Include, t.Name) || slices.Contains(s.Exclude, t.Name) {
		return
	}
	if !toolName.MatchString(t.Name) {
		m.problems = append(m.problems, Problem{t.Name, "the name must have 1 to 96 characters of A-Z, a-z, 0-9, _, . and -"})
		return
	}
	m.listed[t.Name] = true
	if text, ok := m.texts[t.Name]; ok {
		t.Description = text
	}
	name, renamed := m.names[t.Name]
	if !renamed {
		name = mcpdoc.Named(s.Name, s.Names == Bare, t.Name)
	}
	in, err := canon.Transform(nil, t.InputSchema)
	if err != nil || len(in) == 0 || in[0] != '{' {
		m.problems = append(m.problems, Problem{t.Name, "the input schema is not a JSON object"})
		return
	}
	for _, name := range []string{"name", "description", "inputSchema"} {
		delete(members, name)
	}
	m.document(t.Name, contract.Tool{Description: t.Description, InputSchema: in, Kind: mcpdoc.ToolPrefix + name, Tool: name}, mcpdoc.Offer{Name: t.Name, Tool: members})
}

// prompt adds the document of one prompt, or the reason why it cannot be
// offered.
func (m *maker) prompt(raw json.RawMessage) {
	var members map[string]json.RawMessage
	var p struct{ Name, Description string }
	if json.Unmarshal(raw, &members) != nil || json.Unmarshal(raw, &p) != nil || !toolName.MatchString(p.Name) {
		m.problems = append(m.problems, Problem{p.Name, "a prompt is malformed, or its name does not have 1 to 96 characters of A-Z, a-z, 0-9, _, . and -"})
		return
	}
	delete(members, "name")
	delete(members, "description")
	name := mcpdoc.Named(m.settings.Name, m.settings.Names == Bare, p.Name)
	m.document(p.Name, contract.Tool{Description: p.Description, Kind: mcpdoc.PromptPrefix + name, Tool: mcpdoc.PromptPrefix + name,
		InputSchema: contract.Raw(`{"additionalProperties":{"type":"string"},"type":"object"}`)}, mcpdoc.Offer{Name: p.Name, Prompt: members})
}

// add adds the document of the calls of a kind.
func (m *maker) add(kind, schema, description string, o mcpdoc.Offer) {
	m.document(kind, contract.Tool{Description: description, InputSchema: contract.Raw(schema), Kind: kind, Tool: kind}, o)
}

// document completes and adds a document, or adds a problem under the given name.
func (m *maker) document(name string, t contract.Tool, o mcpdoc.Offer) {
	s := m.settings
	o.Server = s.Name
	t.Class, t.Executor, t.Version = s.Class, mcpdoc.Executor, "v1"
	if s.Transport == Stdio {
		permit(&t, s)
	} else {
		t.Egress = []string{m.host}
		for _, h := range s.Headers {
			grant(&t, contract.SecretGrant{Name: h.Secret, Hosts: []string{m.host}})
		}
	}
	if !strings.HasPrefix(t.Kind, mcpdoc.ToolPrefix) {
		t.Class = "E0"
	}
	var err error
	if t.OutputSchema, err = o.Schema(); err != nil {
		m.problems = append(m.problems, Problem{name, err.Error()})
		return
	}
	if n := len(contract.Bytes(&t)); n > maxDocument {
		m.problems = append(m.problems, Problem{name, fmt.Sprintf("its document has %d bytes, and at most %d are permitted", n, maxDocument)})
		return
	}
	key := strings.ReplaceAll(t.Kind, ".", "-")
	if other, ok := m.seen[key]; ok {
		m.problems = append(m.problems, Problem{name, "the name differs from that of " + other + " in dots and hyphens only, or is the same"})
		return
	}
	m.seen[key] = t.Kind
	m.docs = append(m.docs, t)
}
