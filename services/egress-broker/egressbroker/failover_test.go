package egressbroker

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/egress/endpoint"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// brokers are several brokers of one mesh, and the transport of the queries to them.
type brokers struct {
	all   []*broker
	dead  []atomic.Bool  // the process was killed: it neither receives nor sends
	dials []atomic.Int64 // queries connect
}

// newBrokers starts n brokers with an endpoint, "hook".
func newBrokers(t *testing.T, n int, url string) *brokers {
	bs := &brokers{dead: make([]atomic.Bool, n), dials: make([]atomic.Int64, n)}
	for range n {
		b := newBroker(t, t.TempDir())
		var err error
		if b.endpoints.named, err = parseEndpoints(map[string][]string{"hook": {url}}); err != nil {
			t.Fatal(err)
		}
		bs.all = append(bs.all, b)
	}
	return bs
}

// client returns a client of the queries of the brokers, which does not notice that one is killed.
func (bs *brokers) client() *rpc.Client {
	c := &rpc.Client{Send: bs.send, All: func(context.Context, string) (all []rpc.Instance, err error) {
		for i := range bs.all {
			all = append(all, rpc.Instance{Name: strconv.Itoa(i)})
		}
		return all, nil
	}}
	return c.In("t")
}

// send sends a query to a broker, as a transient.Transport does.
func (bs *brokers) send(ctx context.Context, _, to, verb string, args any) (rpc.Frames, error) {
	i, err := strconv.Atoi(to)
	if err != nil {
		return nil, err
	}
	f := &sentFrames{dead: &bs.dead[i], wake: make(chan struct{}, 1)}
	if bs.dead[i].Load() {
		return f, nil
	}
	b := bs.all[i]
	life := transient.InTenant(context.Background(), transient.Tenant(ctx)) // a handler does not notice that the sender leaves
	go func() {
		switch q := args.(type) {
		case events.ConnectRequest:
			bs.dials[i].Add(1)
			f.end(b.endpoints.connect(life, &q, f))
		case events.ConnectionWriteRequest:
			_, err := b.endpoints.tunnels.write(life, &q)
			if err == nil {
				_, _ = f.Write([]byte("true"))
			}
			f.end(err)
		default:
			f.end(errors.New(verb))
		}
	}()
	return f, nil
}

// sentFrames are the frames of a response. They get lost once the broker is dead.
type sentFrames struct {
	dead *atomic.Bool
	wake chan struct{}

	mu     sync.Mutex
	frames []transient.Frame
	err    error // after the frames
}

// Write implements io.Writer, as that of a handler of rpc.ServeBytes.
func (f *sentFrames) Write(b []byte) (int, error) {
	f.push(&transient.Frame{Data: append([]byte(nil), b...)}, nil)
	return len(b), nil
}

func (f *sentFrames) end(err error) {
	if err == nil {
		err = transient.ErrEnd
	}
	f.push(nil, err)
}

func (f *sentFrames) push(frame *transient.Frame, err error) {
	if f.dead.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err = err; frame != nil {
		f.frames = append(f.frames, *frame)
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Next implements rpc.Frames.
func (f *sentFrames) Next(ctx context.Context) (transient.Frame, error) {
	for {
		f.mu.Lock()
		if len(f.frames) > 0 {
			frame := f.frames[0]
			f.frames = f.frames[1:]
			f.mu.Unlock()
			return frame, nil
		}
		err := f.err
		f.mu.Unlock()
		if err != nil {
			return transient.Frame{}, err
		}
		select {
		case <-ctx.Done():
			return transient.Frame{}, ctx.Err()
		case <-f.wake:
		}
	}
}

// Close implements rpc.Frames.
func (*sentFrames) Close() {}

// do sends a request through the brokers, calls part when a part of the response's body has arrived, and
// reads the rest. conf is for a server with TLS.
func (bs *brokers) do(t *testing.T, method, url string, conf *tls.Config, part func()) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("a notice"))
	if err != nil {
		t.Fatal(err)
	}
	through := endpoint.New(bs.client(), "hook", "e-1")
	through.TLSClientConfig = conf
	resp, err := through.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		return "", err
	}
	part()
	body, err := io.ReadAll(resp.Body)
	return string(first) + string(body), err
}

// end ends the brokers that have opened a connection: they stop, or are killed.
func (bs *brokers) end(stop bool) {
	for i := range bs.all {
		switch {
		case bs.dials[i].Load() == 0:
		case stop:
			go bs.all[i].endpoints.tunnels.Close()
		default:
			bs.dead[i].Store(true)
		}
	}
}

// soon is the maximum time in which the loss of a broker is noticed, with a margin for a slow
// machine.
const soon = 15 * time.Second

// TestBrokersShare shows that connections are spread over the brokers, that a connection is opened
// by another broker if the selected one was killed or stops, and that a request which takes longer
// than the death of a broker takes to notice is not interrupted.
func TestBrokersShare(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			time.Sleep(2 * time.Second)
		}
		_, _ = io.Copy(w, r.Body)
	}))
	defer site.Close()
	bs := newBrokers(t, 3, site.URL)
	check := func(path string) {
		t.Helper()
		began := time.Now()
		body, err := bs.do(t, http.MethodPost, site.URL+path, nil, func() {})
		if took := time.Since(began); err != nil || body != "a notice" || path == "" && took > soon {
			t.Errorf("%q %v %v", body, took, err)
		}
	}
	check("/slow")
	for range 60 { // all miss one broker once in 10^10 runs
		check("")
	}
	for i := range bs.dials {
		if bs.dials[i].Load() == 0 {
			t.Errorf("broker %d got none of 60 connections", i)
		}
	}
	bs.dead[0].Store(true)
	bs.all[1].endpoints.tunnels.Close()
	for range 4 {
		check("")
	}
	bs.dead[2].Store(true)
	began := time.Now()
	if _, err := bs.do(t, http.MethodPost, site.URL, nil, func() {}); err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("without a broker: %v after %v", err, time.Since(began))
	}
}

// TestBrokerKilled shows what happens to a request when its broker is killed or stops. If no response
// has begun and the method is GET, it is sent through the other broker. A notice that the server may
// have received is not sent twice, and fails with a *endpoint.Lost, as does a response of which a part
// has arrived. All of it happens within seconds.
func TestBrokerKilled(t *testing.T) {
	for name, c := range map[string]struct {
		method, path string
		stop, lost   bool
		requests     int64
	}{
		"POST":             {method: http.MethodPost, path: "/hang", lost: true, requests: 1},
		"GET":              {method: http.MethodGet, path: "/hang", requests: 2},
		"GET, a part":      {method: http.MethodGet, path: "/part", lost: true, requests: 1},
		"POST, stop":       {method: http.MethodPost, path: "/hang", stop: true, lost: true, requests: 1},
		"GET, stop":        {method: http.MethodGet, path: "/hang", stop: true, requests: 2},
		"GET, stop a part": {method: http.MethodGet, path: "/part", stop: true, lost: true, requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			reached, done := make(chan struct{}), make(chan struct{})
			site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if requests.Add(1) > 1 {
					_, _ = io.WriteString(w, "whole")
					return
				}
				if r.URL.Path == "/part" {
					_, _ = io.WriteString(w, "a part")
					_ = http.NewResponseController(w).Flush()
				} else {
					close(reached)
				}
				<-done
			}))
			defer site.Close()
			defer close(done)
			bs := newBrokers(t, 2, site.URL)
			ended := make(chan time.Time, 1)
			go func() {
				<-reached
				ended <- time.Now()
				bs.end(c.stop)
			}()
			body, err := bs.do(t, c.method, site.URL+c.path, nil, func() {
				if c.path == "/part" {
					close(reached)
				}
			})
			if took := time.Since(<-ended); took > soon {
				t.Errorf("the end of the broker was noticed after %v", took)
			}
			lost := (*endpoint.Lost)(nil)
			if errors.As(err, &lost) != c.lost || err == nil && body != "whole" {
				t.Errorf("%q %v", body, err)
			}
			if n := requests.Load(); n != c.requests {
				t.Errorf("%d requests, want %d", n, c.requests)
			}
		})
	}
}

// TestBrokerKilledInHandshake shows that a request whose broker is killed while TLS is negotiated with
// the server is sent through the other broker, once, also if its method is POST.
func TestBrokerKilledInHandshake(t *testing.T) {
	var requests, handshakes atomic.Int64
	done := make(chan struct{})
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(w, r.Body)
	}))
	var bs *brokers
	site.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if handshakes.Add(1) == 1 {
			bs.end(false)
			<-done
		}
		return nil, nil
	}}
	site.Config.ErrorLog = log.New(io.Discard, "", 0) // the first handshake fails
	site.StartTLS()
	defer site.Close()
	defer close(done)
	bs = newBrokers(t, 2, site.URL)
	began := time.Now()
	body, err := bs.do(t, http.MethodPost, site.URL, site.Client().Transport.(*http.Transport).TLSClientConfig, func() {})
	if took := time.Since(began); err != nil || body != "a notice" || took > soon {
		t.Errorf("%q %v after %v", body, err, took)
	}
	if requests.Load() != 1 || handshakes.Load() != 2 {
		t.Errorf("%d requests, %d handshakes", requests.Load(), handshakes.Load())
	}
}
