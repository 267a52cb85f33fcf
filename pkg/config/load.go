package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
)

// Problem is a member that a document must not have, or a value that does not fit.
type Problem struct {
	File    string // "" where the value is not from a file
	Line    int    // in the file; 0 where it is not known
	Pointer string // RFC 6901
	Value   string // as it was written; "" where it may be a secret, or is long
	Message string // what to write instead
}

// Error implements error: FILE:LINE: POINTER: VALUE: what to write instead.
func (p *Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	if p.Pointer != "" {
		b.WriteString(p.Pointer + ": ")
	}
	if p.Value != "" {
		fmt.Fprintf(&b, "%q: ", p.Value)
	}
	return b.String() + p.Message
}

// Problems returns the problems in an error of this package, at least one.
func Problems(err error) []*Problem {
	var one *Problem
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []*Problem
		for _, e := range joined.Unwrap() {
			out = append(out, Problems(e)...)
		}
		return out
	}
	if errors.As(err, &one) {
		return []*Problem{one}
	}
	return []*Problem{{Message: err.Error()}}
}

// Source is where a program's configuration comes from.
type Source struct {
	Program string              // one of Programs
	File    string              // path of the file; "" is none
	Folder  string              // the service's configuration folder; "" is none
	Getenv  func(string) string // environment; nil is none
	Flags   map[string]Flag     // values that the command line names, by pointer
}

// Flag is a value that the command line gives.
type Flag struct {
	Name string   // with its dashes
	Text string   // as a variable would spell it; "" is that there is none, whatever comes after
	List []string // in the place of Text, for a member that is a list
}

// Value is what a member has in force, and where it is from.
type Value struct {
	*Setting
	Value  any    // as encoding/json decodes it; nil where there is none. It holds no secret.
	Origin string // "flag --x", "variable X", "file F:3", "folder F", "default"
}

// Text is the value as one line, which shows only where a private one leads.
func (v *Value) Text() string {
	s := shown(v.Value)
	if v.Private {
		s = withoutPath(s)
	}
	return s
}

// Shown is the value for a listing: a private one is shown only as far as it leads.
func (v *Value) Shown() any {
	if v.Private && v.Value != nil {
		return v.Text()
	}
	return v.Value
}

// withoutPath is a URL without user, path and query, which may hold secrets.
func withoutPath(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s
	}
	host, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndex(host, "@"); i >= 0 {
		host = host[i+1:]
	}
	if path != "" || strings.ContainsAny(host, "?#") {
		host, _, _ = strings.Cut(strings.Split(host, "#")[0], "?")
		host += "/…"
	}
	return scheme + "://" + host
}

// Loaded is a configuration in force.
type Loaded struct {
	Config Config
	Values []Value // of the members that the program reads, in the order of Settings
	File   string  // that was read; "" for none
	// Digest is the SHA-256 ("sha256:…") of the file's document in canonical JSON
	// (RFC 8785), or of {} without a file: comments, order and form do not change it.
	Digest string
}

// Origin is where the value of a member is from; "" where the program does not read it.
func (l *Loaded) Origin(pointer string) string {
	for i := range l.Values {
		if l.Values[i].Pointer == pointer {
			return l.Values[i].Origin
		}
	}
	return ""
}

// Load reads the configuration of a program. Flags come before variables, those before
// the file, that before the configuration folder, and defaults come last. The whole
// file is checked, not only what the program reads. An error holds every *Problem,
// see Problems.
func Load(s Source) (*Loaded, error) {
	f, err := readFile(s.File)
	if err != nil {
		return nil, err
	}
	l := &Loaded{File: s.File, Digest: f.digest()}
	tree := map[string]any{}
	var failed []error
	for i := range Settings {
		x := &Settings[i]
		if !x.ReadBy(s.Program) {
			continue
		}
		v, err := s.value(x, f)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		l.Values = append(l.Values, v)
		if v.Value != nil {
			put(tree, x.Pointer, v.Value)
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	doc, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	return l, strictjson.Decode(doc, &l.Config)
}

// Changes are the members whose values differ between two configurations of one
// program, as the newer has them.
func Changes(old, now *Loaded) []*Value {
	var out []*Value
	for i := range now.Values {
		v := &now.Values[i]
		if i >= len(old.Values) || !reflect.DeepEqual(old.Values[i].Value, v.Value) {
			out = append(out, v)
		}
	}
	return out
}

// Check checks a file as every program does, and returns its digest.
func Check(file string) (digest string, err error) {
	f, err := readFile(file)
	if err != nil {
		return "", err
	}
	return f.digest(), nil
}

// value finds the first place that gives a member a value.
func (s *Source) value(x *Setting, f *document) (Value, error) {
	if flag, ok := s.Flags[x.Pointer]; ok {
		if flag.List != nil {
			items := []any{}
			for _, item := range flag.List {
				items = append(items, item)
			}
			return Value{x, items, "flag " + flag.Name}, nil
		}
		return parse(x, flag.Text, "flag "+flag.Name)
	}
	if name := x.variable(s.Program); name != "" && s.Getenv != nil {
		if text := s.Getenv(name); text != "" {
			if x.Kind.Name == secretKind.Name {
				return Value{x, map[string]any{"variable": name}, "variable " + name}, nil
			}
			return parse(x, text, "variable "+name)
		}
	}
	if v, ok := f.leaves[x.Pointer]; ok {
		return Value{x, v, fmt.Sprintf("file %s:%d", f.path, f.lines[x.Pointer])}, nil
	}
	if found := inFolder(x, s.Folder); len(found) > 0 {
		return Value{x, found[0], "folder " + s.Folder}, nil
	}
	return parse(x, x.standard(s.Program), "default")
}

// parse reads a value as a flag or a variable spells it.
func parse(x *Setting, text, origin string) (Value, error) {
	if text == "" {
		return Value{x, nil, origin}, nil
	}
	var v any = text
	var err error
	if x.Kind.read != nil {
		v, err = x.Kind.read(text)
	}
	message := x.Kind.check(v)
	if err != nil || message != "" {
		if message == "" {
			message = "want " + x.Kind.Name
		}
		return Value{}, &Problem{Pointer: x.Pointer, Value: text, Message: message + " (" + origin + ")"}
	}
	return Value{x, v, origin}, nil
}

// inFolder is the value that the files of a configuration folder make, as a list of
// one value: a list of paths where the member is one, the first path otherwise.
func inFolder(x *Setting, folder string) []any {
	var found []any
	for _, pattern := range x.InFolder {
		if folder == "" {
			break
		}
		paths, _ := filepath.Glob(filepath.Join(folder, pattern)) // the patterns are well-formed
		slices.Sort(paths)
		for _, p := range paths {
			found = append(found, p)
		}
	}
	if x.Kind.Name == pathsKind.Name && len(found) > 0 {
		return []any{found}
	}
	return found
}

// document is a file that fits.
type document struct {
	path   string
	tree   map[string]any
	leaves map[string]any // values of Settings, by pointer; those that are null are left out
	lines  map[string]int
}

func (f *document) digest() string {
	b, err := json.Marshal(f.tree)
	if err == nil {
		b, err = canon.Transform(nil, b)
	}
	if err != nil {
		return "" // JSON was made of it when it was checked
	}
	return sign.Digest(b)
}

// readFile reads a file and checks it; without a path it is an empty document.
func readFile(path string) (*document, error) {
	f := &document{path: path, tree: map[string]any{}, leaves: map[string]any{}}
	if path == "" {
		return f, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if f.tree, f.lines, err = readYAML(bytes.NewReader(b)); err != nil {
		return nil, placed(err, path)
	}
	folder := filepath.Dir(path)
	resolve := func(p string) string {
		if filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(folder, p)
	}
	var failed []error
	f.visit(f.tree, "", func(x *Setting, v any, p *Problem) {
		switch {
		case p != nil:
			failed = append(failed, placed(p, path))
		case x.Kind.paths != nil:
			f.leaves[x.Pointer] = x.Kind.paths(v, resolve)
		default:
			f.leaves[x.Pointer] = v
		}
	})
	slices.SortStableFunc(failed, func(a, b error) int { return Problems(a)[0].Line - Problems(b)[0].Line })
	return f, errors.Join(failed...)
}

// placed names the file of a problem.
func placed(err error, path string) error {
	var p *Problem
	if !errors.As(err, &p) {
		return &Problem{File: path, Message: err.Error()}
	}
	p.File = path
	return p
}

// visit calls yield for every value below tree, a null left out: with its setting, or
// with what is wrong about it.
func (f *document) visit(tree map[string]any, at string, yield func(*Setting, any, *Problem)) {
	for name, v := range tree {
		pointer := at + "/" + strictjson.Token(name)
		p := &Problem{Pointer: pointer, Line: f.lines[pointer]}
		x, below := Find(pointer), membersOf(pointer)
		sub, isObject := v.(map[string]any)
		switch {
		case x == nil && len(below) == 0:
			p.Message = unknown(name, membersOf(at))
			yield(nil, nil, p)
		case v == nil:
		case x == nil && !isObject:
			p.Message = "want an object with some of the members " + strings.Join(below, ", ")
			yield(nil, nil, p)
		case x == nil:
			f.visit(sub, pointer, yield)
		default:
			if p.Message = x.Kind.check(v); p.Message == "" {
				p = nil
			} else if text := shown(v); x.Kind.Name != secretKind.Name && !x.Private && len(text) <= 80 {
				p.Value = text
			}
			yield(x, v, p)
		}
	}
}

// membersOf are the names of the members below a pointer, each once.
func membersOf(at string) []string {
	var out []string
	for i := range Settings {
		rest, ok := strings.CutPrefix(Settings[i].Pointer, at+"/")
		name, _, _ := strings.Cut(rest, "/")
		if ok && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// unknown returns the error text for a member that does not exist: the known name that
// differs only in case, hyphens or underscores, or else all known names.
func unknown(name string, known []string) string {
	for _, k := range known {
		if strings.EqualFold(strings.NewReplacer("-", "", "_", "").Replace(k), strings.NewReplacer("-", "", "_", "").Replace(name)) {
			return "unknown member; write " + k
		}
	}
	return "unknown member; known here are " + strings.Join(known, ", ")
}

// put sets the value of a pointer in a tree of objects.
func put(tree map[string]any, pointer string, v any) {
	names := strings.Split(pointer, "/")[1:]
	for _, n := range names[:len(names)-1] {
		sub, ok := tree[n].(map[string]any)
		if !ok {
			sub = map[string]any{}
			tree[n] = sub
		}
		tree = sub
	}
	tree[names[len(names)-1]] = v
}
