package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
)

func BenchmarkRun(b *testing.B) {
	path := filepath.Join(b.TempDir(), "upper")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, "github.com/binnacle-mesh/binnacle/examples/packs/upper")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatal(string(out))
	}
	sealed, err := program.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	uids, err := OpenUIDs(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	p := Process{StateDir: b.TempDir(), UIDs: uids}
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		out, err := p.Run(b.Context(), Spec{ID: "bench", Program: sealed, Stdin: []byte(`{"text":"a"}`), Limits: contract.Sandbox{CPUMillis: 1000, MemoryMiB: 64, OutputBytes: 1024, Pids: 16, WallMS: 5000}})
		if err != nil || out.Exit != 0 {
			b.Fatal(err, string(out.Stderr))
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[0].Microseconds()), "min-µs")
}
