// Package sandbox runs one program in tier "process": this program re-executed in new
// namespaces with an empty read-only root and no network, limited by cgroup where that
// is writable and by rlimit always, killed as a group, and destroyed after each run. The
// other tiers implement Runner.
package sandbox

import (
	"context"
	"io"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// Spec is one run: the program, its input, and the limits that the decision
// permits. Nothing else of the host reaches the program.
type Spec struct {
	ID      string // unique; names cgroup and directory
	Program *program.Program
	Env     []string
	Stdin   []byte
	Limits  contract.Sandbox
	Time    time.Time // the intent's time, at which a deterministic tier's clock starts
	Seed    [32]byte  // from the intent; seed of a deterministic tier's random numbers
}

// Outcome is how the program ended, what it wrote and used, and what was enforced.
// It is filled in also where the program failed.
type Outcome struct {
	Exit     int // -1 when killed
	Stdout   []byte
	Stderr   []byte
	Overflow bool // more output than OutputBytes; the rest was discarded
	TimedOut bool
	OOM      bool
	Usage    contract.Usage // CPU, memory and egress, and which of them were measured
	Attest   contract.Attestation
}

// Runner is one isolation tier. Each run has a sandbox of its own, made for it and
// destroyed after it. Implementations are safe for concurrent use.
type Runner interface {
	Tier() string
	// OwnUID reports whether each run has a user id that no concurrent run has.
	OwnUID() bool
	// Run runs a program to its end. It returns an error only if the sandbox could not
	// be made; every other failure is in the Outcome.
	Run(ctx context.Context, s Spec) (Outcome, error)
}

// StderrMax is the number of bytes of standard error that are kept. It is larger than
// what is recorded, so that a secret cut by the record's end is still recognized.
const StderrMax = 64 << 10

// Capped keeps the first Max bytes and discards the rest without blocking
// the writer.
type Capped struct {
	Max  int64
	Buf  []byte
	Over bool
}

// Write implements io.Writer. It never fails and never blocks: what exceeds Max is
// discarded, and Over is set.
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
