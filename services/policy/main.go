// Command policy decides every call.
package main

import (
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

// Environment: BINNACLE_POLICY (Rego files, comma-separated; empty = the
// built-in bundle). Keys: p0.json.
func main() {
	run.Main("policy", func(keys run.Keys) (run.Service, error) {
		cfg := policy.Config{P0File: keys.Path("p0.json")}
		if f := run.Getenv("BINNACLE_POLICY", ""); f != "" {
			cfg.P1Files = strings.Split(f, ",")
		}
		return &policy.Service{Config: cfg}, nil
	})
}
