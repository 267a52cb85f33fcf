package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hostile returns the standard input and output of a server that opens a session correctly, and
// to each other request with reply, in which $ID stands for the id of the request.
func hostile(reply string) io.ReadWriteCloser {
	own, far := net.Pipe()
	go scripted(far, func(method, _ string) string {
		switch method {
		case "server/discover":
			return `"error":{"code":-32601,"message":"no such method"}`
		case "initialize":
			return `"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"hostile","version":"1"}}`
		}
		return reply
	})
	return own
}

// scripted responds to each request on far with what reply returns for its method and parameters: the
// members of a response beside its version and id, or otherwise text in which $ID stands for the id, and which need not be a message.
func scripted(far io.ReadWriteCloser, reply func(method, params string) string) {
	defer far.Close()
	for in := bufio.NewScanner(far); in.Scan(); {
		var m struct {
			ID, Params json.RawMessage
			Method     string
		}
		if json.Unmarshal(in.Bytes(), &m) != nil || len(m.ID) == 0 || m.Method == "" {
			continue
		}
		out := reply(m.Method, string(m.Params))
		if strings.HasPrefix(out, `"result"`) || strings.HasPrefix(out, `"error"`) {
			out = `{"jsonrpc":"2.0","id":$ID,` + out + `}`
		}
		if _, err := io.WriteString(far, strings.ReplaceAll(out, "$ID", string(m.ID))+"\n"); err != nil {
			return
		}
	}
}

// replies are the seeds of FuzzUpstream: malformed messages, batches, wrong, repeated and foreign ids of
// each JSON type, results of wrong types, floods, deep and long values, and requests to the client.
var replies = []string{
	`{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"x"}]}}`,
	`{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}}`,
	``, `no JSON`, `{`, `[]`, `null`, `7`, `"x"`, `{}`, "\x00\xff", `{"jsonrpc":"2.0"}`, `{"jsonrpc":"1.0","id":$ID,"result":{}}`,
	`[{"jsonrpc":"2.0","id":$ID,"result":{}}]`,
	`[{"jsonrpc":"2.0","id":$ID,"result":{}},{"jsonrpc":"2.0","id":$ID,"result":{}}]`,
	`{"jsonrpc":"2.0","id":null,"result":{}}`, `{"jsonrpc":"2.0","id":true,"result":{}}`, `{"jsonrpc":"2.0","id":1.5,"result":{}}`,
	`{"jsonrpc":"2.0","id":[1],"result":{}}`, `{"jsonrpc":"2.0","id":{"a":1},"result":{}}`, `{"jsonrpc":"2.0","id":"$ID","result":{}}`, `{"jsonrpc":"2.0","id":99999,"result":{}}`,
	"{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"content\":[]}}",
	`{"jsonrpc":"2.0","id":$ID,"result":null}`, `{"jsonrpc":"2.0","id":$ID,"result":[]}`, `{"jsonrpc":"2.0","id":$ID,"result":{"content":7,"tools":7}}`, `{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"unknown"}]}}`,
	`{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":7,"inputSchema":"x"}]}}`, `{"jsonrpc":"2.0","id":$ID,"result":{"tools":[],"nextCursor":"again"}}`,
	`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no such method"}}`, `{"jsonrpc":"2.0","id":$ID,"error":7}`, `{"jsonrpc":"2.0","id":$ID,"result":{},"error":{"code":1,"message":"x"}}`,
	`{"jsonrpc":"2.0","id":$ID,"result":{"structuredContent":` + strings.Repeat(`[`, 3000) + strings.Repeat(`]`, 3000) + `,"content":[]}}`,
	`{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 1<<16) + `"}]}}`,
	strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`+"\n", 200) + `{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}`,
	`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":[],"progress":"x"}}`,
	`{"jsonrpc":"2.0","id":"mine","method":"sampling/createMessage","params":{}}`, `{"jsonrpc":"2.0","id":"mine","method":"elicitation/create","params":7}`, `{"jsonrpc":"2.0","id":"mine","method":"unknown/method"}`,
	`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":$ID}}`,
}

// FuzzUpstream checks that whatever a server responds, a call and a list end in time, with a result or
// with an *Error that has a code, and that the pool serves the next request.
func FuzzUpstream(f *testing.F) {
	for _, r := range replies {
		f.Add(r)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		bad := true
		s := New(Config{Concurrency: 1, Timeout: 100 * time.Millisecond, Version: "t", Once: true, Start: func(context.Context) (io.ReadWriteCloser, error) {
			if bad {
				return hostile(reply), nil
			}
			return hostile(replies[0]), nil
		}})
		defer s.Close()
		for name, do := range map[string]func(context.Context, Session) error{
			"call": func(ctx context.Context, x Session) error {
				_, err := x.CallTool(ctx, &mcp.CallToolParams{Name: "a"})
				return err
			},
			"list": func(ctx context.Context, x Session) error { _, err := x.List(ctx); return err },
		} {
			began := time.Now()
			err := s.Do(t.Context(), "", http.Header{}, nil, do)
			var own *Error
			if err != nil && (!errors.As(err, &own) || own.Code == "") {
				t.Errorf("%s: %v is no error with a code", name, err)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("%s took %v", name, took)
			}
			s.worked()
		}
		bad, s.cfg.Timeout = false, time.Minute // of a busy machine
		if err := s.Do(t.Context(), "", http.Header{}, nil, func(ctx context.Context, x Session) error {
			_, err := x.CallTool(ctx, &mcp.CallToolParams{Name: "a"})
			return err
		}); err != nil {
			t.Errorf("the next call: %v", err)
		}
	})
}
