// Package install adds the hooks of Binnacle to the configuration of coding agents, and
// removes them. Everything else in a client's configuration keeps its bytes.
package install

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	perSecond     int      // unit of the timeout: 1 for seconds, 1000 for milliseconds
	plugin        bool     // the file is a plugin of our own
	flat          bool     // the hooks are in the list of their event itself, without groups
	closed        bool     // an entry states that the tool does not run if its hook failed
	version       int      // version of the format, which the file states; 0 if it states none
}

var layouts = map[string]layout{
	"claude-code": {user: ".claude/settings.json", project: ".claude/settings.json", perSecond: 1, matched: []string{"PreToolUse", "PostToolUse", "PostToolUseFailure"},
		events: []string{"PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "SessionStart", "SessionEnd", "SubagentStart", "SubagentStop"}},
	"codex":      {user: ".codex/hooks.json", project: ".codex/hooks.json", perSecond: 1, matched: []string{"PreToolUse", "PostToolUse"}, events: []string{"PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart"}},
	"gemini-cli": {user: ".gemini/settings.json", project: ".gemini/settings.json", perSecond: 1000, matched: []string{"BeforeTool", "AfterTool"}, events: []string{"BeforeTool", "AfterTool", "BeforeAgent", "SessionStart", "SessionEnd"}},
	"cursor": {user: ".cursor/hooks.json", project: ".cursor/hooks.json", perSecond: 1, flat: true, closed: true, version: 1,
		events: []string{"preToolUse", "postToolUse", "postToolUseFailure", "beforeSubmitPrompt", "sessionStart", "sessionEnd"}},
	"vscode": {user: ".copilot/hooks/binnacle.json", project: ".github/hooks/binnacle.json", perSecond: 1, flat: true,
		events: []string{"PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart", "SubagentStart", "SubagentStop", "Stop"}},
	"opencode": {user: ".config/opencode/plugin/binnacle.js", project: ".opencode/plugin/binnacle.js", plugin: true},
}

// group is an element of the list of an event.
type group struct {
	Matcher string  `json:"matcher,omitempty"`
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

// Install computes the change that adds the hooks. Hooks of an earlier installation are
// replaced. It returns an error, and changes nothing, if the file is not a JSON object.
func (t *Target) Install() (*Change, error) {
	l, path, err := t.layout()
	if err != nil {
		return nil, err
	}
	before, err := read(path)
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
	if text, err = t.without(text, path); err != nil {
		return nil, err
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

// element returns the element of the list of an event.
func (l *layout) element(t *Target, event string) any {
	e := entry{Type: "command", Command: t.Command, Timeout: t.Timeout * l.perSecond, Closed: l.closed}
	if l.flat {
		return e
	}
	g := group{Hooks: []entry{e}}
	if slices.Contains(l.matched, event) {
		g.Matcher = "*"
	}
	return g
}

// ours reports whether a hook's command line is one of Binnacle for the client.
func (t *Target) ours(command string) bool {
	return strings.Contains(command, "binnacle") && strings.Contains(command, "hook run "+t.Client)
}

// without returns the text of a configuration without our hooks, and without the arrays
// and the object that only they needed. Other bytes do not change.
func (t *Target) without(text []byte, path string) ([]byte, error) {
	if !gjson.ValidBytes(text) || !gjson.ParseBytes(text).IsObject() {
		return nil, fmt.Errorf("%s is not a JSON object; correct it first", path)
	}
	hooks := gjson.GetBytes(text, "hooks")
	if !hooks.IsObject() {
		return text, nil
	}
	removed := false
	for event, list := range hooks.Map() {
		groups := list.Array()
		for i := len(groups) - 1; i >= 0; i-- {
			inner := groups[i].Get("hooks").Array()
			if !groups[i].Get("hooks").Exists() {
				inner = groups[i : i+1] // an entry without a group
			}
			for j := len(inner) - 1; j >= 0; j-- {
				if !t.ours(inner[j].Get("command").String()) {
					continue
				}
				at := fmt.Sprintf("hooks.%s.%d", event, i)
				if len(inner) > 1 {
					at += fmt.Sprintf(".hooks.%d", j)
				}
				var err error
				if text, err = sjson.DeleteBytes(text, at); err != nil {
					return nil, fmt.Errorf("%s: %w", path, err)
				}
				removed = true
				inner = slices.Delete(inner, j, j+1)
			}
		}
		if removed && len(groups) > 0 && len(gjson.GetBytes(text, "hooks."+event).Array()) == 0 {
			text, _ = sjson.DeleteBytes(text, "hooks."+event)
		}
	}
	if removed && len(gjson.GetBytes(text, "hooks").Map()) == 0 {
		text, _ = sjson.DeleteBytes(text, "hooks")
	}
	return text, nil
}

// Uninstall computes the change that removes the hooks: the original bytes if the file was
// not changed since, and otherwise the file without our entries. A plugin of our own that
// was changed since is removed as a whole.
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
		c.After, err = t.without(before, path)
	}
	return c, err
}

// originals returns the store of the files as they were before the hooks.
func (t *Target) originals() originals { return originals{t.State, t.Client} }

// Apply makes the change of Install (installed is true) or Uninstall. It fails if the file
// has changed since the change was computed. The original content of the file, as remember
// describes it, is kept until the hooks are removed.
func (t *Target) Apply(c *Change, installed bool) error {
	strip := t.without
	if layouts[t.Client].plugin {
		strip = nil
	}
	return t.originals().apply(c, installed, strip)
}

// Installed reports whether the client's configuration has our hooks for every event.
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
	for _, event := range l.events {
		found := false
		for _, group := range gjson.GetBytes(b, "hooks."+event).Array() {
			for _, h := range append(group.Get("hooks").Array(), group) {
				found = found || t.ours(h.Get("command").String())
			}
		}
		if !found {
			return false, nil
		}
	}
	return true, nil
}

// Path returns the file that the hooks are in.
func (t *Target) Path() string {
	_, path, _ := t.layout()
	return path
}
