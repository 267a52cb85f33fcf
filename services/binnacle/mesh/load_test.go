package mesh

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
)

// BenchmarkGovernedNoop calls tool.noop through a mesh in this process, for profiling:
// go test -run xxx -bench Governed -cpuprofile cpu.out.
func BenchmarkGovernedNoop(b *testing.B) {
	m, err := Start(b.Context(), Config{Dir: b.TempDir(), Addr: "127.0.0.1:0", Noop: true})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Stop()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
	call := func(i int) error {
		req, err := http.NewRequest(http.MethodPost, "http://"+m.Addr+"/api/v1/packs/noop", bytes.NewReader([]byte(`{"n":1}`)))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+m.Token)
		req.Header.Set("X-Binnacle-Session", fmt.Sprintf("s-bench-%d", i))
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			work := make(chan struct{})
			var wg sync.WaitGroup
			for i := range clients {
				wg.Go(func() {
					for range work {
						if err := call(i); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}

// BenchmarkStart starts a mesh on the folder that BINNACLE_BENCH_DATA names, for
// profiling: go test -run xxx -bench Start$ -benchtime 1x -cpuprofile cpu.out.
func BenchmarkStart(b *testing.B) {
	dir := os.Getenv("BINNACLE_BENCH_DATA")
	if dir == "" {
		b.Fatal("BINNACLE_BENCH_DATA names no folder of a mesh")
	}
	for b.Loop() {
		m, err := Start(b.Context(), Config{Dir: dir, Addr: "127.0.0.1:0", Noop: true})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := m.Stop(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkLLM sends requests to a model: short requests with a token and with a
// budgeted virtual key, and, with the key, requests of 80 kB and requests for streams.
// Mesh and provider are in this process, and the provider responds immediately.
func BenchmarkLLM(b *testing.B) {
	answer := []byte(`{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":80,"total_tokens":90}}`)
	chunk := []byte(`data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"sixteen bytes ok"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte(`"stream":true`)) {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 20 {
				_, _ = w.Write(chunk)
				w.(http.Flusher).Flush()
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}))
	defer up.Close()
	cfg := Config{Dir: b.TempDir(), Addr: "127.0.0.1:0"}
	if err := json.Unmarshal(fmt.Appendf(nil, `{"providers":[{"name":"mock","base_url":%q}],"prices":{"version":"1","models":[{"model":"mock/m","input":1,"output":1}]}}`, up.URL), &cfg.LLM); err != nil {
		b.Fatal(err)
	}
	m, err := Start(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Stop()
	post := func(path, token, body string) []byte {
		req, err := http.NewRequest(http.MethodPost, "http://"+m.Addr+path, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("X-Binnacle-Session", "s-bench-llm")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		out, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			b.Fatalf("status %d: %s %v", resp.StatusCode, out, err)
		}
		return out
	}
	const chat = `{"model":"mock/m","messages":[{"role":"user","content":"say hi"}]}`
	b.Run("token", func(b *testing.B) {
		for b.Loop() {
			post("/v1/chat/completions", m.Token, chat)
		}
	})
	var key struct{ Key string }
	if err := json.Unmarshal(post("/api/v1/keys", m.Token, `{"id":"bench","actor":"admin","budget_usd_micros":1000000000,"budget_window":"total"}`), &key); err != nil {
		b.Fatal(err)
	}
	b.Run("key", func(b *testing.B) {
		for b.Loop() {
			post("/v1/chat/completions", key.Key, chat)
		}
	})
	long := strings.Replace(chat, "say hi", strings.Repeat("The quick brown fox jumps over the lazy dog. ", 1780), 1)
	b.Run("80kB", func(b *testing.B) {
		for b.Loop() {
			post("/v1/chat/completions", key.Key, long)
		}
	})
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			post("/v1/chat/completions", key.Key, `{"stream":true,`+chat[1:])
		}
	})
}
