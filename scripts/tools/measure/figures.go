package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// figure is one row of the table: a measured value n and its limit, which is a minimum
// if least is set and a maximum otherwise. If enforced is set, a broken limit fails the
// run. detail lists the counted items, one per line of output.
type figure struct {
	name     string
	n, bound float64
	unit     string // "", "%"
	least    bool
	enforced bool
	detail   []string
}

func (f figure) ok() bool { return f.least && f.n >= f.bound || !f.least && f.n <= f.bound }

func (f figure) value() string { return strconv.FormatFloat(f.n, 'f', -1, 64) + f.unit }

func (f figure) limit() string {
	sign := "≤ "
	if f.least {
		sign = "≥ "
	}
	return sign + strconv.FormatFloat(f.bound, 'f', -1, 64) + f.unit
}

// round rounds x to the given number of decimal digits.
func round(x float64, digits int) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', digits, 64), 64)
	return r
}

func (t *tree) figures() []figure {
	share, words, bare := t.comments()
	out := []figure{
		{name: "comment share of lines", n: share, bound: 14, unit: "%", least: true},
		{name: "words per exported doc comment, median", n: words, bound: 15, least: true},
		{name: "exported names without a doc comment", n: float64(len(bare)), bound: 0, detail: bare},
		t.methods(),
	}
	out = append(out, t.complexity()...)
	out = append(out, t.tests()...)
	out = append(out, t.documents(), t.sampled(), t.mutants(), t.executor(), t.literals("event names", t.isEventName), t.subjectLiterals(), t.idLiterals(), t.literals("error codes", t.isCode()), t.literals("reason codes", t.isReason), t.serviceLiterals(), t.decoders())
	for i := range out {
		out[i].enforced = enforced[out[i].name]
	}
	return out
}

// comments returns the percentage of comment lines among the lines of comments and code,
// the median number of words in the doc comments of exported declarations, and the
// exported declarations without a doc comment.
func (t *tree) comments() (share, median float64, bare []string) {
	var comments, code int
	var words []int
	for f := range t.code {
		comments, code = comments+f.comments, code+f.code
		for name, doc := range exported(f) {
			if doc == nil {
				bare = append(bare, f.at(name.Pos())+" "+name.Name)
				continue
			}
			words = append(words, len(strings.Fields(doc.Text())))
		}
	}
	slices.Sort(words)
	if len(words) > 0 {
		median = float64(words[len(words)/2])
	}
	return round(100*float64(comments)/float64(comments+code), 1), median, bare
}

// exported yields the names of a file's exported types, exported functions, and exported
// methods of exported types, each with its doc comment or nil. It leaves out constants,
// variables and fields, which a comment on their group may describe.
func exported(f *file) func(func(*ast.Ident, *ast.CommentGroup) bool) {
	return func(yield func(*ast.Ident, *ast.CommentGroup) bool) {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) && !yield(d.Name, d.Doc) {
					return
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() {
						doc := ts.Doc
						if doc == nil {
							doc = d.Doc
						}
						if !yield(ts.Name, doc) {
							return
						}
					}
				}
			}
		}
	}
}

// receiver returns the name of a method's receiver type, without its pointer and type
// parameters.
func receiver(d *ast.FuncDecl) string {
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func (t *tree) methods() figure {
	n := map[string]int{}
	for f := range t.code {
		for _, d := range f.ast.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv != nil {
				n[f.dir+"."+receiver(d)]++
			}
		}
	}
	out := figure{name: "most methods on a type", bound: 25}
	for name, count := range n {
		out.n = max(out.n, float64(count))
		if count > 25 {
			out.detail = append(out.detail, fmt.Sprintf("%3d %s", count, name))
		}
	}
	slices.Sort(out.detail)
	return out
}

// complexity returns the figures of cyclomatic complexity (McCabe). A function's
// complexity is one, plus one for each if, for, case, && and ||; function literals count
// as part of the function.
func (t *tree) complexity() []figure {
	all, over := 0, figure{name: "functions above cyclomatic 15", bound: 1.5, unit: "%"}
	core := figure{name: "functions of the trusted core above cyclomatic 10", bound: 0}
	for f := range t.code {
		for _, d := range f.ast.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Body == nil {
				continue
			}
			all++
			c := cyclomatic(d)
			line := fmt.Sprintf("%3d %s %s", c, f.at(d.Pos()), d.Name.Name)
			if c > 15 {
				over.detail = append(over.detail, line)
			}
			if c > 10 && f.under("pkg/core") {
				core.detail = append(core.detail, line)
			}
		}
	}
	over.n, core.n = round(100*float64(len(over.detail))/float64(all), 2), float64(len(core.detail))
	worst := func(a, b string) int { return -cmp.Compare(a[:3], b[:3]) }
	slices.SortFunc(over.detail, worst)
	slices.SortFunc(core.detail, worst)
	return []figure{over, core}
}

// cyclomatic returns the cyclomatic complexity of a function. default clauses do not
// count.
func cyclomatic(d *ast.FuncDecl) int {
	n := 1
	ast.Inspect(d, func(x ast.Node) bool {
		switch x := x.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if x.List != nil {
				n++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

// simulator is the folder of the simulator of a mesh. Its files are for tests of other
// packages, so for the figures of tests they count neither as code nor as tests beside code.
const simulator = "services/binnacle/internal/sim"

// untested is the maximum number of lines of code of a package that needs no test file.
const untested = 60

// tests returns the ratio of lines of tests to lines of code in the same folders, the
// percentage of code in folders without tests, and the number of packages of more than
// untested lines without a test file. Packages for tests do not count for the last figure.
func (t *tree) tests() []figure {
	code, test, total := map[string]int{}, map[string]int{}, 0
	for f := range t.code {
		if f.dir != simulator {
			code[f.dir] += f.code
			total += f.code
		}
	}
	for _, f := range t.files {
		if f.test && code[f.dir] > 0 {
			test[f.dir] += f.code
		}
	}
	lines := figure{name: "lines of tests beside the code, per line of it", bound: 0.5, least: true}
	none := figure{name: "lines of packages without a test beside them", unit: "%"}
	large := figure{name: fmt.Sprintf("packages of more than %d lines without a test beside them", untested)}
	sum, without := 0, 0
	for dir, n := range code {
		sum += test[dir]
		if test[dir] > 0 {
			continue
		}
		without += n
		line := fmt.Sprintf("%5d %s", n, dir)
		none.detail = append(none.detail, line)
		if n > untested && !forTests(dir) {
			large.detail = append(large.detail, line)
		}
	}
	for _, f := range []figure{none, large} {
		slices.SortFunc(f.detail, func(a, b string) int { return -cmp.Compare(a, b) })
	}
	lines.n, none.n, none.bound = round(float64(sum)/float64(total), 2), round(100*float64(without)/float64(total), 1), 2
	large.n = float64(len(large.detail))
	return []figure{lines, none, large}
}

// forTests reports whether a folder contains helpers for the tests of other packages: a name in its
// path ends in "test" or is "simulated".
func forTests(dir string) bool {
	for name := range strings.SplitSeq(dir, "/") {
		if strings.HasSuffix(name, "test") || name == "simulated" {
			return true
		}
	}
	return false
}

// documents counts the design documents that do not have 60 to 150 lines, and the packages
// that need one and have none.
func (t *tree) documents() figure {
	out := figure{name: "packages whose DESIGN.md is missing, short or long"}
	dirs := map[string]bool{}
	for _, dir := range []string{"pkg/execute", "pkg/follow", "pkg/bus", "services/policy", "services/gateway", "services/llm-router", "services/audit", "pkg/core/evidence"} {
		dirs[dir] = true
	}
	for _, pattern := range []string{"pkg", "services"} {
		_ = filepath.WalkDir(filepath.Join(t.root, pattern), func(path string, _ fs.DirEntry, err error) error {
			if dir, rel := filepath.Rel(t.root, filepath.Dir(path)); err == nil && rel == nil && filepath.Base(path) == "DESIGN.md" {
				dirs[filepath.ToSlash(dir)] = true
			}
			return err
		})
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		b, _ := os.ReadFile(filepath.Join(t.root, dir, "DESIGN.md"))
		if n := strings.Count(string(b), "\n"); n < 60 || n > 150 {
			out.detail = append(out.detail, fmt.Sprintf("%s: %d lines", dir, n))
		}
	}
	out.n = float64(len(out.detail))
	return out
}
