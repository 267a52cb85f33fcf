// Command fetch is a pack that requests a URL through the proxy of its environment, and
// returns the status and the body, or the error. With "direct" it does not use the proxy.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"time"
)

func main() {
	var in struct {
		URL    string `json:"url"`
		Direct bool   `json:"direct"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		log.Fatal(err)
	}
	t := &http.Transport{}
	if !in.Direct {
		// http.ProxyFromEnvironment uses no proxy for loopback addresses.
		t.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(os.Getenv("HTTP_PROXY")) }
	}
	client := http.Client{Transport: t, Timeout: 5 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	out := map[string]any{}
	if r, err := client.Get(in.URL); err != nil {
		out["error"] = err.Error()
	} else {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		out["status"], out["body"] = r.StatusCode, string(body)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}
