// Command scopegen writes the scopes of the built-in policy, the object scope_of of
// policy/default.rego, from the registry of services. `make gen` runs it in the
// folder of the module.
//
// The rest of default.rego is written by hand. A mesh without Rego files of its own
// activates each changed text as a new document. To avoid needless changes, the scopes
// have the order of the registry, to which families are only added.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/binnacle-mesh/binnacle/pkg/services"
)

func main() {
	log.SetFlags(0)
	const path = "policy/default.rego"
	src, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	out, err := rewrite(src, services.Kinds())
	if err != nil {
		log.Fatalf("%s: %v", path, err)
	}
	if err := os.WriteFile(path, out, 0o644); err != nil {
		log.Fatal(err)
	}
}

// rewrite returns a policy in which scope_of has one line per family of kinds. It
// returns an error if the policy does not have the object exactly once.
func rewrite(src []byte, kinds []services.Kind) ([]byte, error) {
	begin, end := []byte("\nscope_of := {\n"), []byte("}\n")
	before, rest, ok := bytes.Cut(src, begin)
	_, after, closed := bytes.Cut(rest, end)
	if !ok || !closed || bytes.Contains(after, begin) {
		return nil, errors.New("want one object scope_of, which begins with \"scope_of := {\" on a line of its own")
	}
	var lines bytes.Buffer
	for _, k := range kinds {
		fmt.Fprintf(&lines, "\t%q: %q,\n", k.Prefix+".", k.Scope)
	}
	return bytes.Join([][]byte{before, begin, lines.Bytes(), end, after}, nil), nil
}
