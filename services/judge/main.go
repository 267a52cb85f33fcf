// Command judge scores recorded sessions.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/judge/judge"
)

func main() {
	run.Main("judge", func(run.Keys, *config.Config) (run.Service, error) { return &judge.Service{}, nil })
}
