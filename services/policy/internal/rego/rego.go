// Package rego evaluates P1 bundles with OPA, without clock, network,
// randomness or environment: a bundle that reaches for them does not compile.
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
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// Query is what a bundle must define.
const Query = "data.binnacle.p1.answer"

// Timeout bounds one evaluation; a bundle that takes longer denies.
const Timeout = 250 * time.Millisecond

// Bundle is a P1 policy: Rego modules by file name. Its canonical JSON is
// what is activated, hashed and replayed.
type Bundle struct {
	Modules map[string]string `json:"modules"`
}

// Engine is a compiled bundle.
type Engine struct{ query rego.PreparedEvalQuery }

// impure lists the builtins whose answer does not follow from the input.
var impure = []string{"http.send", "net.lookup_ip_addr", "opa.runtime", "rand.intn", "time.now_ns", "uuid.rfc4122", "trace", "print"}

// Compile prepares the bundle in doc.
func Compile(ctx context.Context, doc []byte) (*Engine, error) {
	var b Bundle
	if err := json.Unmarshal(doc, &b); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if len(b.Modules) == 0 {
		return nil, errors.New("bundle: holds no modules")
	}
	caps := ast.CapabilitiesForThisVersion()
	caps.Builtins = slices.DeleteFunc(caps.Builtins, func(f *ast.Builtin) bool { return slices.Contains(impure, f.Name) || f.IsNondeterministic() })
	caps.AllowNet = []string{}
	opts := []func(*rego.Rego){rego.Query(Query), rego.Capabilities(caps), rego.StrictBuiltinErrors(true)}
	for _, name := range slices.Sorted(maps.Keys(b.Modules)) {
		opts = append(opts, rego.Module(name, b.Modules[name]))
	}
	q, err := rego.New(opts...).PrepareForEval(ctx)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return &Engine{q}, nil
}

// Answer evaluates the bundle on facts and args. Every failure is a denial.
func (e *Engine) Answer(ctx context.Context, facts *guard.Facts, args []byte) guard.Answer {
	bad := guard.Answer{Verdict: contract.Deny, Reason: guard.ReasonBadPolicy}
	input, err := input(facts, args)
	if err != nil {
		return bad
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	rs, err := e.query.Eval(ctx, rego.EvalParsedInput(input))
	if err != nil {
		if topdown.IsCancel(err) {
			return guard.Answer{Verdict: contract.Deny, Reason: "POLICY_TIMEOUT"}
		}
		return bad
	}
	if len(rs) != 1 || len(rs[0].Expressions) != 1 {
		return guard.Answer{} // no opinion, which is a denial
	}
	m, ok := rs[0].Expressions[0].Value.(map[string]any)
	if !ok {
		return bad
	}
	a := guard.Answer{}
	a.Verdict, _ = m["verdict"].(string)
	a.Reason, _ = m["reason_code"].(string)
	for k := range m {
		if k != "verdict" && k != "reason_code" && k != "sandbox" {
			return bad
		}
	}
	if raw, ok := m["sandbox"]; ok {
		b, err := json.Marshal(raw)
		if err != nil {
			return bad
		}
		var s contract.Sandbox
		if err := json.Unmarshal(b, &s); err != nil {
			return bad
		}
		if s.Tier == "" {
			s.Tier = "process"
		}
		a.Sandbox = &s
	}
	return a
}

// input is the facts with the args beside them.
func input(facts *guard.Facts, args []byte) (ast.Value, error) {
	doc := contract.Bytes(facts)
	doc = append(doc[:len(doc)-1], `,"args":`...)
	doc = append(append(doc, args...), '}')
	return ast.ValueFromReader(bytes.NewReader(doc))
}
