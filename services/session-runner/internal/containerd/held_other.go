//go:build !amd64

package containerd

// initCode is nil: on this architecture there are no held sandboxes.
var initCode []byte

// writerCode is nil: see initCode.
var writerCode []byte
