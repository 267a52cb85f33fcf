package main

import (
	"net/http"
	"time"
)

// health queries the health endpoint on the monitoring port and returns the exit code
// for a container health check: 0 if the server is healthy, else 1.
func health() int {
	c := http.Client{Timeout: time.Second}
	r, err := c.Get("http://127.0.0.1:8222/healthz")
	if err != nil {
		return 1
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return 1
	}
	return 0
}
