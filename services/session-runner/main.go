// Command session-runner runs packs in sandboxes.
//
// Several instances may run at a time, each with the isolation tiers of its own host, since
// their common state is on the ledger. Package sessionrunner implements the service, which can also
// run in the process of the whole mesh; this file reads the configuration that
// docs/reference/configuration.md describes, and starts the service.
package main

import (
	"os"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/pkg/services"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// samples is the folder of the example packs in container images.
const samples = "/packs"

// main uses the example packs if no folder of packs is configured and the folder samples
// exists.
func main() {
	run.Main(services.SessionRunner, func(_ run.Keys, c *config.Config) (run.Service, error) {
		packKeys, err := sessionrunner.ParsePackKeys(c.SessionRunner.PackKeys)
		if err != nil {
			return nil, err
		}
		cfg := sessionrunner.Config{PackKeys: packKeys, PacksDir: c.SessionRunner.Packs, Scripts: c.SessionRunner.Scripts, StateDir: c.SessionRunner.State,
			Containerd: sessionrunner.Socket(c.SessionRunner.Containerd), FIFODir: c.SessionRunner.FIFO, Images: c.SessionRunner.Images, Warm: c.SessionRunner.Warm, Noop: c.SessionRunner.Noop, Runs: c.SessionRunner.Runs, Queue: c.SessionRunner.Queue, Classes: c.SessionRunner.Classes, MicroVM: c.SessionRunner.MicroVM.Runtime, OCIRuntime: c.SessionRunner.OCIRuntime, Registries: c.SessionRunner.Registries, RegistryHosts: c.SessionRunner.RegistryHosts, RegistrySecrets: c.SessionRunner.RegistrySecrets, RegistryCA: c.SessionRunner.RegistryCA,
			Held: sessionrunner.HeldConfig(c.SessionRunner.Sandboxes)}
		if cfg.PacksDir == "" {
			if _, err := os.Stat(samples); err == nil {
				cfg.PacksDir = samples
			}
		}
		return &sessionrunner.Service{Config: cfg}, nil
	})
}
