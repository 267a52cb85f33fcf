package rego

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

func build(t *testing.T, src string) []byte {
	t.Helper()
	b, err := Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\n" + src)}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func facts() *guard.Facts {
	return &guard.Facts{Actor: "alice", Client: "-", Kind: "tool.echo", Scopes: []string{"tools:call"}, Tool: "echo", Tenant: "t"}
}

func ask(t *testing.T, e *Engine, f *guard.Facts, args string) guard.Answer {
	t.Helper()
	return e.Answer(t.Context(), NewInput(f, &contract.Tool{}, []byte(args)))
}

// TestAnswer shows the answer that results from the rules of each case. Every invalid
// answer is a denial.
func TestAnswer(t *testing.T) {
	for src, want := range map[string]guard.Answer{
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"}`:                     {Verdict: "ALLOW", Reason: "RULE_X"},
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if input.args.n > 1`: {},
		`answer := {"verdict": "ALLOW", "reason_code": "BUDGET_EXCEEDED"}`:            {Verdict: "DENY", Reason: "PRG_EVALUATION_ERROR"},
		`answer := {"verdict": "ALLOW", "reason_code": ""}`:                           {Verdict: "DENY", Reason: "PRG_EVALUATION_ERROR"},
		`answer := {"verdict": "MAYBE", "reason_code": "RULE_X"}`:                     {Verdict: "DENY", Reason: "PRG_EVALUATION_ERROR"},
		`answer := "ALLOW"`: {Verdict: "DENY", Reason: "PRG_EVALUATION_ERROR"},
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X", "extra": 1}`:                                                             {Verdict: "DENY", Reason: "PRG_EVALUATION_ERROR"},
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if 1 / (input.args.n - 1) > 0`:                                           {Verdict: "DENY", Reason: "PRG_EVALUATION_ERROR"},
		"answer := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_X\"}\nanswer := {\"verdict\": \"DENY\", \"reason_code\": \"DENY_X\"}": {Verdict: "DENY", Reason: "PRG_EVALUATION_ERROR"},
	} {
		e, err := Compile(t.Context(), build(t, src))
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		if got := ask(t, e, facts(), `{"n":1}`); got.Verdict != want.Verdict || got.Reason != want.Reason {
			t.Errorf("%s: %+v", src, got)
		}
	}
	e, err := Compile(t.Context(), build(t, `answer := {"verdict": "ESCALATE", "reason_code": "ESCALATE_X", "approval": {"roles": ["sec"], "quorum": 2}, "sandbox": {"memory_mib": 8}}`))
	if err != nil {
		t.Fatal(err)
	}
	if a := ask(t, e, facts(), `{}`); len(a.Approvals) != 1 || a.Approvals[0].Quorum != 2 || a.Approvals[0].TimeoutMS != 300_000 || a.Sandbox.MemoryMiB != 8 {
		t.Errorf("%+v", a)
	}
}

// TestEgress shows that an answer may limit requests, that an empty list permits none, and that
// null, and rules that are invalid in a ceiling, are errors.
func TestEgress(t *testing.T) {
	for rules, want := range map[string]int{`[]`: 0, `[{"host": "*", "methods": ["GET"]}]`: 1, `[{"host": "127.1"}]`: -1, `[{"host": "*", "ports": [1]}]`: -1, `null`: -1, `[null]`: -1, `[{"host": "*", "methods": null}]`: -1} {
		e, err := Compile(t.Context(), build(t, `answer := {"verdict": "ALLOW", "reason_code": "RULE_X", "egress": `+rules+`}`))
		if err != nil {
			t.Fatal(err)
		}
		a := ask(t, e, facts(), `{}`)
		if want < 0 && a.Reason != contract.ReasonPrgEvaluationError || want >= 0 && (len(a.Egress) != 1 || len(a.Egress[0]) != want) {
			t.Errorf("%s: %+v", rules, a)
		}
	}
}

// TestSecretOfCredential shows that the input of a bundle contains the secrets that the
// egress-broker adds to the requests of a tool.
func TestSecretOfCredential(t *testing.T) {
	e, err := Compile(t.Context(), build(t, `answer := {"verdict": "DENY", "reason_code": "DENY_X"} if "token" in input.about.secrets`))
	if err != nil {
		t.Fatal(err)
	}
	rule := contract.EgressRule{Host: "a.example", Mode: contract.EgressTerminate, Credential: &contract.EgressCredential{Secret: "token", Header: "Authorization"}}
	for want, rules := range map[string][]contract.EgressRule{"DENY_X": {rule}, "": {{Host: "a.example", Mode: contract.EgressTerminate}}} {
		if a := e.Answer(t.Context(), NewInput(facts(), &contract.Tool{EgressRules: rules}, []byte(`{}`))); a.Reason != want {
			t.Errorf("%+v: %+v", rules, a)
		}
	}
}

// TestRefused shows that a bundle does not compile if its answer depends on more than its
// input, if it reads a fact that does not exist, has an error, is truncated or is too
// large.
func TestRefused(t *testing.T) {
	for src, word := range map[string]string{
		`answer := http.send({"url": "http://x", "method": "get"})`:                             "http.send",
		`answer := time.now_ns()`:                                                               "time.now_ns",
		`answer := rand.intn("a", 3)`:                                                           "rand.intn",
		`answer := opa.runtime()`:                                                               "opa.runtime",
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if input.no_such_fact`:         "no_such_fact",
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if input.about.color == "red"`: "color",
		"answer := x\nx := answer":                                                              "recurs",
		`answer := {`:                                                                           "",
	} {
		b, err := Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\n" + src)}, "", nil)
		if err == nil {
			_, err = Compile(t.Context(), b)
		}
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", src, err)
		}
	}
	good := build(t, `answer := {"verdict": "ALLOW", "reason_code": "RULE_X"}`)
	for n := range len(good) {
		if _, err := Compile(t.Context(), good[:n]); err == nil {
			t.Fatalf("a bundle cut after %d of %d bytes is accepted", n, len(good))
		}
	}
	if _, err := Compile(t.Context(), bytes.Repeat([]byte{0x1f}, MaxBundle+1)); err == nil {
		t.Error("a bundle above the limit is accepted")
	}
}

// TestLoops shows that evaluations that take too long are stopped and result in a DENY.
func TestLoops(t *testing.T) {
	for _, src := range []string{
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if count([1 | some i in numbers.range(1, 1000000000); some j in numbers.range(1, 100000000); i * j < 0]) >= 0`,
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if { some i in numbers.range(1, 100000); some j in numbers.range(1, 100000); some k in numbers.range(1, 100000); i + j + k == 0 }`,
		`answer := {"verdict": "ALLOW", "reason_code": "RULE_X"} if { s := concat("", ["a" | some i in numbers.range(1, 100000000)]); contains(s, "b") }`,
	} {
		e, err := Compile(t.Context(), build(t, src))
		if err != nil {
			t.Error(err)
			continue
		}
		began := time.Now()
		a := ask(t, e, facts(), `{}`)
		if d := time.Since(began); d > 3*time.Second || a.Verdict != "DENY" || a.Reason != contract.ReasonPrgEvaluationError {
			t.Errorf("%s: %+v after %s", src, a, d)
		}
	}
}

// TestSignature shows that two builds of the same files are equal, that a signature
// covers every file of its bundle, that it does not verify with another key, and that
// Verify returns ErrUnsigned for an unsigned bundle.
func TestSignature(t *testing.T) {
	seed := sha256.Sum256([]byte("bundles"))
	k, err := sign.NewKey(seed[:])
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"a/p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": data.binnacle.reason}\n"), "binnacle/data.json": []byte(`{"reason":"RULE_DATA"}`)}
	doc, err := Build(files, k.KID, seed[:])
	if err != nil {
		t.Fatal(err)
	}
	again, err := Build(files, k.KID, seed[:])
	if err != nil || !bytes.Equal(doc, again) {
		t.Error("two builds of the same files differ", err)
	}
	known := func(kid string) ([]byte, error) {
		if kid != k.KID {
			return nil, errors.New("unknown key")
		}
		return k.Public(), nil
	}
	if kid, err := Verify(doc, known); err != nil || kid != k.KID {
		t.Fatal(kid, err)
	}
	e, err := Compile(t.Context(), doc)
	if err != nil {
		t.Fatal(err)
	}
	if a := ask(t, e, facts(), "{}"); a.Reason != "RULE_DATA" {
		t.Errorf("%+v", a)
	}
	other := sha256.Sum256([]byte("stranger"))
	if _, err := Verify(doc, func(string) ([]byte, error) { s, _ := sign.NewKey(other[:]); return s.Public(), nil }); err == nil {
		t.Error("verified against another key")
	}
	unsigned, err := Build(files, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(unsigned, known); !errors.Is(err, ErrUnsigned) {
		t.Error(err)
	}
	// The signature of one bundle is combined with changed files.
	signed, err := Files(doc)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(map[string][]byte){
		"changed rule":  func(f map[string][]byte) { f["a/p.rego"] = append(f["a/p.rego"], "x := 1\n"...) },
		"changed data":  func(f map[string][]byte) { f["binnacle/data.json"] = []byte(`{"reason":"RULE_OTHER"}`) },
		"another file":  func(f map[string][]byte) { f["b.rego"] = []byte("package binnacle.p1\nb := 1\n") },
		"a file is cut": func(f map[string][]byte) { delete(f, "binnacle/data.json") },
	} {
		f := maps.Clone(files)
		f["a/p.rego"] = slices.Clone(f["a/p.rego"])
		change(f)
		f[".signatures.json"] = signed[".signatures.json"]
		forged, err := Build(f, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(forged, known); err == nil {
			t.Errorf("%s: verified", name)
		}
	}
}

// TestInputSchema shows that inputSchema has exactly the facts that bundles may
// read.
func TestInputSchema(t *testing.T) {
	src, err := os.ReadFile("../../../../pkg/core/guard/facts.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(src), "func (f *Facts) Canonical")
	body, _, _ = strings.Cut(body, "\n}")
	known := inputSchema.(map[string]any)["properties"].(map[string]any)
	n := 3 // the input members args, about and ids are not facts
	for line := range strings.Lines(body) {
		if _, rest, ok := strings.Cut(line, `"`); ok && strings.Contains(line, "&f.") {
			name, _, _ := strings.Cut(rest, `"`)
			if slices.Contains([]string{"approvals", "budget", "resolution", "resolved", "session_name", "own_bundles"}, name) {
				continue // ForRules omits these facts
			}
			if n++; known[name] == nil {
				t.Errorf("fact %s is missing in inputSchema", name)
			}
		}
	}
	if n != len(known) {
		t.Errorf("inputSchema has %d members, the facts and their company %d", len(known), n)
	}
}

// TestMemo compares cached answers with evaluations, for bundles that read their input
// in different ways, and shows for which of these bundles answers are cached.
func TestMemo(t *testing.T) {
	const no = `answer := {"verdict": "DENY", "reason_code": "DENY_X"} if not `
	yes := "\nelse := {\"verdict\": \"ALLOW\", \"reason_code\": \"RULE_X\"}"
	for src, kept := range map[string]bool{
		no + `input.actor == "alice"` + yes:                                                       true,
		no + `input.args.n == 1` + yes:                                                            true,
		no + `input["args"]["n"] == 1` + yes:                                                      true,
		no + `input.args.deep.n == 1` + yes:                                                       true,
		no + `count(input.args) == 2` + yes:                                                       true,
		no + `some_n` + yes + "\nsome_n if { some k; input.args[k] == 1 }":                        true,
		no + `1 in object.get(input, ["args", "list"], [])` + yes:                                 false,
		no + `input[concat("", ["ac", "tor"])] == "alice"` + yes:                                  false,
		no + `f(input)` + yes + "\nf(x) if x.actor == \"alice\"":                                  false,
		no + `held` + yes + "\nheld if { x := input; x.actor == \"alice\" }":                      false,
		no + `held` + yes + "\nheld if { [p, v] := walk(input); v == 1 }":                         false,
		no + `held with input as {"actor": "x"}` + yes + "\nheld if input.actor":                  false,
		no + `held with input.actor as input.client` + yes + "\nheld if input.actor == \"alice\"": true,
		no + `count([x | x := input.args.list[_]; x == input.args.n]) > 0` + yes:                  true,
		no + `input.args["q\"uote"] == 1` + yes:                                                   true,
	} {
		e, err := Compile(t.Context(), build(t, src))
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		if e.memo.ok != kept {
			t.Errorf("%s: answers are kept: %v", src, e.memo.ok)
		}
		for range 2 {
			for _, actor := range []string{"alice", "bob"} {
				for _, client := range []string{"alice", "-"} {
					for _, args := range []string{`{}`, `{"n":1}`, `{"n":2}`, `{"deep":{"n":1},"n":2}`, `{"deep":{"n":2},"n":2}`, `{"deep":[],"n":{"n":1}}`, `{"list":[1,2],"n":1}`,
						`{"list":[1,2],"n":3}`, `{"m":1}`, `{"q\"uote":1}`, `{"q\"uote":2}`, `{"n":"1"}`} {
						f := facts()
						f.Actor, f.Client = actor, client
						in := NewInput(f, &contract.Tool{}, []byte(args))
						want, err := e.run(t.Context(), in)
						if err != nil {
							t.Fatal(src, err)
						}
						if got := e.Answer(t.Context(), in); got.Verdict != want.Verdict || got.Reason != want.Reason {
							t.Errorf("%s\n%s, %s, %s: kept %v, evaluated %v", src, actor, client, args, got, want)
						}
					}
				}
			}
		}
		if kept && len(e.memo.kept) == 0 {
			t.Errorf("%s: nothing was kept", src)
		}
	}
}

// BenchmarkTenRules measures an ALLOW by the tenth rule of a bundle, evaluated
// and from the cache.
func BenchmarkTenRules(b *testing.B) {
	doc, err := Build(map[string][]byte{"p.rego": []byte(TenRules)}, "", nil)
	if err != nil {
		b.Fatal(err)
	}
	e, err := Compile(context.Background(), doc)
	if err != nil {
		b.Fatal(err)
	}
	for name, ask := range map[string]func(*Input) guard.Answer{
		"evaluated": func(in *Input) guard.Answer {
			a, err := e.run(context.Background(), in)
			if err != nil {
				b.Fatal(err)
			}
			return a
		},
		"kept": func(in *Input) guard.Answer { return e.Answer(context.Background(), in) },
	} {
		b.Run(name, func(b *testing.B) {
			f := facts()
			for b.Loop() {
				if a := ask(NewInput(f, &contract.Tool{}, []byte(`{"n":1}`))); a.Reason != "RULE_TEN" {
					b.Fatal(a)
				}
			}
		})
	}
}

// TenRules is a bundle with ten rules, of which only the last one allows.
const TenRules = `package binnacle.p1
import rego.v1
answer := {"verdict": "DENY", "reason_code": "DENY_ONE"} if input.kind == "tool.a"
else := {"verdict": "DENY", "reason_code": "DENY_TWO"} if startswith(input.kind, "vault.")
else := {"verdict": "DENY", "reason_code": "DENY_THREE"} if "web" in input.labels
else := {"verdict": "DENY", "reason_code": "DENY_FOUR"} if input.actor == "mallory"
else := {"verdict": "DENY", "reason_code": "DENY_FIVE"} if input.args.n > 100
else := {"verdict": "ESCALATE", "reason_code": "ESCALATE_SIX"} if input.kind == "tool.pay"
else := {"verdict": "DENY", "reason_code": "DENY_SEVEN"} if startswith(input.kind, "lab.")
else := {"verdict": "DENY", "reason_code": "DENY_EIGHT"} if input.client == "bad"
else := {"verdict": "DENY", "reason_code": "DENY_NINE"} if not "tools:call" in input.scopes
else := {"verdict": "ALLOW", "reason_code": "RULE_TEN"} if startswith(input.kind, "tool.")
`
