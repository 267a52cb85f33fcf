//go:build containers

package containerd

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward/forwardtest"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// client returns a run of the program of package forwardtest with the given input.
// The run uses the proxy p, or has no egress if p is nil.
func client(t *testing.T, in string, p *forwardtest.Proxy) sandbox.Spec {
	t.Helper()
	prog, err := program.Open(forwardtest.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prog.Close() })
	s := run(prog, in, 30*time.Second)
	s.Env = forwardtest.Pack
	if p != nil {
		s.Egress = &sandbox.Egress{Socket: p.Socket, CA: p.CA}
	}
	return s
}

// TestEgress checks that a run in a cold or a prepared container reaches its own proxy and
// nothing else, and that a run without egress reaches nothing, while another run uses its
// proxy. A run whose socket does not exist must fail.
func TestEgress(t *testing.T) {
	d := startDaemon(t)
	for _, warm := range []int{0, 2} {
		t.Run(fmt.Sprintf("warm %d", warm), func(t *testing.T) {
			r := d.open(t, warm)
			defer func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}()
			hold := forwardtest.Start(t, "hold")
			held := client(t, "get http://example.com/hold", hold)
			ctx, cancel := context.WithCancel(t.Context())
			var other sync.WaitGroup
			defer other.Wait()
			defer cancel()
			other.Go(func() {
				if _, err := r.Run(ctx, held); err != nil {
					t.Error(err)
				}
			})
			hold.AwaitHeld(t)
			p := forwardtest.Start(t, "own")
			s := client(t, "", p)
			for _, c := range []struct {
				attempts *forwardtest.Attempts
				egress   *sandbox.Egress
				fact     string
				min, max int64
			}{
				{forwardtest.All(t, p, sandbox.CAPath), s.Egress, "network:egress_broker", 1000, 20000}, // a TLS handshake and two pages
				{forwardtest.None(t, sandbox.CAPath), nil, "no_network", 0, 0},
			} {
				s.Stdin, s.Egress = c.attempts.Input(), c.egress
				if warm > 0 {
					filled(t, r, 1)
				}
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
			s.Egress = &sandbox.Egress{Socket: filepath.Join(t.TempDir(), "none"), CA: p.CA}
			if _, err := r.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "no such file") {
				t.Errorf("without a socket: %v", err)
			}
		})
	}
	if l := d.left(t); len(l) > 0 {
		t.Errorf("left after Close: %v", l)
	}
}

// TestEgressLeaks makes 50 runs with egress, of which some are cancelled, some exceed
// their time, and some lose their shim. No goroutine, descriptor, mount, thread in another
// network namespace, or part of a container is left afterwards.
func TestEgressLeaks(t *testing.T) {
	d := startDaemon(t)
	p := forwardtest.Start(t, "proxy")
	s := client(t, "get http://example.com/x\nget http://example.com/hold", p)
	before, files := runtime.NumGoroutine(), entries(t, "/proc/self/fd/*")
	r := d.open(t, 2)
	stop := make(chan struct{})
	var killer, all sync.WaitGroup
	killer.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(1500 * time.Millisecond):
				killShim(d.socket, testNamespace)
			}
		}
	})
	var ran, failed atomic.Int64
	for w := range 2 {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range 25 {
				s := s
				s.Limits.WallMS = 50 + rnd.Int64N(200)
				ctx, cancel := context.WithCancel(t.Context())
				if i%2 == 0 {
					s.Limits.WallMS = 30_000
					time.AfterFunc(time.Duration(rnd.IntN(300))*time.Millisecond, cancel)
				}
				if out, err := r.Run(ctx, s); err != nil {
					failed.Add(1) // its shim was killed
				} else if out.Usage.EgressBytes > 0 {
					ran.Add(1)
				}
				cancel()
			}
		})
	}
	all.Wait()
	close(stop)
	killer.Wait()
	if ran.Load() < 10 {
		t.Errorf("only %d of 50 runs used the proxy, and %d failed", ran.Load(), failed.Load())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := d.open(t, 0).Close(); err != nil { // a sweep removes what killed shims left
		t.Error(err)
	}
	if l := d.left(t); len(l) > 0 {
		t.Errorf("left:\n%s", strings.Join(l, "\n"))
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		g, f := runtime.NumGoroutine(), entries(t, "/proc/self/fd/*")
		if g <= before && f <= files {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, before %d; %d descriptors, before %d", g, before, f, files)
		}
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	threads, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, thread := range threads {
		if ns, err := os.Readlink(thread); err == nil && ns != own {
			t.Errorf("%s is in %s", thread, ns)
		}
	}
}

func entries(t *testing.T, pattern string) int {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
