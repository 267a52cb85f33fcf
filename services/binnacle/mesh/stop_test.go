package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestStopWithStreams checks that Stop returns within 14 s while 200 endless streams are
// open, half of whose clients have just disconnected.
func TestStopWithStreams(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			fmt.Fprint(w, `data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}`+"\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}))
	defer up.Close()
	cfg := Config{Dir: t.TempDir(), Addr: "127.0.0.1:0"}
	if err := json.Unmarshal(fmt.Appendf(nil, `{"providers":[{"name":"mock","base_url":%q}]}`, up.URL), &cfg.LLM); err != nil {
		t.Fatal(err)
	}
	m, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	leave, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := make(chan bool, 200)
	for i := range cap(open) {
		ctx := leave
		if i%2 == 0 {
			ctx = t.Context()
		}
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+m.Addr+"/v1/chat/completions", strings.NewReader(`{"model":"mock/m","stream":true,"messages":[{"role":"user","content":"x"}]}`))
			if err != nil {
				t.Error(err)
			}
			req.Header.Set("Authorization", "Bearer "+m.Token)
			resp, err := http.DefaultClient.Do(req)
			open <- err == nil && resp.StatusCode == http.StatusOK
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
	}
	for range cap(open) {
		if !<-open {
			t.Fatal("a stream did not begin")
		}
	}
	cancel()
	began := time.Now()
	m.Stop()
	if d := time.Since(began); d > 14*time.Second {
		t.Fatalf("stopped after %v", d)
	}
}
