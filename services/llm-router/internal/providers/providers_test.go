package providers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/dialect"
	"github.com/binnacle-mesh/binnacle/services/llm-router/internal/provider"
)

// vendors lists names by which code could refer to a provider, in addition to the names
// of the kinds.
var vendors = []string{"aws-sdk", "amazon", "amzn", "apim", "google", "goog", "claude", "vllm", "mistral"}

// dialects lists the packages for the API or the models of one vendor; they may name
// that vendor. All other code outside this folder, except package irtest, is shared.
var dialects = []string{"internal/chat/", "internal/messages/", "internal/responses/", "internal/claude/"}

// TestSharedCodeNamesNoProvider parses every file of the shared code except tests and
// shows that no identifier, literal or import names a provider. Comments and struct tags
// may name one.
func TestSharedCodeNamesNoProvider(t *testing.T) {
	names := append([]string{}, vendors...)
	for _, k := range All.Kinds() {
		names = append(names, k.Name)
	}
	named := regexp.MustCompile(`(?i)(^|[^a-z])(` + strings.Join(names, "|") + `)([^a-z]|$)`)
	// A name is matched at the beginning of an identifier, or within it if it begins
	// with a capital letter.
	within := regexp.MustCompile(`^(` + strings.Join(names, "|") + `)([A-Z_0-9]|$)|` + capital(names) + `([A-Z_0-9]|$)`)
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := strings.TrimPrefix(filepath.ToSlash(path), "../../")
		if d.IsDir() {
			if at == "internal/providers" || at == "internal/irtest" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(at, ".go") || strings.HasSuffix(at, "_test.go") {
			return nil
		}
		for _, dir := range dialects {
			if strings.HasPrefix(at, dir) {
				return nil
			}
		}
		files++
		for _, found := range naming(t, path, named, within) {
			t.Errorf("%s names a provider: %s", at, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 30 {
		t.Errorf("only %d files were read", files)
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
