// Command dead lists unreachable functions: those that neither a main function nor a
// test reaches, and those that only tests reach. It compares both lists with an
// allow-list, exits with 1 if the allow-list does not permit a listed function, and
// prints the entries of the allow-list that are no longer needed. scripts/deadcode runs
// it from the root of the repository.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

const module = "github.com/binnacle-mesh/binnacle/"

func main() {
	tool := flag.String("tool", "", "the deadcode program of golang.org/x/tools")
	allowed := flag.String("allow", "", "a file with a line for each permitted function or package: its name, and why it is permitted")
	flag.Parse()
	if err := run(*tool, *allowed); err != nil {
		fmt.Fprintln(os.Stderr, "dead:", err)
		os.Exit(1)
	}
}

func run(tool, allowed string) error {
	var without, with map[string]string // positions of unreachable functions, by name; for the map with, tests are entry points too
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { without, errs[0] = unreached(tool) })
	wg.Go(func() { with, errs[1] = unreached(tool, "-test", "-tags", "bench,simulator") })
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	list, err := readAllowed(allowed)
	if err != nil {
		return err
	}
	bad := 0
	report := func(name, at, what string) {
		if !list.permits(name) {
			fmt.Printf("%s: %s: %s\n", at, strings.TrimPrefix(name, module), what)
			bad++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(with)) {
		report(name, with[name], "no program and no test reaches it: delete it")
	}
	for _, name := range slices.Sorted(maps.Keys(without)) {
		if with[name] == "" {
			report(name, without[name], "tests alone reach it: move it to a test, or delete it")
		}
	}
	for _, e := range list {
		if !e.used {
			fmt.Printf("%s: %s is reached, or gone: the entry can be removed\n", allowed, e.name)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d findings; an exception is a line in %s with its reason", bad, allowed)
	}
	return nil
}

// unreached runs the deadcode tool over the workspace and returns the position of each
// unreachable function by its qualified name.
func unreached(tool string, flags ...string) (map[string]string, error) {
	cmd := exec.Command(tool, append(flags, "-json", "work")...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "GOGC=400", "GOMEMLIMIT=8GiB") // the tool allocates for minutes and frees little
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	var packages []struct {
		Path  string
		Funcs []struct {
			Name     string
			Position struct {
				File string
				Line int
			}
		}
	}
	if err := json.Unmarshal(raw, &packages); err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	out := map[string]string{}
	for _, p := range packages {
		for _, f := range p.Funcs {
			out[p.Path+"."+f.Name] = fmt.Sprintf("%s:%d", f.Position.File, f.Position.Line)
		}
	}
	return out, nil
}

// entry is an entry of the allow-list. It permits one function; all functions of a
// package, if its name ends in "."; or all functions of the packages below a folder, if
// its name ends in "/".
type entry struct {
	name string
	used bool
}

type allowList []*entry

// readAllowed reads an allow-list. Empty lines and lines that begin with # are skipped;
// an entry without a reason is an error.
func readAllowed(path string) (allowList, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out allowList
	for in := bufio.NewScanner(f); in.Scan(); {
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, _ := strings.Cut(line, " ")
		if strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s: %s has no reason", path, name)
		}
		out = append(out, &entry{name: name})
	}
	return out, nil
}

// permits reports whether an entry permits the function, and marks the first such entry
// as used.
func (l allowList) permits(name string) bool {
	name = strings.TrimPrefix(name, module)
	for _, e := range l {
		if e.name == name || strings.HasPrefix(name, e.name) && strings.ContainsAny(e.name[len(e.name)-1:], "./") {
			e.used = true
			return true
		}
	}
	return false
}
