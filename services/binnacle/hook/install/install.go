// Package install adds the hooks of Binnacle to the configuration of coding agents, and
// removes them. Everything else in a client's configuration keeps its bytes.
package install

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/binnacle-mesh/binnacle/pkg/private"
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
}

var layouts = map[string]layout{
	"claude-code": {user: ".claude/settings.json", project: ".claude/settings.json", perSecond: 1, matched: []string{"PreToolUse", "PostToolUse", "PostToolUseFailure"},
		events: []string{"PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit", "SessionStart", "SessionEnd", "SubagentStart", "SubagentStop"}},
	"codex":      {user: ".codex/hooks.json", project: ".codex/hooks.json", perSecond: 1, matched: []string{"PreToolUse", "PostToolUse"}, events: []string{"PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart"}},
	"gemini-cli": {user: ".gemini/settings.json", project: ".gemini/settings.json", perSecond: 1000, matched: []string{"BeforeTool", "AfterTool"}, events: []string{"BeforeTool", "AfterTool", "BeforeAgent", "SessionStart", "SessionEnd"}},
	"opencode":   {user: ".config/opencode/plugin/binnacle.js", project: ".opencode/plugin/binnacle.js", plugin: true},
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
}

// Clients returns the names of the clients, sorted.
func Clients() []string { return slices.Sorted(maps.Keys(layouts)) }

//go:embed opencode.js
var plugin string

// Change is a change of a file that was computed and not made yet.
type Change struct {
	Path          string
	Before, After []byte // nil = the file does not exist
}

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

// record is what is needed to undo an installation.
type record struct {
	Existed   bool   `json:"existed"`
	Original  []byte `json:"original,omitempty"`
	Installed string `json:"installed_digest"`
}

func (t *Target) recordPath(path string) string {
	return filepath.Join(t.State, "installed", digest([]byte(t.Client + "\x00" + path))[:32]+".json")
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// read returns the bytes of a file, or nil if it does not exist.
func read(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && b == nil {
		b = []byte{}
	}
	return b, err
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
	for _, event := range l.events {
		group := group{Hooks: []entry{{Type: "command", Command: t.Command, Timeout: t.Timeout * l.perSecond}}}
		if slices.Contains(l.matched, event) {
			group.Matcher = "*"
		}
		if list := gjson.GetBytes(text, "hooks."+event); list.Exists() && !list.IsArray() {
			return nil, fmt.Errorf("%s: hooks.%s is not an array; correct it first", path, event)
		}
		if text, err = sjson.SetBytes(text, "hooks."+event+".-1", group); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	c.After = text
	return c, nil
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
// not changed since, and otherwise the file without our entries.
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
	rec, err := t.load(path)
	switch {
	case err != nil:
		return nil, err
	case before == nil:
	case rec != nil && digest(before) == rec.Installed:
		c.After = nil
		if rec.Existed {
			c.After = append([]byte{}, rec.Original...)
		}
	case l.plugin && strings.Contains(string(before), "hook run"):
		c.After = nil
	case !l.plugin:
		c.After, err = t.without(before, path)
	}
	return c, err
}

func (t *Target) load(path string) (*record, error) {
	b, err := read(t.recordPath(path))
	if err != nil || b == nil {
		return nil, err
	}
	var r record
	return &r, json.Unmarshal(b, &r)
}

// Apply makes the change of Install (installed is true) or Uninstall. It fails if the file
// has changed since the change was computed. The original of the first installation is
// kept until the hooks are removed.
func (t *Target) Apply(c *Change, installed bool) error {
	now, err := read(c.Path)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, c.Before) || (now == nil) != (c.Before == nil) {
		return fmt.Errorf("%s has changed meanwhile; try again", c.Path)
	}
	if installed {
		if err := t.remember(c); err != nil {
			return err
		}
	}
	if err := replace(c.Path, c.After); err != nil {
		return err
	}
	if !installed {
		if err := os.Remove(t.recordPath(c.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// remember stores the original of a file before its hooks are installed.
func (t *Target) remember(c *Change) error {
	old, err := t.load(c.Path)
	if err != nil {
		return err
	}
	r := record{Existed: c.Before != nil, Original: c.Before, Installed: digest(c.After)}
	if old != nil && digest(c.Before) == old.Installed { // installed again: the first original counts
		r.Existed, r.Original = old.Existed, old.Original
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := t.recordPath(c.Path)
	if err := private.Mkdir(filepath.Dir(path)); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// replace writes a file atomically with the permissions that it had, or removes it if the
// content is nil.
func replace(path string, content []byte) error {
	if content == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	mode := fs.FileMode(0o600)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".binnacle-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
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
			for _, h := range group.Get("hooks").Array() {
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

// Diff returns the lines that a change removes and adds.
func (c *Change) Diff() string {
	a, b := strings.SplitAfter(string(c.Before), "\n"), strings.SplitAfter(string(c.After), "\n")
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", c.Path)
	write(&out, "-", a)
	write(&out, "+", b)
	return out.String()
}

// write appends lines with a sign before each of them.
func write(out *strings.Builder, sign string, lines []string) {
	for _, l := range lines {
		if l != "" {
			fmt.Fprintf(out, "%s %s\n", sign, strings.TrimSuffix(l, "\n"))
		}
	}
}
