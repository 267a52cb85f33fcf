// Package rego compiles and evaluates P1 bundles, which are Rego modules and data
// in OPA's bundle format. It is the only package that imports OPA.
//
// An answer depends only on the bundle and the input, because replay must compute
// it again: builtins that use the clock, the network, randomness or the
// environment are not available, and a bundle that uses them does not compile.
// Evaluation is limited in time, and bundles in size and nesting. Every failure
// of an evaluation is a DENY.
package rego

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// Query is the reference to the rule whose value is a bundle's answer to a call.
const Query = "data.binnacle.p1.answer"

// Timeout is the longest time of one evaluation. A bundle that takes longer
// denies the call.
const Timeout = 250 * time.Millisecond

// MaxBundle is the greatest size in bytes of a bundle and of each file in it;
// larger ones are rejected.
const MaxBundle = 4 << 20

// impure lists builtins that bundles cannot use: their result does not depend on the
// input alone, their evaluation cannot be interrupted, or they only produce output.
// Compile also removes those that OPA declares as nondeterministic.
var impure = []string{"http.send", "net.lookup_ip_addr", "opa.runtime", "rand.intn", "time.now_ns", "uuid.rfc4122", "trace", "print",
	"net.cidr_expand", "numbers.range_step", "strings.render_template", "regex.globs_match"}

// Engine is a compiled bundle, together with a cache of its answers. It is safe
// for concurrent use.
type Engine struct {
	query   rego.PreparedEvalQuery
	modules map[string]*ast.Module
	memo    memo
}

// read checks and parses a bundle in the current or an older format.
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
		return b, errors.New("bundle: contains no Rego module")
	}
	return b, nil
}

// upgraded returns the bundle in the current format. Release 0.1 recorded Rego modules
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

// Compile prepares a bundle, which is a gzipped tar in OPA's bundle format or a document
// of release 0.1, for evaluation. It returns an error for a malformed bundle, and for
// rules that do not compile or that use unavailable builtins. It does not verify
// signatures; Verify does.
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

// Input is the input of a call for all bundles: the facts, the args, and the
// properties of the tool. It is parsed only if a bundle must be evaluated. An
// Input must be used by one goroutine only.
type Input struct {
	doc   []byte
	value ast.Value // doc as a Rego value; nil until parsed sets it
}

// NewInput returns the input for one call. args are copied into the input unchanged, so
// they must be valid JSON.
func NewInput(facts *guard.Facts, tool *contract.Tool, args []byte) *Input {
	doc := contract.Bytes(facts.ForRules())
	doc = append(doc[:len(doc)-1], `,"args":`...)
	doc = append(append(doc, args...), `,"about":`...)
	w := canon.Object(doc)
	w.Str("class", tool.Class)
	w.Strs("egress_hosts", guard.HostsOf(tool))
	w.Str("executor", tool.Executor)
	w.Strs("labels", orEmpty(tool.Labels))
	w.Strs("secrets", guard.SecretsOf(tool))
	w = canon.Object(append(w.End(), `,"ids":`...))
	w.Str("session", facts.Session)
	return &Input{doc: append(w.End(), '}')}
}

// parsed returns the input as a Rego value. The input is parsed on the first call and
// not by NewInput, because most answers come from the cache.
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

// Answer returns the bundle's answer to an input. Every failure is a DENY with the
// reason code PRG_EVALUATION_ERROR. The zero Answer means that no rule applies. Answers
// are cached, so the caller must not change the values to which an answer refers.
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

// run evaluates the bundle for an input, within Timeout. The zero Answer means that no
// rule applies.
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

// answerOf converts an answer, and sets the defaults of its approval rule. It returns an error for
// unknown members and for values of a wrong type, for an invalid verdict, reason code, egress rule,
// obligation or approval rule, and for an approval rule with a verdict other than ESCALATE.
func answerOf(m map[string]any) (guard.Answer, error) {
	var doc struct {
		Verdict  string                 `json:"verdict"`
		Reason   string                 `json:"reason_code"`
		Egress   *[]contract.EgressRule `json:"egress"`
		Sandbox  *contract.Sandbox      `json:"sandbox"`
		Approval *contract.ApprovalRule `json:"approval"`
		Obliged  []string               `json:"obligations"`
	}
	if len(m) == 2 { // the most common answer needs no conversion through JSON
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
	if a.Egress, err = egressOf(m, doc.Egress); err != nil {
		return a, err
	}
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

// egressOf returns the rules by which the answer m limits the requests of a tool, or nil if m
// has no member "egress". rules is that member, decoded. A member that contains null or an
// invalid rule is an error.
func egressOf(m map[string]any, rules *[]contract.EgressRule) ([][]contract.EgressRule, error) {
	x, ok := m["egress"]
	switch {
	case !ok:
		return nil, nil
	case hasNull(x):
		return nil, errors.New("egress: null would be no limit; leave the member out")
	}
	return [][]contract.EgressRule{*rules}, netrule.CheckCeiling(*rules)
}

// hasNull reports whether a value is null or contains null.
func hasNull(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return slices.ContainsFunc(v, hasNull)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), hasNull)
	}
	return false
}

// check returns an error unless the verdict is ALLOW, DENY or ESCALATE and the reason
// code may be used with it.
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
