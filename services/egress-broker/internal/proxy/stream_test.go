package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// webSocket accepts an upgrade, except for the path /no, and sends each line that it reads back in
// a frame. For the line "leak" it sends the X-Auth-Token field in two writes, and then a frame
// with "after".
func webSocket(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" || r.URL.Path == "/no" {
		w.WriteHeader(http.StatusUpgradeRequired)
		return
	}
	c, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Extensions: "+r.Header.Get("Sec-Websocket-Extensions")+"\r\n\r\n")
	for {
		line, err := buf.Reader.ReadString('\n')
		if err != nil {
			return
		}
		if line == "leak\n" {
			leaked := frame(r.Header.Get("X-Auth-Token"))
			_, _ = c.Write(leaked[:20])
			_, _ = c.Write(leaked[20:])
			_, _ = c.Write(frame("after"))
			continue
		}
		_, _ = c.Write(frame(line))
	}
}

// upgradeVia opens a WebSocket connection through the proxy, and returns the connection, a reader
// of it, and the response to the upgrade.
func upgradeVia(t *testing.T, r *running, hostPort, path string) (io.ReadWriteCloser, *bufio.Reader, *http.Response) {
	conn := r.raw(t)
	_, _ = fmt.Fprintf(conn, "GET http://%s%s HTTP/1.1\r\nHost: %[1]s\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n", hostPort, path)
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, br, res
}

func TestWebSocket(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(webSocket))
	defer s.Close()
	n := port(t, s.URL)
	hostPort := fmt.Sprintf("api.example.org:%d", n)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}}})
	conn, br, res := upgradeVia(t, r, hostPort, "/")
	if res.StatusCode != 101 || res.Header.Get("X-Extensions") != "permessage-deflate" {
		t.Fatalf("%s %v", res.Status, res.Header)
	}
	for range 3 {
		_, _ = io.WriteString(conn, "ping\n")
		b := make([]byte, 9)
		if _, err := io.ReadFull(br, b); err != nil || string(b[4:]) != "ping\n" {
			t.Fatalf("%q %v", b, err)
		}
	}
	_ = conn.Close()
	if f := r.last(t, 1); f.Status != 101 || f.BytesOut < 15 || f.BytesIn < 27 || f.Method != "GET" {
		t.Fatalf("%+v", f)
	}
	// After a refused upgrade the connection ends, since framing did not check the bytes after it.
	conn, br, res = upgradeVia(t, r, hostPort, "/no")
	_, _ = io.WriteString(conn, "GET http://"+hostPort+"/ HTTP/1.1\r\nHost: "+hostPort+"\r\n\r\n")
	if rest, err := io.ReadAll(br); res.StatusCode != 426 || err != nil || len(rest) > 0 {
		t.Fatalf("%s, then %q %v", res.Status, rest, err)
	}
	if n := len(r.flows(t, 2)); n != 2 {
		t.Fatalf("%d flows", n)
	}
}

// TestWebSocketCredential requires that an upgraded connection ends before it returns the
// credential.
func TestWebSocketCredential(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(webSocket))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, withCredential(netrule.Rule{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}))
	conn, br, res := upgradeVia(t, r, fmt.Sprintf("api.example.org:%d", n), "/")
	if res.StatusCode != 101 || res.Header.Get("X-Extensions") != "" {
		t.Fatalf("%s %v", res.Status, res.Header)
	}
	_, _ = io.WriteString(conn, "ping\n")
	if _, err := io.ReadFull(br, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "leak\n")
	b, err := io.ReadAll(br)
	if f := r.last(t, 1); strings.Contains(string(b), secret[:4]) || strings.Contains(string(b), "after") || f.Reason != CredentialEchoed {
		t.Fatalf("%q %v %+v", b, err, f)
	}
}

// TestCredentialOfAnotherFlow requires that a credential is removed also from the response to
// another request, which has no credential and began before the credential was used.
func TestCredentialOfAnotherFlow(t *testing.T) {
	posted := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/secret" {
			posted <- r.Header.Get("X-Auth-Token")
			return
		}
		_, _ = io.WriteString(w, "wait\n")
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, <-posted+" end")
	}))
	defer s.Close()
	n := port(t, s.URL)
	cfg := withCredential(netrule.Rule{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP, Paths: []string{"/secret"}})
	cfg.Rules = append(cfg.Rules, netrule.Rule{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP})
	r := start(t, cfg)
	c := r.client(t)
	res, err := c.Get(fmt.Sprintf("http://api.example.org:%d/poll", n))
	if err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(res.Body)
	if line, err := br.ReadString('\n'); err != nil || line != "wait\n" {
		t.Fatalf("%q %v", line, err)
	}
	get(t, c, fmt.Sprintf("http://api.example.org:%d/secret", n))
	if rest, err := io.ReadAll(br); err != nil || string(rest) != "Bearer [secret:token] end" {
		t.Fatalf("%q %v", rest, err)
	}
}

// TestTrailersCount requires that trailers count as bytes of the flow.
func TestTrailersCount(t *testing.T) {
	big := strings.Repeat("t", 3000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-T")
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "x")
		w.Header().Set("X-T", r.Trailer.Get("X-T"))
	}))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}}})
	req := request(t, "POST", fmt.Sprintf("http://api.example.org:%d/", n), struct{ io.Reader }{strings.NewReader("abc")})
	req.Trailer = http.Header{"X-T": {big}}
	res, _ := do(t, r.client(t), req)
	if f := r.last(t, 1); res.Trailer.Get("X-T") != big || f.BytesOut < 3000 || f.BytesIn < 3000 || f.BytesOut > 4000 || f.BytesIn > 4000 {
		t.Fatalf("%v %+v", res.Trailer, f)
	}
}

// TestStreaming requires that each piece of a response reaches the client before the next
// is sent, and the same for a request, as in gRPC: HTTP/2 on both sides, and trailers.
func TestStreaming(t *testing.T) {
	s, roots := secure(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		w.Header().Set("X-Te", r.Header.Get("Te"))
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		sc := bufio.NewScanner(r.Body)
		for sc.Scan() {
			_, _ = io.WriteString(w, strings.ToUpper(sc.Text())+"\n")
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Grpc-Status", "0")
	}), true)
	n := port(t, s.URL)
	for _, credential := range []bool{false, true} {
		cfg := Config{Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.Terminate}}}
		if credential {
			cfg = withCredential(cfg.Rules[0])
		}
		cfg.Addresses, cfg.Roots = loopback, roots
		r := start(t, cfg)
		body, in := io.Pipe()
		req := request(t, "POST", fmt.Sprintf("https://api.example.org:%d/pkg.Service/Method", n), body)
		req.Header.Set("Te", "trailers")
		res, err := r.client(t).Do(req)
		if err != nil || res.StatusCode != 200 || res.Header.Get("X-Te") != "trailers" {
			t.Fatalf("%v %v", res, err)
		}
		br := bufio.NewReader(res.Body)
		for i := range 20 {
			_, _ = fmt.Fprintf(in, "message %d\n", i)
			if line, err := br.ReadString('\n'); err != nil || line != fmt.Sprintf("MESSAGE %d\n", i) {
				t.Fatalf("%q %v", line, err)
			}
		}
		_ = in.Close()
		if rest, err := io.ReadAll(br); err != nil || len(rest) > 0 || res.Trailer.Get("Grpc-Status") != "0" {
			t.Fatalf("%q %v %v", rest, err, res.Trailer)
		}
		if f := r.last(t, 1); f.Reason != "" || f.Status != 200 {
			t.Fatalf("%+v", f)
		}
	}
}

// TestSlowResponse requires that a part of a response of known length is passed on at once.
func TestSlowResponse(t *testing.T) {
	read := make(chan bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		<-read
		_, _ = io.WriteString(w, "after")
	}))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}}})
	res, err := r.client(t).Get(fmt.Sprintf("http://api.example.org:%d/", n))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "first" {
		t.Fatalf("%q %v", b, err)
	}
	close(read)
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "after" {
		t.Fatalf("%q %v", rest, err)
	}
}

// TestBytes requires that all flows of a call share the allowance, in the modes HTTP and
// TCP, and that no byte beyond it is passed on.
func TestBytes(t *testing.T) {
	const limit = 100 << 10
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if n == 0 {
			_, _ = w.Write(make([]byte, 64<<10))
		}
	}))
	defer s.Close()
	n := port(t, s.URL)
	for _, mode := range []string{netrule.HTTP, netrule.TCP} {
		r := start(t, Config{Addresses: loopback, Limits: Limits{Bytes: limit}, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: mode}}})
		c := r.client(t)
		base := fmt.Sprintf("http://api.example.org:%d/", n)
		if mode == netrule.TCP {
			c.Transport.(*http.Transport).Proxy = nil
			c.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
				return tunnelTo(t, r, fmt.Sprintf("api.example.org:%d", n)), nil
			}
		}
		if res, body := get(t, c, base); res.StatusCode != 200 || len(body) != 64<<10 {
			t.Fatalf("%s: %s, %d bytes", mode, res.Status, len(body))
		}
		res, err := c.Get(base)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		if err == nil {
			t.Fatalf("%s: a response beyond the allowance was complete", mode)
		}
		c.CloseIdleConnections()
		recs := r.flows(t, map[string]int{netrule.HTTP: 2, netrule.TCP: 1}[mode])
		if last := recs[len(recs)-1]; last.Reason != BytesExceeded {
			t.Fatalf("%s: %+v", mode, recs)
		}
		if sum := r.Totals(); sum.BytesIn+sum.BytesOut > limit || sum.BytesIn < 64<<10 {
			t.Fatalf("%s: %+v", mode, sum)
		}
		conn := r.raw(t)
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: api.example.org:%d\r\n\r\n", base, n)
		if mode == netrule.HTTP {
			if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != 429 {
				t.Fatalf("%s: %v %v", mode, res, err)
			}
		}
	}
}

// TestCancel requires that the end of the call ends its flows within three seconds, and that
// they are recorded with the reason Cancelled.
func TestCancel(t *testing.T) {
	entered := make(chan bool, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		entered <- true
		<-r.Context().Done()
	}))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}, {Host: "tcp.example.org", Port: int64(n), Mode: netrule.TCP}}})
	res, err := r.client(t).Get(fmt.Sprintf("http://api.example.org:%d/", n))
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	conn := tunnelTo(t, r, fmt.Sprintf("tcp.example.org:%d", n))
	start := time.Now()
	r.stop()
	if took := time.Since(start); took > 3*time.Second {
		t.Fatalf("Serve returned after %v", took)
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Fatal("the response was complete")
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("the tunnel is open")
	}
	recs := r.flows(t, 2)
	for _, f := range recs {
		if f.Reason != Cancelled {
			t.Fatalf("%+v", recs)
		}
	}
}

// TestClientLeaves requires that the request to the server ends when the client closes its
// connection.
func TestClientLeaves(t *testing.T) {
	entered, left := make(chan bool), make(chan bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- true
		<-r.Context().Done()
		left <- true
	}))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}}})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-entered; cancel() }()
	_, err := r.client(t).Do(request(t, "GET", fmt.Sprintf("http://api.example.org:%d/", n), nil).WithContext(ctx))
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	<-left
	if f := r.last(t, 1); f.Reason != ClientFailed {
		t.Fatalf("%+v", f)
	}
}

// TestThousandFlows requires that 1,000 flows, of three modes or denied, are recorded, and
// leave at most two more goroutines and file descriptors than before.
func TestThousandFlows(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(echo))
	defer plain.Close()
	tlsServer, roots := secure(t, http.HandlerFunc(echo), true)
	nPlain, nTLS := port(t, plain.URL), port(t, tlsServer.URL)
	goroutines, fds := runtime.NumGoroutine(), openFiles(t)
	func() {
		r := start(t, Config{Addresses: loopback, Roots: roots, Limits: Limits{Flows: 100}, Rules: []netrule.Rule{
			{Host: "plain.example.org", Port: int64(nPlain), Mode: netrule.HTTP}, {Host: "api.example.org", Port: int64(nTLS), Mode: netrule.Terminate}, {Host: "tcp.example.org", Port: int64(nPlain), Mode: netrule.TCP}}})
		c := r.client(t)
		c.Transport.(*http.Transport).DisableKeepAlives = true
		var wg sync.WaitGroup
		for w := range 10 {
			wg.Go(func() {
				for i := range 100 {
					switch (w + i) % 4 {
					case 0:
						get(t, c, fmt.Sprintf("http://plain.example.org:%d/", nPlain))
					case 1:
						get(t, c, fmt.Sprintf("https://api.example.org:%d/", nTLS))
					case 2:
						conn := tunnelTo(t, r, fmt.Sprintf("tcp.example.org:%d", nPlain))
						_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
						_, _ = io.ReadAll(conn)
						_ = conn.Close()
					case 3:
						get(t, c, fmt.Sprintf("http://denied.example.org:%d/", nPlain))
					}
				}
			})
		}
		wg.Wait()
		if got := len(r.flows(t, 1000)); got != 1000 {
			t.Errorf("%d flows", got)
		}
		r.stop()
		c.CloseIdleConnections()
	}()
	plain.CloseClientConnections()
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > goroutines+2 || openFiles(t) > fds+2 {
		if time.Now().After(deadline) {
			buf := make([]byte, 64<<10)
			t.Fatalf("%d goroutines, %d files; before %d, %d\n%s", runtime.NumGoroutine(), openFiles(t), goroutines, fds, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// TestFlowLimit requires that a flow beyond the limit is denied.
func TestFlowLimit(t *testing.T) {
	release := make(chan bool)
	entered := make(chan bool, 2)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { entered <- true; <-release }))
	defer s.Close()
	n := port(t, s.URL)
	r := start(t, Config{Addresses: loopback, Limits: Limits{Flows: 2}, Rules: []netrule.Rule{{Host: "api.example.org", Port: int64(n), Mode: netrule.HTTP}}})
	c := r.client(t)
	u := fmt.Sprintf("http://api.example.org:%d/", n)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { get(t, c, u) })
	}
	<-entered
	<-entered
	if res, _ := get(t, c, u); res.StatusCode != 429 || r.last(t, 1).Reason != FlowsExceeded {
		t.Fatalf("%s %+v", res.Status, r.flows(t, 1))
	}
	close(release)
	wg.Wait()
}
