package run

import (
	"runtime"
	"runtime/debug"
)

// Release is the version that the newest section of CHANGELOG.md describes.
const Release = "0.5.0"

// commit is set by the build, where the source is not in a checkout that the go
// command reads.
var commit string

// Version returns the release as a semantic version, with the commit that it was built
// from as build metadata if the commit is known: 0.5.0+1a2b3c4.
func Version() string {
	if commit == "" {
		return Release
	}
	return Release + "+" + commit
}

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
	if commit != "" {
		b.Commit = commit
	}
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
