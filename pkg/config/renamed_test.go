package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRenamed shows that the former spelling of a member, in a file or as a variable, is an
// error that names the present one, for the programs that read it.
func TestRenamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "binnacle.yaml")
	if err := os.WriteFile(file, []byte("session-runner:\n  sandboxes: {images: /images}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	old := func(name string) string {
		if name == "BINNACLE_SANDBOX_IMAGES" {
			return "/images"
		}
		return ""
	}
	for _, program := range []string{Up, "session-runner"} {
		if _, err := Load(Source{Program: program, File: file}); err == nil || !strings.Contains(err.Error(), "/session-runner/sandboxes/images: this member is now /session-runner/images") {
			t.Errorf("%s, file: %v", program, err)
		}
		if _, err := Load(Source{Program: program, Getenv: old}); err == nil || !strings.Contains(err.Error(), "BINNACLE_SANDBOX_IMAGES is now BINNACLE_IMAGES") {
			t.Errorf("%s, variable: %v", program, err)
		}
	}
	if _, err := Load(Source{Program: "audit", Getenv: old}); err != nil {
		t.Errorf("a program that does not read the member: %v", err)
	}
}
