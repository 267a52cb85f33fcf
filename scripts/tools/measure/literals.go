package main

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// home lists the folders that may contain literals of event names, subjects, id prefixes,
// error codes and reason codes: the contracts, the packages for keys and topology, and the schemas
// with their generators.
var home = []string{"pkg/core/contract", "pkg/core/sign", "pkg/bus", "schemas"}

// isEventName reports whether s is the name of an event, alone or after the name of its
// service, or begins as the type of an event does.
func (t *tree) isEventName(_ *file, s string) bool {
	_, name, _ := strings.Cut(s, ".")
	return t.events[s] || t.events[name] || strings.HasPrefix(s, "dev.binnacle.")
}

func (t *tree) isReason(_ *file, s string) bool { return t.reasons[s] }

// notCodes lists literals, by folder, that equal an error code but have another meaning: a
// result of an append in a metric, a condition in a routing rule, and a counter in the dump
// of a view.
var notCodes = map[string]string{"pkg/metrics": "conflict", "services/llm-router/internal/route": "timeout", "services/llm-router/internal/usage": "cancelled"}

// notSubjects lists literals, by folder, that begin as a subject does but have another meaning:
// the names of settings in errors, and options of git.
var notSubjects = map[string][]string{
	"services/llm-router/llmrouter": {"cache.ttl_ms", "cache.max_mb", "cache.store: %q: want memory or object"},
	"services/binnacle/attest":      {"log.showSignature=false"},
}

// isSubject reports whether s begins as the subjects of a family of schemas/subjects.json do.
func (t *tree) isSubject(f *file, s string) bool {
	return slices.ContainsFunc(t.heads, func(head string) bool { return strings.HasPrefix(s, head+".") }) && !slices.Contains(notSubjects[f.dir], s)
}

// comparesHead returns the literal with which n compares the first token of a subject, and
// whether n is such a comparison.
func (t *tree) comparesHead(n ast.Node) (*ast.BasicLit, bool) {
	c, ok := n.(*ast.BinaryExpr)
	if !ok {
		return nil, false
	}
	l, ok := c.Y.(*ast.BasicLit)
	s, is := literal(c.Y)
	tokens, indexed := c.X.(*ast.IndexExpr)
	if !ok || !is || !indexed || !slices.Contains(t.heads, s) {
		return nil, false
	}
	first, ok := tokens.Index.(*ast.BasicLit)
	return l, ok && first.Value == "0"
}

// notPrefixes lists literals, by folder, that equal a prefix of ids but have another meaning:
// the name of a folder for sockets.
var notPrefixes = map[string]string{"services/session-runner/internal/containerd": "egress-"}

// isPrefix reports whether s equals a prefix of ids of schemas/ids.json, has a verb of package
// fmt after one, contains a pattern that begins with one, or begins as the name of a session
// does: with the prefix of sessions and a lower-case letter. Any other longer string that
// begins with a prefix, such as another system's secret, does not count.
func (t *tree) isPrefix(f *file, s string) bool {
	rest, named := strings.CutPrefix(s, t.session)
	if t.prefixes[s] && notPrefixes[f.dir] != s || t.session != "" && named && sessionName.MatchString(rest) {
		return true
	}
	verb := prefixVerb.FindStringSubmatch(s)
	return verb != nil && t.prefixes[verb[1]] || slices.ContainsFunc(prefixPattern.FindAllStringSubmatch(s, -1), func(m []string) bool { return t.prefixes[m[1]] })
}

var (
	sessionName   = regexp.MustCompile(`^[a-z]`)            // the text after the prefix in the name of a session
	prefixVerb    = regexp.MustCompile(`^([a-z]+[-_])%`)    // a format of an id
	prefixPattern = regexp.MustCompile(`\^\(?([a-z]+[-_])`) // the beginning of a pattern of ids
)

// makesID returns the first argument of a call of NewID if it is neither a constant of package
// contract nor a parameter: a literal, or a constant of the package itself. constants holds
// the latter.
func makesID(n ast.Node, constants map[string]string) (ast.Expr, bool) {
	c, ok := n.(*ast.CallExpr)
	if !ok || len(c.Args) == 0 {
		return nil, false
	}
	name, _ := c.Fun.(*ast.Ident)
	if s, ok := c.Fun.(*ast.SelectorExpr); ok {
		name = s.Sel
	}
	if name == nil || name.Name != "NewID" {
		return nil, false
	}
	if _, ok := literal(c.Args[0]); ok {
		return c.Args[0], true
	}
	id, ok := c.Args[0].(*ast.Ident)
	return c.Args[0], ok && constants[id.Name] != ""
}

// constantsOf returns the values of the constants of a package that are string literals.
func (t *tree) constantsOf(dir string) map[string]string {
	u := &codeUses{map[string]string{}, map[string]int{}, map[string]bool{}}
	for f := range t.code {
		if f.dir == dir {
			ast.Inspect(f.ast, u.declared)
		}
	}
	return u.constants
}

// idLiterals is the figure of the literals of id prefixes: those that isPrefix finds, and the
// first arguments of NewID.
func (t *tree) idLiterals() figure {
	out, constants := t.literals("id prefixes", t.isPrefix), map[string]map[string]string{}
	for f := range t.code {
		if f.under(home...) {
			continue
		}
		if constants[f.dir] == nil {
			constants[f.dir] = t.constantsOf(f.dir)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if e, ok := makesID(n, constants[f.dir]); ok {
				if s, is := literal(e); !is || !t.isPrefix(f, s) { // the others are counted already
					out.detail = append(out.detail, f.at(e.Pos())+" first argument of NewID")
				}
			}
			return true
		})
	}
	out.n = float64(len(out.detail))
	return out
}

// subjectLiterals is the figure of the literals of subjects: those that isSubject finds, and
// those with which the first token of a subject is compared.
func (t *tree) subjectLiterals() figure {
	out := t.literals("subjects", t.isSubject)
	for f := range t.code {
		if f.under(home...) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if l, ok := t.comparesHead(n); ok {
				out.detail = append(out.detail, f.at(l.Pos())+" "+l.Value)
			}
			return true
		})
	}
	out.n = float64(len(out.detail))
	return out
}

// ownCodes lists the folders of modules that do not depend on package contract. Their literals do
// not count as error codes: they are codes of packs, which the session-runner returns unchanged,
// values of SQLSTATE, and codes that the SDK for Go adds for errors of the client.
var ownCodes = []string{"packs", "sdk/go"}

// literals counts the string literals in code outside home for which is(file, literal)
// returns true. Import paths, struct tags and names of document fields do not count.
func (t *tree) literals(kind string, is func(*file, string) bool) figure {
	out := figure{name: "literals of " + kind + " outside their home"}
	for f := range t.code {
		if f.under(home...) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			if f, ok := n.(*ast.Field); ok && f.Tag != nil {
				return false
			}
			if c, ok := n.(*ast.CallExpr); ok && namesField(c) {
				return false
			}
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return true
			}
			if s, err := strconv.Unquote(l.Value); err == nil && is(f, s) {
				out.detail = append(out.detail, f.at(l.Pos())+" "+l.Value)
			}
			return true
		})
	}
	out.n = float64(len(out.detail))
	return out
}

// isCode returns a function that reports whether a literal of a file is an error code:
// one of schemas/errors.json, or any literal that its package uses as one, unless notCodes
// lists it for the folder or the folder is below one of ownCodes. The second rule finds codes
// that are missing in errors.json.
func (t *tree) isCode() func(*file, string) bool {
	used := map[string]map[string]bool{}
	for f := range t.code {
		if used[f.dir] == nil {
			used[f.dir] = t.usedAsCodes(f.dir)
		}
	}
	return func(f *file, s string) bool {
		return !f.under(ownCodes...) && (t.codes[s] || used[f.dir][s]) && notCodes[f.dir] != s
	}
}

// isCodeField reports whether a field of this name holds an error code.
func isCodeField(name string) bool { return name == "Code" || name == "ErrorCode" }

// codeUses collects the strings that a package uses as error codes.
type codeUses struct {
	constants map[string]string // values of the package's constants that are string literals
	columns   map[string]int    // position of the field Code or ErrorCode of the package's structs
	used      map[string]bool
}

// usedAsCodes returns the strings that a package without its tests uses as error codes. Each
// is a literal, or a constant of the package, that is the value of a field Code or ErrorCode,
// is compared with one, or is the first argument of Fail, execute.Fail or rpc.Errorf.
func (t *tree) usedAsCodes(dir string) map[string]bool {
	u := &codeUses{map[string]string{}, map[string]int{}, map[string]bool{}}
	for _, visit := range []func(ast.Node) bool{u.declared, u.use} {
		for f := range t.code {
			if f.dir == dir {
				ast.Inspect(f.ast, visit)
			}
		}
	}
	return u.used
}

// declared records the constants and the structs that n declares.
func (u *codeUses) declared(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		for _, s := range n.Specs {
			if s, ok := s.(*ast.ValueSpec); ok && n.Tok == token.CONST && len(s.Names) == len(s.Values) {
				for i, name := range s.Names {
					if v, ok := literal(s.Values[i]); ok {
						u.constants[name.Name] = v
					}
				}
			}
		}
	case *ast.TypeSpec:
		if s, ok := n.Type.(*ast.StructType); ok {
			at := 0
			for _, f := range s.Fields.List {
				for i, name := range f.Names {
					if isCodeField(name.Name) {
						u.columns[n.Name.Name] = at + i
					}
				}
				at += max(len(f.Names), 1)
			}
		}
	}
	return true
}

// use adds the strings that n uses as error codes.
func (u *codeUses) use(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if k, ok := n.Key.(*ast.Ident); ok && isCodeField(k.Name) {
			u.add(n.Value)
		}
	case *ast.CompositeLit:
		u.addColumn(n)
	case *ast.AssignStmt:
		for i, l := range n.Lhs {
			if s, ok := l.(*ast.SelectorExpr); ok && isCodeField(s.Sel.Name) && len(n.Rhs) == len(n.Lhs) {
				u.add(n.Rhs[i])
			}
		}
	case *ast.BinaryExpr:
		if s, ok := n.X.(*ast.SelectorExpr); ok && isCodeField(s.Sel.Name) {
			u.add(n.Y)
		}
	case *ast.CallExpr:
		id, ok := n.Fun.(*ast.Ident)
		if len(n.Args) > 1 && (ok && id.Name == "Fail" || selected(n.Fun, "execute", "Fail") || selected(n.Fun, "rpc", "Errorf")) {
			u.add(n.Args[0])
		}
	}
	return true
}

// addColumn adds the error codes in a composite literal without field names, if its type is a
// struct of the package or a list of such structs.
func (u *codeUses) addColumn(c *ast.CompositeLit) {
	rows, typ := []ast.Expr{c}, c.Type
	if list, ok := typ.(*ast.ArrayType); ok {
		rows, typ = c.Elts, list.Elt
	}
	name, ok := typ.(*ast.Ident)
	if !ok {
		return
	}
	column, ok := u.columns[name.Name]
	for _, row := range rows {
		if row, is := row.(*ast.CompositeLit); ok && is && len(row.Elts) > column {
			u.add(row.Elts[column])
		}
	}
}

// add adds the string that e is, if e is a literal or names a constant of the package.
func (u *codeUses) add(e ast.Expr) {
	s, ok := literal(e)
	if id, is := e.(*ast.Ident); is {
		s, ok = u.constants[id.Name]
	}
	if ok && s != "" {
		u.used[s] = true
	}
}

// literal returns the value of a string literal, and whether e is one.
func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}

// namesField reports whether a call has the form of a method of canon.Codec that names a
// field of a document: two arguments, a string literal and an address.
func namesField(c *ast.CallExpr) bool {
	if _, ok := c.Fun.(*ast.SelectorExpr); !ok || len(c.Args) != 2 {
		return false
	}
	_, name := c.Args[0].(*ast.BasicLit)
	u, addr := c.Args[1].(*ast.UnaryExpr)
	return name && addr && u.Op == token.AND
}
