package sim

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/binnacle-mesh/binnacle/services/session-runner/containertest"
)

// boxes are the containers of all effects, in one simulated containerd daemon. Half of the seeds
// have faults of requests, and a third have restarts of the daemon. The faults are not drawn from
// the world's random source, since requests are made by goroutines of the instances: a fault
// depends on the seed, the instance, the call and the number of equal requests before it.
type boxes struct {
	seed   uint64
	daemon *containertest.Daemon
	odds   float64 // probability that a request for a container is lost or not answered
	stops  []time.Duration
	calm   atomic.Bool // whether faults are disabled

	mu   sync.Mutex
	seen map[string]int // requests, by instance, call and name
}

func newBoxes(seed uint64) *boxes {
	r := rand.New(rand.NewPCG(seed, 0x636f_6e74_6169_6e65))
	b := &boxes{seed: seed, daemon: containertest.New(), seen: map[string]int{}}
	if r.IntN(2) == 0 {
		b.odds = 0.1 * r.Float64()
	}
	if r.IntN(3) == 0 {
		for range 1 + r.IntN(3) {
			b.stops = append(b.stops, time.Duration(r.Int64N(int64(10*time.Second))), time.Duration(1+r.Int64N(int64(8*time.Second))))
		}
	}
	b.calm.Store(true)
	b.daemon.Fault = b.fault
	return b
}

// begin enables the faults. The daemon stops and starts again at the times of the seed, until
// the faults are disabled.
func (b *boxes) begin() {
	b.calm.Store(false)
	go func() {
		for pause := range slices.Chunk(b.stops, 2) {
			time.Sleep(pause[0])
			if b.calm.Load() {
				return
			}
			b.daemon.Stop()
			time.Sleep(pause[1])
			b.daemon.Start()
		}
	}()
}

// fault decides about a request. Requests without a container have no faults.
func (b *boxes) fault(instance, call, op string) containertest.Fault {
	if b.odds == 0 || call == "" || b.calm.Load() {
		return containertest.None
	}
	key := instance + " " + call + " " + op
	b.mu.Lock()
	b.seen[key]++
	n := b.seen[key]
	b.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprint(h, b.seed, key, n)
	r := rand.New(rand.NewPCG(h.Sum64(), b.seed))
	if r.Float64() >= b.odds {
		return containertest.None
	}
	return containertest.Lost + containertest.Fault(r.IntN(2))
}

// open returns the runner of an instance of the session-runner. It removes the containers of
// the instance's earlier process.
func (b *boxes) open(in *instance) (*containertest.Runner, error) {
	return containertest.Open(in.ctx, b.daemon, fmt.Sprint(in.kind, "-", in.n), in.ctx.Done(), 0)
}

// emptied checks that no container, task, snapshot or lease is left once no call runs. It
// waits for a sweep, which removes what earlier runs could not remove.
func (w *world) emptied() {
	if !w.until(2*time.Minute, func() bool { return len(w.boxes.daemon.Left()) == 0 }) {
		w.violate("left in containerd: %s", strings.Join(w.boxes.daemon.Left(), ", "))
	}
}
