package pack

import (
	"strings"
	"testing"
)

// TestImages checks which images a manifest may name, and the image and tier in the resulting
// tool document; that a lock file with a malformed line is an error; and that a later folder's
// lock file replaces the names of an earlier one.
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
	for body, want := range map[string]string{
		"image python sha256:1\n":           "line 1",
		"\n# x\nimage Python " + one + "\n": "line 3",
		"image python\n":                    "line 1: want image NAME DIGEST",
	} {
		write(t, dir, LockFile, body, 0o644)
		if _, err := ReadLock(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", body, err, want)
		}
	}
	other := t.TempDir()
	write(t, dir, LockFile, "image a "+one+"\nimage b "+one+"\n", 0o644)
	write(t, other, LockFile, "image b "+two+"\n", 0o644)
	if lock, err := ReadLock(dir, other); err != nil || lock["a"] != one || lock["b"] != two {
		t.Error(lock, err)
	}
	if _, err := ReadLock(dir + "/" + LockFile); err == nil {
		t.Error("a file was read as a folder")
	}
}
