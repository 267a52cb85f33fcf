// Command beacon is a service that executes calls of one kind. TestNewService adds
// it to a copy of the tree; copy it to begin a service of your own.
package main

import (
	"github.com/binnacle-mesh/binnacle/e2e/executor/beacon"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

func main() {
	run.Main(beacon.Name, func(run.Keys, *config.Config) (run.Service, error) { return &beacon.Service{}, nil })
}
