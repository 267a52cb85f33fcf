// Command session-runner runs packs in sandboxes.
package main

import (
	"log/slog"
	"os"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// samples is where images have the sample packs.
const samples = "/packs"

// Without a folder of packs it takes the samples, where the image has them.
func main() {
	run.Main("session-runner", func(_ run.Keys, c *config.Config) (run.Service, error) {
		cfg := sessionrunner.Config{PacksDir: c.SessionRunner.Packs, StateDir: c.SessionRunner.State,
			Containerd: containerdSocket(c.SessionRunner.Containerd), FIFODir: c.SessionRunner.FIFO, Noop: c.SessionRunner.Noop}
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
