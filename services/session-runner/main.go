// Command session-runner runs packs in sandboxes.
package main

import (
	"log/slog"
	"os"

	"github.com/binnacle-mesh/binnacle/pkg/config"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// samples is the folder of the sample packs in images.
const samples = "/packs"

// Without a configured folder it uses the samples, where they exist.
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

// containerdSocket resolves "auto" to the default socket if it exists, otherwise to
// none. A socket that is named explicitly must exist: isolation must not become weaker
// than configured because a daemon starts late.
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
