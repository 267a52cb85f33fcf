package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// tally is a listener that counts the bytes that its connections receive.
type tally struct {
	net.Listener
	n atomic.Int64
}

func (l *tally) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &tallied{c, l}, err
}

type tallied struct {
	net.Conn
	l *tally
}

func (c *tallied) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.l.n.Add(int64(n))
	return n, err
}

// newTally starts a provider that counts the bytes it receives, and returns it with the
// path of an llm document for it. Its model good succeeds, flaky fails on every other
// request, and slow responds after 300 ms. The document configures retries, hedges and a
// fallback.
func newTally(t testing.TB) (*tally, string) {
	var flaky atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Model string }
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &q)
		if q.Model == "slow" {
			time.Sleep(300 * time.Millisecond)
		}
		w.Header().Set("Content-Type", "application/json")
		if q.Model == "flaky" && flaky.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"error":{"message":"not now"}}`)
			return
		}
		_, _ = io.WriteString(w, `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}`)
	}))
	l := &tally{Listener: srv.Listener}
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	doc, err := json.Marshal(map[string]any{
		"providers": []any{map[string]any{"name": "tally", "base_url": srv.URL + "/v1", "secrets": []string{"llm.tally"}}}, "breaker": map[string]any{"failures": 1000},
		"retry": map[string]any{"base_ms": 1}, "hedge_ms": 100, "fallbacks": []any{map[string]any{"primary": "tally/slow", "fallbacks": []string{"tally/good"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "llm.json")
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	harness.WriteSecrets(t, path, map[string]string{"llm.tally": "sk-tally-0123456789"})
	return l, path
}

// TestEgressBudget shows that the bytes that LLM calls send, with retries and hedges
// and, with one process per service, over two llm-routers, are counted exactly and
// charged to an egress budget, and that the charges persist across restarts.
func TestEgressBudget(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			l, doc := newTally(t)
			m := start(t, harness.Options{LLM: doc})
			again := m.Names()
			if name == "processes" {
				m.StartService("llm-router-b", "llm-router")
				again = []string{"llm-router", "llm-router-b", "policy"}
			}
			egressBudget(t, m, l, func() {
				for _, s := range again {
					m.Kill(s)
					m.Restart(s)
				}
			})
		})
	}
}

func TestComposeEgressBudget(t *testing.T) {
	l, doc := newTally(t)
	m := harness.Compose(t, harness.Options{LLM: doc})
	m.Scale("llm-router=2")
	egressBudget(t, m, l, func() {
		if out, err := m.ComposeCLI("restart", "llm-router", "policy"); err != nil {
			t.Fatal(out, err)
		}
	})
}

func egressBudget(t *testing.T, m *harness.Mesh, l *tally, restart func()) {
	const most = 150_000
	cli(t, m, "policy", "set-limits", write(t, "limits.json", fmt.Sprintf(`{"limits":[{"id":"out","level":"agent","measure":"egress_bytes","window":"total","max":%d}]}`, most)))
	token := map[string]string{"Authorization": "Bearer " + m.TokenFor("sender", "llm:call"), "X-Binnacle-Session": "s-egress"}
	call := func(model string, size int) *harness.Response {
		t.Helper()
		r, err := m.DoHeader(t.Context(), "POST", "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":9,"messages":[{"role":"user","content":%q}]}`, model, strings.Repeat("x", size)), token)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	account := func() (reserved, used int64) {
		var doc struct {
			Accounts []struct {
				Account             string
				Reserved, Committed int64
			}
		}
		if err := json.Unmarshal([]byte(cli(t, m, "policy", "limits", "--json")), &doc); err != nil {
			t.Fatal(err)
		}
		for _, a := range doc.Accounts {
			if a.Account == "out/agent:sender" {
				return a.Reserved, a.Committed
			}
		}
		return 0, 0
	}
	exhausted := func(r *harness.Response) bool {
		return r.Status == 429 && strings.Contains(string(r.Body), "BUDGET_EXCEEDED")
	}
	models, ran, denied := []string{"tally/good", "tally/flaky", "tally/slow", "demo/echo"}, 0, false
	for range 100 {
		r := call(models[ran%len(models)], 2000)
		if denied = exhausted(r); denied {
			break
		}
		if r.Status != 200 {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
		ran++
		eventually(t, "the call is settled", 20*time.Second, func() bool { reserved, _ := account(); return reserved == 0 })
	}
	if !denied || ran < 2*len(models) {
		t.Fatalf("%d calls ran, denied %v", ran, denied)
	}
	var sum int64
	for _, e := range effectsOf(t, m, "s-egress") {
		if e.Status != "succeeded" {
			continue
		}
		if e.Usage == nil || !slices.Equal(e.Usage.Measured, []string{"egress_bytes"}) {
			t.Fatalf("%+v", e.Usage)
		}
		sum += e.Usage.EgressBytes
	}
	received := l.n.Load()
	if _, used := account(); used != sum || used != received || used > most || used < most/2 {
		t.Errorf("%d bytes are committed; the effects say %d, the provider received %d", used, sum, received)
	}
	restart()
	m.WaitReady()
	eventually(t, "the budget is full after a restart", 30*time.Second, func() bool {
		r := call(models[ran%len(models)], 2000)
		if r.Status == 200 {
			t.Fatal("the budget is not full any more")
		}
		return exhausted(r)
	})
	if got := l.n.Load(); got != received {
		t.Errorf("a denied call sent %d bytes", got-received)
	}
}
