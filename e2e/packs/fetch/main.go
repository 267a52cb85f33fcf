// Command fetch is a pack that requests a URL through the proxy of its environment, and
// returns the status and the body, or the error. With "direct" it does not use the proxy.
// It also returns everything that it was given, so that a test can search it.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"time"
)

func main() {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	var in struct {
		URL    string `json:"url"`
		Method string `json:"method"`
		Direct bool   `json:"direct"`
	}
	if err := json.NewDecoder(bytes.NewReader(stdin)).Decode(&in); err != nil {
		log.Fatal(err)
	}
	t := &http.Transport{}
	if !in.Direct {
		// http.ProxyFromEnvironment uses no proxy for loopback addresses.
		t.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(os.Getenv("HTTP_PROXY")) }
	}
	client := http.Client{Transport: t, Timeout: 15 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	out := map[string]any{"environment": append(os.Environ(), string(stdin))}
	req, err := http.NewRequest(in.Method, in.URL, nil)
	if err != nil {
		log.Fatal(err)
	}
	if r, err := client.Do(req); err != nil {
		out["error"] = err.Error()
	} else {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		out["status"], out["body"] = r.StatusCode, string(body)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}
