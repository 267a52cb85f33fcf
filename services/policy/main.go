// Command policy runs the policy service, which makes the decision about every call. All
// its state comes from the ledger, so several instances may run at a time; their
// decisions are serialized by message ids and expected sequences. The command reads the
// configuration that docs/reference/configuration.md describes, and starts package
// policy.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/policy/policy"
)

// main runs the service. The keys' folder must hold the signed ceilings, p0.json. The
// configuration file lists bundles and Rego files; if it lists no Rego file, the built-in
// bundle is used after the listed bundles.
func main() {
	run.Main(services.Policy, func(keys run.Keys, c *config.Config) (run.Service, error) {
		return &policy.Service{Config: policy.Config{P0File: keys.Path("p0.json"), P1Files: c.Policy.Bundles}}, nil
	})
}
