//go:build !race

package endless

// slower is 1 without the race detector.
const slower = 1
