// Command policy runs the policy service, which makes the decision about every call.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

// The keys' folder must hold the signed ceilings, p0.json. Bundles are listed in the
// configuration file; if it lists none, the built-in bundle is used.
func main() {
	run.Main("policy", func(keys run.Keys, c *config.Config) (run.Service, error) {
		return &policy.Service{Config: policy.Config{P0File: keys.Path("p0.json"), P1Files: c.Policy.Bundles}}, nil
	})
}
