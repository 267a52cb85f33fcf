// Command fetch is a pack that requests a URL through the proxy of its environment, and
// returns the status and the body, or the error. With "direct" it does not use the proxy.
// With "tcp" it sends a line to that host and port through a tunnel of the proxy instead, and
// returns the status of the proxy and what the server sends until it closes the connection.
// It also returns everything that it was given, so that a test can search it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net"
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
		TCP    string `json:"tcp"`
	}
	if err := json.NewDecoder(bytes.NewReader(stdin)).Decode(&in); err != nil {
		log.Fatal(err)
	}
	out := map[string]any{"environment": append(os.Environ(), string(stdin))}
	if in.TCP != "" {
		out["status"], out["body"] = exchange(in.TCP)
		write(out)
		return
	}
	t := &http.Transport{}
	if !in.Direct {
		// http.ProxyFromEnvironment uses no proxy for loopback addresses.
		t.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(os.Getenv("HTTP_PROXY")) }
	}
	client := http.Client{Transport: t, Timeout: 15 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
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
	write(out)
}

func write(out map[string]any) {
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}

// exchange returns the status of the proxy's response to CONNECT, and the body of that
// response or, if the proxy opened the tunnel, what the server sends after it received a
// line. If the exchange fails, the status is 0 and the text is the error.
func exchange(address string) (status int, text string) {
	u, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err != nil {
		log.Fatal(err)
	}
	c, err := net.DialTimeout("tcp", u.Host, 15*time.Second)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if err := req.Write(c); err != nil {
		return 0, err.Error()
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return 0, err.Error()
	}
	from := io.Reader(r)
	if resp.StatusCode != http.StatusOK {
		from = resp.Body
	} else if _, err := io.WriteString(c, "hello\n"); err != nil {
		return 0, err.Error()
	}
	body, err := io.ReadAll(io.LimitReader(from, 1<<20))
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}
