package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/s3test"
)

// TestLargeArtifact shows that neither the client nor a service has a file in memory as a whole, in
// the stream and in S3: the maximum memory of each grows by less than half of the size of the file,
// whose parts all differ, while it is uploaded, verified and read.
func TestLargeArtifact(t *testing.T) {
	const size, most = 192 << 20, 96 << 20
	file := filepath.Join(t.TempDir(), "large")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	part := make([]byte, artifact.PartSize)
	for n := range size / artifact.PartSize {
		copy(part, fmt.Sprintf("part %8d", n))
		for _, w := range []io.Writer{f, sum} {
			if _, err := w.Write(part); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want := hex.EncodeToString(sum.Sum(nil))
	for name, env := range map[string]func() []string{
		"stream": func() []string { return nil },
		"S3": func() []string {
			e := s3test.Start(t)
			return []string{"BINNACLE_S3_ENDPOINT=" + e.URL, "BINNACLE_S3_BUCKET=" + s3test.Bucket,
				"BINNACLE_S3_CREDENTIALS_FILE=" + e.File(t, s3test.Writer), "BINNACLE_S3_COLLECTOR_FILE=" + e.File(t, s3test.Collector)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := harness.Processes(t, harness.Options{Env: env()})
			services := []string{"gateway", "work", "session-runner"}
			before := map[string]int64{}
			for _, s := range services {
				before[s] = maxMemory(t, m.PID(s))
			}
			run := func(to io.Writer, args ...string) {
				t.Helper()
				var problem strings.Builder
				cmd := exec.Command(filepath.Join(harness.Root(), "bin/binnacle"), args...)
				cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), m.Env()...), to, &problem
				if err := cmd.Run(); err != nil {
					t.Fatalf("%v %s", err, problem.String())
				}
				if r := cmd.ProcessState.SysUsage().(*syscall.Rusage); r.Maxrss<<10 > most {
					t.Errorf("%s: the client used %d MiB", args[1], r.Maxrss>>10)
				}
			}
			var id strings.Builder
			run(&id, "artifact", "put", file)
			got := sha256.New()
			run(got, "artifact", "get", strings.TrimSpace(id.String()))
			if hex.EncodeToString(got.Sum(nil)) != want || strings.TrimSpace(id.String()) != "ar-"+want {
				t.Errorf("the artifact %s has other content than the file", id.String())
			}
			for _, s := range services {
				if grown := maxMemory(t, m.PID(s)) - before[s]; grown > most {
					t.Errorf("the maximum memory of %s has grown by %d MiB", s, grown>>20)
				}
			}
		})
	}
}

// maxMemory returns the maximum resident memory of a process so far, in bytes.
func maxMemory(t *testing.T, pid int) (kib int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
