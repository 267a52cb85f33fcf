package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestStderr shows that lines which report progress are passed on and not kept, however the
// writes divide them, that every other line is kept, and that without Report all are.
func TestStderr(t *testing.T) {
	long := `{"_progress":"` + strings.Repeat("x", MaxProgress) + `"}`
	longest := `{"_progress":"` + strings.Repeat("x", MaxProgress-len(`{"_progress":""}`)) + `"}`
	for name, x := range map[string]struct {
		in, kept string
		reports  []string
	}{
		"none":       {in: "a\nb", kept: "a\nb"},
		"empty":      {in: "\n\n", kept: "\n\n"},
		"one":        {in: "a\n{\"_progress\":1}\nb\n", kept: "a\nb\n", reports: []string{`{"_progress":1}`}},
		"two":        {in: "{\"_progress\":1}\n{\"_progress\":2}\n", reports: []string{`{"_progress":1}`, `{"_progress":2}`}},
		"inside":     {in: "a {\"_progress\":1}\n", kept: "a {\"_progress\":1}\n"},
		"unfinished": {in: "{\"_progress\":1}", kept: "{\"_progress\":1}"},
		"beginning":  {in: "{\"_pro\n{\"_error\":1}\n", kept: "{\"_pro\n{\"_error\":1}\n"},
		"too long":   {in: long + "\n{\"_progress\":1}\n", kept: long + "\n", reports: []string{`{"_progress":1}`}},
		"longest":    {in: longest + "\n", reports: []string{longest}},
	} {
		for _, size := range []int{1, 2, 7, 1000, 5000} {
			var reports []string
			e := NewStderr(&Spec{Progress: func(line []byte) { reports = append(reports, string(line)) }})
			plain := NewStderr(&Spec{})
			for part := range slices.Chunk([]byte(x.in), size) {
				for _, w := range []*Stderr{e, plain} {
					if n, err := w.Write(part); n != len(part) || err != nil {
						t.Fatal(name, n, err)
					}
				}
			}
			if got := string(e.Bytes()); got != x.kept || !slices.Equal(reports, x.reports) {
				t.Errorf("%s, writes of %d: kept %q, reports %q", name, size, got, reports)
			}
			if got := string(plain.Bytes()); got != x.in {
				t.Errorf("%s without Report: %q", name, got)
			}
		}
	}
}

// TestStderrFlood shows that a flood of reports and of other lines is not kept beyond the
// limit.
func TestStderrFlood(t *testing.T) {
	n := 0
	e := NewStderr(&Spec{Progress: func([]byte) { n++ }})
	for i := range 200_000 {
		fmt.Fprintf(e, "{\"_progress\":%d}\nline %d\n", i, i)
	}
	if n != 200_000 || len(e.Bytes()) != StderrMax || cap(e.line) > 4*MaxProgress {
		t.Errorf("%d reports, %d bytes", n, len(e.Bytes()))
	}
}

// FuzzStderr checks that every byte of the input is either kept or part of a report.
func FuzzStderr(f *testing.F) {
	f.Add("a\n{\"_progress\":1}\n{\"_pro", 3)
	f.Fuzz(func(t *testing.T, in string, size int) {
		if len(in) > StderrMax {
			return
		}
		total := 0
		e := NewStderr(&Spec{Progress: func(line []byte) { total += len(line) + 1 }})
		for part := range slices.Chunk([]byte(in), max(size, 1)) {
			_, _ = e.Write(part)
		}
		if total += len(e.Bytes()); total != len(in) {
			t.Errorf("%d bytes of %d", total, len(in))
		}
	})
}
