//go:build race

package endless

// slower is by how much the race detector may make tests slower.
const slower = 10
