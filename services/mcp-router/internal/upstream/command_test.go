package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// program is a command that is a server in memory. It ends with the error why.
type program struct {
	io.ReadWriteCloser
	why   error
	ended *atomic.Bool
}

// Read implements io.Reader.
func (p *program) Read(b []byte) (int, error) {
	n, err := p.ReadWriteCloser.Read(b)
	if err != nil && p.ended.Load() {
		err = p.why
	}
	return n, err
}

// TestCommand shows that sessions with a command use one process after another, that a process ends
// when it was unused for idleFor, that a process that ends in a request is an error with the
// reason and begins a delay, which a request that succeeds ends, and that the errors of a start
// keep their code.
func TestCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starts, running := 0, atomic.Int64{}
		var refuse error
		s := New(Config{Concurrency: 1, Timeout: time.Minute, Version: "t", Start: func(ctx context.Context) (io.ReadWriteCloser, error) {
			starts++
			if refuse != nil {
				return nil, refuse
			}
			own, far := net.Pipe()
			ended := &atomic.Bool{}
			srv := empty()
			srv.AddTool(&mcp.Tool{Name: "die", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				ended.Store(true)
				return &mcp.CallToolResult{}, far.Close()
			})
			srv.AddTool(&mcp.Tool{Name: "live", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{}, nil
			})
			ss, err := srv.Connect(context.WithoutCancel(ctx), &mcp.IOTransport{Reader: far, Writer: far}, nil)
			if err != nil {
				return nil, err
			}
			running.Add(1)
			go func() {
				_ = ss.Wait()
				running.Add(-1)
			}()
			return &program{own, errors.New("exit code 7"), ended}, nil
		}})
		call := func(tool string) error {
			return s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error {
				if x.Command() == nil {
					t.Error("a session without its command")
				}
				_, err := x.CallTool(ctx, &mcp.CallToolParams{Name: tool})
				return err
			})
		}
		is := func(what, code, text string, err error) {
			t.Helper()
			var e *Error
			if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, text) {
				t.Errorf("%s: %v, want %s with %s", what, err, code, text)
			}
		}
		for range 2 {
			if err := call("live"); err != nil {
				t.Fatal(err)
			}
		}
		if starts != 1 || running.Load() != 1 {
			t.Errorf("%d starts, %d processes run", starts, running.Load())
		}
		time.Sleep(idleFor + 2*time.Second)
		synctest.Wait()
		if running.Load() != 0 {
			t.Error("an unused process runs")
		}
		is("a process that ends", contract.CodeUpstreamCut, "exit code 7", call("die"))
		is("at once", contract.CodeUpstreamUnreachable, "exit code 7", call("live"))
		time.Sleep(firstDelay)
		is("again", contract.CodeUpstreamCut, "exit code 7", call("die"))
		time.Sleep(firstDelay)
		is("after half of the second delay", contract.CodeUpstreamUnreachable, "exit code 7", call("live"))
		time.Sleep(firstDelay)
		if err := call("live"); err != nil || s.Health().Failures != 0 {
			t.Error(err, s.Health())
		}
		time.Sleep(maxAge + idleFor)
		refuse = &Error{Code: contract.CodeImageMissing, Message: "no image"}
		is("a refused start", contract.CodeImageMissing, "no image", call("live"))
		is("the next one", contract.CodeUpstreamUnreachable, "no image", call("live"))
		s.Close()
		time.Sleep(2 * idleFor) // the timers of put
		synctest.Wait()
	})
}

// TestOnce shows that with Once each request has a process of its own, which ends with the request,
// and that a request that succeeds ends the delay.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starts, running := 0, atomic.Int64{}
		s := New(Config{Concurrency: 1, Timeout: time.Minute, Version: "t", Once: true, Start: func(ctx context.Context) (io.ReadWriteCloser, error) {
			if starts++; starts == 1 {
				return nil, errors.New("no image")
			}
			own, far := net.Pipe()
			ss, err := empty().Connect(context.WithoutCancel(ctx), &mcp.IOTransport{Reader: far, Writer: far}, nil)
			if err != nil {
				return nil, err
			}
			running.Add(1)
			go func() {
				_ = ss.Wait()
				running.Add(-1)
			}()
			return own, nil
		}})
		for n := range 3 {
			err := s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error { return x.Ping(ctx, nil) })
			if (err == nil) != (n > 0) {
				t.Error(n, err)
			}
			time.Sleep(firstDelay)
			synctest.Wait()
			if running.Load() != 0 {
				t.Error("a process runs after its request")
			}
		}
		if starts != 3 || s.Health().Failures != 0 {
			t.Error(starts, s.Health())
		}
		s.Close()
	})
}

// TestWatch shows that subscriptions to resources of a command are in the process that serves requests,
// which does not end as unused while one of them lasts, that each Caller gets the changes of its
// resource, and of those in it, alone, also while no request runs, and that the end of the process ends
// them.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		starts, running := 0, atomic.Int64{}
		var far io.ReadWriteCloser
		s := New(Config{Concurrency: 1, Timeout: time.Minute, Version: "t", Start: func(context.Context) (own io.ReadWriteCloser, err error) {
			starts++
			own, far = net.Pipe()
			running.Add(1)
			go func(far io.ReadWriteCloser) {
				defer running.Add(-1)
				scripted(far, func(method, params string) string {
					switch {
					case method == "initialize":
						return `"result":{"protocolVersion":"2025-11-25","capabilities":{"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}`
					case method == "ping", method == "resources/subscribe" && !strings.Contains(params, "n:none"):
						return `"result":{}`
					}
					return `"error":{"code":-32601,"message":"refused"}`
				})
			}(far)
			return own, nil
		}})
		change := func(uri string) {
			if _, err := io.WriteString(far, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"`+uri+`"}}`+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		ping := func() error {
			return s.Do(t.Context(), "k", http.Header{}, nil, func(ctx context.Context, x Session) error { return x.Ping(ctx, nil) })
		}
		if err := ping(); err != nil {
			t.Fatal(err)
		}
		var a, b caller
		one, err := s.Subscribe(t.Context(), "k", http.Header{}, &a, "n:a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := s.Subscribe(t.Context(), "k", http.Header{}, &b, "n:b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Subscribe(t.Context(), "k", http.Header{}, &b, "n:none"); code(err) != contract.CodeUpstreamRefused {
			t.Errorf("a resource that does not exist: %v", err)
		}
		time.Sleep(10 * idleFor)
		for _, uri := range []string{"n:a", "n:b/c", "n:ab", "n:none"} {
			change(uri)
		}
		synctest.Wait()
		if len(a.got) != 1 || len(b.got) != 1 {
			t.Errorf("received %v and %v", a.got, b.got)
		}
		one.Stop()
		time.Sleep(3 * idleFor)
		if err := ping(); err != nil || starts != 1 || running.Load() != 1 {
			t.Errorf("%v, %d starts, %d processes", err, starts, running.Load())
		}
		change("n:b")
		change("n:a")
		synctest.Wait()
		if len(a.got) != 1 || len(b.got) != 2 {
			t.Errorf("after the end of a subscription: received %v and %v", a.got, b.got)
		}
		other.Stop()
		time.Sleep(3 * idleFor)
		synctest.Wait()
		if running.Load() != 0 {
			t.Error("the process runs without a subscription")
		}
		<-other.Ended
		again, err := s.Subscribe(t.Context(), "k", http.Header{}, &a, "n:a")
		if err != nil || starts != 2 {
			t.Fatal(err, starts)
		}
		_ = far.Close()
		<-again.Ended
		again.Stop()
		s.Close()
		time.Sleep(3 * idleFor)
	})
}
