package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/query"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
)

// request is the request of the query of a test.
type request struct{ Name string }

var opening = query.Bytes[request]{Info: query.Info{Service: "far", Verb: "open", Deadline: time.Minute}}

// far is a service with a Set, whose connections serve handles.
type far struct {
	set    Set
	serve  func(net.Conn)
	lose   int  // number of the frame that is lost; 0: none
	hush   bool // no frame is sent after the first one
	writes int  // number of queries that wrote; guarded by mu
	mu     sync.Mutex
}

// dialer returns a dialer of a connection with the given name.
func (f *far) dialer(name string) *Dialer {
	client := (&rpc.Client{Live: func(context.Context, string) (rpc.Instance, error) { return rpc.Instance{Name: "far-1"}, nil }, Send: f.send}).In("t")
	return &Dialer{Queries: client, Limit: time.Second, Silence: 500 * time.Millisecond, Every: 50 * time.Millisecond,
		Write: func(ctx context.Context, n int64, data []byte, last bool) error {
			f.mu.Lock()
			f.writes++
			f.mu.Unlock()
			ctx, cancel := context.WithTimeout(transient.InTenant(ctx, "t"), time.Second)
			defer cancel()
			_, err := f.set.Write(ctx, name, n, data, last)
			return err
		}, Broken: func(err error) error { return errors.Join(errBroken, err) }}
}

var errBroken = errors.New("broken")

// frames are those of a response.
type frames struct {
	all chan transient.Frame
	n   int64
}

// Next implements rpc.Frames.
func (f *frames) Next(ctx context.Context) (transient.Frame, error) {
	select {
	case <-ctx.Done():
		return transient.Frame{}, ctx.Err()
	case x := <-f.all:
		if f.n++; x.N != f.n {
			return x, transient.ErrGap
		}
		if x.Kind == transient.End {
			return x, transient.ErrEnd
		}
		return x, nil
	}
}

// Close implements rpc.Frames.
func (*frames) Close() {}

// sending is an io.Writer that sends frames.
type sending struct {
	f  *far
	to chan transient.Frame
	n  int64
}

// Write implements io.Writer.
func (s *sending) Write(b []byte) (int, error) {
	s.n++
	if s.f.hush && s.n > 1 || int(s.n) == s.f.lose {
		return len(b), nil
	}
	s.to <- transient.Frame{Kind: transient.Data, N: s.n, Data: append([]byte{}, b...)}
	return len(b), nil
}

func (f *far) send(ctx context.Context, _, _, _ string, args any) (rpc.Frames, error) {
	own, other := net.Pipe()
	ctx = transient.InTenant(ctx, transient.Tenant(ctx))
	e := &End{Conn: own, Cancel: func() { _ = own.Close() }}
	remove, err := f.set.Add(ctx, args.(request).Name, e)
	if err != nil {
		return nil, err
	}
	out := &frames{all: make(chan transient.Frame, 1024)}
	go f.serve(other)
	go func() {
		defer remove()
		w := &sending{f: f, to: out.all}
		_ = e.Send(w, []byte("hello\n"), 100*time.Millisecond)
		out.all <- transient.Frame{Kind: transient.End, N: w.n + 1}
	}()
	return out, nil
}

// echo returns what it receives.
func echo(c net.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.Close()
}

// TestTunnel shows that bytes pass through a connection in both directions, that both ends send
// queries and frames while there are no bytes, that the end at the service closes with that of the
// sender, and that a lost frame and silence break the connection.
func TestTunnel(t *testing.T) {
	f := &far{serve: echo}
	c, err := Dial(t.Context(), f.dialer("one"), opening, request{"one"})
	if err != nil {
		t.Fatal(err)
	}
	hello := make([]byte, 6)
	if _, err := io.ReadFull(c, hello); err != nil || string(hello) != "hello\n" {
		t.Fatalf("%q, %v", hello, err)
	}
	text := strings.Repeat("x", 3*pieceSize)
	go func() { _, _ = io.WriteString(c, text) }()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	f.mu.Lock()
	before := f.writes
	f.mu.Unlock()
	time.Sleep(time.Second) // longer than Silence
	f.mu.Lock()
	if f.writes-before < 5 {
		t.Errorf("%d queries wrote in a second", f.writes-before)
	}
	f.mu.Unlock()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	f.set.Close() // waits for the end at the service
	if _, err := Dial(t.Context(), f.dialer("two"), opening, request{"two"}); rpc.CodeOf(err) != contract.CodeUnavailable {
		t.Errorf("after Close: %v", err)
	}
	for what, f := range map[string]*far{"a lost frame": {serve: echo, lose: 2}, "silence": {serve: echo, hush: true}} {
		c, err := Dial(t.Context(), f.dialer("one"), opening, request{"one"})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := io.Copy(io.Discard, c); !errors.Is(err, errBroken) || time.Since(began) > 10*time.Second {
			t.Errorf("%s: %v after %v", what, err, time.Since(began))
		}
		_ = c.Close()
		f.set.Close()
	}
}

// TestSet shows which queries are refused: those for another tenant's connection, those out of
// order, and connections with a name in use.
func TestSet(t *testing.T) {
	var s Set
	ctx := transient.InTenant(t.Context(), "t")
	own, other := net.Pipe()
	go echo(other)
	e := &End{Conn: own, Cancel: func() {}}
	remove, err := s.Add(ctx, "one", e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Add(ctx, "one", e); rpc.CodeOf(err) != contract.CodeInvalidInput {
		t.Errorf("a name in use: %v", err)
	}
	if _, err := s.Add(ctx, "o.e", e); rpc.CodeOf(err) != contract.CodeInvalidInput {
		t.Errorf("no name: %v", err)
	}
	if _, err := s.Write(transient.InTenant(t.Context(), "u"), "one", 1, nil, true); rpc.CodeOf(err) != contract.CodeNotFound {
		t.Errorf("of another tenant: %v", err)
	}
	if _, err := s.Write(ctx, "one", 2, nil, false); rpc.CodeOf(err) != contract.CodeInvalidInput {
		t.Errorf("out of order: %v", err)
	}
	if ok, err := s.Write(ctx, "one", 1, nil, true); !ok || err != nil || !e.Left() || time.Since(e.Used()) > time.Minute {
		t.Errorf("%v, %v", ok, err)
	}
	remove()
	if _, err := s.Write(ctx, "one", 2, nil, false); rpc.CodeOf(err) != contract.CodeNotFound {
		t.Errorf("after its end: %v", err)
	}
}
