package main

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestTouchedTests checks which tests run for changed folders: first those of the packages
// that the folders belong to, then those of packages that depend on them, but no end-to-end
// tests.
func TestTouchedTests(t *testing.T) {
	tested := []string{"x_test.go"}
	all := map[string]*listed{}
	for _, p := range []*listed{
		{ImportPath: "m/a", Dir: "a", TestGoFiles: tested},
		{ImportPath: "m/a/inner", Dir: "a/inner", XTestGoFiles: tested},
		{ImportPath: "m/b", Dir: "b", Deps: []string{"m/a"}, TestGoFiles: tested},
		{ImportPath: "m/bare", Dir: "bare", Deps: []string{"m/a"}},
		{ImportPath: "m/c", Dir: "c", TestGoFiles: tested, TestImports: []string{"m/b"}},
		{ImportPath: "m/d", Dir: "d", TestGoFiles: tested},
		{ImportPath: "m/e2e", Dir: "e2e", Deps: []string{"m/a"}, TestGoFiles: tested},
		{ImportPath: "m/x", Dir: "x", XTestGoFiles: tested, XTestImports: []string{"m/a"}},
	} {
		all[p.ImportPath] = p
	}
	for dirs, want := range map[string][2]string{
		"a":       {"m/a", "m/b m/c m/x"},
		"a/files": {"m/a", "m/b m/c m/x"}, // embedded files
		"a/inner": {"m/a/inner", ""},
		"b d":     {"m/b m/d", "m/c"},
		"bare":    {"", ""},
		"e2e":     {"", ""},
		"docs":    {"", ""},
	} {
		own, others := touchedTests(strings.Fields(dirs), all)
		if got := [2]string{strings.Join(own, " "), strings.Join(others, " ")}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, want %q", dirs, got, want)
		}
	}
}

// TestWatchTests changes files of a small module. The tests of a changed package run, and
// those of the package that imports it only if the first pass; an unrelated package is not
// tested.
func TestWatchTests(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m\n\ngo 1.24\n")
	write("a/a.go", "package a\n\nconst N = 1\n")
	write("a/a_test.go", "package a\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {\n\tif N > 2 {\n\t\tt.Fail()\n\t}\n}\n")
	write("b/b.go", "package b\n\nimport _ \"m/a\"\n")
	write("b/b_test.go", "package b\n\nimport \"testing\"\n\nfunc TestB(t *testing.T) {}\n")
	write("c/c_test.go", "package c\n\nimport \"testing\"\n\nfunc TestC(t *testing.T) { t.Fail() }\n")
	t.Chdir(dir)
	t.Setenv("GO111MODULE", "on")
	t.Setenv("GOWORK", "off")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(r); in.Scan(); {
			lines <- in.Text()
		}
	}()
	var tested []string // packages in the lines of go test, each with its result, since the last call of until
	until := func(text string) {
		t.Helper()
		tested = nil
		limit := time.After(2 * time.Minute)
		for {
			select {
			case line := <-lines:
				if f := strings.Fields(line); len(f) > 1 && (f[0] == "ok" || f[0] == "FAIL") {
					tested = append(tested, f[0]+" "+f[1])
				}
				if strings.Contains(line, text) {
					return
				}
			case <-limit:
				t.Fatalf("no line with %q within two minutes", text)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- watchTests(ctx) }()
	until("waiting for a change")
	write("a/a.go", "package a\n\nconst N = 22 / 11\n")
	until("dev: passed")
	if want := []string{"ok m/a"}; !reflect.DeepEqual(tested, want) {
		t.Errorf("first %q, want %q", tested, want)
	}
	until("dev: passed")
	if want := []string{"ok m/b"}; !reflect.DeepEqual(tested, want) {
		t.Errorf("then %q, want %q", tested, want)
	}
	write("a/a.go", "package a\n\nconst N = 33 / 11\n")
	until("dev: FAILED")
	if want := []string{"FAIL m/a"}; !reflect.DeepEqual(tested, want) {
		t.Errorf("%q, want %q", tested, want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w.Close()
	for line := range lines {
		if strings.HasPrefix(line, "dev: testing") {
			t.Errorf("after a failure: %s", line)
		}
	}
}
