// Command judge scores recorded sessions.
//
// It keeps no state, so several instances may run at a time. Package judge implements
// the service, which can also run in the process of the whole mesh; this file reads the
// configuration that docs/reference/configuration.md describes, and starts the service.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/judge/judge"
)

func main() {
	run.Main(services.Judge, func(run.Keys, *config.Config) (run.Service, error) { return &judge.Service{}, nil })
}
