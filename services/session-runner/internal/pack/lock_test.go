package pack

import (
	"strings"
	"testing"
)

// TestImages checks which images a manifest may name, and what the tool document then
// contains, and that a lock file with an invalid digest is an error.
func TestImages(t *testing.T) {
	const one, two = "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	dir := t.TempDir()
	write(t, dir, LockFile, "# names\nimage python "+one+" 10 20\ndeb python python3 3.11 x y\n", 0o644)
	lock, err := ReadLock("", t.TempDir(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ manifest, digest, problem string }{
		{"image: python", one, ""},
		{"image: python@" + two, two, ""},
		{"image: registry.example/team/app:v1@" + two, two, ""},
		{"image: " + two, two, ""},
		{"image: python\ntier: container", one, ""},
		{"image: node", "", "not pinned"},
		{"image: python:latest", "", "not pinned"},
		{"image: python@latest", "", "hexadecimal"},
		{"image: Python", "", "is not NAME"},
		{"image: ../python", "", "is not NAME"},
		{"image: python\ntier: process", "", "requires tier container"},
		{"image: python\ndisk_mib: -1", "", "disk_mib"},
	} {
		dir := t.TempDir()
		write(t, dir, "page.py", "#!/usr/bin/env python3\n", 0o755)
		write(t, dir, "page.pack.yaml", c.manifest+"\n", 0o644)
		packs, problems := Discover(dir, lock)
		if c.problem != "" {
			if len(packs) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Error(), c.problem) {
				t.Errorf("%s: %v %v", c.manifest, packs, problems)
			}
			continue
		}
		if len(packs) != 1 || packs[0].Tool.Image != c.digest || packs[0].Tool.Sandbox.Tier != "container" || packs[0].Program.Problem() != nil || packs[0].Program.InterpreterPath != "/usr/bin/env" {
			t.Errorf("%s: %+v %v", c.manifest, packs, problems)
		}
	}
	write(t, dir, LockFile, "image python sha256:1\n", 0o644)
	if _, err := ReadLock(dir); err == nil {
		t.Error("a lock file with an invalid digest was read")
	}
}
