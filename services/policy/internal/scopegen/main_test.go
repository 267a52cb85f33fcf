package main

import (
	"os"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// TestDefault shows that the committed policy has the scopes of the registry, in the
// registry's order.
func TestDefault(t *testing.T) {
	src, err := os.ReadFile("../../policy/default.rego")
	if err != nil {
		t.Fatal(err)
	}
	out, err := rewrite(src, services.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != string(src) {
		t.Error("policy/default.rego differs from the registry; run `make gen`")
	}
	for _, k := range services.Kinds() {
		if want := `"` + k.Prefix + `.": "` + k.Scope + `",`; strings.Count(string(src), want) != 1 {
			t.Errorf("default.rego does not hold %s once", want)
		}
	}
}

func TestRewrite(t *testing.T) {
	kinds := []services.Kind{{Prefix: "a", Scope: "x:y"}, {Prefix: "b", Scope: "z"}}
	got, err := rewrite([]byte("p\n\nscope_of := {\n\t\"old.\": \"o\",\n}\n\nrest {\n}\n"), kinds)
	if want := "p\n\nscope_of := {\n\t\"a.\": \"x:y\",\n\t\"b.\": \"z\",\n}\n\nrest {\n}\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	for _, src := range []string{"", "scope_of := {}\n", "\nscope_of := {\n", "\nscope_of := {\n}\n\nscope_of := {\n}\n"} {
		if out, err := rewrite([]byte(src), kinds); err == nil {
			t.Errorf("%q is rewritten to %q", src, out)
		}
	}
}
