// Command session-runner runs packs in sandboxes.
package main

import (
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// Environment: BINNACLE_PACKS (folder), BINNACLE_STATE (scratch, /state),
// BINNACLE_CONTAINERD (socket; empty = tier process), BINNACLE_FIFO (folder
// that client and daemon both see), BINNACLE_NOOP (1 offers tool.noop).
func main() {
	run.Main("session-runner", func(run.Keys) (run.Service, error) {
		cfg := sessionrunner.Config{PacksDir: run.Getenv("BINNACLE_PACKS", ""), StateDir: run.Getenv("BINNACLE_STATE", "/state"),
			Containerd: run.Getenv("BINNACLE_CONTAINERD", ""), FIFODir: run.Getenv("BINNACLE_FIFO", ""), Noop: run.Getenv("BINNACLE_NOOP", "") == "1"}
		if cfg.Noop {
			cfg.Limit = 256
		}
		return &sessionrunner.Service{Config: cfg}, nil
	})
}
