package containertest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestRuns makes runs under 100 seeds, while requests to the daemon are lost or not
// answered, the daemon stops and starts, and runners are killed and replaced. It checks that
// no program runs twice, that a run which succeeds has the output of its program, which ended,
// that a run without faults succeeds, and that no container is left.
func TestRuns(t *testing.T) {
	log := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer slog.SetDefault(log)
	failed, worked := 0, 0
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			r := newRuns(t, seed)
			r.play()
			failed, worked = failed+r.failed, worked+r.worked
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d runs succeeded, %d failed", worked, failed)
	if failed < 200 || worked < 200 {
		t.Errorf("%d runs succeeded and %d failed: the faults are too frequent or too rare", worked, failed)
	}
}

// TestEnded checks that a program is not started if its call ends while the container cannot
// be created yet.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New()
		r, err := Open(t.Context(), d, "n", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		d.Stop()
		ctx, end := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second)
			end()
			time.Sleep(time.Second)
			d.Start()
		}()
		_, _, err = r.Run(ctx, "image", func(context.Context, []byte) ([]byte, int) { t.Error("the program was started"); return nil, 0 }, time.Minute)
		if err == nil || !strings.Contains(err.Error(), "not started") {
			t.Error(err)
		}
	})
}

// runs are the runs of one seed.
type runs struct {
	t    *testing.T
	rng  *rand.Rand // used by the goroutine of play alone
	d    *Daemon
	odds float64 // probability that a request is lost or not answered

	mu      sync.Mutex
	faults  *rand.Rand
	calm    bool
	started map[string]int  // by image
	ended   map[string]bool // programs that were not killed
	failed  int
	worked  int
}

func newRuns(t *testing.T, seed uint64) *runs {
	r := &runs{t: t, rng: rand.New(rand.NewPCG(seed, 1)), faults: rand.New(rand.NewPCG(seed, 2)), d: New(), started: map[string]int{}, ended: map[string]bool{}}
	r.odds = 0.15 * r.rng.Float64()
	r.d.Fault = func(string, string, string) Fault {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calm || r.faults.Float64() >= r.odds {
			return None
		}
		return Lost + Fault(r.faults.IntN(2))
	}
	return r
}

// program returns a program that takes some time and returns the name of its image.
func (r *runs) program(image string, took time.Duration) Program {
	return func(ctx context.Context, _ []byte) ([]byte, int) {
		r.mu.Lock()
		r.started[image]++
		r.mu.Unlock()
		select {
		case <-time.After(took):
			r.mu.Lock()
			r.ended[image] = true
			r.mu.Unlock()
			return []byte(image), 0
		case <-ctx.Done():
			return nil, 1
		}
	}
}

// instance is one process of an instance of the session-runner.
type instance struct {
	runner *Runner
	dead   chan struct{}
	done   sync.WaitGroup
}

// open starts a process of instance n. It repeats a start that failed, as a supervisor of the
// process would.
func (r *runs) open(n int) *instance {
	in := &instance{dead: make(chan struct{})}
	for {
		var err error
		if in.runner, err = Open(context.Background(), r.d, fmt.Sprint("n", n), in.dead, r.rng.IntN(3)); err == nil {
			return in
		}
		time.Sleep(time.Second)
	}
}

// run makes one run and checks its result.
func (r *runs) run(in *instance, image string, took, most time.Duration, faultless bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-in.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	out, exit, err := in.runner.Run(ctx, image, r.program(image, took), most)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || exit != 0 {
		if r.failed++; faultless {
			r.t.Errorf("%s without faults: exit %d, %v", image, exit, err)
		}
		return
	}
	r.worked++
	if string(out) != image || !r.ended[image] {
		r.t.Errorf("%s succeeded with output %q, and its program ended: %v", image, out, r.ended[image])
	}
}

func (r *runs) play() {
	all := []*instance{r.open(0), r.open(1)}
	for i := range 20 {
		n := r.rng.IntN(2)
		in := all[n]
		took, most := time.Duration(r.rng.IntN(2000))*time.Millisecond, time.Duration(1+r.rng.IntN(4000))*time.Millisecond
		in.done.Go(func() { r.run(in, fmt.Sprintf("%d-%d", n, i), took, most, false) })
		time.Sleep(time.Duration(r.rng.IntN(500)) * time.Millisecond)
		switch r.rng.IntN(8) {
		case 0:
			r.d.Stop()
			time.Sleep(time.Duration(r.rng.IntN(8000)) * time.Millisecond)
			r.d.Start()
		case 1:
			close(in.dead)
			time.Sleep(time.Duration(r.rng.IntN(2000)) * time.Millisecond)
			all[n] = r.open(n)
			go func() { in.done.Wait(); _ = in.runner.Close() }() // all requests of the killed process fail
		}
	}
	r.mu.Lock()
	r.calm = true
	r.mu.Unlock()
	for n, in := range all {
		in.done.Wait()
		r.run(in, fmt.Sprint("last-", n), time.Second, time.Minute, true)
	}
	time.Sleep(2 * time.Minute) // two sweeps
	synctest.Wait()
	for image, n := range r.started {
		if n > 1 {
			r.t.Errorf("%s was started %d times", image, n)
		}
	}
	for _, in := range all {
		_ = in.runner.Close()
	}
	if left := r.d.Left(); len(left) > 0 {
		r.t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
	time.Sleep(time.Hour) // the goroutines of killed instances end
}
