package main

import (
	"net/http"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/healthcheck"
)

// program is the name under which the server's health is checked.
const program = "nats-server"

// answerHealth answers health checks until the process ends. The server is ready if its
// health endpoint on the monitoring port responds with 200.
func answerHealth() error {
	return healthcheck.Answer(program, atMostEvery(time.Second, healthy), func() bool { return false })
}

// atMostEvery returns a function that calls f, or returns the last result of f if that is
// more recent than d. The returned function is safe for concurrent use.
func atMostEvery(d time.Duration, f func() bool) func() bool {
	var mu sync.Mutex
	var at time.Time
	var result bool
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() || time.Since(at) >= d {
			result = f()
			at = time.Now()
		}
		return result
	}
}

// healthy queries the health endpoint.
func healthy() bool {
	c := http.Client{Timeout: time.Second}
	r, err := c.Get("http://127.0.0.1:8222/healthz")
	if err != nil {
		return false
	}
	r.Body.Close()
	return r.StatusCode == http.StatusOK
}
