package rego

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// hostileBundles returns modules and data that could crash or block parsers and
// compilers.
func hostileBundles() map[string]map[string][]byte {
	const head = "package binnacle.p1\n\nimport rego.v1\n\n"
	rule := func(expr string) map[string][]byte {
		return map[string][]byte{"p.rego": []byte(head + "answer := {\"verdict\": \"DENY\", \"reason_code\": \"X\"} if {\n\tx := " + expr + "\n\tx == 1\n}\n")}
	}
	ok := string(rule("1")["p.rego"])
	with := func(name, text string) map[string][]byte {
		return map[string][]byte{"p.rego": []byte(ok), name: []byte(text)}
	}
	const n = 1 << 20
	nest := func(open, mid, end string, n int) string {
		return strings.Repeat(open, n) + mid + strings.Repeat(end, n)
	}
	return map[string]map[string][]byte{
		"arrays":         rule(nest("[", "1", "]", n)),
		"open arrays":    rule(strings.Repeat("[", 3*n)),
		"parens":         rule(nest("(", "1", ")", n)),
		"objects":        rule(nest(`{"a":`, "1", "}", n/2)),
		"refs":           rule(nest("input[", "1", "]", n/2)),
		"long ref":       rule("input" + strings.Repeat(".a", n/4)),
		"comprehensions": rule(nest("[x | x := ", "1", "]", n/8)),
		"calls":          rule(nest("abs(", "1", ")", n/2)),
		"sum":            rule("1" + strings.Repeat("+1", n)),
		"union":          rule("{1}" + strings.Repeat("|{1}", n/2)),
		"minus":          rule(strings.Repeat("-", n) + "1"),
		"not":            {"p.rego": []byte(head + "answer if {\n" + strings.Repeat("not ", n) + "1\n}\n")},
		"else":           {"p.rego": []byte(head + "answer := 1 if input.a\n" + strings.Repeat("else := 1 if input.a\n", n/16))},
		"every":          {"p.rego": []byte(head + "answer if {\n" + nest("every x in [1] {\n", "1", "\n}", n/16) + "\n}\n")},
		"with":           rule("1 " + strings.Repeat("with input.a as 1 ", n/32)),
		"rules":          {"p.rego": []byte(head + strings.Repeat("answer := 1 if input.a\n", n/256))},
		"in":             rule("1" + strings.Repeat(" in [1]", n/128)),
		"templates":      rule("`" + strings.Repeat("{", n) + "`"),
		"comment":        {"p.rego": []byte("# METADATA\n# custom: " + strings.Repeat("[", n) + "\n" + ok)},
		"comment indent": {"p.rego": []byte("# METADATA\n# custom:\n" + deepYAML("# ", 3000) + ok)},
		"data.json":      with("data.json", nest(`{"a":`, "1", "}", n/2)),
		"data.yaml":      with("data.yaml", nest("[", "1", "]", n)),
		"aliases":        with("data.yaml", aliases()),
		".manifest":      with(".manifest", `{"revision":"","roots":`+strings.Repeat("[", n)),
		"signatures":     with(".signatures.json", `{"signatures":`+strings.Repeat("[", n)),
	}
}

func deepYAML(prefix string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(prefix + strings.Repeat(" ", i+1) + "a:\n")
	}
	return b.String()
}

func aliases() string {
	out := "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		a, z := string(rune('0'+i-1)), string(rune('a'+i))
		out += z + ": &" + z + " [" + strings.Repeat("*PREV, ", 8) + "*PREV]\n"
		if i == 1 {
			out = strings.ReplaceAll(out, "*PREV", "*a"+a)
		} else {
			out = strings.ReplaceAll(out, "*PREV", "*"+string(rune('a'+i-1)))
		}
	}
	return out
}

// harmless lists the hostile bundles that are allowed to compile.
var harmless = map[string]bool{"templates": true, "with": true, "comment indent": true}

// TestHostileBundles compiles each bundle in a process of its own, which must exit
// normally: Go cannot recover from a stack overflow. Only the harmless bundles may
// compile.
func TestHostileBundles(t *testing.T) {
	if name := os.Getenv("HOSTILE_BUNDLE"); name != "" {
		doc := pack(hostileBundles()[name])
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := Compile(ctx, doc); err == nil && !harmless[name] {
			t.Error("compiled")
		}
		return
	}
	for name := range hostileBundles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHostileBundles$", "-test.v")
			cmd.Env = append(os.Environ(), "HOSTILE_BUNDLE="+name, "GOMEMLIMIT=512MiB")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %.600s", err, out)
			}
		})
	}
}

// pack builds a bundle without the checks of Build.
func pack(files map[string][]byte) []byte {
	doc, err := tarball(files, "", nil)
	if err != nil {
		panic(err)
	}
	return doc
}
