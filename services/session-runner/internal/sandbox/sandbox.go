// Package sandbox declares Runner, the interface of the isolation tiers, and implements
// tier "process". For each run, tier "process" starts the executable of this process
// again in new namespaces, with a minimal read-only root and without a network, except
// for the proxy of a run with Egress; the new process then becomes the program of the
// run. The program is limited by rlimits and, if the host allows that, by a cgroup. When
// the program has ended, the kernel kills the other processes of the run, and the sandbox
// is destroyed. Other packages implement Runner for the other tiers.
package sandbox

import (
	"context"
	"io"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// Spec describes one run: the program, its environment and input, and the limits that
// the decision permits.
type Spec struct {
	ID         string // unique id of the run; tier process names the cgroup and the folder of the run after it
	Program    *program.Program
	Image      string // digest of the image in which the program runs; "" means none; only tiers container and microvm have images
	DiskMiB    int64  // size of each writable folder in MiB; 0 means DefaultDiskMiB
	Executable bool   // files in /work can be executed; only tiers container and microvm permit it
	Env        []string
	Stdin      []byte
	Limits     contract.Sandbox
	Egress     *Egress           // nil if the run has no network
	Progress   func(line []byte) // see Stderr.Report; nil if the program reports no progress
	Time       time.Time         // start of the validity of the intent; the clock of a deterministic tier starts at it
	Seed       [32]byte          // seed of the random numbers of a deterministic tier, derived from the intent
}

// Outcome describes how the program ended, its output and usage, and the limits that
// were enforced. It is complete even if the program failed.
type Outcome struct {
	Exit     int // exit code; not 0 if the program was killed, except by tier "wasi" at its output limit
	Stdout   []byte
	Stderr   []byte
	Overflow bool // standard output exceeded OutputBytes, and the rest was discarded
	TimedOut bool
	OOM      bool
	DiskFull bool           // the program failed, and a writable folder had no free space when it ended
	Usage    contract.Usage // CPU time, memory and egress, and which of them were measured
	Attest   contract.Attestation
}

// Runner is one isolation tier. Each run has its own sandbox, which is created before
// the run and destroyed after it. Implementations are safe for concurrent use.
type Runner interface {
	Tier() string
	// OwnUID reports whether concurrent runs never share a user id.
	OwnUID() bool
	// Run runs a program until it ends. It returns an error if the program cannot be run
	// in this tier, such as a *program.MissingInterpreter, or if the sandbox could not
	// be created or operated. If the program was started and failed, the error is nil
	// and the Outcome describes the failure.
	Run(ctx context.Context, s Spec) (Outcome, error)
}

// DefaultDiskMiB is the size of each writable folder of a sandbox in MiB, unless the tool
// has another.
const DefaultDiskMiB = 64

// StderrMax is the maximum number of bytes of a program's standard error in an Outcome.
// It exceeds the number of bytes that are recorded, so that redaction finds a secret
// that the recorded part would cut off.
const StderrMax = 64 << 10

// Capped is a writer that keeps the first Max bytes in Buf and discards the rest. It is
// not safe for concurrent use.
type Capped struct {
	Max  int64
	Buf  []byte
	Over bool
}

// Write implements io.Writer. It never fails or blocks. If p is longer than the room
// that is left, Write discards the rest of p and sets Over.
func (c *Capped) Write(p []byte) (int, error) {
	room := c.Max - int64(len(c.Buf))
	if room < int64(len(p)) {
		c.Over = true
	}
	if room > 0 {
		c.Buf = append(c.Buf, p[:min(room, int64(len(p)))]...)
	}
	return len(p), nil
}

var _ io.Writer = (*Capped)(nil)
