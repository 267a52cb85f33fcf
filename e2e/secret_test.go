package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestSecretRepeated shows that a repeated request under an Idempotency-Key stores a secret once
// and returns the first outcome if it has the same value, and is rejected if it has another name or
// value: while the call waits for an approval, if several requests arrive at the same time and,
// with one process per service, at another gateway and after a restart of the vault-broker. The
// ledger contains neither the SHA-256 of the value nor its fingerprint as a value_mac.
func TestSecretRepeated(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			const value = "4711"
			m := start(t, harness.Options{})
			second := m
			if name != "one" {
				second = m.As(m.Token)
				second.Addr = m.StartGateway("gateway-b")
			}
			prefer := ""
			put := func(at *harness.Mesh, key, name, value string) *harness.Response {
				t.Helper()
				doc, err := json.Marshal(map[string]string{"name": name, "value": value})
				if err != nil {
					t.Fatal(err)
				}
				r, err := at.DoHeader(t.Context(), "POST", "/api/v1/secrets", string(doc), map[string]string{"Idempotency-Key": key, "Prefer": prefer})
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			first := put(m, "once", "db", value)
			if first.Status != 200 {
				t.Fatalf("%d %s", first.Status, first.Body)
			}
			repeats := func() {
				t.Helper()
				for _, at := range []*harness.Mesh{m, second} {
					if r := put(at, "once", "db", value); r.Status != 200 || !bytes.Equal(r.Body, first.Body) || r.Header.Get("X-Binnacle-Call-Id") != first.Header.Get("X-Binnacle-Call-Id") {
						t.Errorf("repeated: %d %s, the first response is %s", r.Status, r.Body, first.Body)
					}
					for _, x := range [][2]string{{"db", value + "x"}, {"db", "x"}, {"other", value}} {
						if r := put(at, "once", x[0], x[1]); r.Status != 409 || !bytes.Contains(r.Body, []byte("idempotency_conflict")) {
							t.Errorf("%s = %q under the same key: %d %s", x[0], x[1], r.Status, r.Body)
						}
					}
				}
			}
			repeats()

			// Of several requests at once with two values, those with one value succeed.
			statuses := make(chan string, 8)
			for i := range cap(statuses) {
				go func() {
					v := []string{"one", "two"}[i%2]
					r, err := []*harness.Mesh{m, second}[i/2%2].DoHeader(t.Context(), "POST", "/api/v1/secrets", `{"name":"raced","value":"`+v+`"}`, map[string]string{"Idempotency-Key": "race"})
					if err != nil {
						r = &harness.Response{}
					}
					statuses <- v + " " + strconv.Itoa(r.Status)
				}()
			}
			got := map[string]int{}
			for range cap(statuses) {
				got[<-statuses]++
			}
			if n := cap(statuses) / 2; got["one 200"]+got["two 200"] != n || got["one 409"]+got["two 409"] != n || got["one 200"]*got["two 200"] != 0 {
				t.Errorf("%v", got)
			}

			prefer = "respond-async" // the response does not wait for the approval
			cli(t, m, "policy", "activate", write(t, "ask.json", `{"id":"ask","scope":"agent","subject":"admin","rules":[{"kinds":["vault.put"],"verdict":"ESCALATE","reason_code":"APPROVAL_REQUIRED"}]}`))
			if r := put(m, "asked", "db", value); r.Status != 202 {
				t.Fatalf("%d %s", r.Status, r.Body)
			}
			for _, at := range []*harness.Mesh{m, second} {
				same, other := put(at, "asked", "db", value), put(at, "asked", "db", "x")
				if same.Status != 202 || other.Status != 409 {
					t.Errorf("while the call waits: %d %s, with another value %d %s", same.Status, same.Body, other.Status, other.Body)
				}
			}
			prefer = ""
			fingerprint := regexp.MustCompile(`hmac-sha256:[0-9a-f]{32}`).Find(first.Body)
			r, err := m.Do(t.Context(), "GET", "/api/v1/events", "", "")
			if err != nil || bytes.Contains(r.Body, []byte(fmt.Sprintf("%x", sha256.Sum256([]byte(value))))) || bytes.Contains(r.Body, []byte(`"value_mac":"`+string(fingerprint))) || fingerprint == nil {
				t.Errorf("%v, or the ledger contains a digest of the value", err)
			}
			if name != "one" {
				m.Restart("vault-broker")
				m.WaitReady()
				repeats()
			}
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
// one contains one of the values or ctx is done, and returns the file with the value, or "".
func watchProcesses(ctx context.Context, values ...string) string {
	self := strconv.Itoa(os.Getpid())
	for ctx.Err() == nil {
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, p := range procs {
			if filepath.Base(p) == self {
				continue
			}
			for _, f := range []string{"cmdline", "environ"} {
				b, err := os.ReadFile(filepath.Join(p, f))
				if err == nil && slices.ContainsFunc(values, func(v string) bool { return bytes.Contains(b, []byte(v)) }) {
					return filepath.Join(p, f)
				}
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return ""
}
