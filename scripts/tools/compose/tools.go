//go:build tools

// Package tools pins the version of the Docker Compose plugin that the tests build.
package tools

import _ "github.com/docker/compose/v5/cmd"
