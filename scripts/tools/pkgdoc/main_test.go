package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGroups checks that each folder in services has a page, with its name as the title
// unless titles has another, and that a package is on the page of the longest folder.
func TestGroups(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"beacon-light", "mcp-router"} {
		if err := os.MkdirAll(filepath.Join(root, "services", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, err := groups(root)
	if err != nil || len(got) != len(before)+2+len(after) {
		t.Fatal(got, err)
	}
	for i, want := range []group{{"beacon-light", "Beacon light", "services/beacon-light"}, {"mcp-router", "MCP router", "services/mcp-router"}} {
		if got[len(before)+i] != want {
			t.Errorf("%v, want %v", got[len(before)+i], want)
		}
	}
	for dir, want := range map[string]string{"services/beacon-light/x": "beacon-light", "services": "", "pkg/core/guard": "core", "pkg/bus": "pkg", "pkgs": ""} {
		if page := pageOf(got, dir); page != want {
			t.Errorf("%s is on page %q, want %q", dir, page, want)
		}
	}
	if _, err := groups(filepath.Join(root, "none")); err == nil {
		t.Error("a folder without services is accepted")
	}
}
