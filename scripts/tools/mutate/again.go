package main

import (
	"fmt"
	"os"
	"strings"
)

// earlier is the result of an earlier run of mutate for one package.
type earlier struct {
	counts
	survivors []string // keys of the mutants that survived (mutant.key)
}

// readText parses the report of an earlier run and returns its results by package. It
// returns no results if file is "".
func readText(file string) (map[string]*earlier, error) {
	out := map[string]*earlier{}
	if file == "" {
		return out, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var last *earlier
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 7 && strings.Contains(f[0], "/") && !strings.HasPrefix(line, " "):
			last = &earlier{}
			total := 0
			if _, err := fmt.Sscan(strings.Join(f[1:6], " "), &total, &last.killed, &last.lived, &last.timedOut, &last.notViable); err != nil {
				return nil, fmt.Errorf("%s: %q: %w", file, line, err)
			}
			out[f[0]] = last
		case last != nil && strings.HasPrefix(line, "    "):
			// The status may contain a space, so it is skipped by the length of the
			// longest status.
			if rest := strings.Fields(line[4+len(notCovered):]); len(rest) >= 2 {
				last.survivors = append(last.survivors, rest[0]+" "+rest[1])
			} else {
				return nil, fmt.Errorf("%s: %q is not a mutant", file, line)
			}
		}
	}
	return out, nil
}
