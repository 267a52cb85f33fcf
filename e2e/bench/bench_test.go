//go:build bench

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"github.com/binnacle-mesh/binnacle/pkg/services"
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
	}{{"floors", floors}, {"rival", rival}, {"decisions", decisions}, {"topologies", topologies}, {"policies", policies}, {"proofs", proofs}, {"proxy", proxied}, {"ledger", ledgerOnly}, {"edge", edge}, {"hops", hops}, {"streams", streams}, {"growth", growth}, {"lengths", lengths}, {"sessions", sessions}, {"volumes", volumes}, {"blocks", blocks}, {"stored", stored}, {"tenants", tenants}, {"secrets", secrets}, {"entry", entry}, {"hooks", hooked}, {"mcp", federation}, {"tiers", tiers}, {"artifacts", artifacts}}
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

// topologies compares no-op calls and requests to a model on several topologies and, for
// no-op calls, durability modes. It also measures the start and an idle mesh, and replay
// and verification of the ledger that the comparison has written.
func topologies(t *testing.T) {
	llm, doc := harness.NewLLM(t)
	var jsons, firsts []contender
	noop := []contender{oneAppend(t)}
	plain := &rivalAt{name: "floor: direct", base: llm.URL, token: llm.Key, model: "m"}
	body := func(model string, stream bool) []byte {
		return fmt.Appendf(nil, `{"model":%q,"stream":%v,"messages":[{"role":"user","content":"x"}]}`, model, stream)
	}
	jsons = append(jsons, plain.contender(body("good", false), false, ""))
	firsts = append(firsts, plain.contender(body("good", true), true, ""))
	var first *harness.Mesh
	for _, c := range []struct {
		name, durability string
		o                harness.Options
		start            func(testing.TB, harness.Options) *harness.Mesh
	}{
		{"one process", "process", harness.Options{Noop: true, LLM: doc}, harness.One},
		{"one process per service", "process", harness.Options{Noop: true, LLM: doc}, harness.Processes},
		{"one process, power", "power", harness.Options{Noop: true, Power: true}, harness.One},
	} {
		began := time.Now()
		m := c.start(t, c.o)
		noop = append(noop, contender{name: c.name, durability: c.durability, used: usedByMesh(m), call: func(i int) (time.Duration, error) {
			began := time.Now()
			_, err := post("http://"+m.Addr+"/api/v1/packs/noop", m.Token, fmt.Sprintf("s-bench-%d", i), []byte(`{"n":1}`))
			return time.Since(began), err
		}})
		if c.durability != "process" {
			continue
		}
		add(row{Name: "start, " + c.name, Durability: c.durability, Value: fmt.Sprintf("%d ms until ready", time.Since(began).Milliseconds()), Budget: "<= 1500 ms"})
		idle(t, m, c.name, c.durability)
		w := &rivalAt{name: c.name, base: "http://" + m.Addr, token: m.Token, model: "fixture/good"}
		for list, stream := range map[*[]contender]bool{&jsons: false, &firsts: true} {
			x := w.contender(body(w.model, stream), stream, "")
			x.used = usedByMesh(m)
			*list = append(*list, x)
		}
		if first == nil {
			first = m
		}
	}
	add(row{Name: "load average before the rows of topologies", Durability: "none", Value: loadAverage(t)})
	for _, clients := range []int{1, 16, 64} {
		for i := range noop {
			noop[i].budget = map[int][]string{1: {"", "p50 <= 800 us", "", ""}, 16: {"", "", "", ""}, 64: {"", ">= 3200/s", ">= 1500/s", ">= 1400/s"}}[clients][i]
		}
		compare(t, "governed no-op", clients, span/2, noop)
	}
	compare(t, "LLM, JSON", 1, span/2, jsons)
	compare(t, "LLM, first chunk", 1, span/2, firsts)
	readers(t, first)
}

// oneAppend returns the floor of a governed call: one append to a ledger of a server in
// this process. A call needs four of them.
func oneAppend(t *testing.T) contender {
	d := bus.Declaration{Service: "a", Slots: 1}
	log := eventlog.JetStream{Conn: meshtest.Start(t, []bus.Declaration{d}).Connect(t, "a")}
	var n atomic.Int64
	body := bytes.Repeat([]byte("x"), 1800)
	return contender{name: "floor: one ledger append, in process", durability: "process", used: usedBySelf, call: func(i int) (time.Duration, error) {
		began := time.Now()
		_, err := log.Append(t.Context(), fmt.Sprintf("evt.t.a.-.x.k%d", i), strconv.FormatInt(n.Add(1), 10), body)
		return time.Since(began), err
	}}
}

// policies compares requests to a model on a mesh with one instance of policy and on one
// with two. The budget is that the mesh with two is not slower; it is reported and not
// enforced.
func policies(t *testing.T) {
	llm, doc := harness.NewLLM(t)
	direct := &rivalAt{name: "floor: direct", base: llm.URL, token: llm.Key, model: "m"}
	request := func(model string) []byte {
		return fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"user","content":"x"}]}`, model)
	}
	list := []contender{direct.contender(request("good"), false, "")}
	for n := range 2 {
		m := harness.Processes(t, harness.Options{LLM: doc})
		if n > 0 {
			m.StartService("policy-2", services.Policy)
			m.WaitReady()
		}
		limits := filepath.Join(t.TempDir(), "limits.json")
		if err := os.WriteFile(limits, []byte(`{"limits":[{"id":"bench","level":"agent","measure":"calls","window":"total","max":1000000000}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := m.CLI("policy", "set-limits", limits); err != nil {
			t.Fatal(out, err)
		}
		key, err := m.AgreedKey("bench", "bench")
		if err != nil {
			t.Fatal(key, err)
		}
		w := &rivalAt{name: fmt.Sprintf("budgeted, %d instances of policy", n+1), base: "http://" + m.Addr, token: strings.TrimSpace(key), model: "fixture/good"}
		c := w.contender(request(w.model), false, "")
		c.used = usedByMesh(m)
		list = append(list, c)
	}
	took := compare(t, "LLM, one process per service", 16, span/2, list)
	ratio := make([]float64, rounds)
	for i := range ratio {
		ratio[i] = 100 * took[2].rate[i] / took[1].rate[i]
	}
	add(row{Name: "LLM, two instances of policy beside one", Durability: "process", Clients: 16, Value: figure(ratio, "% of the rate"), Budget: ">= 100 %"})
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

// used returns the CPU time of all processes of a mesh since they started, in clock
// ticks, and their resident memory in bytes.
func used(t *testing.T, m *harness.Mesh) (ticks, rss int64) { return usedBy(t, m, m.Names()...) }

// usedBy is like used, for some of the mesh's processes.
func usedBy(t *testing.T, m *harness.Mesh, names ...string) (ticks, rss int64) {
	for _, p := range names {
		n, bytes := ofProcess(t, m.PID(p))
		ticks, rss = ticks+n, rss+bytes
	}
	return ticks, rss
}

// ofProcess returns the CPU time that a process has used, in clock ticks, and its resident
// memory in bytes.
func ofProcess(t *testing.T, pid int) (ticks, rss int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:]))
	u, _ := strconv.ParseInt(f[11], 10, 64)
	s, _ := strconv.ParseInt(f[12], 10, 64)
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	return u + s, pages * int64(os.Getpagesize())
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

// readers measures replay and verification of the ledger of a mesh, in turn, and the
// export and the verification of the evidence of one session.
func readers(t *testing.T, m *harness.Mesh) {
	ledger := filepath.Join(t.TempDir(), "l.jsonl")
	if out, err := m.CLI("export", "--ledger", "--out", ledger); err != nil {
		t.Fatal(out, err)
	}
	b, err := os.ReadFile(filepath.Join(m.Dir, "root.kid"))
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimSpace(string(b))
	var replayed, replayCPU, one, all, perCPU []float64
	verify := func(procs string) (rate, cpu float64) {
		cmd := exec.Command(harness.Bin(t, "binnacle-verify"), "--json", "--root", root, ledger)
		cmd.Env = append(os.Environ(), procs)
		began := time.Now()
		out, err := cmd.Output()
		took := time.Since(began).Seconds()
		var rep evidence.LedgerReport
		if err := errors.Join(err, json.Unmarshal(out, &rep)); err != nil {
			t.Fatal(string(out), err)
		}
		return float64(rep.Receipts) / took, float64(rep.Receipts) / (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	readings := []func(){
		func() {
			rate, cpu := replay(t, m)
			replayed, replayCPU = append(replayed, rate), append(replayCPU, cpu)
		},
		func() { rate, _ := verify("GOMAXPROCS=1"); one = append(one, rate) },
		func() {
			rate, cpu := verify("GOMAXPROCS=" + strconv.Itoa(runtime.NumCPU()))
			all, perCPU = append(all, rate), append(perCPU, cpu)
		},
	}
	for range rounds {
		for _, read := range readings {
			read()
		}
		slices.Reverse(readings)
	}
	add(row{Name: "replay: index, views and every decision again", Durability: "process", PerSecond: median(replayed), Value: "events, " + spread(replayed, "/s") + ", " + figure(replayCPU, "us CPU per event, without the mesh"), Budget: ">= 40000/s"})
	add(row{Name: "verify: whole ledger, one core", Durability: "process", PerSecond: median(one), Value: "receipts, " + spread(one, "/s"), Budget: ">= 6500/s"})
	add(row{Name: "verify: whole ledger, all cores", Durability: "process", PerSecond: median(all), Value: "receipts, " + spread(all, "/s") + ", " + figure(perCPU, "per second of CPU"), Budget: ">= 6500/s per core"})
	pack := filepath.Join(t.TempDir(), "p.tar")
	began := time.Now()
	if out, err := m.CLI("export", "--session", "s-bench-0", "--out", pack); err != nil {
		t.Fatal(out, err)
	}
	exported := time.Since(began)
	began = time.Now()
	v, err := exec.Command(harness.Bin(t, "binnacle-verify"), "--json", "--root", root, pack).Output()
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

// replay replays the ledger of the mesh, and returns the events per second and the CPU
// time of the command in microseconds per event.
func replay(t *testing.T, m *harness.Mesh) (rate, cpu float64) {
	cmd := exec.Command(harness.Bin(t, "binnacle"), "replay", "--json")
	cmd.Env = append(os.Environ(), m.Env()...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(string(out), err)
	}
	var rep struct {
		Events int     `json:"events"`
		Rate   float64 `json:"events_per_second"`
		Equal  bool    `json:"equal"`
	}
	if err := json.Unmarshal(out, &rep); err != nil || !rep.Equal {
		t.Fatal(string(out), err)
	}
	return rep.Rate, float64((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Microseconds()) / float64(rep.Events)
}
