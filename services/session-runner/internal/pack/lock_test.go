package pack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestScriptsElsewhere checks where packs run that need an interpreter or libraries and whose manifests
// name no image, for each value of the setting, and that the others run as without it.
func TestScriptsElsewhere(t *testing.T) {
	const one, two = "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	dir := t.TempDir()
	write(t, dir, "script.sh", "#!/bin/sh\n", 0o755)
	write(t, dir, "named.py", "#!/usr/bin/env python3\n", 0o755)
	write(t, dir, "named.pack.yaml", "image: python\n", 0o644)
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "static"), "github.com/binnacle-mesh/binnacle/examples/packs/upper")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	write(t, dir, "module.wasm", "\x00asm", 0o644)
	for scripts, want := range map[string]string{
		"":            "module wasi, named container " + two + ", script process missing, static process",
		ScriptsOnHost: "module wasi, named container " + two + ", script process host, static process",
		"shell":       "module wasi, named container " + two + ", script container " + one + ", static process",
		"absent":      "module wasi, named container " + two + ", static process",
	} {
		packs, problems := Discover(dir, Lock{"shell": one, "python": two}, scripts)
		var got []string
		for _, p := range packs {
			line := []string{strings.TrimPrefix(p.Tool.Tool, "cmd."), p.Tool.Sandbox.Tier}
			if p.Tool.Image != "" {
				line = append(line, p.Tool.Image)
			}
			if p.Program.Host {
				line = append(line, "host")
			}
			if p.Program.Problem() != nil && p.Tool.Sandbox.Tier != tierWASI {
				line = append(line, "missing")
			}
			got = append(got, strings.Join(line, " "))
			_ = p.Program.Close() // of a test
		}
		if strings.Join(got, ", ") != want || (len(problems) == 1) != (scripts == "absent") {
			t.Errorf("%q: %q %v, want %q", scripts, got, problems, want)
		}
	}
}

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
		packs, problems := Discover(dir, lock, "")
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
