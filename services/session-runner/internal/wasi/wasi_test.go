package wasi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/program"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// spin builds the example pack spin as WebAssembly.
func spin(t *testing.T) *program.Program {
	path := filepath.Join(t.TempDir(), "spin.wasm")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, "github.com/binnacle-mesh/binnacle/examples/packs/spin")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	return open(t, path)
}

func open(t *testing.T, path string) *program.Program {
	p, err := program.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestHostile checks the results of programs that loop, allocate memory or print without
// end, fail, sleep, use environment variables, the clock or random numbers, open files
// and sockets, or start processes. It also checks that concurrent runs end although one
// program loops, and that Run returns soon after its context is done.
func TestHostile(t *testing.T) {
	spin := spin(t)
	r, err := Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	run := func(how string, seed byte) sandbox.Outcome {
		t.Helper()
		wall := int64(10_000)
		if how == "loop" {
			wall = 500
		}
		out, err := r.Run(t.Context(), sandbox.Spec{ID: how, Program: spin, Env: []string{"A=b"}, Stdin: fmt.Appendf(nil, `{"how":%q}`, how),
			Limits: contract.Sandbox{WallMS: wall, MemoryMiB: 64, OutputBytes: 4096, CPUMillis: 1000, Pids: 1, Tier: "wasi"}, Time: at, Seed: [32]byte{seed}})
		if err != nil {
			t.Fatal(how, err)
		}
		if out.Attest.Tier != "wasi" || out.Attest.ImageDigest != spin.Digest {
			t.Errorf("%s: %+v", how, out.Attest)
		}
		return out
	}
	says := func(how, want string) {
		t.Helper()
		if out := run(how, 1); out.Exit != 0 || !strings.Contains(string(out.Stdout), want) {
			t.Errorf("%s: %d %s %s, want %s", how, out.Exit, out.Stdout, out.Stderr, want)
		}
	}
	run("nothing", 1) // compiles the module, so that the next run is not delayed

	began := time.Now()
	if out := run("loop", 1); !out.TimedOut || time.Since(began) > 3*time.Second || out.Usage.CPUMillis < 50 || out.Usage.CPUMillis > 1000 {
		t.Errorf("loop: %+v after %v", out, time.Since(began))
	}
	if out := run("memory", 1); !out.OOM || out.Exit == 0 || out.Usage.MemoryPeakBytes < 32<<20 || out.Usage.MemoryPeakBytes > 64<<20 {
		t.Errorf("memory: exit %d oom %v timed out %v", out.Exit, out.OOM, out.TimedOut)
	}
	began = time.Now()
	if out := run("print", 1); !out.Overflow || len(out.Stdout) != 4096 || out.TimedOut || time.Since(began) > 5*time.Second {
		t.Errorf("print: %d bytes, %+v after %v", len(out.Stdout), out.Overflow, time.Since(began))
	}
	if out := run("exit", 1); out.Exit != 3 || !strings.Contains(string(out.Stderr), "failing on request") {
		t.Errorf("exit: %+v", out)
	}
	says("env", `"A=b"`)
	says("clock", "2030-01-02T03:04:05Z 1h0m0s")
	says("sleep", "") // the program sleeps for an hour; Run must return at once
	says("write", "Bad file number")
	says("root", `""`)
	says("network", "dial tcp")
	says("fork", `"0"`)
	if a, b, c := run("random", 1), run("random", 1), run("random", 2); string(a.Stdout) != string(b.Stdout) || string(a.Stdout) == string(c.Stdout) {
		t.Errorf("randomness does not follow from the intent: %s %s %s", a.Stdout, b.Stdout, c.Stdout)
	}

	// If one of several concurrent runs loops, the other runs must still finish.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { says("nap", "rested") })
	}
	wg.Go(func() { run("loop", 1) })
	wg.Wait()
	runtime.GC() // blocks if a thread still loops

	// Run must return soon after its context is done.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began = time.Now()
	if _, err := r.Run(ctx, sandbox.Spec{Program: spin, Stdin: []byte(`{"how":"loop"}`), Limits: contract.Sandbox{WallMS: 10_000, MemoryMiB: 64, OutputBytes: 4096}, Time: at}); err != nil || time.Since(began) > 2*time.Second {
		t.Errorf("cancelled: %v after %v", err, time.Since(began))
	}
}

// TestModules checks that files that are not WebAssembly modules do not run, that the
// limits hold for modules with an endless loop or a large memory, and that a module with
// an unknown import and a run with a network are refused.
func TestModules(t *testing.T) {
	r, err := Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	try := func(body []byte, memory int64) (sandbox.Outcome, error) {
		path := filepath.Join(t.TempDir(), "m.wasm")
		if err := os.WriteFile(path, body, 0o644); err != nil {
			t.Fatal(err)
		}
		return r.Run(t.Context(), sandbox.Spec{Program: open(t, path), Limits: contract.Sandbox{WallMS: 300, MemoryMiB: memory, OutputBytes: 100}, Time: time.Unix(0, 0)})
	}
	head := "\x00asm\x01\x00\x00\x00"
	for name, body := range map[string]string{"empty": "", "text": "#!/bin/sh\n", "cut": head + "\x01", "of version 2": "\x00asm\x02\x00\x00\x00"} {
		if _, err := try([]byte(body), 1); err == nil {
			t.Errorf("%s ran", name)
		}
	}
	// a module with an endless loop: (func (export "_start") (loop br 0))
	loop := head + "\x01\x04\x01\x60\x00\x00" + "\x03\x02\x01\x00" + "\x07\x0a\x01\x06_start\x00\x00" + "\x0a\x09\x01\x07\x00\x03\x40\x0c\x00\x0b\x0b"
	began := time.Now()
	if out, err := try([]byte(loop), 1); err != nil || !out.TimedOut || time.Since(began) > 2*time.Second {
		t.Errorf("%+v %v after %v", out, err, time.Since(began))
	}
	// a module with an initial memory of 100 pages, above the limit of 1 MiB
	big := head + "\x01\x04\x01\x60\x00\x00" + "\x03\x02\x01\x00" + "\x05\x03\x01\x00\x64" + "\x07\x0a\x01\x06_start\x00\x00" + "\x0a\x04\x01\x02\x00\x0b"
	if out, err := try([]byte(big), 1); err == nil && out.Exit == 0 && !out.OOM {
		t.Errorf("a memory above the limit: %+v", out)
	}
	if _, err := r.Run(t.Context(), sandbox.Spec{Egress: &sandbox.Egress{}}); !errors.Is(err, sandbox.ErrNoEgress) {
		t.Errorf("egress: %v", err)
	}
	// a module that imports a function that no host module provides
	thief := head + "\x01\x04\x01\x60\x00\x00" + "\x02\x0c\x01\x03env\x04evil\x00\x00"
	if out, err := try([]byte(thief), 1); err == nil && out.Exit == 0 {
		t.Errorf("an unknown import: %+v", out)
	}
}
