package meshtest

import (
	_ "embed"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const repo = "github.com/binnacle-mesh/binnacle/"

// pureFiles lists the prefixes of the files of pure packages, one on each line. scripts/measure-code
// reads it too: each of these packages needs a row in docs/mutation.md.
//
//go:embed pure.txt
var pureFiles string

// TestImports checks the imports of every Go file of the repository against the rules of
// forbidden (see ARCHITECTURE.md), and applies checkPure to the files of pure packages. It also
// checks that each line of pure.txt matches a file.
func TestImports(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files", "--cached", "--others", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	files := strings.Fields(string(out))
	for _, f := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", f), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		n++
		for _, i := range file.Imports {
			imp := strings.Trim(i.Path.Value, `"`)
			if why := forbidden(f, imp); why != "" {
				t.Errorf("%s imports %s: %s", f, imp, why)
			}
		}
		if pure(f) {
			checkPure(t, f, file)
		}
	}
	if n < 80 {
		t.Fatalf("only %d files seen", n)
	}
	for p := range strings.FieldsSeq(pureFiles) {
		if !slices.ContainsFunc(files, func(f string) bool { return strings.HasPrefix(f, p) }) {
			t.Errorf("pure.txt: no file begins with %s", p)
		}
	}
}

// forbidden returns why the file must not import the package, or "" if it may.
func forbidden(file, imp string) string {
	own, isOwn := strings.CutPrefix(imp, repo)
	third := strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") && !isOwn
	service := ""
	if rest, ok := strings.CutPrefix(file, "services/"); ok {
		service, _, _ = strings.Cut(rest, "/")
	}
	switch {
	case strings.HasPrefix(file, "pkg/core/"):
		if third || isOwn && !strings.HasPrefix(own, "pkg/core") {
			return "the trusted core has no dependency"
		}
	case strings.HasPrefix(file, "pkg/"):
		if own == "schemas/egressbroker" && strings.HasPrefix(file, "pkg/egress/endpoint/") {
			return "" // the queries by which services reach an endpoint; see docs/decisions/0051
		}
		if isOwn && !strings.HasPrefix(own, "pkg/") {
			return "shared shells know neither schemas nor services"
		}
		if strings.HasPrefix(imp, "github.com/santhosh-tekuri/jsonschema") && strings.HasPrefix(file, "pkg/toolschema/") {
			return "" // the only package that uses JSON Schema
		}
		if strings.HasPrefix(imp, "github.com/tidwall/gjson") && strings.HasPrefix(file, "pkg/llm/") {
			return "" // this package reads requests without decoding them
		}
		if strings.HasPrefix(imp, "go.yaml.in/yaml") && strings.HasPrefix(file, "pkg/config/") {
			return "" // the configuration file is YAML
		}
		if strings.HasPrefix(imp, "github.com/prometheus/") && strings.HasPrefix(file, "pkg/metrics/") {
			return "" // the only package that uses the metrics library; see docs/decisions/0016
		}
		if strings.HasPrefix(imp, "github.com/ThreeDotsLabs/watermill") && strings.HasPrefix(file, "pkg/react/") {
			return "" // the only package that uses Watermill
		}
		if strings.HasPrefix(imp, "github.com/minio/minio-go/") && (strings.HasPrefix(file, "pkg/artifact/s3/") || strings.HasPrefix(file, "pkg/meshtest/s3test/")) {
			return "" // the packages that use S3
		}
		if strings.HasPrefix(imp, "github.com/minio/highwayhash") && strings.HasPrefix(file, "pkg/bus/embed/") {
			return "" // the checksums in the files of the NATS server
		}
		if third && !strings.HasPrefix(imp, "github.com/nats-io/") && !strings.HasPrefix(imp, "golang.org/x/sync") && !strings.HasPrefix(imp, "go.opentelemetry.io/") {
			return "shared shells depend on nats, x/sync and otel only"
		}
		if strings.HasPrefix(imp, "github.com/nats-io/nats-server") && !strings.HasPrefix(file, "pkg/bus/embed/") && !strings.HasPrefix(file, "pkg/meshtest/") {
			return "only pkg/bus/embed carries a server"
		}
		if own == "pkg/execute" && !strings.HasPrefix(file, "pkg/execute/") {
			return "what the gateway imports must not bring the executor with it"
		}
		if own == "pkg/handout" && !strings.HasPrefix(file, "pkg/handout/") {
			return "only the gateway hands intents out"
		}
	case service != "" && service != "binnacle":
		if rest, ok := strings.CutPrefix(own, "services/"); ok && rest != service && !strings.HasPrefix(rest, service+"/") {
			return "a service never imports another; only services/binnacle composes them"
		}
		if service == "gateway" && own == "pkg/execute" {
			return "the gateway executes nothing"
		}
		if service != "gateway" && own == "pkg/handout" {
			return "only the gateway hands intents out"
		}
		if strings.Contains(imp, "containerd/containerd") && !strings.HasPrefix(file, "services/session-runner/internal/containerd/") {
			return "one package speaks containerd"
		}
		if strings.Contains(imp, "santhosh-tekuri/jsonschema") {
			return "one package checks JSON Schema: pkg/toolschema"
		}
		if strings.Contains(imp, "open-policy-agent") && !strings.HasPrefix(file, "services/policy/internal/rego/") {
			return "one package speaks Rego"
		}
		if pure(file) && third && !strings.HasPrefix(imp, "go.yaml.in/yaml") {
			return "a pure package takes values, not libraries"
		}
	case strings.HasPrefix(file, "e2e/"):
		if strings.HasPrefix(own, "services/") {
			return "end-to-end tests use the built programs"
		}
	}
	return ""
}

// pure reports whether a file belongs to a package that must not do I/O. It returns
// false for tests and for the two files of the verifier that do I/O.
func pure(file string) bool {
	// The verifier reads its files and does no other I/O (pkg/core/evidence/DESIGN.md).
	if strings.HasSuffix(file, "_test.go") || slices.Contains([]string{"pkg/core/evidence/file.go", "pkg/core/evidence/archive.go"}, file) {
		return false
	}
	for p := range strings.FieldsSeq(pureFiles) {
		if strings.HasPrefix(file, p) {
			return true
		}
	}
	return false
}

// checkPure fails the test if a file imports a package for files, processes, the network
// or randomness, or uses Now, Since, Sleep or After of package time.
func checkPure(t *testing.T, name string, file *ast.File) {
	for _, i := range file.Imports {
		switch imp := strings.Trim(i.Path.Value, `"`); imp {
		case "os", "net", "net/http", "crypto/rand", "math/rand", "math/rand/v2", "os/exec", "io/fs", "syscall":
			t.Errorf("%s imports %s: it is pure", name, imp)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && (sel.Sel.Name == "Now" || sel.Sel.Name == "Since" || sel.Sel.Name == "Sleep" || sel.Sel.Name == "After") {
				t.Errorf("%s uses time.%s: it is pure", name, sel.Sel.Name)
			}
		}
		return true
	})
}
