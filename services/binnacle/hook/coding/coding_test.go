package coding_test

import (
	"path/filepath"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/coding"
	"github.com/binnacle-mesh/binnacle/services/policy/draft"
)

// TestBundle runs the tests of the bundle in every mode, and checks that an unknown mode is
// rejected and that a folder is not overwritten.
func TestBundle(t *testing.T) {
	for _, mode := range coding.Modes {
		s, err := coding.Default(mode)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "coding")
		if err := coding.Write(dir, s); err != nil {
			t.Fatal(err)
		}
		results, err := draft.Test(t.Context(), dir)
		if err != nil || len(results) < 11 {
			t.Fatalf("%d tests, %v", len(results), err)
		}
		for _, r := range results {
			if !r.Passed {
				t.Errorf("%s: %s %v", mode, r.Name, r.Error)
			}
		}
		if err := coding.Write(dir, s); err == nil {
			t.Error("an existing folder was overwritten")
		}
	}
	if _, err := coding.Default("lax"); err == nil {
		t.Error("unknown mode")
	}
}
