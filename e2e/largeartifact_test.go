package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/s3test"
)

var largeSize = flag.Int64("large-artifact", 192<<20, "size in bytes of the artifact of TestLargeArtifact; each store needs as much room on the disk")

// TestLargeArtifact shows that neither the client nor a service has a file in memory as a whole, in
// the stream and in S3: the maximum memory of each grows by less than half of the size of the file,
// and by less than 160 MiB, while the file is uploaded, verified and read. The parts of the file all
// differ. The file is stored although the NATS server is stopped again and again. The flag
// -large-artifact sets the size; docs/performance.md has the figures of 10 GiB.
func TestLargeArtifact(t *testing.T) {
	most := min(*largeSize/2, 160<<20)
	file := filepath.Join(t.TempDir(), "large")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	part := make([]byte, artifact.PartSize)
	for n := range *largeSize / artifact.PartSize {
		head := fmt.Appendf(nil, "part %8d", n)
		copy(part, head)
		if _, err := f.WriteAt(head, n*artifact.PartSize); err != nil { // the rest is a hole of the file
			t.Fatal(err)
		}
		sum.Write(part)
	}
	if err := errors.Join(f.Truncate(*largeSize/artifact.PartSize*artifact.PartSize), f.Close()); err != nil {
		t.Fatal(err)
	}
	want := hex.EncodeToString(sum.Sum(nil))
	for name, env := range map[string]func() []string{
		"stream": func() []string { return nil },
		"S3":     func() []string { return s3test.Start(t).Env(t) },
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
				began := time.Now()
				cmd := exec.Command(filepath.Join(harness.Root(), "bin/binnacle"), args...)
				cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), m.Env()...), to, &problem
				if err := cmd.Run(); err != nil {
					t.Fatalf("%v %s", err, problem.String())
				}
				t.Logf("artifact %s of %d MiB: %.1f s", args[1], *largeSize>>20, time.Since(began).Seconds())
				if r := cmd.ProcessState.SysUsage().(*syscall.Rusage); r.Maxrss<<10 > most {
					t.Errorf("%s: the client used %d MiB", args[1], r.Maxrss>>10)
				}
			}
			var id strings.Builder
			resume := pausing(t, m)
			run(&id, "artifact", "put", file)
			resume()
			got := sha256.New()
			run(got, "artifact", "get", strings.TrimSpace(id.String()))
			if hex.EncodeToString(got.Sum(nil)) != want || strings.TrimSpace(id.String()) != "ar-"+want {
				t.Errorf("the artifact %s has other content than the file", id.String())
			}
			for _, s := range services {
				grown := maxMemory(t, m.PID(s)) - before[s]
				t.Logf("the maximum memory of %s: %d MiB, %d MiB more than at the start", s, (before[s]+grown)>>20, grown>>20)
				if grown > most {
					t.Errorf("the maximum memory of %s has grown by %d MiB", s, grown>>20)
				}
			}
		})
	}
}

// pausing stops the NATS server again and again for two seconds until the returned function is called
// or the test ends. It runs for a second in between, and longer if the file is large. A gateway
// notifies the clients of other calls after less time than that.
func pausing(t *testing.T, m *harness.Mesh) (resume func()) {
	t.Helper()
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			case <-time.After(max(time.Second, time.Duration(*largeSize>>30)*time.Second)):
			}
			m.Signal("nats", syscall.SIGSTOP)
			time.Sleep(2 * time.Second)
			m.Signal("nats", syscall.SIGCONT)
		}
	}()
	resume = sync.OnceFunc(func() { close(ended); <-done })
	t.Cleanup(resume)
	return resume
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
