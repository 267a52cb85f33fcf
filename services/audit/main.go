// Command audit follows the ledger and proves it.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/audit/audit"
)

// Environment: BINNACLE_STATE (folder for view and checkpoint, /state),
// BINNACLE_DURABILITY (process, power, replicated).
func main() {
	run.Main("audit", func(run.Keys) (run.Service, error) {
		return &audit.Service{Config: audit.Config{Dir: run.Getenv("BINNACLE_STATE", "/state"), Durability: run.Getenv("BINNACLE_DURABILITY", "process")}}, nil
	})
}
