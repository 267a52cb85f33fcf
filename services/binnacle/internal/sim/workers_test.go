package sim

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

var (
	seedFlag   = flag.Uint64("seed", 1, "the seed of TestSeed, and the first one of TestSchedules and TestReproducible")
	countFlag  = flag.Int("schedules", 20, "how many schedules TestSchedules runs, and TestReproducible twice")
	workerFlag = flag.Int("workers", runtime.NumCPU(), "how many processes run schedules at once")
	untilFlag  = flag.Int64("until", math.MaxInt64, "the time, in seconds since 1970, after which TestSchedules and TestDefects begin no batch; they print what they did not run")
	stateFlag  = flag.String("state", "", "a file in which TestSchedules keeps what is done, to go on from")
)

// batch describes the schedules that one process runs.
type batch struct {
	From, Count uint64
	Digests     bool // whether the results of all schedules are reported, not only the results of schedules that break an invariant
	Stop        int  // stop after this many schedules that break an invariant; 0: never
}

const (
	batchEnv = "BINNACLE_SIM_BATCH"
	// chunk is the maximum number of schedules in a batch of TestSchedules. Every batch
	// runs with GOMAXPROCS=1, which is fast and reduces the variation of the order of
	// goroutines, and, except in TestReproducible, with GOGC=400, which saves 3 % of the
	// CPU time.
	chunk = 50
	// patience is the time limit of a schedule, after which its process panics and
	// prints all goroutines.
	patience = 10 * time.Minute
)

// plantEnv is the environment variable that names the defect of a process. After the
// process has made its bases, it activates the defect by setting defectEnv to the name.
const (
	plantEnv  = "BINNACLE_SIM_PLANT"
	defectEnv = "BINNACLE_SIM_DEFECT"
)

// TestWorker runs a batch if spawn has started this process. Otherwise it does nothing.
func TestWorker(t *testing.T) {
	raw := os.Getenv(batchEnv)
	if raw == "" {
		return // the test runs a batch only in a process that spawn has started
	}
	var b batch
	if err := json.Unmarshal([]byte(raw), &b); err != nil {
		t.Fatal(err)
	}
	sign.Remember(1 << 16) // as the process of "binnacle up" does: the instances verify and decode the same documents
	catalog.Remember(1 << 10)
	all := &bases{t: t}
	all.of(scene{})
	all.of(scene{older: true})
	if d := os.Getenv(plantEnv); d != "" {
		t.Setenv(defectEnv, d)
	}
	out := json.NewEncoder(os.Stdout)
	sum := result{Statuses: map[string]int{}}
	bad := 0
	for seed := b.From; seed < b.From+b.Count && (b.Stop == 0 || bad < b.Stop); seed++ {
		hung := time.AfterFunc(patience, func() {
			fmt.Fprintf(os.Stderr, "seed %d does not end\n", seed)
			debug.SetTraceback("all")
			panic("stuck")
		})
		r := schedule(t, all, seed, false)
		hung.Stop()
		if b.Digests {
			runtime.GC() // TestReproducible turns the collector off: the place at which it runs changes the order of goroutines
		}
		sum.add(&r)
		if b.Digests || len(r.Bad) > 0 {
			_ = out.Encode(&r)
		}
		if len(r.Bad) > 0 {
			bad++
		}
	}
	sum.Sum = true
	_ = out.Encode(&sum)
}

// add counts r as one schedule and adds the numbers of r to the numbers of s.
func (s *result) add(r *result) {
	s.Schedules++
	s.Steps += r.Steps
	s.Events += r.Events
	s.Calls += r.Calls
	s.Crashes += r.Crashes
	s.Restarts += r.Restarts
	for k, n := range r.Statuses {
		s.Statuses[k] += n
	}
}

// spawn runs a batch in a new process of program, or of this test program if program is
// "", with env added to its environment. It calls each with every result that the
// process reports, including the sum. It returns an error unless the process succeeds
// and reports a sum.
func spawn(program string, b batch, each func(*result), env ...string) error {
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(b)
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "-test.run=^TestWorker$", "-test.timeout=0")
	cmd.Env = append(append(os.Environ(), "GOMAXPROCS=1", "GOGC=400", batchEnv+"="+string(raw)), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := false
	in := bufio.NewScanner(out)
	in.Buffer(nil, 64<<20)
	var rest []string
	for in.Scan() {
		var r result
		if strings.HasPrefix(in.Text(), "{") && json.Unmarshal(in.Bytes(), &r) == nil {
			each(&r)
			ended = ended || r.Sum
		} else {
			rest = append(rest, in.Text())
		}
	}
	if err := cmd.Wait(); err != nil || !ended {
		return fmt.Errorf("the process of seeds %d to %d failed: %w\n%.4000s\n%.4000s", b.From, b.From+b.Count-1, err, strings.Join(rest, "\n"), errs.String())
	}
	return nil
}

// state is the progress of a long run, stored in a file so that the run can be resumed.
type state struct {
	From, Next uint64            // the seeds from From to Next-1 are done
	Ahead      map[uint64]uint64 // number of seeds in each batch after Next that is done, by the batch's first seed
	Sum        result            `json:"sum"`
	Bad        map[uint64]string `json:"bad"`
	Seconds    float64
}

// TestSchedules checks that no invariant is broken in many schedules, each with a
// different seed. The flag workers sets how many processes run them at once.
func TestSchedules(t *testing.T) {
	s := state{From: *seedFlag, Next: *seedFlag, Ahead: map[uint64]uint64{}, Sum: result{Statuses: map[string]int{}}, Bad: map[uint64]string{}}
	if *stateFlag != "" {
		if raw, err := os.ReadFile(*stateFlag); err == nil {
			if err := json.Unmarshal(raw, &s); err != nil {
				t.Fatalf("%s: %v; remove it to begin anew", *stateFlag, err)
			}
			t.Logf("going on from seed %d", s.Next)
		}
	}
	last := *seedFlag + uint64(*countFlag)
	first, before, began, shown := s.Sum.Schedules, s.Seconds, time.Now(), time.Time{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := s.Next
	size := min(chunk, max(1, (last-min(next, last))/uint64(*workerFlag)))
	for range *workerFlag {
		wg.Go(func() {
			for {
				mu.Lock()
				for n, ok := s.Ahead[next]; ok; n, ok = s.Ahead[next] { // an earlier run has executed this batch
					next += n
				}
				b := batch{From: next, Count: min(size, last-min(next, last))}
				next += b.Count
				mu.Unlock()
				if b.Count == 0 || time.Now().Unix() > *untilFlag || t.Failed() && *stateFlag == "" {
					return
				}
				var sum result
				err := spawn("", b, func(r *result) {
					mu.Lock()
					defer mu.Unlock()
					if r.Sum {
						sum = *r
					} else if len(r.Bad) > 0 {
						s.Bad[r.Seed] = strings.Join(r.Bad, "\n\t")
						t.Errorf("seed %d: %s", r.Seed, s.Bad[r.Seed])
					}
				})
				mu.Lock()
				if err != nil {
					t.Error(err)
					mu.Unlock()
					return
				}
				s.Sum.merge(&sum)
				s.Ahead[b.From] = b.Count
				for n, ok := s.Ahead[s.Next]; ok; n, ok = s.Ahead[s.Next] {
					delete(s.Ahead, s.Next)
					s.Next += n
				}
				s.Seconds = before + time.Since(began).Seconds()
				s.keep(t)
				if time.Since(shown) > 5*time.Second {
					shown = time.Now()
					n := float64(s.Sum.Schedules)
					rate := (n - float64(first)) / time.Since(began).Seconds()
					fmt.Fprintf(os.Stderr, "%9.0f of %d schedules  %.1f/s  %v left  %d bad\n", n, *countFlag, rate,
						(time.Duration((float64(*countFlag)-n)/rate) * time.Second).Round(time.Second), len(s.Bad))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	c := s.Sum
	if left := *countFlag - c.Schedules; left > 0 && !t.Failed() {
		fmt.Printf("not run for lack of time: %d schedules of %d\n", left, *countFlag)
	}
	t.Logf("%d schedules, %d bad, in %.0f s; %d calls, %d crashes, %d server restarts, %d steps, %d events; outcomes %v", c.Schedules, len(s.Bad), s.Seconds, c.Calls, c.Crashes, c.Restarts, c.Steps, c.Events, c.Statuses)
	for seed := range s.Bad {
		t.Errorf("seed %d is bad: go test ./services/binnacle/internal/sim -run TestSeed -seed %d -v", seed, seed)
	}
}

func (s *result) merge(r *result) {
	n := s.Schedules + r.Schedules
	s.add(r)
	s.Schedules = n
}

// keep replaces the file that the flag state names with s, atomically. Without the flag,
// it does nothing.
func (s *state) keep(t *testing.T) {
	if *stateFlag == "" {
		return
	}
	raw, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(*stateFlag), 0o755)
	}
	if err == nil {
		err = os.WriteFile(*stateFlag+".new", raw, 0o644)
	}
	if err == nil {
		err = os.Rename(*stateFlag+".new", *stateFlag)
	}
	if err != nil {
		t.Error(err)
	}
}
