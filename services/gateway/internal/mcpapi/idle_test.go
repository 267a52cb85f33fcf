package mcpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestIdleSessions checks that 300 MCP sessions, each with an open stream of notifications over a
// connection of its own, use at most 45 MiB of memory, including that of their clients: 1,000
// sessions may use 150 MiB.
func TestIdleSessions(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.a")
	srv := httptest.NewServer(m.Service.Handler())
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer srv.CloseClientConnections()
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	do := func(method, who, session, body string) *http.Response {
		r, err := http.NewRequestWithContext(ctx, method, srv.URL+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+who)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			r.Header.Set("Mcp-Session-Id", session)
		}
		res, err := client.Do(r)
		if err != nil || res.StatusCode >= 300 {
			t.Fatal(err, res)
		}
		return res
	}
	drain := func(res *http.Response) string {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res.Header.Get("Mcp-Session-Id")
	}
	used := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapInuse + s.StackInuse)
	}
	before := used()
	const sessions, perCaller, most = 300, 25, 300 * (150 << 20) / 1000
	var who string
	var streams []*bufio.Reader
	for i := range sessions {
		if i%perCaller == 0 {
			who = m.Token(fmt.Sprint("editor", i), token.Tools)
		}
		id := drain(do(http.MethodPost, who, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`))
		drain(do(http.MethodPost, who, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`))
		streams = append(streams, bufio.NewReaderSize(do(http.MethodGet, who, id, "").Body, 16))
	}
	after := used()
	t.Logf("%d sessions use %d MiB", sessions, (after-before)>>20)
	if after-before > most {
		t.Errorf("%d sessions use %d bytes", sessions, after-before)
	}
	runtime.KeepAlive(streams)
}
