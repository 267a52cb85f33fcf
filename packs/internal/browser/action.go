package browser

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// Action is an action of browser.interact, or a step of web.test.
type Action struct {
	Action    string  `json:"action"`
	URL       string  `json:"url"`
	Selector  string  `json:"selector"`
	Value     *string `json:"value"`
	Text      string  `json:"text"`
	Format    string  `json:"format"`
	Attribute string  `json:"attribute"`
	Name      string  `json:"name"`
	Count     *int    `json:"count"`
	MS        *int    `json:"ms"`
	X         *int    `json:"x"`
	Y         *int    `json:"y"`
	FullPage  *bool   `json:"full_page"`
	TimeoutMS int     `json:"timeout_ms"`
}

// Default times of an action.
const (
	defaultWait = 1000 * time.Millisecond // of wait without another member
	defaultTime = 5000 * time.Millisecond // see Action.limit
)

// rule names the members that an action needs and those that it may have besides. Each action may
// also have timeout_ms.
type rule struct{ needs, may []string }

// rules holds the rule of each action, by its name.
var rules = map[string]rule{
	"navigate":           {[]string{"url"}, nil},
	"click":              {[]string{"selector"}, nil},
	"type":               {[]string{"selector", "value"}, nil},
	"press":              {[]string{"value"}, []string{"selector"}},
	"select":             {[]string{"selector", "value"}, nil},
	"focus":              {[]string{"selector"}, nil},
	"wait":               {nil, []string{"ms", "selector", "text", "url"}},
	"scroll":             {nil, []string{"selector", "x", "y"}},
	"screenshot":         {nil, []string{"selector", "full_page"}},
	"extract":            {[]string{"selector"}, []string{"format", "attribute", "name"}},
	"execute":            {[]string{"value"}, []string{"name"}},
	"assert_text":        {[]string{"text"}, []string{"selector"}},
	"assert_no_text":     {[]string{"text"}, []string{"selector"}},
	"assert_selector":    {[]string{"selector"}, nil},
	"assert_no_selector": {[]string{"selector"}, nil},
	"assert_count":       {[]string{"selector", "count"}, nil},
	"assert_value":       {[]string{"selector", "value"}, nil},
	"assert_url":         {[]string{"url"}, nil},
	"assert_title":       {[]string{"text"}, nil},
}

// members returns the names of the members that an action has, without action and timeout_ms.
func (a *Action) members() []string {
	var has []string
	for _, m := range []struct {
		name string
		has  bool
	}{{"url", a.URL != ""}, {"selector", a.Selector != ""}, {"value", a.Value != nil}, {"text", a.Text != ""}, {"format", a.Format != ""}, {"attribute", a.Attribute != ""}, {"name", a.Name != ""},
		{"count", a.Count != nil}, {"ms", a.MS != nil}, {"x", a.X != nil}, {"y", a.Y != nil}, {"full_page", a.FullPage != nil}} {
		if m.has {
			has = append(has, m.name)
		}
	}
	return has
}

// check returns an error if there is no such action, or if its members are not valid. at is the
// JSON pointer of the action.
func (a *Action) check(at string) *pack.Error {
	r, ok := rules[a.Action]
	if !ok {
		return pack.Invalid(at+"/action", "there is no action %q", a.Action)
	}
	has := a.members()
	for _, m := range r.needs {
		if !slices.Contains(has, m) {
			return pack.Invalid(at+"/"+m, "%s needs the member %s", a.Action, m)
		}
	}
	for _, m := range has {
		if !slices.Contains(r.needs, m) && !slices.Contains(r.may, m) {
			return pack.Invalid(at+"/"+m, "%s has no member %s", a.Action, m)
		}
	}
	return a.checkValues(at, has)
}

// checkValues returns an error for a value that is not valid, and for members that the action may not
// have together. has lists the members of the action.
func (a *Action) checkValues(at string, has []string) *pack.Error {
	switch a.Action {
	case "navigate":
		return checkAddress(at+"/url", a.URL)
	case "press":
		if _, ok := key(*a.Value); !ok {
			return pack.Invalid(at+"/value", "there is no key %q", *a.Value)
		}
	case "extract":
		if (a.Format == "attribute") != (a.Attribute != "") {
			return pack.Invalid(at+"/attribute", "the format attribute needs the name of an attribute, and others have none")
		}
	}
	for _, c := range []struct {
		action  string
		wrong   bool
		message string
	}{
		{"wait", len(has) > 1, "wait has one of ms, selector, text and url"},
		{"scroll", len(has) == 0 || a.Selector != "" && len(has) > 1, "scroll needs a selector, or x and y"},
		{"screenshot", len(has) > 1, "a screenshot is of an element or of the page"},
	} {
		if c.action == a.Action && c.wrong {
			return pack.Invalid(at, "%s", c.message)
		}
	}
	return nil
}

// checkAll returns an error for the first action that is not valid. at is the JSON pointer of the
// list.
func checkAll(at string, actions []Action) *pack.Error {
	for i := range actions {
		if e := actions[i].check(fmt.Sprintf("%s/%d", at, i)); e != nil {
			return e
		}
	}
	return nil
}

// limit returns the time that an action may wait for an element or a condition, and that its input,
// script or screenshot may take.
func (a *Action) limit() time.Duration {
	if a.TimeoutMS == 0 {
		return defaultTime
	}
	return time.Duration(a.TimeoutMS) * time.Millisecond
}

// isAssertion reports whether the action checks the page.
func (a *Action) isAssertion() bool { return strings.HasPrefix(a.Action, "assert_") }

// keys holds the keys that have a name: Space, and others under their names in the field key of
// KeyboardEvent.
var keys = map[string]string{
	"Enter": kb.Enter, "Tab": kb.Tab, "Escape": kb.Escape, "Backspace": kb.Backspace, "Delete": kb.Delete, "Home": kb.Home, "End": kb.End, "PageUp": kb.PageUp, "PageDown": kb.PageDown,
	"ArrowUp": kb.ArrowUp, "ArrowDown": kb.ArrowDown, "ArrowLeft": kb.ArrowLeft, "ArrowRight": kb.ArrowRight, "Space": " ",
}

// key returns the text that is sent for a key, given by a name in keys or as one character, and
// whether there is such a key.
func key(name string) (string, bool) {
	if k, ok := keys[name]; ok {
		return k, true
	}
	return name, len([]rune(name)) == 1
}
