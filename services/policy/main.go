// Command policy decides every call.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

// Environment: BINNACLE_POLICY (bundles and Rego files, comma-separated; else
// those of the configuration folder; none = the built-in bundle). Keys: p0.json.
func main() {
	run.Main("policy", func(keys run.Keys) (run.Service, error) {
		cfg := policy.Config{P0File: keys.Path("p0.json"), P1Files: run.ConfigFiles("BINNACLE_POLICY", ".rego", ".tar.gz")}
		return &policy.Service{Config: cfg}, nil
	})
}
