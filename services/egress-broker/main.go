// Command egress-broker carries the network traffic of sandboxes, and the requests of services
// to endpoints that the operator has configured.
//
// Package egressbroker implements the service, which can also run in the process of the
// whole mesh; this file reads the configuration that docs/reference/configuration.md
// describes, and starts the service.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/egress-broker/egressbroker"
)

func main() {
	run.Main(services.EgressBroker, func(_ run.Keys, c *config.Config) (run.Service, error) {
		return &egressbroker.Service{Config: egressbroker.Config{Dir: c.EgressBroker.Sockets, Hosts: c.EgressBroker.Hosts, Networks: c.EgressBroker.Networks, Exports: c.EgressBroker.ExportSockets, Endpoints: egressbroker.EndpointsOf(c)}}, nil
	})
}
