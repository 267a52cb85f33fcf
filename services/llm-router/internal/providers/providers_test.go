package providers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// vendors lists names by which code could refer to a provider, in addition to the names
// of the kinds.
var vendors = []string{"aws-sdk", "amazon", "amzn", "apim", "google", "goog", "claude", "vllm", "mistral"}

// dialects lists the packages for the formats in which clients send requests, which more
// than one kind of provider accepts: OpenAI's chat completions and responses, Anthropic's
// messages, and the members of requests that depend on the model, for the Claude models
// (Anthropic and Amazon Bedrock have them). A format belongs to a vendor, so that its
// package may name the vendor; it must not depend on the provider that is called. All
// other code outside this folder, except package irtest, is shared.
var dialects = []string{"internal/chat/", "internal/messages/", "internal/responses/", "internal/claude/"}

// TestSharedCodeNamesNoProvider parses every file of the shared code except tests and
// shows that no identifier, literal or import names a provider. Comments and struct tags
// may name one.
func TestSharedCodeNamesNoProvider(t *testing.T) {
	text, ident := matchers(append(kinds(), vendors...))
	files := 0
	sources(t, "../..", append([]string{"internal/providers/", "internal/irtest/"}, dialects...), func(at, path string) {
		files++
		for _, found := range naming(t, path, text, ident) {
			t.Errorf("%s names a provider: %s", at, found)
		}
	})
	if files < 30 {
		t.Errorf("only %d files were read", files)
	}
}

// formats lists kinds that other code may name: two are vendors of formats that the
// gateway accepts, whichever provider is called, and compatible is a common word.
var formats = []string{"openai", "anthropic", "compatible"}

// named lists other names of providers outside the llm-router that are allowed, and why.
var named = map[string]string{
	"DemoModel":   "the home of the default model, llm.DemoModel",
	`"demo/echo"`: "its value",
	`"google"`:    "a member of tool calls in OpenAI's format, with the signature of a thought",
}

// TestOtherCodeNamesNoProvider shows for pkg and the other services that they name no
// provider. The command line is an exception: its help has names of models as examples,
// and its hooks know programs such as Gemini CLI. None of its literals may be the name of
// a model, which would be a default beside llm.DemoModel.
func TestOtherCodeNamesNoProvider(t *testing.T) {
	names := slices.DeleteFunc(append(kinds(), vendors...), func(n string) bool { return slices.Contains(formats, n) })
	text, ident := matchers(names)
	model, none := regexp.MustCompile(`^(`+strings.Join(kinds(), "|")+`)/[a-z0-9.-]+$`), regexp.MustCompile(`$^`)
	files, seen := 0, map[string]bool{}
	sources(t, "../../../..", []string{"services/llm-router/", "schemas/", "deploy/", "e2e/", "examples/", "packs/", "scripts/", "sdk/"}, func(at, path string) {
		files++
		text, ident := text, ident
		if strings.HasPrefix(at, "services/binnacle/") {
			text, ident = model, none
		}
		for _, found := range naming(t, path, text, ident) {
			switch {
			case named[found] != "":
				seen[at+" "+found] = true
			case !strings.HasPrefix(found, `"google.golang.org/`): // an import
				t.Errorf("%s names a provider: %s", at, found)
			}
		}
	})
	for at := range seen {
		if strings.HasSuffix(at, `"`) && !strings.HasPrefix(at, "pkg/llm/") {
			t.Errorf("%s: the literal has one home, package llm", at)
		}
	}
	if files < 300 || len(seen) < len(named) {
		t.Errorf("%d files were read, with %v", files, seen)
	}
	if local := All.Locals()[0]; llm.DemoModel != local.Name+"/"+local.Local().Models[0] {
		t.Errorf("%s is no model of %s", llm.DemoModel, local.Name)
	}
}

// kinds returns the names of the kinds of providers.
func kinds() (names []string) {
	for _, k := range All.Kinds() {
		names = append(names, k.Name)
	}
	return names
}

// matchers returns an expression for texts that contain one of the names as a word, and
// one for identifiers. An identifier contains a name at its beginning, or within it if
// the name begins with a capital letter.
func matchers(names []string) (text, ident *regexp.Regexp) {
	one := strings.Join(names, "|")
	return regexp.MustCompile(`(?i)(^|[^a-z])(` + one + `)([^a-z]|$)`), regexp.MustCompile(`^(` + one + `)([A-Z_0-9]|$)|` + capital(names) + `([A-Z_0-9]|$)`)
}

// sources calls f for each Go file below root except tests and files in the folders of
// skip, with its path within root and the path to open.
func sources(t *testing.T, root string, skip []string, f func(at, path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := strings.TrimPrefix(filepath.ToSlash(path), root+"/")
		if d.IsDir() {
			if slices.Contains(skip, at+"/") || strings.HasPrefix(d.Name(), ".") && path != root {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(at, ".go") && !strings.HasSuffix(at, "_test.go") {
			f(at, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func capital(names []string) string {
	var out []string
	for _, n := range names {
		out = append(out, strings.ToUpper(n[:1])+n[1:])
	}
	return `(` + strings.Join(out, "|") + `)`
}

// naming returns the identifiers, literals and imports in a file that name a provider.
func naming(t *testing.T, path string, text, ident *regexp.Regexp) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Tag != nil {
				n.Tag = nil
			}
		case *ast.BasicLit:
			s, err := strconv.Unquote(n.Value)
			if err == nil && n.Kind == token.STRING && text.MatchString(strings.TrimPrefix(s, "github.com/binnacle-mesh/binnacle/services/llm-router/internal/providers")) {
				found = append(found, n.Value)
			}
		case *ast.Ident:
			if ident.MatchString(n.Name) {
				found = append(found, n.Name)
			}
		}
		return true
	})
	return found
}

// TestNamingFinds shows that naming finds the import of a provider's package and the
// identifier of the package.
func TestNamingFinds(t *testing.T) {
	text := regexp.MustCompile(`(?i)(^|[^a-z])(gemini)([^a-z]|$)`)
	ident := regexp.MustCompile(`^(gemini)([A-Z_0-9]|$)|` + capital([]string{"gemini"}) + `([A-Z_0-9]|$)`)
	if found := naming(t, "providers.go", text, ident); len(found) != 2 { // the import path and the identifier gemini.Provider
		t.Errorf("%q", found)
	}
}

// TestEveryKind shows that each kind, except those that run in this process, can be
// configured by its name, and that its APIs have the functions that they require. The
// error for an unknown kind lists the kinds that can be configured.
func TestEveryKind(t *testing.T) {
	for _, k := range All.Kinds() {
		if k.Local != nil {
			if len(k.Local.Models) == 0 || k.Local.Answer == nil || k.Local.ID == nil || k.Local.Missing == "" || k.Local.Owner == "" {
				t.Errorf("%s: something is missing: %+v", k.Name, k.Local)
			}
			if _, err := All.New(provider.Config{Kind: k.Name, BaseURL: "http://127.0.0.1"}, nil); err == nil {
				t.Errorf("%s answers in this process, and can be configured", k.Name)
			}
			continue
		}
		p, err := All.New(provider.Config{Name: "p", Kind: k.Name, BaseURL: "http://127.0.0.1:1/", Region: "r"}, http.DefaultClient)
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
			continue
		}
		if p.Kind != k.Name || p.BaseURL != "http://127.0.0.1:1" || p.Limit == 0 || p.TraceName() == "" || p.Local() != nil {
			t.Errorf("%s: %+v", k.Name, p.Config)
		}
		if len(k.APIs) == 0 || p.Translated() == nil {
			t.Errorf("%s: chats cannot be translated to any of its APIs", k.Name)
		}
		for _, a := range k.APIs {
			complete(t, a)
		}
	}
	_, err := All.New(provider.Config{Kind: "x"}, nil)
	if want := `kind: "x": want openai, anthropic, gemini, azure, bedrock, openrouter, ollama or compatible`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func complete(t *testing.T, a *dialect.API) {
	t.Helper()
	if a.Path == nil || a.Fault == nil || a.Decoder == nil || All.API(a.Name) != a {
		t.Errorf("%s: path, errors or streams are missing", a.Name)
	}
	if (a.Rank > 0) != (a.Build != nil && a.Parse != nil) {
		t.Errorf("%s: rank %d, and a translation is there: %v", a.Name, a.Rank, a.Build != nil)
	}
	if (a.Kind != "") != (a.Usage != nil) {
		t.Errorf("%s: answers pass as they are, and their usage cannot be read", a.Name)
	}
}

// TestOneName parses the package of each kind, except its tests, and shows that it
// exports one name: the kind.
func TestOneName(t *testing.T) {
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string][]string{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		exported[filepath.Dir(path)] = append(exported[filepath.Dir(path)], exports(file)...)
	}
	for dir, names := range exported {
		if len(names) != 1 || names[0] != "Provider" {
			t.Errorf("%s exports %q, want its Provider alone", dir, names)
		}
	}
	if len(exported) != len(All.Kinds()) {
		t.Errorf("%d packages, %d kinds", len(exported), len(All.Kinds()))
	}
}

// exports returns the exported names of package level that a file declares. Methods and
// fields are left out: they can be reached through an exported name only.
func exports(file *ast.File) (names []string) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.IsExported() {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						names = append(names, s.Name.Name)
					}
				case *ast.ValueSpec:
					for _, n := range s.Names {
						if n.IsExported() {
							names = append(names, n.Name)
						}
					}
				}
			}
		}
	}
	return names
}

// TestOverloaded shows which statuses mean that a provider is overloaded: 503, and those
// of the kinds. Callers receive 503 for each of them.
func TestOverloaded(t *testing.T) {
	for status, want := range map[int]bool{0: false, 200: false, 429: false, 500: false, 502: false, 503: true, 504: false, 529: true} {
		if got := All.Overloaded(status); got != want {
			t.Errorf("%d: %v", status, got)
		}
	}
}

// TestHeaders shows which header fields of a provider callers receive, that the id of a
// request is cut to 200 bytes, and that X-Request-Id takes precedence over other fields
// with an id.
func TestHeaders(t *testing.T) {
	for name, want := range map[string]bool{"X-Ratelimit-Limit-Tokens": true, "Anthropic-Ratelimit-Requests-Limit": true, "Retry-After": true, "Retry-After-Ms": true, "Openai-Processing-Ms": true,
		"Retry-After-Other": false, "Openai-Organization": false, "Set-Cookie": false, "Authorization": false, "Content-Type": false} {
		if All.Passes(name) != want {
			t.Errorf("%s passes: %v", name, !want)
		}
	}
	for _, name := range []string{"X-Request-Id", "Request-Id", "Apim-Request-Id", "X-Amzn-Requestid"} {
		h := http.Header{}
		h.Set(name, strings.Repeat("7", 300))
		if got := All.RequestID(h); len(got) != 200 {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
	if got := All.RequestID(http.Header{"X-Request-Id": {"first"}, "Request-Id": {"second"}}); got != "first" {
		t.Error(got)
	}
}
