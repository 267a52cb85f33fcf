package run

import (
	"runtime"
	"runtime/debug"
)

// Release is the newest version that has a section in CHANGELOG.md.
const Release = "0.6.0"

// commit is set at link time (-X), because the go command itself records the commit only
// in builds from a checkout that it can read.
var commit string

// Version returns the release as a semantic version, with the commit that the program
// was built from as build metadata if the commit is known: 0.5.0+1a2b3c4.
func Version() string {
	if commit == "" {
		return Release
	}
	return Release + "+" + commit
}

// Build describes the version and the source of a program.
type Build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`     // commit of the source, or "unknown"; the suffix "+dirty" marks uncommitted changes
	BuildTime string `json:"build_time"` // time of the commit, not of the build, so that builds are reproducible; RFC 3339, or "unknown"
	GoVersion string `json:"go_version"`
}

// BuildOf returns the description of the running program, with the given version.
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
