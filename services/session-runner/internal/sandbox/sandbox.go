// Package sandbox runs one program in tier "process": this program is re-executed in new
// namespaces with an empty read-only root and no network. It is limited by a cgroup if
// the host allows that and by rlimits in every case, killed with all its processes, and
// destroyed after each run. Other packages implement Runner for the other tiers.
package sandbox

import (
	"context"
	"io"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// Spec describes one run: the program, its input, and the limits that the decision
// permits. The program has access to nothing else of the host.
type Spec struct {
	ID      string // unique; name of the run's cgroup and folder
	Program *program.Program
	Env     []string
	Stdin   []byte
	Limits  contract.Sandbox
	Time    time.Time // start of the intent's validity, at which the clock of a deterministic tier starts
	Seed    [32]byte  // derived from the intent; seed of the random numbers of a deterministic tier
}

// Outcome describes how the program ended, its output and usage, and the limits that
// were enforced. It is complete even if the program failed.
type Outcome struct {
	Exit     int // exit code; -1 if the program was killed
	Stdout   []byte
	Stderr   []byte
	Overflow bool // standard output exceeded OutputBytes; the rest was discarded
	TimedOut bool
	OOM      bool
	Usage    contract.Usage // CPU, memory and egress, and which of them were measured
	Attest   contract.Attestation
}

// Runner is one isolation tier. Each run has its own sandbox, which is created before
// the run and destroyed after it. Implementations are safe for concurrent use.
type Runner interface {
	Tier() string
	// OwnUID reports whether each run has a user id that no concurrent run has.
	OwnUID() bool
	// Run runs a program until it ends. It returns an error only if the sandbox could
	// not be created; every other failure is described by the Outcome.
	Run(ctx context.Context, s Spec) (Outcome, error)
}

// StderrMax is the number of bytes of standard error that are kept. It exceeds the
// number that is recorded, so that a secret at the end of the recorded part is
// recognized as a whole.
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
