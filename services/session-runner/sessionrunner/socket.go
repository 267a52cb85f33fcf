package sessionrunner

import (
	"log/slog"
	"os"
)

// Socket returns the path of the containerd socket to use, or "" for none. The name
// "auto" means the default socket if it exists, and otherwise none. Any other name is
// returned even if the socket does not exist, so that the service fails to start:
// isolation must not become weaker than configured because the daemon starts late.
func Socket(name string) string {
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
