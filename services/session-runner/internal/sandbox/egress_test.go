package sandbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward/forwardtest"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// client returns a run of the program of package forwardtest.
func client(t *testing.T) Spec {
	t.Helper()
	p, err := program.Open(forwardtest.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	limits := small
	limits.OutputBytes, limits.WallMS, limits.MemoryMiB, limits.Pids = 64<<10, 30_000, 128, 64
	return Spec{Program: p, Env: forwardtest.Pack, Limits: limits}
}

// TestEgress checks that a run with egress reaches its own proxy and nothing else, and
// that a run without egress reaches nothing, while another run uses its proxy. The
// session-runner enters the namespace of the run if it is root.
func TestEgress(t *testing.T) { reaches(t) }

// TestHanded makes the checks of TestEgress for a session-runner to which the child sends its
// listener.
func TestHanded(t *testing.T) {
	canEnter = func() bool { return false }
	defer func() { canEnter = privileged }()
	reaches(t)
}

func reaches(t *testing.T) {
	t.Helper()
	s := client(t)
	r := runner(t)
	var other sync.WaitGroup
	defer other.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hold := forwardtest.Start(t, "hold")
	other.Go(func() {
		s := s
		s.ID, s.Stdin, s.Egress = "hold", []byte("get http://example.com/hold"), &Egress{Socket: hold.Socket, CA: hold.CA}
		if _, err := r.Run(ctx, s); err != nil {
			t.Error(err)
		}
	})
	hold.AwaitHeld(t)
	p := forwardtest.Start(t, "own")
	for _, c := range []struct {
		attempts *forwardtest.Attempts
		egress   *Egress
		fact     string
		min, max int64
	}{
		{forwardtest.All(t, p, CAPath), &Egress{Socket: p.Socket, CA: p.CA}, "network:egress_broker", 1000, 20000}, // a TLS handshake and two pages
		{forwardtest.None(t, CAPath), nil, "no_network", 0, 0},
	} {
		s.ID, s.Stdin, s.Egress = "egress", c.attempts.Input(), c.egress
		out, err := r.Run(t.Context(), s)
		if err != nil || out.Exit != 0 {
			t.Fatalf("exit %d, %s, %v", out.Exit, out.Stderr, err)
		}
		c.attempts.Check(t, out.Stdout)
		if !slices.Contains(out.Attest.Enforced, c.fact) || slices.Contains(out.Attest.Enforced, "no_network") != (c.egress == nil) {
			t.Errorf("%v", out.Attest.Enforced)
		}
		if n := out.Usage.EgressBytes; !slices.Contains(out.Usage.Measured, "egress_bytes") || n < c.min || n > c.max {
			t.Errorf("%+v", out.Usage)
		}
	}
	for want, e := range map[string]*Egress{"certificate authority": {Socket: "/x"}, "no such file": {Socket: filepath.Join(t.TempDir(), "none"), CA: []byte("x")}} {
		s.ID, s.Egress = "invalid", e
		if _, err := r.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestEgressLeaks ends 50 runs at random times, by their time limit or by cancellation,
// and checks that no goroutine, descriptor, process or network namespace is left.
func TestEgressLeaks(t *testing.T) {
	s := client(t)
	r := runner(t)
	p := forwardtest.Start(t, "proxy")
	s.Egress = &Egress{Socket: p.Socket, CA: p.CA}
	s.Stdin = []byte("get http://example.com/x\nget http://example.com/hold")
	s.Limits.CPUMillis = 500
	before, files := runtime.NumGoroutine(), count(t, "/proc/self/fd/*")
	var all sync.WaitGroup
	for w := range 2 {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range 25 {
				s := s
				s.ID = fmt.Sprintf("leak-%d-%d", w, i)
				s.Limits.WallMS = 50 + rnd.Int64N(200)
				ctx, cancel := context.WithCancel(t.Context())
				if i%2 == 0 {
					s.Limits.WallMS = 30_000
					time.AfterFunc(time.Duration(rnd.IntN(200))*time.Millisecond, cancel)
				}
				if _, err := r.Run(ctx, s); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		g, f, n := runtime.NumGoroutine(), count(t, "/proc/self/fd/*"), left(t)
		if g <= before && f <= files && len(n) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, before %d; %d descriptors, before %d; left: %v", g, before, f, files, n)
		}
	}
}

func count(t *testing.T, pattern string) int {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// left returns the children of this process, and the network namespaces of its threads
// that are not its own.
func left(t *testing.T) []string {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, pattern := range []string{"/proc/self/task/*/ns/net", "/proc/self/task/*/children"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if ns, err := os.Readlink(name); err == nil && ns != own {
				out = append(out, ns)
			}
			if b, err := os.ReadFile(name); err == nil && strings.HasSuffix(name, "children") && len(b) > 0 {
				out = append(out, "children "+string(b))
			}
		}
	}
	return out
}
