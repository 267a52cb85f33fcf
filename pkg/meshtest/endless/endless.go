// Package endless makes tests fail that run in an endless loop. Tests in a synctest bubble
// need it in particular: the time in the bubble stops while a goroutine is busy, so that no
// deadline in the bubble ends the loop.
package endless

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Run runs the tests of m and ends the process with their exit code. Once the process has
// used limit of CPU time for each time that the tests run (-count), it panics, which fails the
// tests. CPU time, unlike the time limit of go test, does not depend on the load of the
// machine. The limit is ten times as large under the race detector, and there is none for
// fuzzing and benchmarks.
func Run(m *testing.M, limit time.Duration) {
	flag.Parse()
	value := func(name string) string { return flag.Lookup("test." + name).Value.String() }
	if value("fuzz") == "" && value("fuzzworker") == "false" && value("bench") == "" {
		count, _ := strconv.Atoi(value("count")) // a number, as package testing has parsed it
		go watch(limit * time.Duration(slower*max(count, 1)))
	}
	os.Exit(m.Run())
}

// watch panics when the process has used limit of CPU time.
func watch(limit time.Duration) {
	for used() < limit {
		time.Sleep(100 * time.Millisecond)
	}
	panic(fmt.Sprintf("the tests have used %v of CPU time: a loop does not end", limit))
}

// used returns the CPU time that the process has used.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
