//go:build simulator

package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// overlaid builds this test program with other contents of some source files, and returns
// the path of the program. The keys of overlay are the paths of the files, and the values
// those of files with the contents to use. overlaid writes into dir.
func overlaid(t *testing.T, dir string, overlay map[string]string) string {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	if err := os.WriteFile(list, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "test", "-c", "-overlay", list, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("the program does not build: %v\n%s", err, out)
	}
	return program
}

// patches lists changes of the runtime of Go 1.26. With them, if GOMAXPROCS is 1 and no garbage is
// collected, the order of the goroutines of a synctest bubble depends on the program alone. The text
// old, which must occur once in file (relative to GOROOT/src) after the patches before it, is replaced
// by new.
var patches = []struct{ file, old, new string }{
	// The monitor neither preempts a goroutine that has run for 10 ms of real time nor lets others
	// run while one is in a system call.
	{"runtime/proc.go", "func retake(now int64) uint32 {\n", "func retake(now int64) uint32 {\n\tif gomaxprocs == 1 {\n\t\treturn 0\n\t}\n"},
	// A goroutine that has waited for a mutex for 1 ms of real time is not preferred.
	{"internal/sync/mutex.go", "starvationThresholdNs = 1e6\n", "starvationThresholdNs = 600e9\n"},
	// A select among channels that are ready follows random numbers of the bubble, and not of the
	// thread; no other code uses them, so they do not depend on what caches of the process hold from
	// earlier schedules.
	{"runtime/select.go", "j := cheaprandn(uint32(norder + 1))", `j := cheaprandn(uint32(norder + 1))
		if b := getg().bubble; b != nil {
			b.selected += 0x9e3779b97f4a7c15 // SplitMix64, shortened
			x := (b.selected ^ b.selected>>30) * 0xbf58476d1ce4e5b9
			j = uint32((x >> 32) * uint64(norder+1) >> 32)
		}`},
	// Timers that end at the same time end in the order in which they were started.
	{"runtime/time.go", "t.rand = cheaprand()", "if b := getg().bubble; b != nil {\n\t\t\t\tb.timed++\n\t\t\t\tt.rand = b.timed\n\t\t\t}"},
	{"runtime/synctest.go", "\tactive  int // other sources of activity\n}\n", "\tactive  int // other sources of activity\n\trandom, selected uint64\n\ttimed uint32\n}\n"},
	// Maps that are made in the bubble have one hash function and order. Other random numbers are the
	// bubble's, and those of the process, such as the keys of hashes, are the same in each process.
	{"runtime/rand.go", "func maps_rand() uint64 {\n", "func maps_rand() uint64 {\n\tif getg().bubble != nil {\n\t\treturn 0\n\t}\n"},
	{"runtime/rand.go", "\tmp := getg().m\n\tc := &mp.chacha8\n", `	if b := getg().bubble; b != nil {
		b.random += 0x9e3779b97f4a7c15 // SplitMix64
		x := (b.random ^ b.random>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		return x ^ x>>31
	}
	mp := getg().m
	c := &mp.chacha8
`},
	{"runtime/rand.go", "\tglobalRand.state.Init(*seed)\n", "\tclear(seed[:])\n\tglobalRand.state.Init(*seed)\n"},
}

// deterministic builds this test program with the patches and returns the path of the program. It
// fails the test if a patch does not apply to the runtime.
func deterministic(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, overlay := t.TempDir(), map[string]string{}
	for i, p := range patches {
		path := filepath.Join(strings.TrimSpace(string(root)), "src", p.file)
		raw, err := os.ReadFile(cmp.Or(overlay[path], path))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(raw), p.old) != 1 {
			t.Fatalf("%s does not contain %q once: adapt the patch to this release of Go", path, p.old)
		}
		overlay[path] = filepath.Join(dir, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(overlay[path], []byte(strings.Replace(string(raw), p.old, p.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlaid(t, dir, overlay)
}
