//go:build !amd64

package containerd

// There is no stub for this architecture, so containers are not prepared.
const stubMachine = uint16(0)

var stubCode []byte
