package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Variables by which mutate passes shim the path of the real go command, and the
// file that lists the mutants to be tried; an empty list is all of them.
const (
	shimVar = "MUTATE_GO"
	onlyVar = "MUTATE_ONLY"
)

// shim replaces the go command that gremlins runs.
//
// gremlins reports a mutant as not covered, without running a test, where the
// coverage profile has no block at its place; blocks leave out the conditions of
// cases. shim adds a block for the whole of each file, so that every mutant is
// tried; or, to try a few, writes a profile of blocks at their places alone.
//
// gremlins takes a mutant that does not compile for a killed one. shim returns
// the exit code that says otherwise.
//
// gremlins finds the tests of a package main in the module's root. shim runs
// those of the folder it is started in.
func shim(args []string) int {
	real := os.Getenv(shimVar)
	if len(args) == 0 || args[0] != "test" {
		return pass(exec.Command(real, args...))
	}
	if i := slices.Index(args, "-coverprofile"); i > 0 && i+1 < len(args) {
		args = slices.Insert(args, 1, "-count=1", "-short")
		if code := pass(exec.Command(real, args...)); code != 0 {
			return code
		}
		if err := coverAll(args[i+3]); err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			return 1
		}
		return 0
	}
	args = slices.Insert(args, 1, "-short")
	args[len(args)-1] = "."
	cmd := exec.Command(real, args...)
	out, err := cmd.CombinedOutput()
	if err != nil && (bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]"))) {
		return 2
	}
	return exitCode(err)
}

func pass(cmd *exec.Cmd) int {
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return exitCode(cmd.Run())
}

func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		return 1
	}
	return 0
}

// coverAll extends a coverage profile by a block for the whole of each file in it, or
// only at the places that are to be tried.
func coverAll(profile string) error {
	only, err := os.ReadFile(os.Getenv(onlyVar))
	if err != nil {
		return err
	}
	b, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	var files []string
	for line := range strings.Lines(string(b)) {
		if name, _, ok := strings.Cut(line, ".go:"); ok && !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	if len(only) > 0 {
		return os.WriteFile(profile, places(string(only), files), 0o644)
	}
	for _, name := range files {
		b = fmt.Appendf(b, "%s.go:1.1,1000000.1 1 1\n", filepath.ToSlash(name))
	}
	return os.WriteFile(profile, b, 0o644)
}

// places returns a coverage profile with a block of one byte at each listed mutant.
func places(only string, files []string) []byte {
	b := []byte("mode: set\n")
	for line := range strings.Lines(only) {
		at, _, _ := strings.Cut(line, " ")
		part := strings.Split(at, ":")
		for _, name := range files {
			if len(part) == 3 && filepath.Base(name)+".go" == part[0] {
				b = fmt.Appendf(b, "%s.go:%s.%s,%s.%s 1 1\n", filepath.ToSlash(name), part[1], part[2], part[1], part[2])
			}
		}
	}
	return b
}
