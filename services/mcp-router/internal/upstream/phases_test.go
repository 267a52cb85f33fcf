package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// sink receives what a server sends in response to one request.
type sink struct {
	message func(string) // sends a message, and the end of the response if the transport has one
	part    func(string) // sends the beginning of a message
	cut     func()       // ends the connection
	hang    func()       // waits until the client ends the connection or the request
}

// notification is a message that a server may send before a response.
const notification = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`

// faults are the ways in which a server fails, or misbehaves, at a request with an id.
var faults = map[string]func(s sink, id string){
	"never responds":       func(s sink, _ string) { s.hang() },
	"dies before a byte":   func(s sink, _ string) { s.cut() },
	"dies in a message":    func(s sink, id string) { s.part(`{"jsonrpc":"2.0","id":` + id + `,"res`); s.cut() },
	"dies after a message": func(s sink, _ string) { s.part(notification); s.cut() },
	"sends no JSON":        func(s sink, _ string) { s.message("no JSON"); s.hang() },
	"sends a batch":        func(s sink, id string) { s.message(`[{"jsonrpc":"2.0","id":` + id + `,"result":{}}]`) },
	"sends another id":     func(s sink, _ string) { s.message(`{"jsonrpc":"2.0","id":99999,"result":{}}`); s.hang() },
	"sends a wrong type":   func(s sink, id string) { s.message(`{"jsonrpc":"2.0","id":` + id + `,"result":7}`) },
	"sends an error": func(s sink, id string) {
		s.message(`{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32000,"message":"no"}}`)
	},
	"sends a malformed error": func(s sink, id string) { s.message(`{"jsonrpc":"2.0","id":` + id + `,"error":7}`); s.hang() },
	"sends too long a message": func(s sink, id string) {
		s.message(`{"jsonrpc":"2.0","id":` + id + `,"result":{"x":"` + strings.Repeat("x", maxBody) + `"}}`)
		s.hang()
	},
	"floods and dies": func(s sink, _ string) {
		for range 2000 {
			s.part(notification)
		}
		s.cut()
	},
}

// wires are the transports, each with the first request of a session.
var wires = map[string]string{"http, 2026-07-28": "server/discover", "http, 2025-11-25, streams": "initialize", "http, 2025-11-25, JSON": "initialize", "SSE": "initialize", "stdio": "initialize"}

// failing is a server that fails at requests of one method.
type failing struct {
	wire, method string
	fault        func(sink, string)
	works        atomic.Bool // instead of failing
}

// results are those of a server that works, by method.
var results = map[string]string{
	"initialize":      `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"f","version":"1"}}`,
	"server/discover": `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}`,
	"tools/list":      `{"resultType":"complete","tools":[{"name":"a","inputSchema":{"type":"object"}}],"ttlMs":0,"cacheScope":"private"}`,
	"tools/call":      `{"resultType":"complete","content":[{"type":"text","text":"x"}]}`,
}

// answer responds to a message, unless it is a notification.
func (f *failing) answer(raw []byte, s sink) (request bool) {
	var m struct {
		ID     json.RawMessage
		Method string
	}
	if json.Unmarshal(raw, &m) != nil || len(m.ID) == 0 {
		return false
	}
	id := string(m.ID)
	first := wires[f.wire]
	switch {
	case m.Method == f.method && !f.works.Load():
		f.fault(s, id)
	case m.Method == "initialize" && first != m.Method, m.Method == "server/discover" && first != m.Method, results[m.Method] == "":
		s.message(`{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32601,"message":"no such method"}}`)
	default:
		s.message(`{"jsonrpc":"2.0","id":` + id + `,"result":` + results[m.Method] + `}`)
	}
	return true
}

// ServeHTTP implements http.Handler, for the streamable transport.
func (f *failing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "no stream", http.StatusMethodNotAllowed)
		return
	}
	raw, _ := io.ReadAll(r.Body)
	inJSON := strings.HasSuffix(f.wire, "JSON")
	write := func(text string) {
		if inJSON {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		} else {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: "+text)
		}
	}
	flush := func() { _ = http.NewResponseController(w).Flush() }
	if !f.answer(raw, sink{
		message: func(text string) {
			if write(text); !inJSON {
				_, _ = io.WriteString(w, "\n\n")
			}
			flush()
		},
		part: func(text string) {
			if write(text); !inJSON && strings.HasSuffix(text, "}") {
				_, _ = io.WriteString(w, "\n\n")
			}
			flush()
		},
		cut:  func() { panic(http.ErrAbortHandler) },
		hang: func() { <-r.Context().Done() },
	}) {
		w.WriteHeader(http.StatusAccepted)
	}
}

// legacy returns the handler of the transport SSE.
func (f *failing) legacy() http.Handler {
	type event func(http.ResponseWriter)
	var streams sync.Map // chan event, by number
	var n atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		in, name := make(chan event), fmt.Sprint(n.Add(1))
		streams.Store(name, in)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: endpoint\ndata: /post?stream=%s\n\n", name)
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case send := <-in:
				send(w)
			}
		}
	})
	mux.HandleFunc("POST /post", func(w http.ResponseWriter, r *http.Request) {
		stream, _ := streams.Load(r.URL.Query().Get("stream"))
		in := stream.(chan event)
		raw, _ := io.ReadAll(r.Body)
		defer w.WriteHeader(http.StatusAccepted) // the client closes the connection when it has received it
		send := func(e event) {
			select {
			case in <- e:
			case <-r.Context().Done():
			case <-time.After(time.Second): // the stream has ended
			}
		}
		f.answer(raw, sink{
			message: func(text string) {
				send(func(w http.ResponseWriter) { fmt.Fprintf(w, "event: message\ndata: %s\n\n", text) })
			},
			part: func(text string) {
				send(func(w http.ResponseWriter) {
					fmt.Fprintf(w, "event: message\ndata: %s%s", text, strings.Repeat("\n\n", strings.Count(text, "}}")))
				})
			},
			cut:  func() { send(func(http.ResponseWriter) { panic(http.ErrAbortHandler) }) },
			hang: func() {},
		})
	})
	return mux
}

// command returns the function that starts a server on standard input and output.
func (f *failing) command(context.Context) (io.ReadWriteCloser, error) {
	own, far := net.Pipe()
	go func() {
		defer far.Close()
		in := json.NewDecoder(far)
		for raw := json.RawMessage(nil); in.Decode(&raw) == nil; {
			ended := false
			f.answer(raw, sink{
				message: func(text string) { _, _ = io.WriteString(far, text+"\n") },
				part: func(text string) {
					_, _ = io.WriteString(far, text+strings.Repeat("\n", strings.Count(text, "}}")))
				},
				cut:  func() { ended = true },
				hang: func() { _, _ = io.Copy(io.Discard, far) },
			})
			if ended {
				return
			}
		}
	}()
	return own, nil
}

// TestPhases shows that each fault of a server, at the first request of a session, at a list and at a
// call, over each transport, is a typed error in time, and that the pool serves the next request.
func TestPhases(t *testing.T) {
	for wire, first := range wires {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			for _, method := range []string{first, "tools/list", "tools/call"} {
				for what, fault := range faults {
					run := func(t *testing.T) { failsAt(t, &failing{wire: wire, method: method, fault: fault}, what) }
					if wire == "stdio" { // a command has a minute to start
						run = func(t *testing.T) {
							synctest.Test(t, func(t *testing.T) { failsAt(t, &failing{wire: wire, method: method, fault: fault}, what) })
						}
					}
					t.Run(method+" "+what, run)
				}
			}
		})
	}
}

// codes are the error codes of requests to a server that fails.
var codes = []string{contract.CodeUpstreamUnreachable, contract.CodeUpstreamCut, contract.CodeUpstreamTimeout, contract.CodeUpstreamRefused, contract.CodeUpstreamMalformed}

// pool starts the server, and returns a pool of sessions with it and the function that ends both.
func (f *failing) pool(timeout time.Duration) (*Server, func()) {
	c := Config{Concurrency: 1, Timeout: timeout, Version: "t", SSE: f.wire == "SSE"}
	if f.wire == "stdio" {
		c.Start = f.command
		s := New(c)
		return s, s.Close
	}
	h := http.Handler(f)
	if c.SSE {
		h = f.legacy()
	}
	srv := httptest.NewServer(h)
	c.URL = srv.URL
	s := New(c)
	return s, func() {
		s.Close()
		srv.CloseClientConnections()
		srv.Close()
	}
}

// use lists the tools of a server, and calls one.
func use(t *testing.T, s *Server) error {
	return s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error {
		if _, err := x.List(ctx); err != nil {
			return err
		}
		_, err := x.CallTool(ctx, &mcp.CallToolParams{Name: "a"})
		return err
	})
}

// failsAt uses a server that fails.
func failsAt(t *testing.T, f *failing, what string) {
	s, end := f.pool(500 * time.Millisecond)
	defer end()
	within := 5 * time.Second
	if f.wire == "stdio" {
		within = startWithin + time.Second
	}
	began := time.Now()
	err := use(t, s)
	var own *Error
	first := f.method == wires[f.wire]
	switch {
	case what == "sends a batch" && f.wire == "stdio" && err == nil: // the protocol version 2025-03-26 permits it
	case !errors.As(err, &own) || !slices.Contains(codes, own.Code):
		t.Errorf("%v is no error of a server with a code", err)
	case !first && what == "never responds" && own.Code != contract.CodeUpstreamTimeout, !first && what == "sends an error" && own.Code != contract.CodeUpstreamRefused:
		t.Errorf("%s: %v", own.Code, err)
	}
	if took := time.Since(began); took > within {
		t.Errorf("it took %v", took)
	}
	if b := s.Health().Busy; b != 0 {
		t.Errorf("%d sessions are in use", b)
	}
	f.works.Store(true)
	s.worked()
	s.cfg.Timeout = time.Minute // of a busy machine
	if err := use(t, s); err != nil {
		t.Errorf("the next request: %v", err)
	}
	if f.wire == "stdio" {
		s.Close()
		time.Sleep(2 * idleFor) // the timers of put
	}
}

// FuzzUpstreamHTTP is FuzzUpstream for the transports over HTTP.
func FuzzUpstreamHTTP(f *testing.F) {
	var over []string
	for wire := range wires {
		if wire != "stdio" {
			over = append(over, wire)
		}
	}
	slices.Sort(over)
	for _, r := range replies {
		for i := range over {
			f.Add(uint8(i), i%2 == 0, r)
		}
	}
	f.Fuzz(func(t *testing.T, wire uint8, list bool, reply string) {
		method := "tools/call"
		if list {
			method = "tools/list"
		}
		server := &failing{wire: over[int(wire)%len(over)], method: method, fault: func(s sink, id string) { s.message(strings.ReplaceAll(reply, "$ID", id)) }}
		s, end := server.pool(100 * time.Millisecond)
		defer end()
		began := time.Now()
		err := use(t, s)
		var own *Error
		if err != nil && (!errors.As(err, &own) || own.Code == "") {
			t.Errorf("%v is no error with a code", err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
