package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/artifact/s3"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/s3test"
)

// TestArtifactsInS3 shows that a mesh whose configuration names an S3 endpoint stores, reads,
// holds and removes artifacts there, also after a restart, with credentials of the gateway that
// cannot remove objects, and that a pack reads an artifact of several parts there. The artifacts are
// encrypted under the content key of the tenant. All requests leave through the egress-broker, also
// after one of two was killed.
func TestArtifactsInS3(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := s3test.Start(t)
			m := start(t, harness.Options{Capture: "encrypted", Env: e.Env(t)})
			if name == "processes" {
				m.StartService("egress-broker-b", "egress-broker")
			}
			artifactsInS3(t, m, e, func() {
				if name == "processes" {
					m.Kill("egress-broker")
					id := strings.TrimSpace(cli(t, m, "artifact", "put", e.File(t, s3test.Writer)))
					cli(t, m, "artifact", "get", id, "--out", filepath.Join(t.TempDir(), "copy"))
					cli(t, m, "artifact", "delete", id)
				}
				for _, p := range m.Names() {
					m.Restart(p)
				}
			})
		})
	}
}

// artifactsInS3 makes the checks of TestArtifactsInS3 on a mesh, which restart restarts.
func artifactsInS3(t *testing.T, m *harness.Mesh, e *s3test.Endpoint, restart func()) {
	t.Helper()
	m.WaitReady()
	bucket, err := s3.New(s3.Config{Endpoint: e.URL, Bucket: s3test.Bucket, AccessKey: s3test.Collector, SecretKey: s3test.Secret(s3test.Collector)})
	if err != nil {
		t.Fatal(err)
	}
	uploads := func() (n int) {
		t.Helper()
		if err := bucket.Uploads(t.Context(), func(artifact.Parts) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	file := filepath.Join(t.TempDir(), "file")
	content := strings.Repeat("jetsam and flotsam\n", 100_000) // several parts
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := m.CLI(args...)
		if err != nil {
			t.Fatalf("%q: %v %s", args, err, out)
		}
		return strings.TrimSpace(out)
	}
	id := run("artifact", "put", file)
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/artifact.put", "", `{"content":"small"}`)
	if err != nil || r.Status != http.StatusOK || uploads() != 2 {
		t.Fatalf("%v %d %s, %d uploads in the bucket", err, r.Status, r.Body, uploads())
	}
	run("artifact", "hold", id)
	if out, err := m.CLI("artifact", "delete", id); err == nil || !strings.Contains(err.Error(), "on hold") {
		t.Errorf("an artifact on hold was deleted: %s", out)
	}
	restart()
	m.WaitReady()
	copied := file + ".copy"
	run("artifact", "get", id, "--out", copied)
	if b, err := os.ReadFile(copied); err != nil || string(b) != content {
		t.Errorf("%d bytes of %d, %v", len(b), len(content), err)
	}
	if part := run("artifact", "get", id, "--range", "1048570-1048589"); part != strings.TrimSpace(content[1048570:1048590]) {
		t.Errorf("a range: %q", part)
	}
	run("artifact", "release", id)
	run("artifact", "delete", id)
	eventually(t, "the content is removed from the bucket", time.Minute, func() bool { return uploads() == 1 })
	var list []struct{ Artifact string }
	got, err := m.Do(t.Context(), "GET", "/api/v1/artifacts", "", "")
	if err != nil || got.Status != http.StatusOK {
		t.Fatal(fmt.Sprint(err), got)
	}
	if got.JSON(t, &list); len(list) != 1 || list[0].Artifact == id {
		t.Errorf("the list after the deletion: %s", got.Body)
	}
	db := filepath.Join(t.TempDir(), "tides.db")
	if err := os.WriteFile(db, append(exampleDatabase(t), make([]byte, artifact.PartSize)...), 0o600); err != nil { // two parts; SQLite ignores what follows its pages
		t.Fatal(err)
	}
	args := fmt.Sprintf(`{"database_artifact":%q,"query":"SELECT day FROM tides"}`, run("artifact", "put", db))
	if n := uploads(); n != 2 {
		t.Errorf("%d uploads in the bucket", n)
	}
	if out := run("pack", "run", "sql.query", args); !strings.Contains(out, "Monday") {
		t.Errorf("a pack that reads an artifact in S3: %s", out)
	}
	storedThroughBroker(t, m)
}

// storedThroughBroker checks that the flows of the gateway and of work to the S3 endpoint are on the
// ledger, and that connections served several requests.
func storedThroughBroker(t *testing.T, m *harness.Mesh) {
	t.Helper()
	sent := map[string]int64{}
	eventually(t, "the flows to the S3 endpoint are on the ledger", 2*time.Minute, func() bool {
		clear(sent)
		for _, f := range endpointFlows(t, m) {
			if f.Endpoint == egress.EndpointArtifacts && !f.denied && f.Address != "" {
				sent[f.Sender] += f.BytesOut
				sent[f.Sender+" flows"]++
			}
		}
		return sent["gateway"] > 2<<20 && sent["work"] > 0
	})
	if n := sent["gateway flows"]; n > 40 {
		t.Errorf("%d connections of the gateway", n)
	}
}
