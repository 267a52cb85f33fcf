package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/config"
)

// TestNoDrift checks that the committed schema and pages equal the generated ones, that the
// reference lists every member, and that the list of targets has judge and the provisioner.
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
	if m := targets.FindSubmatch(files[howTo]); len(m) != 1 || !strings.Contains(string(m[0]), ", judge:9464, ") || !strings.Contains(string(m[0]), ", provision:9464, ") {
		t.Errorf("the targets in %s are %q", howTo, m)
	}
	for i := range config.Settings {
		if p := config.Settings[i].Pointer; !strings.Contains(string(files[page]), "| `"+p+"` |") {
			t.Errorf("%s is not on the page", p)
		}
	}
}
