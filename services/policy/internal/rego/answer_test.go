package rego

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
)

// TestAnswerOf checks the answers to which documents are converted, with the defaults of
// their approval rules, and the errors of invalid ones.
func TestAnswerOf(t *testing.T) {
	rule := func(quorum, ms int64) []contract.ApprovalRule {
		return []contract.ApprovalRule{{Quorum: quorum, TimeoutMS: ms}}
	}
	type doc = map[string]any
	for _, c := range []struct {
		in   doc
		want guard.Answer
		err  string
	}{
		{doc{"verdict": "ALLOW", "reason_code": "RULE_X"}, guard.Answer{Verdict: "ALLOW", Reason: "RULE_X"}, ""},
		{doc{"verdict": "ALLOW"}, guard.Answer{}, "reason_code"},
		{doc{"verdict": 1, "reason_code": "RULE_X"}, guard.Answer{}, "verdict"},
		{doc{"verdict": "ALLOW", "reason_code": 1}, guard.Answer{}, "reason_code"},
		{doc{"verdict": "ALLOW", "x": 1}, guard.Answer{}, "unknown field"},
		{doc{"verdict": "ALLOW", "reason_code": "RULE_X", "x": 1}, guard.Answer{}, "unknown field"},
		{doc{"verdict": "ALLOW", "reason_code": "RULE_X", "obligations": []any{"content.flag:pii"}}, guard.Answer{Verdict: "ALLOW", Reason: "RULE_X", Obliged: []string{"content.flag:pii"}}, ""},
		{doc{"verdict": "ALLOW", "reason_code": "RULE_X", "obligations": []any{"content.flag:pii", "content.burn:pii"}}, guard.Answer{}, "obligation"},
		{doc{"verdict": "ALLOW", "reason_code": "RULE_X", "approval": doc{}}, guard.Answer{}, "approval belongs to ESCALATE"},
		{doc{"verdict": "ESCALATE", "reason_code": "ESCALATE_X", "approval": doc{}}, guard.Answer{Verdict: "ESCALATE", Reason: "ESCALATE_X", Approvals: rule(1, 300_000)}, ""},
		{doc{"verdict": "ESCALATE", "reason_code": "ESCALATE_X", "approval": doc{"quorum": 3, "timeout_ms": 9}}, guard.Answer{Verdict: "ESCALATE", Reason: "ESCALATE_X", Approvals: rule(3, 9)}, ""},
		{doc{"verdict": "ESCALATE", "reason_code": "ESCALATE_X", "approval": doc{"quorum": 17}}, guard.Answer{}, "quorum"},
		{doc{"verdict": "ESCALATE", "reason_code": "ESCALATE_X", "approval": doc{"quorum": -1}}, guard.Answer{}, "quorum"},
		{doc{"verdict": "ALLOW", "reason_code": "RULE_X", "egress": doc{}}, guard.Answer{}, "egress"},
		{doc{"verdict": "ALLOW", "reason_code": "RULE_X", "egress": []any{doc{"host": nil}}}, guard.Answer{}, "egress: null"},
		{doc{"verdict": "ALLOW", "reason_code": "RULE_X", "sandbox": func() {}}, guard.Answer{}, "unsupported type"},
	} {
		got, err := answerOf(c.in)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v: %v, want %s", c.in, err, c.err)
			}
		case err != nil || !reflect.DeepEqual(got, c.want):
			t.Errorf("%v: %+v %v", c.in, got, err)
		}
	}
}

// TestReasons checks which reason codes each verdict permits.
func TestReasons(t *testing.T) {
	for _, c := range []struct {
		verdict, reason string
		ok              bool
	}{
		{contract.Allow, "RULE_X", true}, {contract.Allow, "RULE_", false}, {contract.Allow, "RULE", false}, {contract.Allow, "RULEX", false}, {contract.Allow, "DENY_X", false},
		{contract.Allow, "RULE_a b", false}, {contract.Allow, "RULE_.", false}, {contract.Deny, "DENY_X", true}, {contract.Deny, "RULE_X", false}, {contract.Escalate, "ESCALATE_X", true},
		{contract.Escalate, "DENY_X", false}, {contract.Deny, contract.ReasonPrgEvaluationError, true}, {contract.Allow, contract.ReasonPrgEvaluationError, false},
		{"", "", false}, {"", "X", false}, {"allow", "RULE_X", false},
	} {
		if err := check(c.verdict, c.reason); (err == nil) != c.ok {
			t.Errorf("%s with %s: %v", c.verdict, c.reason, err)
		}
	}
}

// TestFailures checks that an answer is a denial if the input cannot be parsed or the
// evaluation fails, and that such an answer is not cached.
func TestFailures(t *testing.T) {
	e := bundleOf(t, map[string]string{"p.rego": `answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if 1 / input.args.n > 0`})
	for args, want := range map[string]string{`{"n":0}`: contract.ReasonPrgEvaluationError, `{"n":1}`: "RULE_X", `{"n":-1}`: "", `{"n":`: contract.ReasonPrgEvaluationError} {
		if a := ask(t, e, facts(), args); a.Reason != want {
			t.Errorf("%s: %+v", args, a)
		}
	}
	if n := len(e.memo.kept); n != 2 {
		t.Errorf("%d answers are cached", n)
	}
}

// TestMemoLimits checks that an answer whose key is too long is not cached, and that a full
// cache is emptied.
func TestMemoLimits(t *testing.T) {
	m := memo{reads: reads{`"a"`: nil}, ok: true}
	const around = len(`"a":"",`)
	for n, want := range map[int]bool{maxAnswerKey - around: true, maxAnswerKey - around + 1: false} {
		if _, key, ok := m.get([]byte(`{"a":"` + strings.Repeat("x", n) + `"}`)); ok || (key != nil) != want {
			t.Errorf("%d bytes: a key of %d bytes", n, len(key))
		}
	}
	if _, key, ok := m.get([]byte(`{"a":`)); ok || key != nil {
		t.Errorf("a truncated document has the key %s", key)
	}
	m.put(nil, guard.Answer{})
	for i := range maxAnswers {
		m.put([]byte(fmt.Sprint(i)), guard.Answer{Reason: fmt.Sprint(i)})
	}
	if len(m.kept) != maxAnswers || m.kept["0"].Reason != "0" {
		t.Errorf("%d answers", len(m.kept))
	}
	m.put([]byte("x"), guard.Answer{})
	if len(m.kept) != 1 {
		t.Errorf("%d answers", len(m.kept))
	}
}

// TestKey checks the key of a document, which is the part of it that a bundle reads, and that
// a truncated document is an error.
func TestKey(t *testing.T) {
	r := reads{`"a"`: nil, `"b"`: {`"x"`: nil}}
	for doc, want := range map[string]string{
		`{"a":1,"b":{"w":1,"x":2},"c":3}`: `"a":1,"b":{"x":2,},`, `{"b":[1]}`: `"b":[1],`, `{"b":{}}`: `"b":{},`, `{"c":1}`: ``, `{"b":{"x":`: "error", `{`: "error",
	} {
		key, err := r.key(nil, []byte(doc))
		if got := string(key); err == nil && got != want || err != nil && want != "error" {
			t.Errorf("%s: %s %v", doc, got, err)
		}
	}
}

// TestTestRules checks the results of Rego tests: their names, places and errors, and the
// errors of files that do not form a bundle.
func TestTestRules(t *testing.T) {
	const policy = "package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_X\"} if input.kind == data.binnacle.kind\n"
	files := func(tests string) map[string][]byte {
		return map[string][]byte{"p.rego": []byte(policy), "binnacle/data.json": []byte(`{"kind":"tool.a"}`), "p_test.rego": []byte("package binnacle.p1_test\nimport rego.v1\nimport data.binnacle.p1\n" + tests)}
	}
	got, err := Test(t.Context(), files(`test_yes if p1.answer.verdict == "ALLOW" with input.kind as "tool.a"
test_no if p1.answer.verdict == "ALLOW" with input.kind as "tool.b"
test_odd if 1 / 0 == 1
`))
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v %v", got, err)
	}
	for i, want := range []TestResult{{Name: "test_yes", At: "p_test.rego:4", Passed: true}, {Name: "test_no", At: "p_test.rego:5"}, {Name: "test_odd", At: "p_test.rego:6", Error: "divide by zero"}} {
		g := got[i]
		if g.Name != want.Name || g.At != want.At || g.Passed != want.Passed || (g.Error == "") != (want.Error == "") || !strings.Contains(g.Error, want.Error) {
			t.Errorf("%+v, want %+v", g, want)
		}
	}
	for want, f := range map[string]map[string][]byte{
		"rego_parse_error":     files("test_x if {"),
		"contains no Rego":     {"p_test.rego": []byte("package x")},
		"rego_recursion_error": {"p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := x\nx := answer\n")},
		"rego_type_error":      {"p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := input.none\n")},
	} {
		if _, err := Test(t.Context(), f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestAt checks the places of the rules that produce answers.
func TestAt(t *testing.T) {
	e := bundleOf(t, map[string]string{"p.rego": `answer := {"verdict": "DENY", "reason_code": "DENY_X"} if held
else := {"verdict": "ALLOW", "reason_code": "RULE_X"} if input.args.n == 2
held if input.args.n == 1
held if 1 / input.args.n == 3
`})
	for args, want := range map[string]string{`{"n":1}`: "p.rego:3", `{"n":2}`: "p.rego:4", `{"n":3}`: "", `{"n":0}`: "", `{"n":`: ""} {
		if at := e.At(t.Context(), NewInput(facts(), &contract.Tool{}, []byte(args))); at != want {
			t.Errorf("%s: %q, want %q", args, at, want)
		}
	}
}
