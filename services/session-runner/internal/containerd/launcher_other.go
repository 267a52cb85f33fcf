//go:build !amd64

package containerd

// There is no launcher for this architecture. A container runs the program itself as its
// first process.
const launcherMachine = uint16(0)

var launcherCode []byte
