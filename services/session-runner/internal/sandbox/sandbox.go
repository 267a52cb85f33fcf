// Package sandbox runs one program in tier "process": our own re-exec into
// fresh namespaces with an empty read-only root, no network, limits by cgroup
// where writable and by rlimit always, killed as a group, always destroyed.
package sandbox

import (
	"context"
	"io"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

// Spec is one run.
type Spec struct {
	ID      string // unique; names cgroup and directory
	Program *program.Program
	Env     []string
	Stdin   []byte
	Limits  contract.Sandbox
	Time    time.Time // of the intent; what a deterministic tier's clock starts at
	Seed    [32]byte  // from the intent; what its randomness follows from
}

// Outcome is how the program ended.
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

// Runner is one isolation tier.
type Runner interface {
	Tier() string
	// OwnUID reports whether each run has a user id that no other run has at
	// the same time.
	OwnUID() bool
	// Run returns an error only where the sandbox itself could not be made.
	Run(ctx context.Context, s Spec) (Outcome, error)
}

// StderrMax is how much of standard error is kept: more than is recorded, so
// that a secret that its end cuts is still recognised.
const StderrMax = 64 << 10

// Capped keeps the first Max bytes and discards the rest without blocking
// the writer.
type Capped struct {
	Max  int64
	Buf  []byte
	Over bool
}

// Write implements io.Writer.
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
