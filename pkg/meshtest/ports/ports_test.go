package ports

import "testing"

// TestFree checks that no port is returned twice while the process runs.
func TestFree(t *testing.T) {
	seen := map[string]bool{}
	for range 500 {
		a := Free(t)
		if seen[a] {
			t.Fatal(a, "is returned twice")
		}
		seen[a] = true
	}
}
