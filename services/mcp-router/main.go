// Command mcp-router executes calls of tools, resources and prompts of MCP servers.
//
// Package mcprouter implements the service, which can also run in the process of the
// whole mesh; this file reads the configuration that docs/reference/configuration.md
// describes, and starts the service.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/mcp-router/mcprouter"
)

func main() {
	run.Main(mcprouter.Name, func(run.Keys, *config.Config) (run.Service, error) { return &mcprouter.Service{}, nil })
}
