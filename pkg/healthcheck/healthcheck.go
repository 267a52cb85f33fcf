// Package healthcheck answers the health checks that a container engine runs as processes in
// a container. While a program stays healthy, a check lasts for Hold, so that the engine
// starts few of these processes.
package healthcheck

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// socket returns the address of a program's health socket, an abstract Unix socket
// (unix(7)). Such sockets belong to a network namespace, so a health check inside a
// container reaches the container's own program without a port or a file.
func socket(program string) string { return "@binnacle-health-" + program }

// The answers to a health check, which may also be empty.
const (
	healthy = "ok"
	waiting = "starting"
)

// Hold is how long the check of a program that was ready at an earlier check lasts,
// unless it stops being ready. An engine that starts the next check 2 s after the end of
// the last one then starts a process every 22 s instead of every two.
const Hold = 20 * time.Second

// Answer listens on the health socket of a program and answers each check. The answer is "ok" if
// ready returns true; except for the first such answer, the connection then stays open for Hold,
// and more text follows if ready returns false meanwhile. If the program has not been ready yet,
// and starting returns true, the answer is "starting". Otherwise the answer is empty. Until the
// program is ready, starting is called at least every second. Answer returns an error if it cannot
// listen, in general because another instance on this host listens already, or can no longer accept
// connections.
func Answer(program string, ready, starting func() bool) error {
	return answer(program, ready, starting, Hold)
}

func answer(program string, ready, starting func() bool, hold time.Duration) error {
	l, err := net.Listen("unix", socket(program))
	if err != nil {
		return err
	}
	defer l.Close()
	var was atomic.Bool // the program was ready before, so it is not starting, even if it is not ready now
	go func() {
		for !ready() {
			starting()
			time.Sleep(time.Second)
		}
		was.Store(true)
	}()
	for known := false; ; {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		switch {
		case ready() && known:
			go holdOpen(c, ready, hold)
			continue
		case ready():
			_, _ = io.WriteString(c, healthy)
			known = true
		case !was.Load() && starting():
			_, _ = io.WriteString(c, waiting)
		}
		c.Close()
	}
}

// holdOpen answers "ok" and closes the connection after hold or, with more text, once
// ready returns false.
func holdOpen(c net.Conn, ready func() bool, hold time.Duration) {
	defer c.Close()
	_, _ = io.WriteString(c, healthy)
	for end := time.Now().Add(hold); time.Now().Before(end); time.Sleep(min(hold, 250*time.Millisecond)) {
		if !ready() {
			_, _ = io.WriteString(c, " no more")
			return
		}
	}
}

// Check checks the health of a program on this host and returns the exit code of the
// check: 0 if the program runs and accepts work, else 1. If the program was ready at an
// earlier check, a check ends after Hold, or at once when the program stops being ready.
// Otherwise it takes at most about two seconds. While the answer is that the program is
// starting, Check repeats the check every second, without a limit.
func Check(program string) int {
	for {
		switch check(program) {
		case healthy:
			return 0
		case waiting:
			time.Sleep(time.Second)
		default:
			return 1
		}
	}
}

// check returns the answer to one check, or "" if the program does not answer or stopped
// being ready during the check.
func check(program string) string {
	c, err := net.DialTimeout("unix", socket(program), time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	answer := make([]byte, len(waiting))
	n, err := io.ReadAtLeast(c, answer, len(healthy))
	if err != nil {
		return ""
	}
	_ = c.SetDeadline(time.Now().Add(Hold + 5*time.Second))
	rest, err := io.ReadAll(c)
	if err != nil {
		return ""
	}
	return string(append(answer[:n], rest...))
}
