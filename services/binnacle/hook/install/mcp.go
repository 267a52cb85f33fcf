package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// Variable is the environment variable from which clients read the token.
const Variable = "BINNACLE_TOKEN"

// Connection is the entry of the mesh among the MCP servers in a client's configuration.
// No entry contains a token.
type Connection struct {
	Client  string
	Name    string   // of the entry
	Project string   // folder of the project; empty = the user's configuration
	Home    string   // home folder of the user
	Config  string   // folder of the user's configuration, see os.UserConfigDir
	State   string   // folder in which the original files are kept
	URL     string   // of the mesh's endpoint /mcp
	Command []string // command line that serves MCP on standard input and output
}

// place describes where a client has its MCP servers, and how it reads the token.
type place struct {
	user, project string // path of the file below the home folder or the project; project is empty if there is none
	config        bool   // the file of the user is below the folder of the user's configuration
	key           string // member with the servers
	entry         func(*Connection) any
	input         string // id of an element of the member inputs that the entry refers to
	toml          bool
	starts        bool // the client runs Command
}

// object is a JSON object or a TOML table.
type object = map[string]any

// remote returns the function that makes the entry of a client which connects to the URL
// itself. The URL is in the member url. The client replaces variable by the token.
func remote(url, variable string, more object) func(*Connection) any {
	return func(x *Connection) any {
		out := object{url: x.URL, "headers": object{"Authorization": "Bearer " + variable}}
		maps.Copy(out, more)
		return out
	}
}

const inputID = "binnacle-token"

// Tests in e2e run Claude Code, Codex and OpenCode with their formats. The others are as
// documented: Claude Desktop, "Connect to local MCP servers" (modelcontextprotocol.io); Cursor,
// "Model Context Protocol: config interpolation" (cursor.com/docs); VS Code, "MCP configuration
// reference" (code.visualstudio.com); Gemini CLI, "MCP servers with Gemini CLI" and "Gemini CLI
// configuration" (geminicli.com).
var places = map[string]place{
	"claude-code":    {user: ".claude.json", project: ".mcp.json", key: "mcpServers", entry: remote("url", "${"+Variable+"}", object{"type": "http"})},
	"claude-desktop": {user: "Claude/claude_desktop_config.json", config: true, starts: true, key: "mcpServers", entry: func(x *Connection) any { return object{"command": x.Command[0], "args": x.Command[1:]} }},
	"codex":          {user: ".codex/config.toml", project: ".codex/config.toml", key: "mcp_servers", toml: true},
	"cursor":         {user: ".cursor/mcp.json", project: ".cursor/mcp.json", key: "mcpServers", entry: remote("url", "${env:"+Variable+"}", nil)},
	"gemini-cli":     {user: ".gemini/settings.json", project: ".gemini/settings.json", key: "mcpServers", entry: remote("httpUrl", "${"+Variable+"}", nil)},
	"opencode":       {user: ".config/opencode/opencode.json", project: "opencode.json", key: "mcp", entry: remote("url", "{env:"+Variable+"}", object{"type": "remote", "enabled": true, "oauth": false})},
	"vscode":         {user: "Code/User/mcp.json", config: true, project: ".vscode/mcp.json", key: "servers", input: inputID, entry: remote("url", "${input:"+inputID+"}", object{"type": "http"})},
}

// MCPClients returns the names of the clients that can be connected, sorted.
func MCPClients() []string { return slices.Sorted(maps.Keys(places)) }

// ErrInvalid is the error for a connection that a client cannot have.
var ErrInvalid = errors.New("invalid connection")

var entryName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// place returns the description of the client, and the path of its file.
func (x *Connection) place() (place, string, error) {
	p, ok := places[x.Client]
	switch {
	case !ok:
		return p, "", fmt.Errorf("%w: %q; there are %s", ErrUnknown, x.Client, strings.Join(MCPClients(), ", "))
	case !entryName.MatchString(x.Name):
		return p, "", fmt.Errorf("%w: name %q: want 1 to 32 characters of a-z, 0-9, _ and -, beginning with a letter", ErrInvalid, x.Name)
	case x.Project != "" && p.project == "":
		return p, "", fmt.Errorf("%w: %s has no configuration of a project: leave --project out", ErrInvalid, x.Client)
	case x.Project != "":
		return p, filepath.Join(x.Project, p.project), nil
	case p.config:
		return p, filepath.Join(x.Config, p.user), nil
	}
	return p, filepath.Join(x.Home, p.user), nil
}

// originals returns the store of the files as they were before the entry was added.
func (x *Connection) originals() originals { return originals{x.State, x.Client + " mcp " + x.Name} }

// Apply makes the change of Install (installed is true) or Uninstall. It fails if the file
// has changed since the change was computed.
func (x *Connection) Apply(c *Change, installed bool) error {
	return x.originals().apply(c, installed, x.without)
}

// Install computes the change that adds the entry, or replaces the one of an earlier
// installation. It does not change the file. It returns an error that wraps ErrUnknown for an
// unknown client or ErrInvalid for an invalid connection, and an error if the file cannot be
// read or extended, or has an entry of the same name that Install did not add.
func (x *Connection) Install() (*Change, error) {
	c, rec, err := x.now()
	if err != nil {
		return nil, err
	}
	text := c.Before
	if rec != nil && len(bytes.TrimSpace(text)) > 0 {
		if text, err = x.without(text, c.Path); err != nil {
			return nil, err
		}
	}
	p := places[x.Client]
	if p.toml {
		c.After, err = x.addTOML(text, c.Path)
	} else {
		c.After, err = x.addJSON(&p, text, c.Path)
	}
	return c, err
}

// Uninstall computes the change that removes the entry: the original bytes if the file was
// not changed since, and otherwise the file without the entry. An entry that Install did
// not add stays.
func (x *Connection) Uninstall() (*Change, error) {
	c, rec, err := x.now()
	if err != nil {
		return nil, err
	}
	switch {
	case rec == nil || c.Before == nil:
		c.After = c.Before
	case rec.restores(c.Before):
		c.After = rec.original()
	default:
		c.After, err = x.without(c.Before, c.Path)
	}
	return c, err
}

// now returns a change with the present content of the file, and the record of the
// installation or nil.
func (x *Connection) now() (*Change, *record, error) {
	_, path, err := x.place()
	if err != nil {
		return nil, nil, err
	}
	before, err := read(path)
	if err != nil {
		return nil, nil, err
	}
	rec, err := x.originals().load(path)
	return &Change{Path: path, Before: before}, rec, err
}

// without returns the text of a configuration without the entry.
func (x *Connection) without(text []byte, path string) ([]byte, error) {
	p := places[x.Client]
	if p.toml {
		return x.removeTOML(text, path)
	}
	return x.removeJSON(&p, text, path)
}

// check returns an error unless the text is a JSON object, and the members in it that
// Install changes have the right type.
func (p *place) check(text []byte, path string) error {
	if !gjson.ValidBytes(text) || !gjson.ParseBytes(text).IsObject() {
		return fmt.Errorf("%s is not a JSON object without comments; correct it first, or add the entry by hand", path)
	}
	if s := gjson.GetBytes(text, p.key); s.Exists() && !s.IsObject() {
		return fmt.Errorf("%s: %s is not an object; correct it first", path, p.key)
	}
	if in := gjson.GetBytes(text, "inputs"); p.input != "" && in.Exists() && !in.IsArray() {
		return fmt.Errorf("%s: inputs is not an array; correct it first", path)
	}
	return nil
}

// findInput returns the index of the input that the entry refers to, or -1.
func (p *place) findInput(text []byte) int {
	return slices.IndexFunc(gjson.GetBytes(text, "inputs").Array(), func(r gjson.Result) bool { return p.input != "" && r.Get("id").String() == p.input })
}

func (x *Connection) addJSON(p *place, text []byte, path string) ([]byte, error) {
	entry := p.entry(x)
	input := object{"type": "promptString", "id": p.input, "description": "Token of the mesh", "password": true}
	if len(bytes.TrimSpace(text)) == 0 {
		doc := object{p.key: object{x.Name: entry}}
		if p.input != "" {
			doc["inputs"] = []any{input}
		}
		b, err := json.MarshalIndent(doc, "", "  ")
		return append(b, '\n'), err
	}
	if err := p.check(text, path); err != nil {
		return nil, err
	}
	at := p.key + "." + x.Name
	if gjson.GetBytes(text, at).Exists() {
		return nil, fmt.Errorf("%s has a server %s that this command did not add: give another --name", path, x.Name)
	}
	text, err := sjson.SetBytes(text, at, entry)
	if err == nil && p.input != "" && p.findInput(text) < 0 {
		text, err = sjson.SetBytes(text, "inputs.-1", input)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

func (x *Connection) removeJSON(p *place, text []byte, path string) ([]byte, error) {
	if err := p.check(text, path); err != nil {
		return nil, err
	}
	at := p.key + "." + x.Name
	if !gjson.GetBytes(text, at).Exists() {
		return text, nil
	}
	text, err := sjson.DeleteBytes(text, at)
	if err == nil && len(gjson.GetBytes(text, p.key).Map()) == 0 {
		text, err = sjson.DeleteBytes(text, p.key)
	}
	if i := p.findInput(text); err == nil && i >= 0 && !bytes.Contains(text, []byte("${input:"+p.input+"}")) {
		if text, err = sjson.DeleteBytes(text, fmt.Sprintf("inputs.%d", i)); err == nil && len(gjson.GetBytes(text, "inputs").Array()) == 0 {
			text, err = sjson.DeleteBytes(text, "inputs")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

// entries parses a TOML document. It returns the document, and the table of servers in it.
func entries(text []byte, path string) (doc, servers object, err error) {
	if err := toml.Unmarshal(text, &doc); err != nil {
		return nil, nil, fmt.Errorf("%s is not TOML; correct it first: %w", path, err)
	}
	servers, _ = doc["mcp_servers"].(object)
	return doc, servers, nil
}

// inlineServers matches an inline table as the value of mcp_servers. TOML does not permit tables
// that extend it, although the parser does.
var inlineServers = regexp.MustCompile(`(?m)^[ \t]*["']?mcp_servers["']?[ \t]*=`)

func (x *Connection) addTOML(text []byte, path string) ([]byte, error) {
	_, servers, err := entries(text, path)
	if err != nil {
		return nil, err
	}
	switch {
	case servers[x.Name] != nil:
		return nil, fmt.Errorf("%s has a server %s that this command did not add: give another --name", path, x.Name)
	case inlineServers.Match(text):
		return nil, fmt.Errorf("%s: mcp_servers is an inline table, which cannot be extended; write it as tables [mcp_servers.NAME] first", path)
	}
	out := slices.Clone(bytes.TrimRight(text, "\n"))
	if len(out) > 0 {
		out = append(out, "\n\n"...)
	}
	var table bytes.Buffer
	if err := toml.NewEncoder(&table).Encode(struct {
		URL      string `toml:"url"`
		Variable string `toml:"bearer_token_env_var"`
	}{x.URL, Variable}); err != nil {
		return nil, err
	}
	out = append(out, "[mcp_servers."+x.Name+"]\n"+table.String()...)
	_, _, err = entries(out, path)
	return out, err
}

// removeTOML removes the table of the entry and its subtables, if there is such a table.
// It returns an error if the result would lack another value of the text.
func (x *Connection) removeTOML(text []byte, path string) ([]byte, error) {
	want, servers, err := entries(text, path)
	if err != nil || servers[x.Name] == nil {
		return text, err
	}
	delete(servers, x.Name)
	if len(servers) == 0 {
		delete(want, "mcp_servers")
	}
	var out []byte
	table, inside := "[mcp_servers."+x.Name, false
	for line := range bytes.Lines(text) {
		if head := string(bytes.TrimSpace(line)); strings.HasPrefix(head, "[") {
			inside = strings.HasPrefix(head, table+"]") || strings.HasPrefix(head, table+".")
		}
		if !inside {
			out = append(out, line...)
		}
	}
	if bytes.HasSuffix(out, []byte("\n\n")) {
		out = out[:len(out)-1] // the empty line before the table
	}
	if got, _, err := entries(out, path); err != nil || !reflect.DeepEqual(got, want) {
		return nil, fmt.Errorf("%s: the server %s cannot be removed without changing others; remove it by hand", path, x.Name)
	}
	return out, nil
}

// Starts reports whether a client runs Command to reach the mesh, because it does not
// connect to a URL.
func Starts(client string) bool { return places[client].starts }
