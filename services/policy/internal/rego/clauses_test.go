package rego

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/policy/internal/cpi"
)

// bundleOf compiles a bundle of modules, given by path. It adds the package binnacle.p1 and
// the import of rego.v1 to each module that does not begin with a package.
func bundleOf(t *testing.T, modules map[string]string) *Engine {
	t.Helper()
	files := map[string][]byte{}
	for name, src := range modules {
		if !strings.HasPrefix(src, "package") {
			src = "package binnacle.p1\nimport rego.v1\n" + src
		}
		files[name] = []byte(src)
	}
	doc, err := Build(files, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Compile(t.Context(), doc)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// line returns a clause in one line.
func line(c cpi.Clause) string {
	out := fmt.Sprintf("%s chain %d kind %s", c.At, c.Chain, c.Kind)
	for _, x := range c.Conds {
		out += " if " + x
	}
	for _, x := range []string{c.Verdict, c.Reason, c.Fault} {
		if x != "" {
			out += " " + x
		}
	}
	return out
}

// TestClauses checks the clauses of bundles: the kind and the other conditions of each rule,
// the order of rules, their chains, and the place of default rules.
func TestClauses(t *testing.T) {
	const answer = `answer := {"verdict": "DENY", "reason_code": "DENY_X"}`
	for _, c := range []struct{ src, want string }{
		{answer, "p.rego:3 chain 0 kind * DENY DENY_X"},
		{answer + ` if input.kind == "tool.a"`, "p.rego:3 chain 0 kind tool.a DENY DENY_X"},
		{answer + ` if "tool.a" == input.kind`, "p.rego:3 chain 0 kind tool.a DENY DENY_X"},
		{answer + ` if input.kind = "tool.a"`, "p.rego:3 chain 0 kind tool.a DENY DENY_X"},
		{answer + ` if startswith(input.kind, "tool.")`, "p.rego:3 chain 0 kind tool.* DENY DENY_X"},
		{answer + ` if not input.kind == "tool.a"`, `p.rego:3 chain 0 kind * if not equal(input.kind, "tool.a") DENY DENY_X`},
		{answer + ` if input.kind != "tool.a"`, `p.rego:3 chain 0 kind * if neq(input.kind, "tool.a") DENY DENY_X`},
		{answer + ` if startswith("tool.a", input.kind)`, `p.rego:3 chain 0 kind * if startswith("tool.a", input.kind) DENY DENY_X`},
		{answer + ` if endswith(input.kind, "a")`, `p.rego:3 chain 0 kind * if endswith(input.kind, "a") DENY DENY_X`},
		{answer + ` if { input.kind == "tool.a"; input.kind == "tool.b" }`, `p.rego:3 chain 0 kind tool.a if input.kind == "tool.b" DENY DENY_X`},
		{answer + ` if { input.actor == "bob"; startswith(input.kind, "a"); input.suspended; "x" == input.client }`,
			`p.rego:3 chain 0 kind a* if input.actor == "bob" if input.suspended if input.client == "x" DENY DENY_X`},
		{answer + ` if input.actor == "tool.a"`, `p.rego:3 chain 0 kind * if input.actor == "tool.a" DENY DENY_X`},
		{answer + ` if "tool.a" == input.actor`, `p.rego:3 chain 0 kind * if input.actor == "tool.a" DENY DENY_X`},
		{answer + ` if startswith(input.actor, "tool.")`, `p.rego:3 chain 0 kind * if startswith(input.actor, "tool.") DENY DENY_X`},
		{answer + ` if input.kind == input.actor`, `p.rego:3 chain 0 kind * if input.kind == input.actor DENY DENY_X`},
		{answer + ` if not input.actor == "bob"`, `p.rego:3 chain 0 kind * if not equal(input.actor, "bob") DENY DENY_X`},
		{answer + " if input.suspended\nelse := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_X\"}\n" + answer + ` if input.revoked`,
			"p.rego:3 chain 0 kind * if input.suspended DENY DENY_X\np.rego:4 chain 0 kind * ALLOW RULE_X\np.rego:5 chain 1 kind * if input.revoked DENY DENY_X"},
		{"default " + answer + "\n" + `answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if input.suspended`,
			"p.rego:4 chain 0 kind * if input.suspended ALLOW RULE_X\np.rego:3 chain 0 kind * DENY DENY_X"},
		{"default " + answer + "\n" + answer + " if input.suspended\n" + answer + " if input.revoked",
			"p.rego:4 chain 0 kind * if input.suspended DENY DENY_X\np.rego:5 chain 1 kind * if input.revoked DENY DENY_X\np.rego:3 chain -1 kind * DENY DENY_X"},
		{`answer := {"verdict": "DENY", "reason_code": input.actor}`, "p.rego:3 chain 0 kind *"},
		{`answer := {"verdict": "DENY", "reason_code": "X"}`, `p.rego:3 chain 0 kind * DENY X reason_code "X": want one of the registry's for DENY, or DENY_…`},
		{`answer := "DENY"`, "p.rego:3 chain 0 kind * the answer is not an object with verdict and reason_code"},
		{"other := 1\n" + answer, "p.rego:4 chain 0 kind * DENY DENY_X"},
	} {
		got := []string{}
		for _, x := range bundleOf(t, map[string]string{"p.rego": c.src}).Clauses() {
			got = append(got, line(x))
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.src, strings.Join(got, "\n"), c.want)
		}
	}
	got := []string{}
	for _, x := range bundleOf(t, map[string]string{"b.rego": answer, "a.rego": answer, "c.rego": "package binnacle.other\nimport rego.v1\n" + answer}).Clauses() {
		got = append(got, line(x))
	}
	if want := []string{"a.rego:3 chain 0 kind * DENY DENY_X", "b.rego:3 chain 1 kind * DENY DENY_X"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestReferences checks which comparisons of the input with constants References returns.
func TestReferences(t *testing.T) {
	for cond, want := range map[string]string{
		`input.actor == "bob"`:                    "p.rego:3 input.actor bob",
		`"bob" == input.actor`:                    "p.rego:3 input.actor bob",
		`input.actor = "bob"`:                     "p.rego:3 input.actor bob",
		`input.actor != "bob"`:                    "p.rego:3 input.actor bob",
		`not input.actor == "bob"`:                "p.rego:3 input.actor bob",
		`"admin" in input.roles`:                  "p.rego:3 input.roles admin",
		`not "admin" in input.roles`:              "p.rego:3 input.roles admin",
		`input.about.class == "E3"`:               "p.rego:3 input.about.class E3",
		`startswith(input.kind, "tool.")`:         "",
		`input.args.n == 1`:                       "",
		`input.suspended`:                         "",
		`input.actor == input.client`:             "",
		`data.binnacle.x == "bob"`:                "",
		`lower(input.actor) == "bob"`:             "",
		`count(input.roles) > 0`:                  "",
		`object.get(input.args, "actor", 1) == 1`: "",
		`input.actor == "a"; input.client == "b"`: "p.rego:3 input.actor a, p.rego:3 input.client b",
		`input.actor > "bob"`:                     "",
		`{ x := "bob"; input.actor == x }`:        "",
	} {
		if !strings.HasPrefix(cond, "{") {
			cond = "{ " + cond + " }"
		}
		got := []string{}
		for _, r := range bundleOf(t, map[string]string{"p.rego": `answer := {"verdict": "DENY", "reason_code": "DENY_X"} if ` + cond}).References() {
			got = append(got, r.At+" "+r.Path+" "+r.Value)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %q, want %s", cond, got, want)
		}
	}
}
