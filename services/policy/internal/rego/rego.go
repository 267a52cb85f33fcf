// Package rego opens P1 bundles, in OPA's standard bundle format, and evaluates
// them without clock, network, randomness or environment: a bundle that
// reaches for them does not compile.
package rego

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// Query is what a bundle must define.
const Query = "data.binnacle.p1.answer"

// Timeout bounds one evaluation; a bundle that takes longer denies.
const Timeout = 250 * time.Millisecond

// MaxBundle bounds a bundle's file and each file in it, in bytes.
const MaxBundle = 4 << 20

// impure lists the builtins whose answer does not follow from the input, or
// whose work cannot be stopped.
var impure = []string{"http.send", "net.lookup_ip_addr", "opa.runtime", "rand.intn", "time.now_ns", "uuid.rfc4122", "trace", "print",
	"net.cidr_expand", "numbers.range_step", "strings.render_template", "regex.globs_match"}

// Engine is a compiled bundle.
type Engine struct {
	query   rego.PreparedEvalQuery
	modules map[string]*ast.Module
	memo    memo
}

func read(doc []byte) (bundle.Bundle, error) {
	doc, err := upgraded(doc)
	if err != nil {
		return bundle.Bundle{}, err
	}
	if _, err := Files(doc); err != nil {
		return bundle.Bundle{}, err
	}
	b, err := bundle.NewCustomReader(bundle.NewTarballLoaderWithBaseURL(bytes.NewReader(doc), "")).
		WithSkipBundleVerification(true).WithSizeLimitBytes(MaxBundle).WithProcessAnnotations(true).WithRegoVersion(ast.RegoV1).Read()
	if err != nil {
		return b, fmt.Errorf("bundle: %w", err)
	}
	if len(b.Modules) == 0 {
		return b, errors.New("bundle: holds no Rego module")
	}
	return b, nil
}

// upgraded is the same policy in today's form. Release 0.1 recorded Rego modules
// as one JSON document, {"modules": {name: text}}.
func upgraded(doc []byte) ([]byte, error) {
	if len(doc) == 0 || doc[0] != '{' {
		return doc, nil
	}
	var old struct {
		Modules map[string]string `json:"modules"`
	}
	if err := canon.CheckDepth(doc); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if err := json.Unmarshal(doc, &old); err != nil || len(old.Modules) == 0 {
		return nil, errors.New("bundle: neither a gzipped tar nor a bundle of release 0.1")
	}
	files := map[string][]byte{}
	for name, text := range old.Modules {
		files[name] = []byte(text)
	}
	return Build(files, "", nil)
}

// Compile prepares a bundle: a gzipped tar in OPA's bundle format. Signatures
// are checked by Verify, not here.
func Compile(ctx context.Context, doc []byte) (*Engine, error) {
	b, err := read(doc)
	if err != nil {
		return nil, err
	}
	caps := ast.CapabilitiesForThisVersion()
	caps.Builtins = slices.DeleteFunc(caps.Builtins, func(f *ast.Builtin) bool { return slices.Contains(impure, f.Name) || f.IsNondeterministic() })
	caps.AllowNet = []string{}
	schemas := ast.NewSchemaSet()
	schemas.Put(ast.SchemaRootRef, inputSchema)
	q, err := rego.New(rego.Query(Query), rego.Capabilities(caps), rego.StrictBuiltinErrors(true), rego.Schemas(schemas), rego.ParsedBundle("p1", &b)).PrepareForEval(ctx)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	e := &Engine{query: q, modules: map[string]*ast.Module{}}
	for _, m := range b.Modules {
		e.modules[m.Path] = m.Parsed
	}
	e.memo.reads, e.memo.ok = readsOf(e.modules)
	return e, nil
}

// Input is what every bundle is asked with: the facts, beside them the args
// and what the tool's document says of it.
type Input struct {
	doc   []byte
	value ast.Value // of doc, once a bundle has to be run
}

// NewInput makes the input of one call; args are canonical.
func NewInput(facts *guard.Facts, tool *contract.Tool, args []byte) *Input {
	doc := contract.Bytes(facts.ForRules())
	doc = append(doc[:len(doc)-1], `,"args":`...)
	doc = append(append(doc, args...), `,"about":`...)
	w := canon.Object(doc)
	w.Str("class", tool.Class)
	w.Strs("egress_hosts", orEmpty(tool.Egress))
	w.Str("executor", tool.Executor)
	w.Strs("labels", orEmpty(tool.Labels))
	names := []string{}
	for _, s := range tool.Secrets {
		if !s.Pattern() { // what stays with the executor reaches no tool
			names = append(names, s.Name)
		}
	}
	w.Strs("secrets", names)
	w = canon.Object(append(w.End(), `,"ids":`...))
	w.Str("session", facts.Session)
	return &Input{doc: append(w.End(), '}')}
}

func (in *Input) parsed() (v ast.Value, err error) {
	if in.value == nil {
		in.value, err = ast.ValueFromReader(bytes.NewReader(in.doc))
	}
	return in.value, err
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// Answer is the bundle's answer. Every failure is a denial; the zero Answer is
// no opinion.
func (e *Engine) Answer(ctx context.Context, in *Input) guard.Answer {
	a, key, ok := e.memo.get(in.doc)
	if ok {
		return a
	}
	a, err := e.run(ctx, in)
	if err != nil {
		return guard.Answer{Verdict: contract.Deny, Reason: contract.ReasonPrgEvaluationError}
	}
	e.memo.put(key, a)
	return a
}

func (e *Engine) run(ctx context.Context, in *Input) (a guard.Answer, err error) {
	v, err := in.parsed()
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	rs, err := e.query.Eval(ctx, rego.EvalParsedInput(v))
	if err != nil || len(rs) != 1 || len(rs[0].Expressions) != 1 {
		return a, err
	}
	m, ok := rs[0].Expressions[0].Value.(map[string]any)
	if !ok {
		return a, errors.New("the answer is not an object")
	}
	return answerOf(m)
}

// answerOf reads an answer strictly.
func answerOf(m map[string]any) (guard.Answer, error) {
	var doc struct {
		Verdict  string                 `json:"verdict"`
		Reason   string                 `json:"reason_code"`
		Sandbox  *contract.Sandbox      `json:"sandbox"`
		Approval *contract.ApprovalRule `json:"approval"`
		Obliged  []string               `json:"obligations"`
	}
	if len(m) == 2 { // the common answer, without the detour
		v, ok1 := m["verdict"].(string)
		r, ok2 := m["reason_code"].(string)
		if ok1 && ok2 {
			return guard.Answer{Verdict: v, Reason: r}, check(v, r)
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		return guard.Answer{}, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return guard.Answer{}, err
	}
	a := guard.Answer{Verdict: doc.Verdict, Reason: doc.Reason, Sandbox: doc.Sandbox, Obliged: doc.Obliged}
	for _, o := range a.Obliged {
		if err := guard.CheckObligation(o); err != nil {
			return a, err
		}
	}
	if doc.Approval != nil {
		if doc.Approval.Quorum == 0 {
			doc.Approval.Quorum = 1
		}
		if doc.Approval.TimeoutMS == 0 {
			doc.Approval.TimeoutMS = (5 * time.Minute).Milliseconds()
		}
		if err := guard.CheckRule(doc.Approval); err != nil {
			return a, err
		}
		if a.Verdict != contract.Escalate {
			return a, errors.New("approval belongs to ESCALATE")
		}
		a.Approvals = []contract.ApprovalRule{*doc.Approval}
	}
	return a, check(a.Verdict, a.Reason)
}

// check knows which reason codes an answer may carry.
func check(verdict, reason string) error {
	if verdict != contract.Allow && verdict != contract.Deny && verdict != contract.Escalate {
		return fmt.Errorf("verdict %q: want ALLOW, DENY or ESCALATE", verdict)
	}
	if info, ok := contract.Reasons[reason]; ok && info.Verdict == verdict {
		return nil
	}
	prefix := map[string]string{contract.Allow: "RULE_", contract.Deny: "DENY_", contract.Escalate: "ESCALATE_"}[verdict]
	if len(reason) > len(prefix) && reason[:len(prefix)] == prefix && contract.Token(reason) {
		return nil
	}
	return fmt.Errorf("reason_code %q: want one of the registry's for %s, or %s…", reason, verdict, prefix)
}
