//go:build bench

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// figures holds the results of one run of one build.
type figures struct {
	p50, cpu, chat time.Duration // median latency with one client, and CPU time (over all services, with 64 clients), of a governed no-op call; median latency of a call to a model
	rate           float64       // no-op calls per second with 64 clients
}

// TestPairs compares two builds of the mesh. It runs them alternately, PAIRS times each
// (default 10), and prints the medians and the median ratio of the pairs.
// scripts/bench-pairs makes the earlier build; BASE_BIN is the path of its program.
func TestPairs(t *testing.T) {
	base := os.Getenv("BASE_BIN")
	if base == "" {
		t.Fatal("BASE_BIN names the program to compare with; run scripts/bench-pairs REVISION")
	}
	n := 10
	if v := os.Getenv("PAIRS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil || n < 1 {
			t.Fatalf("PAIRS=%q: want a number from 1", v)
		}
	}
	builds := []string{base, harness.Bin(t, "binnacle")}
	var runs [2][]figures
	for i := range n {
		order := []int{0, 1}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, b := range order {
			f := measure(t, builds[b])
			runs[b] = append(runs[b], f)
			fmt.Printf("pair %2d  %-7s noop p50 %7s  cpu/call %7s  64 clients %6.0f/s  chat p50 %7s\n", i+1, []string{"before", "after"}[b], f.p50, f.cpu, f.rate, f.chat)
		}
	}
	for _, x := range []struct {
		name string
		of   func(figures) float64
	}{
		{"noop, 1 client, p50 us", func(f figures) float64 { return float64(f.p50.Nanoseconds()) / 1000 }},
		{"noop, 64 clients, CPU us per call", func(f figures) float64 { return float64(f.cpu.Nanoseconds()) / 1000 }},
		{"noop, 64 clients, us per call", func(f figures) float64 { return 1e6 / f.rate }},
		{"chat, 1 client, p50 us", func(f figures) float64 { return float64(f.chat.Nanoseconds()) / 1000 }},
	} {
		var before, after, ratio []float64
		for i := range n {
			b, a := x.of(runs[0][i]), x.of(runs[1][i])
			before, after, ratio = append(before, b), append(after, a), append(ratio, a/b)
		}
		fmt.Printf("%-36s before %8.1f  after %8.1f  median ratio %.3f\n", x.name, median(before), median(after), median(ratio))
	}
}

// warmup is longer than the time after its start for which an executor reads the ledger for
// cancellations before each call.
const warmup = 11 * time.Second

// measure runs a mesh of a build in a new folder and returns its figures.
func measure(t *testing.T, program string) (f figures) {
	dir, addr := t.TempDir(), ports.Free(t)
	cmd := exec.Command(program, "up", "--addr", addr, "--data", dir, "--noop")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	token := ""
	call := func(path, session, body string) error {
		_, err := post("http://"+addr+path, token, session, []byte(body))
		return err
	}
	noop := func(c int) error { return call("/api/v1/packs/noop", fmt.Sprint("s-pairs-", c), "{}") }
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(dir, "admin.token"))
		if token = strings.TrimSpace(string(b)); err == nil {
			if err = noop(0); err == nil {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not come up: %v", program, err)
		}
	}
	run := func(clients int, d time.Duration, each func(int) error) ([]time.Duration, float64) {
		lat, rate, err := load(clients, d, each)
		if err != nil {
			t.Fatal(err)
		}
		return lat, rate
	}
	run(16, warmup, noop)
	lat, _ := run(1, 3*time.Second, noop)
	f.p50 = lat[len(lat)/2].Round(time.Microsecond)
	before := cpuOf(t, cmd.Process.Pid)
	lat, f.rate = run(64, 4*time.Second, noop)
	f.cpu = ((cpuOf(t, cmd.Process.Pid) - before) / time.Duration(len(lat))).Round(time.Microsecond)
	lat, _ = run(1, 2*time.Second, func(c int) error {
		return call("/v1/chat/completions", "s-pairs-chat", `{"model":"demo/echo","messages":[{"role":"user","content":"hold fast"}]}`)
	})
	f.chat = lat[len(lat)/2].Round(time.Microsecond)
	return f
}

// cpuOf returns the CPU time that a process has used, from /proc/PID/stat (proc(5)). A
// tick is 10 ms on every Linux that Go supports.
func cpuOf(t *testing.T, pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
