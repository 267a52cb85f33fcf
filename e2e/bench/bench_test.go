//go:build bench

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/evidence"
	"github.com/binnacle-mesh/binnacle/pkg/eventlog"
	"github.com/binnacle-mesh/binnacle/pkg/follow"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
)

// row is one line of the result table: a measured figure.
type row struct {
	Name       string  `json:"name"`
	Durability string  `json:"durability"`
	Clients    int     `json:"clients,omitempty"`
	P50us      float64 `json:"p50_us,omitempty"`
	P99us      float64 `json:"p99_us,omitempty"`
	PerSecond  float64 `json:"per_second,omitempty"`
	Value      string  `json:"value,omitempty"`
	Budget     string  `json:"budget,omitempty"`
}

var rows []row

func add(r row) {
	rows = append(rows, r)
	fmt.Println(r.line())
}

func (r row) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-64s %-8s", r.Name, r.Durability)
	if r.Clients > 0 {
		fmt.Fprintf(&b, " c=%-4d", r.Clients)
	} else {
		b.WriteString("       ")
	}
	if r.P50us > 0 {
		fmt.Fprintf(&b, " p50 %8.0f us  p99 %8.0f us", r.P50us, r.P99us)
	}
	if r.PerSecond > 0 {
		fmt.Fprintf(&b, "  %9.0f /s", r.PerSecond)
	}
	b.WriteString(" " + r.Value)
	if r.Budget != "" {
		b.WriteString("  (budget " + r.Budget + ")")
	}
	return b.String()
}

// load calls f from n concurrent clients for the duration d. It returns the latencies of
// the calls, sorted, and the calls per second. If a call fails, load stops and returns
// the error of a failed call.
func load(n int, d time.Duration, f func(client int) error) (lat []time.Duration, rate float64, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed atomic.Value
	began := time.Now()
	for c := range n {
		wg.Go(func() {
			var own []time.Duration
			for time.Since(began) < d && failed.Load() == nil {
				t := time.Now()
				if err := f(c); err != nil {
					failed.Store(err)
					return
				}
				own = append(own, time.Since(t))
			}
			mu.Lock()
			lat = append(lat, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return nil, 0, e.(error)
	}
	slices.Sort(lat)
	return lat, float64(len(lat)) / time.Since(began).Seconds(), nil
}

func us(lat []time.Duration, q float64) float64 {
	return float64(lat[min(int(float64(len(lat))*q), len(lat)-1)]) / 1e3
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}

func post(url, token, session string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("X-Binnacle-Session", session)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	return b, err
}

const span = 4 * time.Second

// TestBench runs all parts of the benchmark and, unless one fails, writes bench.json.
// With -run TestBench/<part> it runs one part and does not change bench.json.
func TestBench(t *testing.T) {
	ran := 0
	parts := []struct {
		name string
		f    func(*testing.T)
	}{{"floors", floors}, {"rival", rival}, {"decisions", decisions}, {"topologies", topologies}, {"proofs", proofs}, {"proxy", proxied}, {"ledger", ledgerOnly}, {"edge", edge}, {"hops", hops}, {"streams", streams}, {"growth", growth}, {"lengths", lengths}, {"sessions", sessions}, {"stored", stored}, {"tenants", tenants}}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { ran++; p.f(t) })
	}
	if t.Failed() || ran < len(parts) {
		return
	}
	b, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(harness.Root(), "bench.json")
	if err := os.WriteFile(out, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	fmt.Println("\nwritten to bench.json")
}

// topologies measures no-op calls on several topologies and durability modes and, with
// durability "process", also the start, an idle mesh and requests to a model.
func topologies(t *testing.T) {
	for _, c := range []struct {
		name, durability string
		o                harness.Options
		start            func(testing.TB, harness.Options) *harness.Mesh
		budget1, budgetN string
	}{
		{"one process", "process", harness.Options{Noop: true}, harness.One, "p50 <= 1000 us", ">= 3000/s"},
		{"one process per service", "process", harness.Options{Noop: true}, harness.Processes, "", ">= 1500/s"},
		{"one process", "power", harness.Options{Noop: true, Power: true}, harness.One, "", ">= 700/s"},
	} {
		t.Run(c.name+" "+c.durability, func(t *testing.T) {
			llm, doc := harness.NewLLM(t)
			c.o.LLM = doc
			began := time.Now()
			m := c.start(t, c.o)
			if c.durability == "process" {
				add(row{Name: "start, " + c.name, Durability: c.durability, Value: fmt.Sprintf("%d ms until ready", time.Since(began).Milliseconds()), Budget: "<= 1500 ms"})
				idle(t, m, c.name, c.durability)
			}
			for _, n := range []int{1, 16, 64} {
				lat, rate, err := load(n, span, func(i int) error {
					_, err := post("http://"+m.Addr+"/api/v1/packs/noop", m.Token, fmt.Sprintf("s-bench-%d", i), []byte(`{"n":1}`))
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				budget := ""
				if n == 1 {
					budget = c.budget1
				} else if n == 64 {
					budget = c.budgetN
				}
				add(row{Name: "governed no-op, " + c.name, Durability: c.durability, Clients: n, P50us: us(lat, .5), P99us: us(lat, .99), PerSecond: rate, Budget: budget})
			}
			if c.durability == "process" {
				llmLatency(t, m, llm, c.name)
			}
			if c.name == "one process" && c.durability == "process" {
				replayRate(t, m)
			}
		})
	}
}

// floors measures NATS requests, ledger appends and deliveries without the mesh's
// services, as lower bounds for its figures.
func floors(t *testing.T) {
	d := bus.Declaration{Service: "a", Slots: 1, Readers: []bus.Reader{{Name: "all", Stream: bus.Events, Filters: []string{"evt.>"}}}}
	b := meshtest.Start(t, []bus.Declaration{d})
	c := b.Connect(t, "a")
	if _, err := c.NC.Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		t.Fatal(err)
	}
	c2 := b.Connect(t, "a")
	for _, n := range []int{1, 64} {
		lat, rate, err := load(n, 2*time.Second, func(int) error { _, err := c2.NC.Request("echo", []byte("x"), time.Second); return err })
		if err != nil {
			t.Fatal(err)
		}
		add(row{Name: "floor: core NATS request, in process", Durability: "none", Clients: n, P50us: us(lat, .5), P99us: us(lat, .99), PerSecond: rate})
	}
	log := eventlog.JetStream{Conn: c2}
	var n atomic.Int64
	body := bytes.Repeat([]byte("x"), 700)
	for _, clients := range []int{1, 64} {
		lat, rate, err := load(clients, 2*time.Second, func(i int) error {
			_, err := log.Append(context.Background(), fmt.Sprintf("evt.t.a.-.x.k%d", i), strconv.FormatInt(n.Add(1), 10), body)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		add(row{Name: "floor: one ledger append, in process", Durability: "process", Clients: clients, P50us: us(lat, .5), P99us: us(lat, .99), PerSecond: rate})
	}
	last, err := c.LastSeq(t.Context(), bus.Events)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	f := follow.New(c, d.Instance(1), d.Readers[0], func(en eventlog.Entry) error {
		if en.Seq == last {
			close(done)
		}
		return nil
	})
	f.Batch = 5000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	go f.Run(ctx, 1)
	<-done
	add(row{Name: "floor: raw consumer, events delivered", Durability: "process", PerSecond: float64(last) / time.Since(began).Seconds(), Budget: ">= 200000/s"})
}

func llmLatency(t *testing.T, m *harness.Mesh, llm *harness.LLM, name string) {
	plain := []byte(`{"model":"good","messages":[{"role":"user","content":"x"}]}`)
	through := []byte(`{"model":"fixture/good","messages":[{"role":"user","content":"x"}]}`)
	measure := func(f func(int) error) []time.Duration {
		lat, _, err := load(1, span, f)
		if err != nil {
			t.Fatal(err)
		}
		return lat
	}
	direct := measure(func(int) error { _, err := post(llm.URL+"/v1/chat/completions", llm.Key, "", plain); return err })
	via := measure(func(int) error {
		_, err := post("http://"+m.Addr+"/v1/chat/completions", m.Token, "s-bench-llm", through)
		return err
	})
	add(row{Name: "floor: LLM direct, JSON", Durability: "none", Clients: 1, P50us: us(direct, .5), P99us: us(direct, .99)})
	add(row{Name: "LLM through the mesh, JSON, " + name, Durability: "process", Clients: 1, P50us: us(via, .5), P99us: us(via, .99),
		Value: fmt.Sprintf("added p50 %.0f us", us(via, .5)-us(direct, .5)), Budget: "<= 900 us added"})
	first := func(url, token string, body string) func(int) error {
		return func(int) error {
			req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("X-Binnacle-Session", "s-bench-stream")
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			var one [16]byte
			if _, err := resp.Body.Read(one[:]); err != nil {
				return err
			}
			// The rest of the response is read in the background, outside the measured
			// time.
			go func() { _, _ = io.Copy(io.Discard, resp.Body); resp.Body.Close() }()
			return nil
		}
	}
	direct = measure(first(llm.URL+"/v1/chat/completions", llm.Key, `{"model":"good","stream":true,"messages":[{"role":"user","content":"x"}]}`))
	via = measure(first("http://"+m.Addr+"/v1/chat/completions", m.Token, `{"model":"fixture/good","stream":true,"messages":[{"role":"user","content":"x"}]}`))
	add(row{Name: "floor: LLM direct, first chunk", Durability: "none", Clients: 1, P50us: us(direct, .5), P99us: us(direct, .99)})
	add(row{Name: "LLM through the mesh, first chunk, " + name, Durability: "process", Clients: 1, P50us: us(via, .5), P99us: us(via, .99),
		Value: fmt.Sprintf("added p50 %.0f us", us(via, .5)-us(direct, .5)), Budget: "<= 1200 us added"})
}

// used returns the CPU time of all processes of a mesh since they started, in clock
// ticks, and their resident memory in bytes.
func used(t *testing.T, m *harness.Mesh) (ticks, rss int64) { return usedBy(t, m, m.Names()...) }

// usedBy is like used, for some of the mesh's processes.
func usedBy(t *testing.T, m *harness.Mesh, names ...string) (ticks, rss int64) {
	for _, p := range names {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID(p)))
		if err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:]))
		u, _ := strconv.ParseInt(f[11], 10, 64)
		s, _ := strconv.ParseInt(f[12], 10, 64)
		pages, _ := strconv.ParseInt(f[21], 10, 64)
		ticks, rss = ticks+u+s, rss+pages*int64(os.Getpagesize())
	}
	return ticks, rss
}

// idle measures the memory and CPU time of an idle mesh.
func idle(t *testing.T, m *harness.Mesh, name, durability string) {
	time.Sleep(2 * time.Second)
	before, _ := used(t, m)
	time.Sleep(5 * time.Second)
	after, rss := used(t, m)
	add(row{Name: "idle, " + name, Durability: durability, Value: fmt.Sprintf("%d MiB RSS, %.1f %% of one core", rss>>20, float64(after-before)/5), Budget: "<= 200 MiB, <= 1 %, one process"})
}

// onOneCore returns how long f takes while this process runs Go code on one processor
// only.
func onOneCore(f func()) time.Duration {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	began := time.Now()
	f()
	return time.Since(began)
}

// replayRate measures replay and verification of the ledger that the earlier
// measurements of this mesh have written, and export and verification of the evidence of
// one session.
func replayRate(t *testing.T, m *harness.Mesh) {
	out, err := m.CLI("replay", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var rep struct {
		Events int     `json:"events"`
		Rate   float64 `json:"events_per_second"`
		Equal  bool    `json:"equal"`
	}
	if err := json.Unmarshal([]byte(out), &rep); err != nil || !rep.Equal {
		t.Fatal(out, err)
	}
	add(row{Name: "replay: indexed view, catalog and every decision", Durability: "process", PerSecond: rep.Rate, Value: fmt.Sprintf("%d events", rep.Events), Budget: ">= 30000/s"})
	ledger := filepath.Join(t.TempDir(), "l.jsonl")
	if out, err := m.CLI("export", "--ledger", "--out", ledger); err != nil {
		t.Fatal(out, err)
	}
	b, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	var led *evidence.LedgerReport
	d := onOneCore(func() { led, err = evidence.VerifyLedger(b, strings.TrimSpace(string(root))) }).Seconds()
	if err != nil {
		t.Fatal(err)
	}
	add(row{Name: "verify: whole ledger, one core", Durability: "process", PerSecond: float64(led.Receipts) / d, Value: fmt.Sprintf("receipts; %.0f events/s", float64(led.TreeSize)/d), Budget: ">= 9000 receipts/s"})
	pack := filepath.Join(t.TempDir(), "p.tar")
	began := time.Now()
	if out, err := m.CLI("export", "--session", "s-bench-0", "--out", pack); err != nil {
		t.Fatal(out, err)
	}
	exported := time.Since(began)
	began = time.Now()
	v, err := exec.Command(harness.Bin(t, "binnacle-verify"), "--json", "--root", strings.TrimSpace(string(root)), pack).Output()
	if err != nil {
		t.Fatal(string(v), err)
	}
	var r evidence.Report
	if err := json.Unmarshal(v, &r); err != nil {
		t.Fatal(err)
	}
	add(row{Name: "evidence of one session", Durability: "process", PerSecond: float64(r.Receipts) / time.Since(began).Seconds(),
		Value: fmt.Sprintf("receipts verified; export of %d calls took %d ms", r.Receipts, exported.Milliseconds())})
}
