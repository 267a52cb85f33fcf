package endpoint

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	"github.com/binnacle-mesh/binnacle/schemas/egressbroker"
)

// broker answers the queries of one connection as the egress-broker does. handle serves the
// connection in place of the broker's proxy.
type broker struct {
	handle  func(net.Conn)
	refuse  error      // of connect
	mu      sync.Mutex // guards the fields below: net/http closes a connection in a goroutine of its own
	conn    net.Conn
	tenants []string
	wrote   int64
}

func (b *broker) client() *rpc.Client {
	return &rpc.Client{Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{Name: "egress-broker-1"}, nil }, Send: b.send}
}

func (b *broker) send(ctx context.Context, _, _, verb string, args any) (rpc.Frames, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tenants = append(b.tenants, transient.Tenant(ctx))
	switch q := args.(type) {
	case egressbroker.ConnectRequest:
		if b.refuse != nil {
			return nil, b.refuse
		}
		own, far := net.Pipe()
		b.conn = own
		go b.handle(far)
		return &frames{next: func() ([]byte, error) {
			buf := make([]byte, 1024)
			n, err := own.Read(buf)
			return buf[:n], err
		}, first: true}, nil
	case egressbroker.ConnectionWriteRequest:
		if b.wrote++; q.N != b.wrote {
			return nil, errors.New("out of order")
		}
		if b.conn == nil {
			return nil, errors.New("no connection")
		}
		_, err := b.conn.Write(q.Data)
		if q.Close {
			_ = b.conn.Close()
		}
		once := true
		return &frames{next: func() ([]byte, error) {
			if !once {
				return nil, io.EOF
			}
			once = false
			return []byte("true"), err
		}}, nil
	}
	return nil, errors.New(verb)
}

// frames is a response.
type frames struct {
	next  func() ([]byte, error)
	first bool // the zero byte that confirms the connection has not been returned
}

// Next implements rpc.Frames.
func (f *frames) Next(context.Context) (transient.Frame, error) {
	if f.first {
		f.first = false
		return transient.Frame{Data: []byte{0}}, nil
	}
	b, err := f.next()
	if len(b) > 0 {
		return transient.Frame{Data: b}, nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		err = transient.ErrEnd
	}
	return transient.Frame{}, err
}

// Close implements rpc.Frames.
func (*frames) Close() {}

// TestRoundTrip shows that a request passes through a connection to the broker, for the tenant of
// the client; that the broker's refusals and failures are errors that name the reason; and that a
// connection which ends without a response is an error.
func TestRoundTrip(t *testing.T) {
	respond := func(status string) func(net.Conn) {
		return func(c net.Conn) {
			defer c.Close()
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(c, "HTTP/1.1 "+status+"\r\nConnection: close\r\n\r\n"+r.Method+" "+r.RequestURI)
			}
		}
	}
	get := func(b *broker, url string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(b.client().In("t"), "bundles", "e-1").RoundTrip(req)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		if err := Refusal("bundles", r); err != nil {
			return "", err
		}
		body, err := io.ReadAll(r.Body)
		return string(body), err
	}
	good := &broker{handle: respond("200 OK")}
	if body, err := get(good, "http://a.example/x"); err != nil || body != "GET http://a.example/x" {
		t.Error(body, err)
	}
	good.mu.Lock()
	defer good.mu.Unlock()
	for _, tenant := range good.tenants {
		if tenant != "t" {
			t.Error("a query of tenant", tenant)
		}
	}
	denied := "403 Forbidden\r\nProxy-Status: egress-broker; details=\"address_blocked\""
	for url, b := range map[string]*broker{"http://a.example/x": {handle: respond(denied)}, "https://a.example/x": {handle: respond(denied)}} {
		var is *Denied
		if _, err := get(b, url); !errors.As(err, &is) || is.Reason != "address_blocked" || !strings.Contains(err.Error(), "egress-broker.networks") {
			t.Errorf("%s: %v", url, err)
		}
	}
	failed := "502 Bad Gateway\r\nProxy-Status: egress-broker; details=\"connect_failed\""
	for url, b := range map[string]*broker{"http://a.example/x": {handle: respond(failed)}, "https://a.example/x": {handle: respond(failed)}} {
		var is *Denied
		if _, err := get(b, url); err == nil || errors.As(err, &is) || !strings.Contains(err.Error(), "connect_failed") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"http://a.example/x", "https://a.example/x"} {
		var is *Denied
		if _, err := get(&broker{refuse: rpc.Errorf(contract.CodeNotFound, "no endpoint bundles")}, url); !errors.As(err, &is) || is.Reason != "endpoint_unknown" || !strings.Contains(err.Error(), "policy.bundle_servers is not set") {
			t.Errorf("an unknown endpoint, %s: %v", url, err)
		}
	}
	if _, err := get(&broker{refuse: rpc.Errorf(contract.CodeUnavailable, "the egress-broker stops")}, "http://a.example/x"); err == nil || !strings.Contains(err.Error(), "the egress-broker stops") {
		t.Error("a broker that stops:", err)
	}
	if _, err := get(&broker{handle: func(c net.Conn) { _ = c.Close() }}, "http://a.example/x"); err == nil {
		t.Error("a connection that ends without a response is no error")
	}
}
