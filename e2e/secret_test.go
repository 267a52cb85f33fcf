package e2e

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestSecretNowhere shows that the value of a secret that packs use does not occur in a
// file of the mesh, a log, a response, a command line or an environment variable.
func TestSecretNowhere(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			const value = "tops3cret-bilge-rat-7731"
			m := start(t, harness.Options{})
			if r, err := m.Do(t.Context(), "POST", "/api/v1/secrets", "s-hush", `{"name":"demo-api-key","value":"`+value+`"}`); err != nil || r.Status != 200 || bytes.Contains(r.Body, []byte(value)) {
				t.Fatalf("%v %+v", err, r)
			}
			ctx, stop := context.WithCancel(t.Context())
			listing := make(chan bool, 1)
			go func() { listing <- watchProcesses(ctx, value) }()
			for range 10 {
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.secretlen", "s-hush", "{}")
				if err != nil || r.Status != 200 || !bytes.Contains(r.Body, []byte(`"length":24`)) || bytes.Contains(r.Body, []byte(value)) {
					t.Fatalf("%v %+v %s", err, r, r.Body)
				}
			}
			noCoreDumps(t, m)
			stop()
			if <-listing {
				t.Error("a command line or an environment contains the secret")
			}
			for _, path := range []string{"/api/v1/events", "/helm/receipts", "/api/v1/views/audit", "/api/v1/ledger", "/metrics", "/readyz"} {
				for _, as := range []*harness.Mesh{m, m.Operator()} {
					r, err := as.Do(t.Context(), "GET", path, "", "")
					if err != nil || bytes.Contains(r.Body, []byte(value)) {
						t.Errorf("%s: %v, or the secret is in it", path, err)
					}
				}
			}
			// The error for a malformed request must not quote the value.
			r, err := m.Do(t.Context(), "POST", "/api/v1/secrets", "", `{"name":"x","value":["`+value+`"]}`)
			if err != nil || r.Status != 400 || bytes.Contains(r.Body, []byte(value)) {
				t.Errorf("%v %s", err, r.Body)
			}
			leaks(t, m, value)
			// The files do not contain the value after the mesh has stopped, either.
			m.StopAll()
			leaks(t, m, value)
		})
	}
}

// noCoreDumps fails the test unless the limit of core files is zero in each process that
// runs services.
func noCoreDumps(t *testing.T, m *harness.Mesh) {
	t.Helper()
	checked := 0
	for _, name := range m.Names() {
		if name == "nats" || name == "provision" {
			continue // neither receives secrets
		}
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.PID(name)), "limits"))
		if err != nil || !regexp.MustCompile(`(?m)^Max core file size +0 +0 `).Match(b) {
			t.Errorf("%s may write a core file: %v", name, err)
		}
		checked++
	}
	if checked == 0 {
		t.Error("no process was checked")
	}
}

// leaks fails the test if a file that the mesh wrote contains the value.
func leaks(t *testing.T, m *harness.Mesh, value string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(m.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil // the file was removed after its folder was read
		}
		files++
		if bytes.Contains(b, []byte(value)) {
			t.Errorf("%s holds the secret", path)
		}
		return nil
	})
	if err != nil || files < 10 {
		t.Fatalf("%d files read, %v", files, err)
	}
}

// watchProcesses reads the command line and the environment of every other process until
// one contains the value or ctx is done, and reports whether one did.
func watchProcesses(ctx context.Context, value string) bool {
	self := strconv.Itoa(os.Getpid())
	for ctx.Err() == nil {
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, p := range procs {
			if filepath.Base(p) == self {
				continue
			}
			for _, f := range []string{"cmdline", "environ"} {
				if b, err := os.ReadFile(filepath.Join(p, f)); err == nil && bytes.Contains(b, []byte(value)) {
					return true
				}
			}
		}
		time.Sleep(time.Millisecond)
	}
	return false
}
