//go:build !amd64

package containerd

// There is no stub for this architecture. A container runs the program itself as its
// first process.
const stubMachine = uint16(0)

var stubCode []byte
