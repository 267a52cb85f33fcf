package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/strictjson"
)

// Problem is one error in a configuration, such as an unknown member, an invalid value
// or malformed YAML.
type Problem struct {
	File    string // path of the file; "" if the value is not from a file
	Line    int    // line in the file, counted from 1; 0 if unknown
	Pointer string // JSON pointer of the member (RFC 6901); "" for the whole document
	Value   string // the member's invalid value as text; "" for other errors, if it may hold a secret, or if it is from a file and longer than 80 bytes
	Message string // the fault, or the expected form of the value
}

// Error implements error. Its form is FILE:LINE: POINTER: "VALUE": MESSAGE. Empty parts
// are left out, and so is LINE if it is 0 or FILE is empty.
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

// Problems returns the problems that err joins, in their order. err must be an error of
// this package, not nil. An error that holds no *Problem becomes one with its text as
// the message, so the result is never empty.
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

// Source lists the places from which Load reads a program's configuration.
type Source struct {
	Program string              // one of Programs
	File    string              // path of the file; "" if there is no file
	Folder  string              // the service's configuration folder; "" if it has none
	Getenv  func(string) string // reads environment variables; nil if none apply
	Flags   map[string]Flag     // values from the command line, by JSON pointer
}

// Flag is a value from the command line.
type Flag struct {
	Name string   // name of the flag, with its dashes
	Text string   // value in the form of an environment variable; "" leaves the member unset, even if another source sets it
	List []string // items of a member that is a list; if not nil, used instead of Text
}

// Value is the effective value of a member and its origin.
type Value struct {
	*Setting
	Value  any    // value as encoding/json decodes it; nil if unset. A reference to a secret, never the secret.
	Origin string // "flag --x", "variable X", "file F:3", "folder F", "default"
}

// Text returns the value as text, or "" if it is unset. A private value is a URL, or
// several URLs with commas between them. Of each URL, Text returns only scheme, host and
// port, and a mark for a part left out after them; see withoutPath.
func (v *Value) Text() string {
	s := shown(v.Value)
	if v.Private {
		s = withoutPath(s)
	}
	return s
}

// Shown returns the value for a listing, or nil if it is unset. For a private value it
// returns Text, which leaves out user, path, query and fragment.
func (v *Value) Shown() any {
	if v.Private && v.Value != nil {
		return v.Text()
	}
	return v.Value
}

// withoutPath returns a URL without its user, path, query and fragment, which may hold
// secrets. "/…" marks that something was left out after the host. The empty text
// remains empty, and any other text that is not a URL with a host becomes "…". In a
// list of URLs of NATS servers with commas between them, each URL is treated in this
// way.
func withoutPath(s string) string {
	if strings.Contains(s, ",") && natsURL(s) {
		all := strings.Split(s, ",")
		for i := range all {
			all[i] = withoutPath(all[i])
		}
		return strings.Join(all, ",")
	}
	u, err := url.Parse(s)
	switch {
	case s == "":
		return ""
	case err != nil || u.Host == "":
		return "…"
	case strings.Trim(u.Path, "/")+u.RawQuery+u.Fragment == "":
		return u.Scheme + "://" + u.Host
	}
	return u.Scheme + "://" + u.Host + "/…"
}

// Loaded is the effective configuration of a program. It is not changed after Load
// returns it.
type Loaded struct {
	Config Config
	Values []Value // one for each member that the program reads, in the order of Settings
	File   string  // path of the file that was read; "" if there is none
	// Digest is the SHA-256 ("sha256:…") of the file's document in canonical JSON (RFC
	// 8785), or of {} without a file. Comments, member order and formatting do not
	// affect it.
	Digest string
}

// Origin returns the origin of a member's value (see Value.Origin), or "" if the program
// does not read the member.
func (l *Loaded) Origin(pointer string) string {
	for i := range l.Values {
		if l.Values[i].Pointer == pointer {
			return l.Values[i].Origin
		}
	}
	return ""
}

// Load reads the configuration of a program. A flag takes precedence over an environment
// variable, then the file, the configuration folder and the default. The whole file is
// checked, including members that the program does not read. If the file cannot be read,
// Load returns the error of package os. Malformed YAML, unknown members and invalid
// values are *Problem errors, which Problems lists. If the file has any, the other
// sources are not checked.
func Load(s Source) (*Loaded, error) {
	f, err := readFile(s.File)
	if err != nil {
		return nil, err
	}
	l := &Loaded{File: s.File, Digest: f.digest()}
	tree := map[string]any{}
	failed := s.renamedVariables()
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

// Changes returns the members whose values differ between two configurations of the same
// program, with their values in now. The elements point into now.Values.
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

// Check checks the whole file as Load does, and returns its digest (see Loaded.Digest).
// The result is the same for every program, since the other sources are not read.
func Check(file string) (digest string, err error) {
	f, err := readFile(file)
	if err != nil {
		return "", err
	}
	return f.digest(), nil
}

// value returns the value of a member from the first source that sets it, in the order
// that Load documents.
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
				return Value{x, map[string]any{"file": text}, "variable " + name}, nil
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

// parse parses and checks the text of a flag, a variable or a default. The empty text is
// an unset value.
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
		if x.hidden() {
			text = ""
		}
		return Value{}, &Problem{Pointer: x.Pointer, Value: text, Message: message + " (" + origin + ")"}
	}
	return Value{x, v, origin}, nil
}

// inFolder returns the files of the configuration folder that match x.InFolder, sorted
// within each pattern; the caller uses the first element. For a member that is a list of
// paths, the single element is the list of all files. The result is empty if no file
// matches or folder is "".
func inFolder(x *Setting, folder string) []any {
	var found []any
	for _, pattern := range x.InFolder {
		if folder == "" {
			break
		}
		paths, _ := filepath.Glob(filepath.Join(folder, pattern)) // Glob fails only for a malformed pattern, and the patterns are constants
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

// document is the checked content of a configuration file; it is empty if there is no
// file.
type document struct {
	path   string
	tree   map[string]any
	leaves map[string]any // values of the members in Settings, by pointer, without nulls; paths are resolved
	lines  map[string]int
}

// digest returns the digest that Loaded.Digest documents. It covers the document as
// written, before paths are resolved, so that the same file has the same digest in any
// folder.
func (f *document) digest() string {
	b, err := json.Marshal(f.tree)
	if err == nil {
		b, err = canon.Transform(nil, b)
	}
	if err != nil {
		return "" // cannot happen: the tree consists of JSON values only
	}
	return sign.Digest(b)
}

// readFile reads and checks a file. Relative paths in it are resolved against the file's
// folder. For the path "" it returns an empty document. It returns the errors that Load
// documents for the file.
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
	// visit iterates over maps, in random order; errors are reported in the order of
	// their lines.
	slices.SortStableFunc(failed, func(a, b error) int { return Problems(a)[0].Line - Problems(b)[0].Line })
	return f, errors.Join(failed...)
}

// placed returns err as a *Problem with its File set to path.
func placed(err error, path string) error {
	var p *Problem
	if !errors.As(err, &p) {
		return &Problem{File: path, Message: err.Error()}
	}
	p.File = path
	return p
}

// visit calls yield for each member below tree that is in Settings and not null, with a
// *Problem if its value is invalid. It also calls yield, with a *Problem only, for each
// unknown member and for each section that is neither an object nor null.
func (f *document) visit(tree map[string]any, at string, yield func(*Setting, any, *Problem)) {
	for name, v := range tree {
		pointer := at + "/" + strictjson.Token(name)
		p := &Problem{Pointer: pointer, Line: f.lines[pointer]}
		x, below := Find(pointer), membersOf(pointer)
		sub, isObject := v.(map[string]any)
		switch {
		case x == nil && len(below) == 0:
			if p.Message = renamedMember(pointer); p.Message == "" {
				p.Message = unknown(name, membersOf(at))
			}
			yield(nil, nil, p)
		case v == nil:
		case x == nil && !isObject:
			p.Message = "want an object with some of the members " + strings.Join(below, ", ")
			yield(nil, nil, p)
		case x == nil:
			f.visit(sub, pointer, yield)
		default:
			// The message contains the value unless it may be a secret or is too long
			// for one line.
			if p.Message = x.Kind.check(v); p.Message == "" {
				p = nil
			} else if text := shown(v); !x.hidden() && len(text) <= 80 {
				p.Value = text
			}
			yield(x, v, p)
		}
	}
}

// membersOf returns the names of the members directly below a pointer, each once, in the
// order of Settings.
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

// put sets the value at a JSON pointer in a tree of objects, and creates the missing
// objects above it.
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
