// Package wasi runs WebAssembly programs (WASI preview 1) in tier "wasi". A program has
// standard input, output and error, and environment variables, but no files, sockets or
// arguments. Its clock and random numbers are derived from the intent, so that a run can
// be repeated.
package wasi

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// Runner implements sandbox.Runner for WebAssembly modules, which it runs in this
// process with wazero. It caches compiled modules; each run has its own instance of its
// module. It is safe for concurrent use.
type Runner struct {
	runtime wazero.Runtime

	mu       sync.Mutex
	compiled map[string]*module // by digest of the program
}

type module struct {
	once sync.Once
	code wazero.CompiledModule
	err  error
}

// Open returns a Runner with an empty cache.
func Open(ctx context.Context) (*Runner, error) {
	// Without this option, a module in an endless loop could not be stopped.
	cfg := wazero.NewRuntimeConfig().WithCloseOnContextDone(true)
	r := &Runner{runtime: wazero.NewRuntimeWithConfig(ctx, cfg), compiled: map[string]*module{}}
	_, err := wasi_snapshot_preview1.Instantiate(ctx, r.runtime)
	return r, err
}

// Tier implements sandbox.Runner. A module in this tier has no system calls, only the
// functions of WASI.
func (*Runner) Tier() string { return "wasi" }

// OwnUID implements sandbox.Runner. It returns true because modules have no user ids
// that runs could share.
func (*Runner) OwnUID() bool { return true }

// threadTime returns the CPU time of the calling thread, or 0 if it cannot be read.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// compile compiles a program from its sealed bytes, once per digest, and caches the
// module or the error. It returns an error if the bytes cannot be read, have another
// digest or are not a module.
func (r *Runner) compile(ctx context.Context, of *program.Program) (wazero.CompiledModule, error) {
	r.mu.Lock()
	p := r.compiled[of.Digest]
	if p == nil {
		p = &module{}
		r.compiled[of.Digest] = p
	}
	r.mu.Unlock()
	p.once.Do(func() {
		body, err := of.Bytes()
		if err != nil {
			p.err = err
			return
		}
		p.code, p.err = r.runtime.CompileModule(context.WithoutCancel(ctx), body)
	})
	return p.code, p.err
}

// Run implements sandbox.Runner. The clock starts at s.Time and the random numbers are
// derived from s.Seed, so that a run can be repeated. Run returns an error only if the
// program cannot be read or compiled, or if s has egress (sandbox.ErrNoEgress).
func (r *Runner) Run(ctx context.Context, s sandbox.Spec) (sandbox.Outcome, error) {
	if s.Egress != nil {
		return sandbox.Outcome{}, sandbox.ErrNoEgress
	}
	module, err := r.compile(ctx, s.Program)
	if err != nil {
		return sandbox.Outcome{}, err
	}
	run, cancel := context.WithTimeout(ctx, time.Duration(s.Limits.WallMS)*time.Millisecond)
	defer cancel()
	mem := &memory{max: uint64(s.Limits.MemoryMiB) << 20}
	stdout := &stopping{Capped: sandbox.Capped{Max: s.Limits.OutputBytes}, stop: cancel}
	stderr := sandbox.NewStderr(&s)
	// The program runs on the locked thread, so the CPU time of the thread is that of
	// the run.
	runtime.LockOSThread()
	before := threadTime()
	err = r.start(run, mem, module, config(s, stdout, stderr))
	used := threadTime() - before
	runtime.UnlockOSThread()
	out := sandbox.Outcome{Usage: contract.Usage{CPUMillis: int64((used + time.Millisecond - 1) / time.Millisecond), MemoryPeakBytes: int64(mem.peak),
		Measured: []string{contract.MeasureCompute, contract.MeasureEgress, contract.MeasureMemory}},
		Stdout: stdout.Buf, Stderr: stderr.Bytes(), Overflow: stdout.Over, OOM: err != nil && mem.refused,
		Attest: contract.Attestation{Enforced: []string{"no_files", "no_network", "no_arguments", "program:compiled", "memory", "output_bytes", "wall_clock", "deterministic_clock", "deterministic_randomness"},
			ImageDigest: s.Program.Digest, Limits: s.Limits, Tier: "wasi"}}
	var exit *sys.ExitError
	switch {
	case err == nil:
	case run.Err() != nil && stdout.Over:
		out.Exit = 0 // the program was stopped because it exceeded the output limit
	case errors.Is(run.Err(), context.DeadlineExceeded):
		out.Exit, out.TimedOut = -1, true
	case errors.As(err, &exit):
		out.Exit = int(exit.ExitCode())
	default: // the program could not be started, or ended with a trap
		out.Exit = -1
		out.Stderr = append(out.Stderr, strings.TrimSpace(err.Error())...)
	}
	return out, nil
}

// start instantiates the module and runs it until it ends.
func (r *Runner) start(ctx context.Context, mem *memory, module wazero.CompiledModule, cfg wazero.ModuleConfig) (err error) {
	defer func() { // wazero panics if the initial memory exceeds the limit
		if p := recover(); p != nil {
			if !mem.refused {
				panic(p)
			}
			err = errors.New("the program's memory starts above its limit")
		}
	}()
	mod, err := r.runtime.InstantiateModule(experimental.WithMemoryAllocator(ctx, mem), module, cfg)
	if mod != nil {
		_ = mod.Close(context.WithoutCancel(ctx))
	}
	return err
}

// config returns the configuration of a module: its streams, environment variables,
// clock and random numbers.
func config(s sandbox.Spec, stdout *stopping, stderr *sandbox.Stderr) wazero.ModuleConfig {
	clock := &clock{at: s.Time}
	cfg := wazero.NewModuleConfig().WithName("").WithArgs("main").
		WithStdin(bytes.NewReader(s.Stdin)).WithStdout(stdout).WithStderr(stderr).
		WithRandSource(rand.NewChaCha8(s.Seed)).
		WithWalltime(clock.wall, sys.ClockResolution(tick)).WithNanotime(clock.nano, sys.ClockResolution(tick)).
		WithNanosleep(clock.sleep)
	for _, e := range s.Env {
		k, v, _ := strings.Cut(e, "=")
		cfg = cfg.WithEnv(k, v)
	}
	return cfg
}

// tick is the duration by which each reading advances the clock. A sleep advances it by
// tick and the duration of the sleep.
const tick = time.Microsecond

// clock is a deterministic clock that starts at the time of the intent. Only readings
// and sleeps advance it; a sleep returns at once.
type clock struct{ at, began time.Time }

func (c *clock) next() time.Time {
	if c.began.IsZero() {
		c.began = c.at
	}
	c.at = c.at.Add(tick)
	return c.at
}

func (c *clock) wall() (sec int64, nsec int32) {
	t := c.next()
	return t.Unix(), int32(t.Nanosecond())
}

func (c *clock) nano() int64 { t := c.next(); return t.Sub(c.began).Nanoseconds() }

func (c *clock) sleep(ns int64) {
	c.next()
	c.at = c.at.Add(time.Duration(max(ns, 0)))
}

// stopping is a writer that stops the program if its output exceeds the limit.
type stopping struct {
	sandbox.Capped
	stop context.CancelFunc
}

// Write implements io.Writer. If the output exceeds the limit, it stops the program and
// returns an error.
func (w *stopping) Write(p []byte) (int, error) {
	n, err := w.Capped.Write(p)
	if w.Over {
		w.stop()
		return 0, errors.New("output limit")
	}
	return n, err
}

// memory is the linear memory of a run. It does not grow above max bytes, and records
// its peak size and whether it refused to grow.
type memory struct {
	max     uint64
	peak    uint64
	refused bool
	buf     []byte
}

// Allocate implements experimental.MemoryAllocator.
func (m *memory) Allocate(_, _ uint64) experimental.LinearMemory { return m }

// Reallocate implements experimental.LinearMemory. It returns nil if size exceeds max.
func (m *memory) Reallocate(size uint64) []byte {
	if size > m.max {
		m.refused = true
		return nil
	}
	if size > uint64(cap(m.buf)) {
		grown := make([]byte, size, min(max(size, uint64(cap(m.buf))*2), m.max))
		copy(grown, m.buf)
		m.buf = grown
	}
	m.buf, m.peak = m.buf[:size], max(m.peak, size)
	return m.buf
}

// Free implements experimental.LinearMemory.
func (m *memory) Free() { m.buf = nil }
