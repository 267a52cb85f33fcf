package core_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/binnacle-mesh/binnacle/pkg/core"

// allowed lists, for each package of the trusted core, the packages outside the trusted
// core that it may import, all from the standard library. Every addition enlarges the
// code that a reviewer must trust, and needs a reason in its commit.
var allowed = map[string][]string{
	"canon":               {"bytes", "encoding/binary", "errors", "fmt", "math", "slices", "strconv", "sync", "unicode/utf16", "unicode/utf8"},
	"sign":                {"crypto/ed25519", "crypto/sha256", "encoding/base64", "encoding/hex", "errors", "fmt", "strings", "sync"},
	"contract":            {"bytes", "crypto/sha256", "encoding/base32", "encoding/base64", "encoding/hex", "encoding/json", "errors", "fmt", "slices", "strconv", "strings", "time", "unicode/utf8"},
	"guard":               {"errors", "fmt", "slices", "strings", "time"},
	"passkey":             {"bytes", "crypto", "crypto/ecdsa", "crypto/ed25519", "crypto/elliptic", "crypto/rsa", "crypto/sha256", "crypto/x509", "encoding/base64", "encoding/binary", "encoding/hex", "encoding/json", "errors", "strings", "unicode/utf8"},
	"passkey/passkeytest": {"crypto", "crypto/ecdsa", "crypto/elliptic", "crypto/rand", "crypto/sha256", "crypto/x509", "encoding/base64", "encoding/binary", "encoding/json", "strings"}, // for tests only
	"receipt":             {"errors", "fmt"},
	"proofgraph":          {"fmt", "slices"},
	"translog":            {"bytes", "crypto/sha256", "encoding/base64", "encoding/binary", "errors", "fmt", "math/bits", "slices", "strconv", "strings", "unicode/utf8"},
	"trust":               {"cmp", "errors", "fmt", "slices", "strconv", "strings"},
	"netrule":             {"errors", "fmt", "net/netip", "slices", "strconv", "strings", "unicode/utf8"},
	"query":               {"time"},
	"evidence":            {"archive/tar", "bufio", "bytes", "compress/gzip", "crypto/sha256", "encoding/base64", "encoding/hex", "encoding/json", "errors", "fmt", "hash", "io", "io/fs", "os", "path/filepath", "runtime", "slices", "strconv", "strings", "sync", "time"},
	"cmd/binnacle-verify": {"encoding/json", "errors", "flag", "fmt", "io", "io/fs", "os", "strings"},
}

// TestImports shows that every package of the trusted core, apart from its tests,
// imports only other packages of the trusted core and the packages that allowed lists
// for it, and that allowed has an entry for every package.
func TestImports(t *testing.T) {
	for pkg, std := range allowed {
		for path, imports := range importsOf(t, pkg) {
			for _, imp := range imports {
				if !slices.Contains(std, imp) && !strings.HasPrefix(imp, module+"/") {
					t.Errorf("%s imports %s: the trusted core imports only what this test lists", path, imp)
				}
			}
		}
	}
	var found []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && filepath.Dir(path) != "." {
			if dir := filepath.ToSlash(filepath.Dir(path)); !slices.Contains(found, dir) {
				found = append(found, dir)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range found {
		if allowed[dir] == nil {
			t.Errorf("package %s is new in the trusted core; list its imports here if it belongs", dir)
		}
	}
}

// TestNoRequire shows that go.mod has no require block, so that a reader sees at
// a glance that the module has no dependencies.
func TestNoRequire(t *testing.T) {
	b, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "require") {
		t.Fatal("pkg/core/go.mod requires something")
	}
}

func importsOf(t *testing.T, dir string) map[string][]string {
	out := map[string][]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no package in %s", dir)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			out[f] = append(out[f], strings.Trim(i.Path.Value, `"`))
		}
	}
	return out
}

// TestMakers scans the Go files of the repository that are not tests, and checks that
// only the trusted core constructs decisions, intents, receipts and trust keys, except
// that package keyring may build unsigned trust keys. It also checks that only package
// bus names allowed_* subjects, that only pkg/execute, policy's expiry of unstarted
// calls, policy's budget ledgers and package handout read them, and that only the gateway
// uses package handout to hand intents out.
func TestMakers(t *testing.T) {
	foreign := strings.NewReplacer("allowed_tools", "", "allowed_roles", "") // members of the formats of MCP clients and of Vault
	sealed := map[string][]string{
		"Decision":        {"pkg/core/"},
		"ExecutionIntent": {"pkg/core/"},
		"Receipt":         {"pkg/core/"},
		"TrustKey":        {"pkg/core/", "services/binnacle/internal/keyring/"}, // package keyring builds unsigned trust keys; trust.Publish signs them
	}
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.go").CombinedOutput()
	root := "../.."
	if err != nil {
		t.Fatalf("git ls-files: %v %s", err, out)
	}
	out, err = exec.Command("git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	scanned := 0
	for f := range strings.FieldsSeq(string(out)) {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		scanned++
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, f), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.CompositeLit:
				if sel, ok := x.Type.(*ast.SelectorExpr); ok && len(x.Elts) > 0 {
					if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "contract" {
						if where, ok := sealed[sel.Sel.Name]; ok && !slices.ContainsFunc(where, func(w string) bool { return strings.HasPrefix(f, w) }) {
							t.Errorf("%s makes a contract.%s; only %v may", f, sel.Sel.Name, where)
						}
					}
				}
			case *ast.SelectorExpr:
				if (x.Sel.Name == "HandOutFilter" || x.Sel.Name == "Lender" || x.Sel.Name == "HandOut") && !strings.HasPrefix(f, "services/gateway/") {
					t.Errorf("%s uses %s; only the gateway hands intents out", f, x.Sel.Name)
				}
				if x.Sel.Name == "AllowedFilter" || x.Sel.Name == "ExecutorWork" {
					switch {
					case strings.HasPrefix(f, "pkg/execute/"), f == "services/policy/policy/topology.go":
					case x.Sel.Name == "AllowedFilter" && f == "services/policy/internal/budget/book.go": // the events record what calls draw from budgets
					case x.Sel.Name == "AllowedFilter" && f == "pkg/handout/handout.go": // package handout reads the intents of calls that their callers execute
					case x.Sel.Name == "ExecutorWork" && (strings.HasPrefix(f, "services/") || strings.HasPrefix(f, "e2e/executor/")): // services declare their work; pkg/execute consumes it
					default:
						t.Errorf("%s reads allowed_* beside pkg/execute", f)
					}
				}
			case *ast.BasicLit:
				if x.Kind == token.STRING && strings.Contains(foreign.Replace(x.Value), "allowed_") && f != "pkg/bus/topology.go" {
					t.Errorf("%s names allowed_* itself", f)
				}
			}
			return true
		})
	}
	if scanned < 50 {
		t.Fatalf("only %d files scanned", scanned)
	}
}
