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

// Environment variables that mutate sets for shim: the path of the real go command, and
// the path of the file that lists the mutants to test. An empty file means all mutants.
const (
	shimVar = "MUTATE_GO"
	onlyVar = "MUTATE_ONLY"
)

// memory is the limit, in bytes, of the address space of a test program. A mutant that
// allocates without end exceeds it, and its tests fail.
const memory = 4 << 30

// limited returns the beginning of a command line that runs a program with at most memory
// bytes of address space. The path of the program and its arguments follow.
func limited() []string {
	return []string{"sh", "-c", fmt.Sprintf(`ulimit -v %d && exec "$@"`, memory/1024), "sh"}
}

// limit returns the option of go test that runs the test program as limited does.
func limit() string {
	l := limited()
	return fmt.Sprintf("-exec=%s %s '%s' %s", l[0], l[1], l[2], l[3])
}

// shim replaces the go command that gremlins runs, and returns its exit code. It corrects
// three results of gremlins:
//
// gremlins reports a mutant as not covered, without running a test, if the coverage
// profile has no block at its position; profiles have no blocks for the conditions of
// case clauses. shim adds a block for the whole of each file, so that every mutant is
// tested. To test only listed mutants, it writes a profile with blocks at their positions.
//
// gremlins counts a mutant that does not compile as killed. shim returns 2 for a failed
// build, which gremlins reports as not viable.
//
// For a package main, gremlins runs the tests in the root of the module. shim runs those
// in the folder that it is started in.
//
// shim also limits the memory of the tests (see memory). gremlins limits only their time.
func shim(args []string) int {
	real := os.Getenv(shimVar)
	if len(args) == 0 || args[0] != "test" {
		return pass(exec.Command(real, args...))
	}
	if i := slices.Index(args, "-coverprofile"); i > 0 && i+1 < len(args) {
		args = slices.Insert(args, 1, "-count=1", "-short", limit())
		if code := pass(exec.Command(real, args...)); code != 0 {
			return code
		}
		if err := coverAll(args[i+4]); err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			return 1
		}
		return 0
	}
	if fast, i := os.Getenv(fastVar), slices.Index(args, "-timeout"); fast != "" && i > 0 {
		if code, ok := tryFast(real, fast, args[i+1]); ok {
			return code
		}
	}
	args = slices.Insert(args, 1, "-short", limit())
	args[len(args)-1] = "."
	cmd := exec.Command(real, args...)
	out, err := cmd.CombinedOutput()
	if err != nil && (bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]"))) {
		return 2
	}
	return exitCode(err)
}

// pass runs a command with this process's standard output and error, and returns its
// exit code.
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

// coverAll rewrites a coverage profile so that gremlins tests every mutant in its files,
// or only the listed mutants if the file of onlyVar is not empty.
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

// places returns a coverage profile with a block at the position of each listed mutant
// that is in one of the files.
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
