package sessionrunner

import (
	"log/slog"
	"os"
)

// Socket resolves the name "auto" to the default socket if it exists, otherwise to
// none. A socket that is named explicitly must exist: isolation must not become weaker
// than configured because a daemon starts late.
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
