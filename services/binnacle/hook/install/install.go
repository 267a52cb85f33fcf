// Package install adds the hooks of Binnacle, and the mesh as an MCP server, to the
// configuration of coding agents, and removes them. The client's other settings do not change.
package install

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// Target is the configuration of one client, of a user or of a project.
type Target struct {
	Client  string
	Project string // folder of the project; empty = the user's configuration
	Home    string // home folder of the user
	State   string // folder in which the original files are stored
	Command string // command line that the client runs for a hook
	Timeout int    // seconds after which the client stops waiting for the hook
}

// layout describes where a client has its hooks.
type layout struct {
	user, project string   // path of the file below the home folder or the project
	events        []string // events for which the hook runs, by the client's names
	matched       []string // events whose groups have a matcher
	ordered       []string // events whose group states that hooks run one after the other, each with the input that the earlier ones have rewritten
	perSecond     int      // unit of the timeout: 1 for seconds, 1000 for milliseconds
	plugin        bool     // the file is a plugin of our own
	flat          bool     // the hooks are in the list of their event itself, without groups
	closed        bool     // an entry states that the tool does not run if its hook failed
	members       []string // the only members that the file may have; nil = any
	version       int      // version of the format, which the file states; 0 if it states none
}

var layouts = map[string]layout{
	"claude-code": {user: ".claude/settings.json", project: ".claude/settings.json", perSecond: 1, matched: []string{"PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure"},
		events: []string{"PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "SessionStart", "SessionEnd", "SubagentStart", "SubagentStop"}},
	"codex": {user: ".codex/hooks.json", project: ".codex/hooks.json", perSecond: 1, matched: []string{"PreToolUse", "PostToolUse"}, members: []string{"description", "hooks"},
		events: []string{"PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart", "SessionEnd", "SubagentStart", "SubagentStop"}},
	"gemini-cli": {user: ".gemini/settings.json", project: ".gemini/settings.json", perSecond: 1000, matched: []string{"BeforeTool", "AfterTool"}, ordered: []string{"BeforeTool"}, events: []string{"BeforeTool", "AfterTool", "BeforeAgent", "SessionStart", "SessionEnd"}},
	"cursor": {user: ".cursor/hooks.json", project: ".cursor/hooks.json", perSecond: 1, flat: true, closed: true, version: 1,
		events: []string{"preToolUse", "postToolUse", "postToolUseFailure", "beforeSubmitPrompt", "sessionStart", "sessionEnd"}},
	"vscode": {user: ".copilot/hooks/binnacle.json", project: ".github/hooks/binnacle.json", perSecond: 1, flat: true,
		events: []string{"PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart", "SubagentStart", "SubagentStop", "Stop"}},
	"opencode": {user: ".config/opencode/plugin/binnacle.js", project: ".opencode/plugin/binnacle.js", plugin: true},
}

// group is an element of the list of an event.
type group struct {
	Matcher string  `json:"matcher,omitempty"`
	Ordered bool    `json:"sequential,omitempty"`
	Hooks   []entry `json:"hooks"`
}

// entry is one hook.
type entry struct {
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout"`
	Closed  bool   `json:"failClosed,omitempty"`
}

// Clients returns the names of the clients, sorted.
func Clients() []string { return slices.Sorted(maps.Keys(layouts)) }

//go:embed opencode.js
var plugin string

// ErrUnknown is the error for a client without a layout.
var ErrUnknown = errors.New("client is not known")

func (t *Target) layout() (layout, string, error) {
	l, ok := layouts[t.Client]
	if !ok {
		return l, "", fmt.Errorf("%w: %q; there are %s", ErrUnknown, t.Client, strings.Join(Clients(), ", "))
	}
	if t.Project != "" {
		return l, filepath.Join(t.Project, l.project), nil
	}
	return l, filepath.Join(t.Home, l.user), nil
}

// Install computes the change that adds the hooks and replaces those of an earlier installation.
// It does not change the file. It returns an error that wraps ErrUnknown for an unknown client,
// and an error if the file or its stored original cannot be read, or if the file is malformed or has
// a member with which the client would ignore it.
func (t *Target) Install() (*Change, error) {
	l, path, err := t.layout()
	if err != nil {
		return nil, err
	}
	before, err := read(path)
	if err != nil {
		return nil, err
	}
	rec, err := t.originals().load(path)
	if err != nil {
		return nil, err
	}
	c := &Change{Path: path, Before: before}
	if l.plugin {
		command, err := json.Marshal(t.Command)
		c.After = []byte(strings.Replace(plugin, `"COMMAND"`, string(command), 1))
		return c, err
	}
	text := before
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{\n}\n")
	}
	if text, err = t.without(text, path, rec); err != nil {
		return nil, err
	}
	if name := l.foreign(text); name != "" {
		return nil, fmt.Errorf("%s has the member %q, with which %s runs no hook of this file; remove it first", path, name, t.Client)
	}
	if l.version != 0 && !gjson.GetBytes(text, "version").Exists() {
		if text, err = sjson.SetBytes(text, "version", l.version); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, event := range l.events {
		if list := gjson.GetBytes(text, "hooks."+event); list.Exists() && !list.IsArray() {
			return nil, fmt.Errorf("%s: hooks.%s is not an array; correct it first", path, event)
		}
		if text, err = sjson.SetBytes(text, "hooks."+event+".-1", l.element(t, event)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	c.After = text
	return c, nil
}

// foreign returns the name of a member with which the client ignores the file, or "" if there is
// none.
func (l *layout) foreign(text []byte) string {
	if l.members == nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(gjson.ParseBytes(text).Map())) {
		if !slices.Contains(l.members, name) {
			return name
		}
	}
	return ""
}

// element returns the element of the list of an event.
func (l *layout) element(t *Target, event string) any {
	e := entry{Type: "command", Command: t.Command, Timeout: t.Timeout * l.perSecond, Closed: l.closed}
	if l.flat {
		return e
	}
	g := group{Ordered: slices.Contains(l.ordered, event), Hooks: []entry{e}}
	if slices.Contains(l.matched, event) {
		g.Matcher = "*"
	}
	return g
}

// ours reports whether a hook's command line is one of Binnacle for the client.
func (t *Target) ours(command string) bool {
	return strings.Contains(command, "binnacle") && strings.Contains(command, "hook run "+t.Client)
}

// without returns the text of the configuration at path without our hooks, and without the arrays,
// the object and the version that were added for them: those that the original in rec does not have.
// The version remains if the other hooks differ from those of the original. If rec is nil, the
// version remains, and the arrays and the object that have only our hooks are removed. Other bytes do
// not change. The error names path.
func (t *Target) without(text []byte, path string, rec *record) ([]byte, error) {
	if !gjson.ValidBytes(text) || !gjson.ParseBytes(text).IsObject() {
		return nil, fmt.Errorf("%s is not a JSON object; correct it first", path)
	}
	hooks := gjson.GetBytes(text, "hooks")
	if !hooks.IsObject() {
		return text, nil
	}
	removed := false
	drop := func(name string) (err error) {
		if text, err = sjson.DeleteBytes(text, name); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		removed = true
		return nil
	}
	for event, list := range hooks.Map() {
		groups := list.Array()
		for _, at := range t.places("hooks."+event, groups) {
			if err := drop(at); err != nil {
				return nil, err
			}
		}
		if name := "hooks." + event; removed && len(groups) > 0 && len(gjson.GetBytes(text, name).Array()) == 0 && !rec.has(name) {
			if err := drop(name); err != nil {
				return nil, err
			}
		}
	}
	if !removed {
		return text, nil
	}
	rest := gjson.GetBytes(text, "hooks")
	if layouts[t.Client].version != 0 && rec != nil && !rec.has("version") && (len(rest.Map()) == 0 || rest.Raw == gjson.GetBytes(rec.Original, "hooks").Raw) {
		if err := drop("version"); err != nil {
			return nil, err
		}
	}
	if len(rest.Map()) == 0 && !rec.has("hooks") {
		if err := drop("hooks"); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// places returns the paths of our hooks in groups, which is the array at the path at. The last hook
// comes first, so that its removal does not change the paths of those that follow. If a group has no
// other hooks, the path of its first hook is that of the group, so that the group is removed too.
func (t *Target) places(at string, groups []gjson.Result) (out []string) {
	for i, group := range slices.Backward(groups) {
		inner := group.Get("hooks").Array()
		if !group.Get("hooks").Exists() {
			inner = groups[i : i+1] // an entry without a group
		}
		left := len(inner)
		for j, h := range slices.Backward(inner) {
			if !t.ours(h.Get("command").String()) {
				continue
			}
			place := fmt.Sprintf("%s.%d", at, i)
			if left > 1 {
				place += fmt.Sprintf(".hooks.%d", j)
			}
			out = append(out, place)
			left--
		}
	}
	return out
}

// Uninstall computes the change that removes the hooks: the original bytes if the file was not
// changed since, and otherwise the file without the hooks and the members that were added for them. A
// plugin of our own that was changed since is removed as a whole.
func (t *Target) Uninstall() (*Change, error) {
	l, path, err := t.layout()
	if err != nil {
		return nil, err
	}
	before, err := read(path)
	if err != nil {
		return nil, err
	}
	c := &Change{Path: path, Before: before, After: before}
	rec, err := t.originals().load(path)
	switch {
	case err != nil:
		return nil, err
	case before == nil:
	case rec.restores(before):
		c.After = rec.original()
	case l.plugin && strings.Contains(string(before), "hook run"):
		c.After = nil
	case !l.plugin:
		c.After, err = t.without(before, path, rec)
	}
	return c, err
}

// originals returns the store of the files as they were before the hooks.
func (t *Target) originals() originals { return originals{t.State, t.Client} }

// Apply makes the change of Install (installed is true) or Uninstall. It fails if the file has
// changed since the change was computed. The original content of the file, without hooks of an
// earlier installation, is stored until the hooks are removed.
func (t *Target) Apply(c *Change, installed bool) error {
	rec, err := t.originals().load(c.Path)
	if err != nil {
		return err
	}
	strip := func(text []byte, path string) ([]byte, error) { return t.without(text, path, rec) }
	if layouts[t.Client].plugin {
		strip = nil
	}
	return t.originals().apply(c, installed, strip)
}

// Installed reports whether the client's configuration has our hooks for every event, and the client
// does not ignore it.
func (t *Target) Installed() (bool, error) {
	l, path, err := t.layout()
	if err != nil {
		return false, err
	}
	b, err := read(path)
	if err != nil || b == nil {
		return false, err
	}
	if l.plugin {
		return strings.Contains(string(b), "hook run "+t.Client), nil
	}
	if l.foreign(b) != "" {
		return false, nil
	}
	for _, event := range l.events {
		if len(t.commands(&layout{events: []string{event}}, b)) == 0 {
			return false, nil
		}
	}
	return true, nil
}

// Missing returns the program of one of our hooks if it is not an executable file, or "" if each of
// them is one or no hook is installed. It looks up a name without a folder in PATH. It does not
// examine a plugin that was edited.
func (t *Target) Missing() (string, error) {
	l, path, err := t.layout()
	if err != nil {
		return "", err
	}
	b, err := read(path)
	if err != nil || b == nil {
		return "", err
	}
	for _, command := range t.commands(&l, b) {
		name := program(command)
		if _, err := exec.LookPath(name); err != nil {
			return name, nil
		}
	}
	return "", nil
}

// commands returns the command lines of our hooks in a configuration.
func (t *Target) commands(l *layout, text []byte) (out []string) {
	if l.plugin {
		before, after, _ := strings.Cut(plugin, `"COMMAND"`)
		var command string
		middle := strings.TrimSuffix(strings.TrimPrefix(string(text), before), after)
		if json.Unmarshal([]byte(middle), &command) == nil { // otherwise the plugin was edited
			out = append(out, command)
		}
		return out
	}
	for _, event := range l.events {
		for _, group := range gjson.GetBytes(text, "hooks."+event).Array() {
			for _, h := range append(group.Get("hooks").Array(), group) {
				if command := h.Get("command").String(); t.ours(command) {
					out = append(out, command)
				}
			}
		}
	}
	return out
}

// program returns the program of a command line of a POSIX shell: its first word that is no
// assignment, without quotes. It does not expand parameters.
func program(command string) string {
	for rest := command; ; {
		var word string
		word, rest = firstWord(rest)
		if name, _, ok := strings.Cut(word, "="); !ok || strings.Contains(name, "/") || rest == "" {
			return word
		}
	}
}

// firstWord splits the first word off a command line, and removes its quotes.
func firstWord(s string) (word, rest string) {
	s = strings.TrimLeft(s, " \t")
	var out strings.Builder
	for len(s) > 0 {
		switch c := s[0]; c {
		case ' ', '\t':
			return out.String(), s
		case '\'', '"':
			inner, after, _ := strings.Cut(s[1:], string(c))
			out.WriteString(inner)
			s = after
		case '\\':
			out.WriteString(s[1:min(2, len(s))])
			s = s[min(2, len(s)):]
		default:
			out.WriteByte(c)
			s = s[1:]
		}
	}
	return out.String(), ""
}

// Path returns the path of the file for the hooks, or "" if the client is not known.
func (t *Target) Path() string {
	_, path, _ := t.layout()
	return path
}
