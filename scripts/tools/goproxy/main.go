// Command goproxy runs a net/http/httputil.ReverseProxy that flushes every write to the
// client; it reads each request body completely before it forwards the request.
// Benchmarks use it as the lower bound of the cost of a gateway in Go. Usage: goproxy
// ADDR UPSTREAM.
package main

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	up, err := url.Parse(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	p := httputil.NewSingleHostReverseProxy(up)
	p.FlushInterval = -1
	p.Transport = &http.Transport{MaxIdleConnsPerHost: 512}
	log.Fatal(http.ListenAndServe(os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		p.ServeHTTP(w, r)
	})))
}
