// Command session-runner runs packs in sandboxes.
package main

import (
	"log/slog"
	"os"

	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// samples is where images have the sample packs.
const samples = "/packs"

// Environment: BINNACLE_PACKS (folder; else packs of the configuration folder,
// else the image's samples), BINNACLE_STATE (scratch, /state), BINNACLE_CONTAINERD
// (socket; auto = the usual one if there is one; empty = tier process),
// BINNACLE_FIFO (folder that client and daemon both see), BINNACLE_NOOP (1 offers
// tool.noop).
func main() {
	run.Main("session-runner", func(run.Keys) (run.Service, error) {
		cfg := sessionrunner.Config{PacksDir: run.ConfigFile("BINNACLE_PACKS", "packs"), StateDir: run.Getenv("BINNACLE_STATE", "/state"),
			Containerd: containerdSocket(run.Getenv("BINNACLE_CONTAINERD", "")), FIFODir: run.Getenv("BINNACLE_FIFO", ""), Noop: run.Getenv("BINNACLE_NOOP", "") == "1"}
		if cfg.PacksDir == "" {
			if _, err := os.Stat(samples); err == nil {
				cfg.PacksDir = samples
			}
		}
		if cfg.Noop {
			cfg.Limit = 256
		}
		return &sessionrunner.Service{Config: cfg}, nil
	})
}

// containerdSocket resolves auto: the socket at its usual place, or none. A
// socket that is named is not optional, so that isolation never becomes weaker
// than configured because a daemon is late.
func containerdSocket(name string) string {
	const usual = "/run/containerd/containerd.sock"
	if name != "auto" {
		return name
	}
	if i, err := os.Stat(usual); err != nil || i.Mode()&os.ModeSocket == 0 {
		slog.Warn("no containerd socket; packs run in tiers process and wasi", "socket", usual)
		return ""
	}
	return usual
}
