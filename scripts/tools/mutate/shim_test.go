package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const (
	bytesOf = "package large\n\nfunc bytesOf(n int) []byte { return make([]byte, n%7<<30) }\n"
	mutated = "package large\n\nfunc bytesOf(n int) []byte { return make([]byte, n*7<<30) }\n"
	user    = "package large\n\nimport \"testing\"\n\nfunc Test(t *testing.T) { bytesOf(1) }\n"
)

// TestMemory checks that the tests of a mutant that allocates 7 GiB fail, because the limit
// is lower: as a part of the program with all mutants, and compiled by itself. The test of
// the package detects nothing else.
func TestMemory(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module large\n\ngo 1.26\n")
	write("large.go", bytesOf)
	write("large_test.go", user)
	t.Chdir(dir)
	t.Setenv("GOWORK", "off")
	t.Setenv("GO111MODULE", "on")
	t.Setenv("GOFLAGS", "-trimpath -vet=off")
	t.Setenv(shimVar, "go")
	t.Setenv(fastVar, "")
	var in instrumenter
	if err := in.build("go", dir, out); err != nil {
		t.Fatal(err)
	}
	n := slices.Index(in.numbers, "large.go 0 *") + 1
	if n == 0 {
		t.Fatalf("the program contains only %q", in.numbers)
	}
	if code := runFast(filepath.Join(out, "test"), dir, n, "1m"); code != 1 {
		t.Errorf("in the program with all mutants: exit code %d", code)
	}
	compiled := func() int { return shim([]string{"test", "-timeout", "1m", "./..."}) }
	if code := compiled(); code != 0 {
		t.Errorf("without a mutant: exit code %d", code)
	}
	write("large.go", mutated)
	if code := compiled(); code != 1 {
		t.Errorf("compiled: exit code %d", code)
	}
}
