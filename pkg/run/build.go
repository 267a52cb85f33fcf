package run

import (
	"runtime"
	"runtime/debug"
)

// Build says what a program was built from.
type Build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`     // of the source; "unknown" where it was built outside a checkout, "+dirty" behind it where that had changes
	BuildTime string `json:"build_time"` // of the commit, RFC 3339, so that two builds of one source are the same bytes
	GoVersion string `json:"go_version"`
}

// BuildOf describes the running program, released as version.
func BuildOf(version string) Build {
	b := Build{Version: version, Commit: "unknown", BuildTime: "unknown", GoVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Commit = s.Value
		case s.Key == "vcs.time":
			b.BuildTime = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Commit += "+dirty"
		}
	}
	return b
}
