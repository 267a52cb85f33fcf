package rego

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// At returns the place (file:line) of the rule that produces the answer to an
// input, or "" if no rule applies or the evaluation fails or takes longer than Timeout. It
// evaluates the bundle with tracing, so it is for explanations only.
func (e *Engine) At(ctx context.Context, in *Input) (at string) {
	v, err := in.parsed()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	trace := topdown.NewBufferTracer()
	rs, err := e.query.Eval(ctx, rego.EvalParsedInput(v), rego.EvalQueryTracer(trace))
	if err != nil || len(rs) == 0 {
		return ""
	}
	for _, ev := range *trace {
		if r, ok := ev.Node.(*ast.Rule); ok && ev.Op == topdown.ExitOp && string(r.Head.Name) == "answer" {
			at = fmt.Sprintf("%s:%d", strings.TrimPrefix(r.Location.File, "/"), r.Location.Row)
		}
	}
	return at
}

// TestResult is the result of one Rego test: its name, its place, and the error
// if it could not run.
type TestResult struct {
	Name   string `json:"name"`
	At     string `json:"at"`
	Passed bool   `json:"passed"`
	Error  string `json:"error,omitempty"`
}

// Test runs the rules named test_… against the bundle of the files, with a timeout of
// ten seconds each. The bundle and its data are the same as in an activation of the
// files: files that end in _test.rego are not part of the bundle, and are loaded for the
// tests only. As in the evaluation of a call, an error of a builtin is an error of the
// evaluation; it is the Error of the result. The results are in the order of their places.
// Test returns an error if a test file cannot be parsed, if Build or Compile rejects the
// bundle, or if the runner cannot start.
func Test(ctx context.Context, files map[string][]byte) ([]TestResult, error) {
	packed, modules := map[string][]byte{}, map[string]*ast.Module{}
	for name, src := range files {
		if !strings.HasSuffix(name, "_test.rego") {
			packed[name] = src
			continue
		}
		m, err := ast.ParseModuleWithOpts(name, string(src), ast.ParserOptions{RegoVersion: ast.RegoV1})
		if err != nil {
			return nil, err
		}
		modules[name] = m
	}
	doc, err := Build(packed, "", nil)
	if err != nil {
		return nil, err
	}
	if _, err := Compile(ctx, doc); err != nil {
		return nil, err
	}
	b, err := read(doc)
	if err != nil {
		return nil, err
	}
	for _, m := range b.Modules {
		modules[m.Path] = m.Parsed
	}
	store := inmem.NewFromObject(b.Data)
	txn, err := store.NewTransaction(ctx, storage.WriteParams)
	if err != nil {
		return nil, err
	}
	defer store.Abort(ctx, txn)
	ch, err := tester.NewRunner().SetStore(store).SetModules(modules).SetTimeout(10*time.Second).RaiseBuiltinErrors(true).RunTests(ctx, txn)
	if err != nil {
		return nil, err
	}
	var results []*tester.Result // the runner executes tests concurrently
	for r := range ch {
		results = append(results, r)
	}
	slices.SortFunc(results, func(a, b *tester.Result) int {
		return cmp.Or(strings.Compare(a.Location.File, b.Location.File), cmp.Compare(a.Location.Row, b.Location.Row), strings.Compare(a.Name, b.Name))
	})
	var out []TestResult
	for _, r := range results {
		t := TestResult{Name: r.Name, At: fmt.Sprintf("%s:%d", strings.TrimPrefix(r.Location.File, "/"), r.Location.Row), Passed: !r.Fail && r.Error == nil}
		if r.Error != nil {
			t.Error = r.Error.Error()
		}
		out = append(out, t)
	}
	return out, nil
}
