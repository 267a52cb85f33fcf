package stack

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/policy/internal/rego"
)

// TestSharedEngine shows that equal bundles have the same compiled form, that other bundles
// have another one, and that no compiled form is kept that is not in use.
func TestSharedEngine(t *testing.T) {
	compiled := func(reason string) any {
		t.Helper()
		body, err := rego.Build(map[string][]byte{"p.rego": []byte("package binnacle.p1\nimport rego.v1\nanswer := {\"verdict\": \"ALLOW\", \"reason_code\": \"" + reason + "\"}\n")}, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := Compile("p1", bytes.Clone(body), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
	kept := func() (n int) {
		engines.Range(func(any, any) bool { n++; return true })
		return n
	}
	first, again, other := compiled("RULE_SHARED"), compiled("RULE_SHARED"), compiled("RULE_OTHER")
	if first != again || first == other {
		t.Error("which bundles share a compiled form is wrong")
	}
	if _, err := Compile("p1", []byte("no bundle"), 0, nil); err == nil {
		t.Error("what is no bundle compiles")
	}
	before := kept()
	runtime.KeepAlive(first)
	runtime.KeepAlive(other)
	for deadline := time.Now().Add(time.Minute); kept() > before-2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d compiled forms are kept", kept(), before)
		}
		runtime.GC()
	}
}
