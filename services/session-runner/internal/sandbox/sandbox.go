// Package sandbox runs one program in tier "process". It re-executes its own program in
// new namespaces with a minimal read-only root and without a network, and that process
// then becomes the program of the run. The run is limited by a cgroup if the host allows
// that and by rlimits in every case. It is killed with all its processes, and its
// sandbox is destroyed, after each run. Other packages implement Runner for the other
// tiers.
package sandbox

import (
	"context"
	"io"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// Spec describes one run: the program, its input, and the limits that the decision
// permits. The program cannot access other files of the host.
type Spec struct {
	ID      string // unique id of the run; names its cgroup and folder
	Program *program.Program
	Env     []string
	Stdin   []byte
	Limits  contract.Sandbox
	Time    time.Time // start of the validity of the intent; the clock of a deterministic tier starts at it
	Seed    [32]byte  // seed of the random numbers of a deterministic tier, derived from the intent
}

// Outcome describes how the program ended, its output and usage, and the limits that
// were enforced. It is complete even if the program failed.
type Outcome struct {
	Exit     int // exit code; if the program was killed, -1, or 137 in tier "container"
	Stdout   []byte
	Stderr   []byte
	Overflow bool // standard output exceeded OutputBytes, and the rest was discarded
	TimedOut bool
	OOM      bool
	Usage    contract.Usage // CPU time, memory and egress, and which of them were measured
	Attest   contract.Attestation
}

// Runner is one isolation tier. Each run has its own sandbox, which is created before
// the run and destroyed after it. Implementations are safe for concurrent use.
type Runner interface {
	Tier() string
	// OwnUID reports whether each run has a user id that no concurrent run has.
	OwnUID() bool
	// Run runs a program until it ends. It returns an error only if the sandbox could
	// not be created or operated. The failure of the program is described by the
	// Outcome.
	Run(ctx context.Context, s Spec) (Outcome, error)
}

// StderrMax is the maximum number of bytes of standard error that are kept. It exceeds
// the number of bytes that are recorded, so that redaction finds a secret that the
// recorded part would cut off.
const StderrMax = 64 << 10

// Capped is a writer that keeps the first Max bytes in Buf and discards the rest. It is
// not safe for concurrent use.
type Capped struct {
	Max  int64
	Buf  []byte
	Over bool
}

// Write implements io.Writer. It never fails or blocks. It discards the bytes that
// exceed Max, and sets Over.
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
