package main

import (
	"net/http"
	"time"
)

// health queries the monitoring port, for container health checks.
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
