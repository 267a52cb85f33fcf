package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const sample = `package sample

import "time"

type flag bool

const limit = 2 * 3

type T struct{ n int }

func (t *T) next() int { t.n++; return t.n }

func less(a, b byte) bool { return a < 'c' && b > 1 || a == b }
func even(n int) (out flag) { out = flag(n%2 == 0); return out || out }
func sum(l []int) (s float64) {
	for i := 0; i < len(l); i++ {
		s = s + 1.5*float64(l[i])/2 - float64(-l[i])
	}
	return s
}
func twice(d time.Duration) time.Duration { return 2*d - time.Second }
func both(t *T, err error) bool { return err != nil && t.next() >= limit }
func greater(a, b int) int { if a > b { return a }; return b }
func name(s string) string { return s + "!" }
`

const sampleTest = `package sample

import (
	"errors"
	"testing"
	"time"
)

func Test(t *testing.T) {
	x := &T{4}
	calls := []bool{both(nil, nil), both(x, errors.New("")), both(x, errors.New("")), both(x, errors.New(""))}
	if len(calls) != 4 || calls[0] || calls[1] || !calls[2] || !calls[3] || x.n != 7 {
		t.Fatal(calls, x)
	}
	for _, c := range []struct{ a, b byte; want bool }{{'b', 2, true}, {'b', 1, false}, {'c', 2, false}, {'c', 'c', true}, {'b', 0, false}} {
		if less(c.a, c.b) != c.want {
			t.Fatal(c)
		}
	}
	if even(1) || !even(2) || sum([]int{1, 2}) != 5.25 || twice(time.Second) != time.Second || greater(1, 2) != 2 || greater(2, 1) != 2 || name("a") != "a!" {
		t.Fatal()
	}
}
`

// TestInstrumenter builds a package with its mutants in the program and runs its test with
// each of them. The test detects all but one, which does not change the behaviour of the
// package. Mutants in constants and in expressions of a named boolean type are not in the
// program; one that does not compile is in broken.
func TestInstrumenter(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"go.mod": "module sample\n\ngo 1.26\n", "sample.go": sample, "sample_test.go": sampleTest} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("GOWORK", "off")
	t.Setenv("GO111MODULE", "on")
	t.Setenv("GOFLAGS", "-trimpath -vet=off")
	var in instrumenter
	if err := in.build("go", dir, out); err != nil {
		t.Fatal(err)
	}
	var lived []string
	for i, c := range in.numbers {
		switch code := runFast(filepath.Join(out, "test"), dir, i+1, "10s"); code {
		case 0:
			lived = append(lived, c)
		case 1:
		default:
			t.Errorf("%s: exit code %d", c, code)
		}
	}
	if want := []string{"sample.go 22 >="}; !slices.Equal(lived, want) {
		t.Errorf("lived %q, want %q", lived, want)
	}
	// Operator 0 is in a constant; 7 and 9 have the type flag.
	if want := []string{"sample.go 23 -"}; !slices.Equal(in.broken, want) {
		t.Errorf("broken %q, want %q", in.broken, want)
	}
	if n, all := len(in.numbers), strings.Join(in.numbers, ";")+";"; n != 25 || strings.Contains(all, " 0 ") || strings.Contains(all, " 7 ") || strings.Contains(all, " 9 ") {
		t.Errorf("%d mutants in the program: %s", n, all)
	}
}

// TestMutantIn shows that a mutant is identified by the operator that differs, although
// gremlins formats the file that it changes.
func TestMutantIn(t *testing.T) {
	fast, dir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(fast, "a.go"): "package a\n\nvar x = 1+2*3\n", filepath.Join(dir, "a.go"): "package a\n\nvar x = 1 + 2/3\n",
		filepath.Join(fast, "b.go"): "package a\n", filepath.Join(dir, "b.go"): "package a\n", filepath.Join(dir, "a_test.go"): "package a\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := mutantIn(dir, fast); err != nil || c != "a.go 1 /" {
		t.Errorf("%q, %v", c, err)
	}
	if c, err := mutantIn(fast, fast); err != nil || c != "" {
		t.Errorf("without a change: %q, %v", c, err)
	}
}
