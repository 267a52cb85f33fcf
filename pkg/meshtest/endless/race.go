//go:build race

package endless

// slower is the factor by which the race detector may make tests slower.
const slower = 10
