// Command audit indexes the ledger, signs checkpoints of it and serves proofs.
//
// Package audit implements the service, which can also run in the process of the whole
// mesh; this file reads the configuration that docs/reference/configuration.md
// describes, and starts the service.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
)

func main() {
	run.Main(services.Audit, func(_ run.Keys, c *config.Config) (run.Service, error) {
		return &audit.Service{Config: audit.Config{Dir: c.Audit.State, Durability: c.Durability}}, nil
	})
}
