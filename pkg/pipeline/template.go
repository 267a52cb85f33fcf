package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Scope holds the values that templates refer to. Values are those of encoding/json, with
// numbers as json.Number.
type Scope struct {
	Inputs map[string]any
	Steps  map[string]Ended // by id
	Item   any              // item of the map; nil for a step without map
	Index  int              // of the item
}

// Ended is a step that has ended.
type Ended struct {
	Status string // succeeded, failed, skipped or the status of its call
	Output any    // nil without one
}

// ErrMissing is wrapped by the error for a reference to a member of a step's output, or of
// an item, that does not exist.
var ErrMissing = errors.New("does not exist")

// ref is a reference: ${{ inputs.a.b[0] }}, ${{ steps.ID.output.a }}, ${{ steps.ID.status }},
// ${{ item.a }} or ${{ index }}.
type ref struct {
	text string
	root string
	path []any // names (string) and indexes (int)
}

// part is a part of a string: text, or a reference.
type part struct {
	text string
	ref  *ref
	bad  string // why the text between ${{ and }} is no reference
}

var (
	refPattern  = regexp.MustCompile(`\$\{\{(.*?)\}\}`)
	pathPattern = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_-]*)((?:\.[A-Za-z0-9_][A-Za-z0-9_-]*|\[[0-9]{1,6}\])*)$`)
	elemPattern = regexp.MustCompile(`\.([A-Za-z0-9_][A-Za-z0-9_-]*)|\[([0-9]+)\]`)
	placeholder = regexp.MustCompile(`\{\{\s*[A-Z][A-Z0-9_]*\s*\}\}`)
)

// split divides a string into its parts.
func split(text string) []part {
	var out []part
	for text != "" {
		m := refPattern.FindStringSubmatchIndex(text)
		if m == nil {
			return append(out, part{text: text})
		}
		if m[0] > 0 {
			out = append(out, part{text: text[:m[0]]})
		}
		r, bad := parseRef(strings.TrimSpace(text[m[2]:m[3]]))
		out = append(out, part{text: text[m[0]:m[1]], ref: r, bad: bad})
		text = text[m[1]:]
	}
	return out
}

// parseRef returns a reference, or why the text is none.
func parseRef(text string) (*ref, string) {
	m := pathPattern.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Sprintf("%q is no reference: want inputs.NAME, steps.ID.output.NAME, item or index", text)
	}
	r := &ref{text: text, root: m[1]}
	for _, e := range elemPattern.FindAllStringSubmatch(m[2], -1) {
		if e[2] != "" {
			n, _ := strconv.Atoi(e[2])
			r.path = append(r.path, n)
			continue
		}
		r.path = append(r.path, e[1])
	}
	return r, ""
}

// check returns an error unless the reference is valid in a step that starts after the steps
// in above have ended. item is true if it may refer to the item of a map and its index.
func (r *ref) check(d *Document, above map[string]bool, item bool) error {
	switch r.root {
	case "inputs":
		return nil
	case "steps":
		id, ok := r.step()
		what, named := "", false
		if len(r.path) > 1 {
			what, named = r.path[1].(string)
		}
		switch {
		case !ok || !named || what != "output" && (what != "status" || len(r.path) > 2):
			return fmt.Errorf("%q is no reference: want steps.ID.output or steps.ID.status", r.text)
		case d.Index(id) < 0:
			return fmt.Errorf("%q: there is no step %q", r.text, id)
		case !above[id]:
			return fmt.Errorf("%q: step %q need not have ended before this one: add it to needs", r.text, id)
		}
		return nil
	case "item":
		if item {
			return nil
		}
		return fmt.Errorf("%q: only the input of a step with map has items", r.text)
	case "index":
		if item && len(r.path) == 0 {
			return nil
		}
		return fmt.Errorf("%q: only the input of a step with map has an index", r.text)
	}
	return fmt.Errorf("%q is no reference: want inputs.NAME, steps.ID.output.NAME, item or index", r.text)
}

// step returns the id of the step that a reference names.
func (r *ref) step() (string, bool) {
	if r.root != "steps" || len(r.path) == 0 {
		return "", false
	}
	id, ok := r.path[0].(string)
	return id, ok
}

// missing is the value of an input that was not given, and of the output of a
// step that did not succeed and has no output.
type missing struct{}

// resolve returns the value of a reference, which may be missing. The error
// wraps ErrMissing for a member of an output or an item that does not exist.
func (r *ref) resolve(s *Scope) (any, error) {
	switch r.root {
	case "inputs":
		v, ok := walkPath(anyMap(s.Inputs), r.path)
		if !ok {
			return missing{}, nil
		}
		return v, nil
	case "item":
		return r.member(s.Item, r.path)
	case "index":
		return json.Number(strconv.Itoa(s.Index)), nil
	}
	id, _ := r.step()
	e, ok := s.Steps[id]
	if !ok || len(r.path) < 2 {
		return nil, fmt.Errorf("%s: the step has not ended", r.text)
	}
	if r.path[1] == "status" {
		return e.Status, nil
	}
	if e.Status != succeeded && e.Output == nil {
		return missing{}, nil
	}
	return r.member(e.Output, r.path[2:])
}

// succeeded is contract.Succeeded. A reference to the output of a step with another status,
// which has no output, is missing and not an error.
const succeeded = "succeeded"

func anyMap(m map[string]any) any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

// member returns a member of a value, or an error that wraps ErrMissing if
// there is none.
func (r *ref) member(v any, path []any) (any, error) {
	v, ok := walkPath(v, path)
	if !ok {
		return nil, fmt.Errorf("%s %w", r.text, ErrMissing)
	}
	return v, nil
}

// walkPath returns the value at a path, and whether there is one.
func walkPath(v any, path []any) (any, bool) {
	for _, p := range path {
		switch key := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				return nil, false
			}
			if v, ok = m[key]; !ok {
				return nil, false
			}
		case int:
			l, ok := v.([]any)
			if !ok || key >= len(l) {
				return nil, false
			}
			v = l[key]
		}
	}
	return v, true
}

// decode decodes JSON with numbers as json.Number.
func decode(raw []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// Decode returns the value of JSON, with numbers as json.Number.
func Decode(raw []byte) (any, error) { return decode(raw) }

// walk calls f for each string of a value, except the names of members, until f returns
// an error. It returns that error, or an error if the value is nested deeper than depth.
func walk(v any, depth int, f func(string) error) error {
	if depth == 0 {
		return fmt.Errorf("is nested more than %d levels deep", MaxNesting)
	}
	switch x := v.(type) {
	case string:
		return f(x)
	case []any:
		for _, e := range x {
			if err := walk(e, depth-1, f); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(x)) {
			if err := walk(x[k], depth-1, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// ErrExpanded is wrapped by the error for a template whose references have values of more than
// MaxExpanded bytes in total.
var ErrExpanded = fmt.Errorf("expands to more than %d MiB", MaxExpanded>>20)

// Expand returns a template with its references replaced. A string that is one reference
// becomes the value; references inside of text are inserted as text, values other than
// strings as JSON. A reference to an input that was not given, or to the output of a step
// that did not succeed and has none, removes its member from an object, is null in a list
// or as the whole template, and is empty inside of text. The error wraps ErrMissing for a
// member of a step's output or of an item that does not exist, and ErrExpanded if the values
// of the references have more than MaxExpanded bytes in total. The result shares with s the
// values that replace whole strings.
func Expand(raw []byte, s *Scope) (any, error) {
	v, err := decode(raw)
	if err != nil {
		return nil, err
	}
	x := expander{Scope: s, room: MaxExpanded}
	if v, err = x.expand(v, MaxNesting); err != nil {
		return nil, err
	}
	if v == (missing{}) {
		return nil, nil
	}
	return v, nil
}

// expander expands one template.
type expander struct {
	*Scope
	room int // bytes that the values of references may still add
}

// count subtracts the size of a value from the room. It returns an error as soon as no room
// is left, so that its cost does not depend on the size of the value.
func (x *expander) count(v any) error {
	size := 2
	switch v := v.(type) {
	case string:
		size += len(v)
	case json.Number:
		size += len(v)
	case []any:
		for _, e := range v {
			if err := x.count(e); err != nil {
				return err
			}
		}
	case map[string]any:
		for k, e := range v {
			size += len(k)
			if err := x.count(e); err != nil {
				return err
			}
		}
	}
	if x.room -= size; x.room < 0 {
		return fmt.Errorf("the template %w", ErrExpanded)
	}
	return nil
}

// value returns the value of a reference, and subtracts its size from the room.
func (x *expander) value(r *ref) (any, error) {
	v, err := r.resolve(x.Scope)
	if err != nil {
		return nil, err
	}
	return v, x.count(v)
}

// expand expands a value. It returns missing for a string that is one
// reference whose value is missing.
func (x *expander) expand(v any, depth int) (any, error) {
	if depth == 0 {
		return nil, fmt.Errorf("the template is nested more than %d levels deep", MaxNesting)
	}
	switch v := v.(type) {
	case string:
		return x.text(v)
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			n, err := x.expand(e, depth-1)
			if err != nil {
				return nil, err
			}
			if _, gone := n.(missing); !gone {
				out[i] = n
			}
		}
		return out, nil
	case map[string]any:
		out := map[string]any{}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			n, err := x.expand(v[k], depth-1)
			if err != nil {
				return nil, err
			}
			if _, gone := n.(missing); !gone {
				out[k] = n
			}
		}
		return out, nil
	}
	return v, nil
}

// text expands a string.
func (x *expander) text(text string) (any, error) {
	parts := split(text)
	if len(parts) == 1 && parts[0].ref != nil {
		return x.value(parts[0].ref)
	}
	var b strings.Builder
	for _, p := range parts {
		if p.ref == nil {
			b.WriteString(p.text)
			continue
		}
		v, err := x.value(p.ref)
		if err != nil {
			return nil, err
		}
		switch v := v.(type) {
		case missing:
		case string:
			b.WriteString(v)
		default:
			raw, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			b.Write(raw)
		}
	}
	return b.String(), nil
}

// CheckInputs returns a Problem if a required input is missing, or if an input contains a
// placeholder such as {{TOPIC}} or is nested too deeply.
func (d *Document) CheckInputs(inputs map[string]any) error {
	for _, name := range d.Required {
		if _, ok := inputs[name]; !ok {
			return Problem{"/inputs/" + name, "is required by pipeline " + d.Name}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		if err := walk(inputs[name], MaxNesting, func(text string) error {
			if p := placeholder.FindString(text); p != "" {
				return fmt.Errorf("the placeholder %s was not replaced", p)
			}
			return nil
		}); err != nil {
			return Problem{"/inputs/" + name, err.Error()}
		}
	}
	return nil
}

// Holds reports whether a condition holds. A value that does not exist counts
// as null. If the condition has several comparisons, Holds uses the first of
// Equals, NotEquals, In, and Above together with Below.
func (c *Condition) Holds(s *Scope) (bool, error) {
	v, err := Expand(c.Value, s)
	if errors.Is(err, ErrMissing) {
		v, err = nil, nil
	}
	if err != nil {
		return false, err
	}
	switch {
	case len(c.Equals) > 0:
		return equal(v, c.Equals)
	case len(c.NotEquals) > 0:
		same, err := equal(v, c.NotEquals)
		return !same, err
	case len(c.In) > 0:
		var list []json.RawMessage
		if err := json.Unmarshal(c.In, &list); err != nil {
			return false, Problem{"/if/in", "want a list"}
		}
		for _, e := range list {
			if same, err := equal(v, e); same || err != nil {
				return same, err
			}
		}
		return false, nil
	case c.Above != nil || c.Below != nil:
		n, ok := v.(json.Number)
		f, err := n.Float64()
		return ok && err == nil && (c.Above == nil || f > *c.Above) && (c.Below == nil || f < *c.Below), nil
	}
	return truthy(v), nil
}

// equal reports whether a value is equal to JSON.
func equal(v any, raw []byte) (bool, error) {
	want, err := decode(raw)
	if err != nil {
		return false, err
	}
	a, err := json.Marshal(normal(v))
	if err != nil {
		return false, err
	}
	b, err := json.Marshal(normal(want))
	return bytes.Equal(a, b), err
}

// normal returns a value with numbers as floats, so that 1 and 1.0 are equal.
func normal(v any) any {
	switch x := v.(type) {
	case json.Number:
		if f, err := x.Float64(); err == nil {
			return f
		}
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = normal(x[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k := range x {
			out[k] = normal(x[k])
		}
		return out
	}
	return v
}

// truthy reports whether a value is none of null, false, 0, and an empty string, list or
// object.
func truthy(v any) bool {
	switch x := v.(type) {
	case nil:
		return false
	case bool:
		return x
	case string:
		return x != ""
	case json.Number:
		f, err := x.Float64()
		return err != nil || f != 0
	case []any:
		return len(x) > 0
	case map[string]any:
		return len(x) > 0
	}
	return true
}
