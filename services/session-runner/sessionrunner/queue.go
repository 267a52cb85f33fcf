package sessionrunner

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/pkg/fair"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// defaultRuns is the default of Config.Runs.
const defaultRuns = 16

// beside is the number of concurrent calls beside those that run in a sandbox of their own or
// wait for one: tool.noop, calls for held sandboxes, calls that manage images or archives of
// packs, and calls that are refused.
const beside = 256

// queue bounds the sandboxes of calls that run at a time, and the calls that wait for one.
// Waiting calls are served as a fair.Gate does: the tenants in turn, and within a tenant its
// actors. Their number is divided among the tenants as fair.Room does. Of a queue of two
// places or more, one tenant has at most half, so that no tenant can fill it. A queue is safe
// for concurrent use.
type queue struct {
	runs, max int
	gate      *fair.Gate

	mu      sync.Mutex
	present int       // calls that run or wait
	room    fair.Room // calls that wait, by tenant
}

// newQueue returns a queue for the given numbers of running and of waiting calls.
func newQueue(runs, waiting int) *queue {
	return &queue{runs: runs, max: waiting, gate: fair.New(runs)}
}

// errQueueFull is the error of enter if too many calls wait, or too many of the tenant.
var errQueueFull = errors.New("too many calls wait for a sandbox")

// enter waits until a call may run, and returns the function that the caller must call when the
// call no longer runs. If the call must wait, enter first calls waits with the number of waiting
// calls, this one included, and with 0 when the call may run. It returns errQueueFull, or the
// error of the gate, for example because ctx is done.
func (q *queue) enter(ctx context.Context, tenant, actor string, waits func(position int)) (leave func(), err error) {
	q.mu.Lock()
	position := q.present + 1 - q.runs
	if position > 0 && !q.admit(tenant) {
		q.mu.Unlock()
		return nil, errQueueFull
	}
	q.present++
	q.mu.Unlock()
	waiting := position > 0
	waited := waiting
	admitted := func() { // the call no longer waits
		q.mu.Lock()
		defer q.mu.Unlock()
		if waiting {
			q.room.Give(tenant, 1)
			waiting = false
		}
	}
	gone := func() {
		admitted()
		q.mu.Lock()
		defer q.mu.Unlock()
		q.present--
	}
	if waiting {
		waits(position)
	}
	if err := q.gate.Enter(ctx, tenant, actor); err != nil {
		gone()
		return nil, err
	}
	admitted()
	if waited {
		waits(0)
	}
	return func() { q.gate.Leave(); gone() }, nil
}

// admit reports whether a call of a tenant may wait, and counts it if so. q.mu must be held.
func (q *queue) admit(tenant string) bool {
	most := max(int64(q.max), 2) // a tenant may use the only place of a queue
	return q.max > 0 && q.room.Of(tenant) < most/2 && q.room.Take(tenant, 1, most)
}

// state returns the numbers of running and of waiting calls.
func (q *queue) state() (running, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return min(q.present, q.runs), max(q.present-q.runs, 0)
}

// enter waits until a call of a pack may run in a sandbox, first for other calls of the concurrency
// class of the pack, and returns the function that the caller must call when the call no longer
// runs. While the call waits, sandbox_queued records its position, and 0 when it no longer waits in
// a queue, and gateways can query the position. If the call cannot run, enter returns nil and the
// result of the call.
func (s *Service) enter(ctx context.Context, w *execute.Work, class string) (func(), execute.Result) {
	defer s.reports.wait(w, 0)
	end := func() {}
	if q := s.classes[class]; q != nil {
		var res execute.Result
		if end, res = q.pass(ctx, w, &s.reports, "session-runner.concurrency"); end == nil {
			return nil, res
		}
	}
	leave, res := s.queue.pass(ctx, w, &s.reports, "session-runner.runs")
	if leave == nil {
		end()
		return nil, res
	}
	return func() { leave(); end() }, res
}

// pass is enter for one queue, whose number of running calls the given setting determines. It reports
// the position of the call to reports.
func (q *queue) pass(ctx context.Context, w *execute.Work, reports *progress, setting string) (leave func(), res execute.Result) {
	leave, err := q.enter(ctx, w.Event.Tenant, w.Event.Actor, func(position int) {
		reports.wait(w, position)
		w.Fact(contract.EventSandboxQueued, contract.Bytes(&events.SandboxQueued{CallID: w.Call.ID, Position: int64(position), Running: int64(q.runs)}))
	})
	if errors.Is(err, errQueueFull) || errors.Is(err, fair.ErrFull) {
		return nil, execute.Fail(contract.CodeSandboxQueueFull, "as many calls of the tenant wait for a sandbox of this instance as may, of %d of all tenants, while %d run: call again later, or raise %s or session-runner.queue", q.max, q.runs, setting)
	}
	if err != nil {
		return nil, execute.Fail(contract.CodeUnavailable, "the call ended while it waited for a sandbox: %v", err)
	}
	return leave, execute.Result{}
}

// classQueues returns the queues of concurrency classes, by class. A class is CLASS=N, of which at
// most N calls run at a time; waiting is the number of those that may wait.
func classQueues(classes []string, waiting int) (map[string]*queue, error) {
	out := map[string]*queue{}
	for _, c := range classes {
		name, number, _ := strings.Cut(c, "=")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || !pack.ClassName.MatchString(name) || out[name] != nil {
			return nil, fmt.Errorf("session-runner.concurrency: %q: want CLASS=N, with a number of at least 1 and each class once", c)
		}
		out[name] = newQueue(n, waiting)
	}
	return out, nil
}

// report adds the state of the sandboxes to the health and the metrics of the instance. The
// sandboxes count as healthy even if a tier is missing, because only calls that require the
// tier are refused.
func (s *Service) report(env *run.Env) {
	env.Report(func(ctx context.Context) run.Health {
		running, waiting := s.queue.state()
		detail := fmt.Sprintf("%d running, %d waiting, %d prepared; ", running, waiting, s.prepared())
		return run.Health{Name: "sandboxes", OK: true, Lag: uint64(waiting), Detail: detail + s.tiers(ctx)}
	})
	env.Metrics.Gauge("binnacle_sandboxes_running", "Calls that run in a sandbox.", func() float64 { n, _ := s.queue.state(); return float64(n) })
	env.Metrics.Gauge("binnacle_sandboxes_waiting", "Calls that wait for a sandbox.", func() float64 { _, n := s.queue.state(); return float64(n) })
	env.Metrics.Gauge("binnacle_sandboxes_prepared", "Containers that are prepared for a call.", func() float64 { return float64(s.prepared()) })
}

// prepared returns the number of prepared containers, 0 without containerd.
func (s *Service) prepared() int {
	if r, ok := s.closer.(*containerd.Runner); ok {
		return r.Prepared()
	}
	return 0
}

// tiers describes which isolation tiers are available, and why one is not.
func (s *Service) tiers(ctx context.Context) string {
	r, ok := s.closer.(*containerd.Runner)
	switch {
	case ok:
		if err := containerd.Serving(ctx, r); err != nil {
			return "tier container is missing: " + err.Error()
		}
		if s.MicroVM != "" {
			return "tiers wasi, container and microvm (" + s.MicroVM + ")"
		}
		return "tiers wasi and container"
	case s.broken != nil:
		return "tiers process and container are missing: " + s.broken.Error()
	}
	return "tiers wasi and process; tier container is missing: no containerd socket is configured"
}

// remedy returns the instruction for making a tier available.
func remedy(tier string) string {
	if tier == containerd.TierMicroVM {
		return "configure a containerd socket and session-runner.microvm.runtime (BINNACLE_MICROVM_RUNTIME) on the session-runner"
	}
	return "configure a containerd socket (BINNACLE_CONTAINERD) on the session-runner"
}
