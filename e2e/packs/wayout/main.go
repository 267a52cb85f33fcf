// Command wayout is a pack that tries to leave its sandbox through the network: with raw requests to
// the proxy, with connections that bypass it, with TLS in a tunnel of the proxy, and with requests in
// HTTP/2 through it. It returns the result of each attempt, and the sockets that it finds.
package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	patience = 5 * time.Second        // time for a connection and the first bytes of an answer
	quiet    = 300 * time.Millisecond // after this time without a byte, an answer has ended
)

func main() {
	var in struct {
		Raw  []string `json:"raw"`  // requests to the proxy
		Dial []string `json:"dial"` // network and address
		TLS  []string `json:"tls"`  // host and port of a tunnel, and the server name for TLS in it
		H2   []string `json:"h2"`   // https URLs
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		log.Fatal(err)
	}
	out := map[string][]string{"raw": {}, "dial": {}, "tls": {}, "h2": {}, "found": found()}
	for _, text := range in.Raw {
		out["raw"] = append(out["raw"], raw(text))
	}
	for _, d := range in.Dial {
		network, address, _ := strings.Cut(d, " ")
		out["dial"] = append(out["dial"], dial(network, address))
	}
	for _, d := range in.TLS {
		tunnel, name, _ := strings.Cut(d, " ")
		out["tls"] = append(out["tls"], handshake(tunnel, name))
	}
	for _, u := range in.H2 {
		out["h2"] = append(out["h2"], request(u))
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}

// proxy connects to the proxy of the environment.
func proxy() (net.Conn, error) {
	u, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err != nil {
		return nil, err
	}
	c, err := net.DialTimeout("tcp", u.Host, patience)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

// raw sends bytes to the proxy, and returns the beginning of its answer, or the text of an error.
func raw(text string) string {
	c, err := proxy()
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error()
	}
	var answer []byte
	for b := make([]byte, 4096); len(answer) < 4096; {
		n, err := c.Read(b)
		answer = append(answer, b[:n]...)
		if err != nil {
			break
		}
		_ = c.SetDeadline(time.Now().Add(quiet))
	}
	return string(answer)
}

// dial connects past the proxy, sends a byte and waits for one. It returns "connected", or the text
// of an error after "error: ".
func dial(network, address string) string {
	c, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return "error: " + err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte{0}); err != nil {
		return "error: " + err.Error()
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return "error: " + err.Error()
	}
	return "connected"
}

// handshake makes a TLS handshake through a tunnel, with a server name that may differ from the
// tunnel's host. It returns "connected" or a description of the failure.
func handshake(tunnel, name string) string {
	c, err := proxy()
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", tunnel, tunnel)
	b := make([]byte, 1024)
	n, err := c.Read(b)
	if err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 200") {
		return "tunnel: " + string(b[:n])
	}
	t := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err := t.Handshake(); err != nil {
		return "handshake: " + err.Error()
	}
	return "connected"
}

// request requests a URL in HTTP/2, without verifying the certificate. It returns the version of HTTP, the
// status and the body of the response, or the text of an error.
func request(target string) string {
	t := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(os.Getenv("HTTP_PROXY")) }}
	r, err := (&http.Client{Transport: t, Timeout: patience}).Get(target)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, 4096))
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d %s", r.Proto, r.StatusCode, body)
}

// found returns the unix sockets of the file system that accept a connection, and inherited
// descriptors that are sockets.
func found() []string {
	out := []string{}
	_ = filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/") {
			return nil
		}
		if d.Type()&fs.ModeSocket != 0 {
			if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
				_ = c.Close()
				out = append(out, path)
			}
		}
		return nil
	})
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:") {
			out = append(out, fd)
		}
	}
	return out
}
