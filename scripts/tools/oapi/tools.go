//go:build tools

// Package tools pins the versions of the client generator for Go that the tests run, and
// of the package that the clients import.
package tools

import _ "github.com/oapi-codegen/runtime"
