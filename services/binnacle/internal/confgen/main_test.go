package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/config"
)

// TestNoDrift checks that the committed schema and page equal the generated ones, and
// that the page lists every member.
func TestNoDrift(t *testing.T) {
	const root = "../../../.."
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is not what the code gives; run make gen (%v)", name, err)
		}
	}
	for i := range config.Settings {
		if p := config.Settings[i].Pointer; !strings.Contains(string(files[page]), "| `"+p+"` |") {
			t.Errorf("%s is not on the page", p)
		}
	}
}
