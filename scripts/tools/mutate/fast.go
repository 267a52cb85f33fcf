package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Environment variables that mutate sets for shim: the folder that instrumenter.build fills,
// and the folder of the package. The third is set by shim for the tests: the number of the
// mutant.
const (
	fastVar = "MUTATE_FAST"
	dirVar  = "MUTATE_DIR"
	numVar  = "MUTATE_NUMBER"
)

// change is a mutant: an operator, identified by its place in the order of the syntax
// tree of its file, and the operator that replaces it.
type change struct {
	file string
	nth  int
	op   token.Token
}

func (c change) String() string { return fmt.Sprintf("%s %d %s", c.file, c.nth, c.op) }

// changes maps an operator to those that replace it: the default mutators of gremlins and
// INVERT_LOGICAL.
var changes = map[token.Token][]token.Token{
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR}, token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL}, token.LAND: {token.LOR}, token.LOR: {token.LAND}, token.INC: {token.DEC}, token.DEC: {token.INC},
}

// operators returns the nodes of a file that have an operator that gremlins may change,
// and their operators.
func operators(f *ast.File) (nodes []ast.Node, ops []token.Token) {
	ast.Inspect(f, func(n ast.Node) bool {
		op := token.ILLEGAL
		switch n := n.(type) {
		case *ast.BinaryExpr:
			op = n.Op
		case *ast.UnaryExpr:
			op = n.Op
		case *ast.IncDecStmt:
			op = n.Tok
		}
		if changes[op] != nil {
			nodes, ops = append(nodes, n), append(ops, op)
		}
		return true
	})
	return nodes, ops
}

// listed holds the fields of a package that mutate reads from the output of go list.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
	ImportMap               map[string]string
}

// build builds the tests of the package in dir once, with every mutant that a program can
// choose at run time: an instrumented file evaluates the changed operator if its number is in
// the environment. It writes the program test, and unchanged copies of the package's files, to
// the folder out. Mutants in neither numbers nor broken must be compiled. build returns an
// error if the tests of the instrumented package fail without a mutant.
func (in *instrumenter) build(real, dir, out string) error {
	own, exports, err := list(real, dir)
	if err != nil {
		return err
	}
	files, err := in.check(own, exports)
	if err != nil {
		return err
	}
	overlay := map[string]string{}
	put := func(name string, b []byte) error {
		to := filepath.Join(out, "instrumented-"+name)
		overlay[filepath.Join(own.Dir, name)] = to
		return os.WriteFile(to, b, 0o600)
	}
	for i, name := range own.GoFiles {
		src, err := os.ReadFile(filepath.Join(own.Dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(filepath.Join(out, name), src, 0o600), put(name, in.file(name, files[i], src))); err != nil {
			return err
		}
	}
	if err := put("mutate_number.go", fmt.Appendf(nil, support, files[0].Name.Name)); err != nil {
		return err
	}
	replace, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	over, program := filepath.Join(out, "overlay.json"), filepath.Join(out, "test")
	if err := os.WriteFile(over, replace, 0o600); err != nil {
		return err
	}
	cmd := exec.Command(real, "test", "-c", "-overlay", over, "-o", program, ".")
	cmd.Dir = dir
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, b)
	}
	if runFast(program, ".", 0, "10m") != 0 {
		return errors.New("the tests of the instrumented package fail")
	}
	return nil
}

// list returns the output of go list for the package in dir and, by import path, the files
// with the exported types of the package and its dependencies.
func list(real, dir string) (own listed, exports map[string]string, err error) {
	cmd := exec.Command(real, "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly,ImportMap", ".")
	cmd.Dir = dir
	b, err := cmd.Output()
	if err != nil {
		return own, nil, err
	}
	exports = map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return own, exports, nil
		} else if err != nil {
			return own, nil, err
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			own = p
		}
	}
}

// check parses and type-checks the files of a package.
func (in *instrumenter) check(own listed, exports map[string]string) (files []*ast.File, err error) {
	in.fset, in.info = token.NewFileSet(), &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	for _, name := range own.GoFiles {
		f, err := parser.ParseFile(in.fset, filepath.Join(own.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	conf := types.Config{Importer: importer.ForCompiler(in.fset, "gc", func(path string) (io.ReadCloser, error) {
		if p := own.ImportMap[path]; p != "" {
			path = p
		}
		return os.Open(exports[path])
	})}
	_, err = conf.Check(own.ImportPath, in.fset, files, in.info)
	return files, err
}

// support is the source of the file that is added to an instrumented package. Its names
// end in _ so that they differ from those of the package.
const support = `package %s

import (
	"os"
	"strconv"
)

var mutant_, _ = strconv.Atoi(os.Getenv("` + numVar + `"))

type int_ interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

type number_ interface{ int_ | ~float32 | ~float64 }

func add_[T number_](n int, a, b T) T { if n == mutant_ { return a - b }; return a + b }
func sub_[T number_](n int, a, b T) T { if n == mutant_ { return a + b }; return a - b }
func mul_[T number_](n int, a, b T) T { if n == mutant_ { return a / b }; return a * b }
func quo_[T number_](n int, a, b T) T { if n == mutant_ { return a * b }; return a / b }
func rem_[T int_](n int, a, b T) T { if n == mutant_ { return a * b }; return a %% b }
func neg_[T number_](n int, a T) T { if n == mutant_ { return a }; return -a }
`

// arithmetic maps an operator to its function in support.
var arithmetic = map[token.Token]string{token.ADD: "add_", token.SUB: "sub_", token.MUL: "mul_", token.QUO: "quo_", token.REM: "rem_"}

// instrumenter rewrites files of one package. numbers lists the mutants that the program
// contains, of which the first has number 1; broken lists some that do not compile.
type instrumenter struct {
	fset    *token.FileSet
	info    *types.Info
	numbers []string
	broken  []string
	src     []byte
	of      map[ast.Node]change // the changeable nodes of the current file; op is unset
}

func (in *instrumenter) number(c change, op token.Token) int {
	c.op = op
	in.numbers = append(in.numbers, c.String())
	return len(in.numbers)
}

// file returns the instrumented source of a file.
func (in *instrumenter) file(name string, f *ast.File, src []byte) []byte {
	in.src, in.of = src, map[ast.Node]change{}
	nodes, _ := operators(f)
	for i, n := range nodes {
		in.of[n] = change{file: name, nth: i}
	}
	return []byte(in.text(f, f.FileStart, f.FileEnd))
}

// text returns the source between two positions, with the nodes in n rewritten.
func (in *instrumenter) text(n ast.Node, from, to token.Pos) string {
	var out strings.Builder
	at := from
	ast.Inspect(n, func(m ast.Node) bool {
		c, ok := in.of[m]
		if !ok || m.Pos() < from || m.End() > to {
			return true
		}
		s := in.rewrite(m, c)
		if s == "" {
			return true
		}
		out.WriteString(in.raw(at, m.Pos()))
		out.WriteString(s)
		at = m.End()
		return false
	})
	out.WriteString(in.raw(at, to))
	return out.String()
}

func (in *instrumenter) raw(from, to token.Pos) string {
	return string(in.src[in.fset.Position(from).Offset:in.fset.Position(to).Offset])
}

// rewrite returns the source of a node with its mutants, or "" if the program cannot
// contain them, for example because the node is part of a constant.
func (in *instrumenter) rewrite(n ast.Node, c change) string {
	switch n := n.(type) {
	case *ast.IncDecStmt:
		x, other := in.text(n.X, n.X.Pos(), n.X.End()), changes[n.Tok][0]
		return fmt.Sprintf("func() { if mutant_ == %d { %s%s } else { %s%s } }()", in.number(c, other), x, other, x, n.Tok)
	case *ast.UnaryExpr:
		if !in.computed(n, types.IsInteger|types.IsFloat) {
			return ""
		}
		return fmt.Sprintf("neg_(%d, %s)", in.number(c, token.ADD), in.operand(n.X))
	case *ast.BinaryExpr:
		return in.binary(n, c)
	}
	return ""
}

func (in *instrumenter) binary(n *ast.BinaryExpr, c change) string {
	switch {
	case n.Op == token.LAND || n.Op == token.LOR:
		if !in.decides(n) {
			return ""
		}
		// With &&, the right operand is the result if the left one is true; with ||, if
		// it is false.
		same := map[bool]string{true: "!=", false: "=="}[n.Op == token.LAND]
		return fmt.Sprintf("func() bool { l_ := bool(%s); if l_ == (mutant_ %s %d) { return bool(%s) }; return l_ }()",
			in.operand(n.X), same, in.number(c, changes[n.Op][0]), in.operand(n.Y))
	case n.Op == token.ADD && in.is(n, types.IsString):
		in.broken = append(in.broken, change{c.file, c.nth, token.SUB}.String())
		return ""
	case arithmetic[n.Op] != "":
		if y := in.info.Types[n.Y].Value; !in.computed(n, types.IsInteger|types.IsFloat) || y != nil && constant.Sign(y) == 0 {
			return ""
		}
		return fmt.Sprintf("%s(%d, %s, %s)", arithmetic[n.Op], in.number(c, changes[n.Op][0]), in.operand(n.X), in.operand(n.Y))
	}
	if !in.decides(n) {
		return ""
	}
	set, l := in.bind("l_", n.X)
	set2, r := in.bind("r_", n.Y)
	var out strings.Builder
	fmt.Fprintf(&out, "func() bool { %s%sswitch mutant_ {", set, set2)
	for _, op := range changes[n.Op] {
		fmt.Fprintf(&out, " case %d: return %s %s %s;", in.number(c, op), l, op, r)
	}
	fmt.Fprintf(&out, " }; return %s %s %s }()", l, n.Op, r)
	return out.String()
}

// computed reports whether an expression is evaluated at run time and has a type with one
// of the properties in kind.
func (in *instrumenter) computed(e ast.Expr, kind types.BasicInfo) bool {
	return in.info.Types[e].Value == nil && in.is(e, kind)
}

// decides reports whether an expression is evaluated at run time and has the type bool.
func (in *instrumenter) decides(e ast.Expr) bool {
	t := in.info.Types[e].Type
	return in.computed(e, types.IsBoolean) && (t == types.Typ[types.Bool] || t == types.Typ[types.UntypedBool])
}

func (in *instrumenter) is(e ast.Expr, kind types.BasicInfo) bool {
	t := in.info.Types[e].Type
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&kind != 0
}

// bind returns a statement that assigns an operand to a variable, and the variable. For a
// constant or nil, it returns no statement and the operand itself, whose type depends on
// the other operand.
func (in *instrumenter) bind(name string, e ast.Expr) (set, use string) {
	tv := in.info.Types[e]
	if tv.Value != nil || tv.IsNil() {
		return "", "(" + in.raw(e.Pos(), e.End()) + ")"
	}
	return fmt.Sprintf("%s := %s; ", name, in.operand(e)), name
}

func (in *instrumenter) operand(e ast.Expr) string {
	return "(" + in.text(e, e.Pos(), e.End()) + ")"
}

// mutantIn returns the mutant that gremlins made in dir, or "" if no operator differs from
// the files that instrumenter.build saved.
func mutantIn(dir, fast string) (string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		before, err := os.ReadFile(filepath.Join(fast, filepath.Base(name)))
		if err != nil {
			continue // a test, or excluded by a build constraint
		}
		after, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		if bytes.Equal(before, after) {
			continue
		}
		ops, err := parseOperators(before)
		now, err2 := parseOperators(after)
		if err := errors.Join(err, err2); err != nil {
			return "", err
		}
		for i := range min(len(ops), len(now)) {
			if ops[i] != now[i] {
				return change{filepath.Base(name), i, now[i]}.String(), nil
			}
		}
	}
	return "", nil
}

// tryFast runs the tests with the mutant that gremlins made in the working directory, and
// returns the exit code of shim: 0 if the tests succeed, 1 if they fail, and 2 if the mutant
// does not compile. It returns false if the mutant must be compiled to find that out. The first
// call builds the program.
func tryFast(real, fast, timeout string) (code int, ok bool) {
	numbers, err := os.ReadFile(filepath.Join(fast, "numbers"))
	if errors.Is(err, os.ErrNotExist) {
		var in instrumenter
		if err := in.build(real, os.Getenv(dirVar), fast); err != nil {
			fmt.Fprintln(os.Stderr, "mutate: each mutant is compiled:", err)
			in.numbers, in.broken = nil, nil
		}
		numbers = []byte(strings.Join(in.numbers, "\n"))
		err = errors.Join(os.WriteFile(filepath.Join(fast, "broken"), []byte(strings.Join(in.broken, "\n")), 0o600),
			os.WriteFile(filepath.Join(fast, "numbers"), numbers, 0o600))
	}
	broken, err2 := os.ReadFile(filepath.Join(fast, "broken"))
	c, err3 := mutantIn(".", fast)
	if errors.Join(err, err2, err3) != nil || c == "" {
		return 0, false
	}
	if slices.Contains(strings.Split(string(broken), "\n"), c) {
		return 2, true
	}
	n := slices.Index(strings.Split(string(numbers), "\n"), c)
	if n < 0 {
		return 0, false
	}
	return runFast(filepath.Join(fast, "test"), ".", n+1, timeout), true
}

func parseOperators(src []byte) ([]token.Token, error) {
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	_, ops := operators(f)
	return ops, nil
}

// runFast runs the program of instrumenter.build in dir with the mutant that has the given
// number, or with none if number is 0. It returns 0 if the tests succeed and otherwise 1. It
// limits the program's address space as limited does.
func runFast(program, dir string, number int, timeout string) int {
	args := append(limited(), program, "-test.short", "-test.failfast", "-test.paniconexit0", "-test.timeout="+timeout)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), numVar+"="+strconv.Itoa(number))
	return min(exitCode(cmd.Run()), 1)
}
