package e2e

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestFullDisk shows that calls fail with 503 or 504 and the mesh is not ready while its disk
// is full, that a separate NATS server exits with 1, that calls succeed after the disk has
// space and the server has been started again, and that the ledger then verifies and has at
// least as many receipts as calls succeeded. It mounts a file system in memory, as root.
func TestFullDisk(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=96m,mode=0700"); err != nil {
				t.Fatalf("a file system cannot be mounted; run the tests as root: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			m := start(t, harness.Options{Noop: true, Dir: dir})
			answered := 0
			call := func() (int, string) {
				text := make([]byte, 3000)
				rand.Read(text)
				r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", "s-full", fmt.Sprintf(`{"text":%q}`, hex.EncodeToString(text)))
				if err != nil {
					return 0, err.Error()
				}
				if r.Status == http.StatusOK {
					answered++
				}
				return r.Status, string(r.Body)
			}
			if status, body := call(); status != http.StatusOK {
				t.Fatal(status, body)
			}
			filler := fill(t, dir)
			failed := 0
			eventually(t, "calls fail and the mesh is not ready", time.Minute, func() bool {
				status, body := call()
				switch {
				case status == http.StatusOK:
					failed = 0
				case status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout:
					t.Fatalf("%d %s", status, body)
				default:
					failed++
				}
				if failed < 4 {
					return false
				}
				r, err := m.Do(t.Context(), "GET", "/readyz", "", "")
				return err == nil && r.Status == http.StatusServiceUnavailable && strings.Contains(string(r.Body), "if its disk was full")
			})
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			if name == "processes" {
				if code := m.Exited("nats", 30*time.Second); code != 1 {
					t.Errorf("the NATS server ends with %d", code)
				}
				m.Restart("nats")
			} else {
				m.Restart(m.Names()[0])
			}
			eventually(t, "calls succeed again", time.Minute, func() bool { status, _ := call(); return status == http.StatusOK })
			m.WaitReady()
			ledger := filepath.Join(t.TempDir(), "ledger.jsonl")
			if out, err := m.CLI("export", "--ledger", "--out", ledger); err != nil {
				t.Fatal(out, err)
			}
			out, err := m.CLI("verify", ledger)
			if err != nil {
				t.Fatal(out, err)
			}
			found := regexp.MustCompile(`receipts +([0-9]+)`).FindStringSubmatch(out)
			if found == nil {
				t.Fatal(out)
			}
			if n, _ := strconv.Atoi(found[1]); n < answered {
				t.Errorf("%d receipts of %d calls that succeeded", n, answered)
			}
		})
	}
}

// fill writes a file that takes the rest of the space of a file system, and returns its path.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 1<<12; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return path
}
