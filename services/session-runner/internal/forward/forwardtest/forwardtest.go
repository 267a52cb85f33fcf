// Package forwardtest provides, for the tests of egress in each tier, a proxy on a unix socket,
// and a program that runs in a sandbox and tries to connect.
package forwardtest

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Proxy is an HTTP proxy that answers for every host. It accepts requests in absolute
// form, and CONNECT, after which it serves TLS for example.com with the certificate CA.
type Proxy struct {
	Name   string
	Socket string
	CA     []byte        // PEM
	held   chan struct{} // receives a value when a request for the path /hold arrives
}

// Start starts a proxy, whose answers consist of its name and the requested URL. Requests
// for the path /hold are never answered. The proxy ends with the test.
func Start(t testing.TB, name string) *Proxy {
	t.Helper()
	p := &Proxy{Name: name, held: make(chan struct{}, 1)}
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			select {
			case p.held <- struct{}{}:
			default:
			}
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, "%s %s", name, r.URL)
	}
	secure := httptest.NewTLSServer(http.HandlerFunc(answer))
	t.Cleanup(secure.Close)
	p.Socket, p.CA = filepath.Join(t.TempDir(), "s"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	l, err := net.Listen("unix", p.Socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			answer(w, r)
			return
		}
		connect(w, secure.Listener.Addr().String())
	})}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	return p
}

// AwaitHeld waits until a request for the path /hold has arrived.
func (p *Proxy) AwaitHeld(t testing.TB) {
	t.Helper()
	select {
	case <-p.held:
	case <-time.After(20 * time.Second):
		t.Fatal("no request arrived")
	}
}

// connect answers a CONNECT request and copies its connection to the TCP address.
func connect(w http.ResponseWriter, address string) {
	to, err := net.Dial("tcp", address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		_, _ = io.Copy(to, buffered)
		_ = to.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(from, to)
}

// Client builds the program testdata/client and returns its path.
func Client(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "client")
	cmd := exec.Command("go", "build", "-o", path, "github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward/forwardtest/testdata/client")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}
