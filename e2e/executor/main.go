// Command beacon runs the example service of package beacon, which executes calls of one
// kind. TestNewService adds it to a copy of the repository. Copy it to start a new
// service.
package main

import (
	"github.com/binnacle-mesh/binnacle/e2e/executor/beacon"
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
)

func main() {
	run.Main(beacon.Name, func(run.Keys, *config.Config) (run.Service, error) { return &beacon.Service{}, nil })
}
