package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/s3test"
)

// artifactPacks returns a folder with packs whose output has artifacts: one that copies the
// text of its input, one that writes text that is not base64, one that writes a number, and one
// whose other member violates the output schema.
func artifactPacks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const head = "#!/bin/busybox sh\nread -r line || :\n"
	const of = "artifacts:\n- {member: note, name: note.txt, media_type: text/plain}\n"
	for name, body := range map[string]string{
		"copy.sh":          head + `line=${line#*\"note\":\"}; printf '{"note":"%s","n":1}' "${line%%\"*}"`,
		"copy.pack.yaml":   of + "rerunnable: true\noutput_schema:\n  required: [n, note]\n  properties: {n: integer, note: {type: string, pattern: '^(ar-[0-9a-f]{64})?$'}}\n",
		"broken.sh":        head + `printf '{"note":"!"}'`,
		"broken.pack.yaml": strings.Replace(of, "text/plain", "text/plain, base64: true", 1),
		"number.sh":        head + `printf '{"note":5}'`,
		"number.pack.yaml": of,
		"wrong.sh":         head + `printf '{"note":"adrift","n":"one"}'`,
		"wrong.pack.yaml":  of + "output_schema: {properties: {n: integer, note: string}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestPackArtifacts shows, on one process and with one process per service and two
// session-runners, also if other artifacts are in S3, that a member of a pack's output becomes an
// artifact of the caller with its lineage, which others cannot read and which is kept as evidence;
// that a call whose output is not valid leaves no artifact; that artifacts count in the quota; and
// that they survive a restart.
func TestPackArtifacts(t *testing.T) {
	for name, start := range harness.Topologies {
		for _, store := range []string{"stream", "s3"} {
			t.Run(name+"/"+store, func(t *testing.T) {
				o := harness.Options{Packs: artifactPacks(t)}
				if store == "s3" {
					e := s3test.Start(t)
					o.Env = []string{"BINNACLE_S3_ENDPOINT=" + e.URL, "BINNACLE_S3_BUCKET=" + s3test.Bucket,
						"BINNACLE_S3_CREDENTIALS_FILE=" + e.File(t, s3test.Writer), "BINNACLE_S3_COLLECTOR_FILE=" + e.File(t, s3test.Collector)}
				}
				m := start(t, o)
				if name == "processes" {
					m.StartService("session-runner-b", "session-runner")
				}
				packArtifacts(t, m)
				proves(t, m)
			})
		}
	}
}

// packArtifacts makes the checks of TestPackArtifacts.
func packArtifacts(t *testing.T, m *harness.Mesh) {
	call := packCaller{t, m, "s-made"}
	first, _ := call.must("cmd.copy", `{"note":"fair winds"}`)["note"].(string)
	second, _ := call.must("cmd.copy", `{"note":"made of `+first+`"}`)["note"].(string)
	if out := call.must("cmd.copy", `{"note":""}`); out["note"] != "" {
		t.Errorf("an empty member: %v", out)
	}
	for _, p := range m.Names() {
		m.Restart(p)
	}
	m.WaitReady()
	if got := strings.TrimSpace(cli(t, m, "artifact", "get", first)); got != "fair winds" {
		t.Errorf("content %q", got)
	}
	info := strings.NewReplacer(" ", "", "\n", "").Replace(cli(t, m, "artifact", "info", second))
	if !strings.Contains(info, `"inputs":["`+first+`"]`) || !strings.Contains(info, `"kind":"tool.cmd.copy"`) || !strings.Contains(info, `"name":"note.txt"`) {
		t.Errorf("info %s", info)
	}
	if out, err := m.CLI("artifact", "delete", first); err == nil {
		t.Errorf("evidence was deleted: %s", out)
	}
	other := m.As(m.TokenFor("nosy", "tools:call"))
	if r, err := other.Do(t.Context(), "GET", "/api/v1/artifacts/"+first+"/content", "", ""); err != nil || r.Status != http.StatusNotFound {
		t.Errorf("another principal: %v %+v", err, r)
	}
	before := cli(t, m, "artifact", "list")
	for pack, want := range map[string]string{"cmd.broken": "is not base64", "cmd.number": "is not a string", "cmd.wrong": "breaks the output schema"} {
		if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+pack, "s-made", `{}`); err != nil || r.Status != http.StatusBadGateway || !strings.Contains(string(r.Body), want) {
			t.Errorf("%s: %v %s", pack, err, r.Body)
		}
	}
	if list := cli(t, m, "artifact", "list"); list != before {
		t.Errorf("calls that failed have left artifacts: %s\nbefore: %s", list, before)
	}
	cli(t, m.Operator(), "tenant", "quota", "default", "--quota-artifact-bytes", "100")
	eventually(t, "the quota is in force", 20*time.Second, func() bool {
		r, err := m.Do(t.Context(), "POST", "/api/v1/packs/cmd.copy", "s-made", `{"note":"`+strings.Repeat("x", 200)+`"}`)
		return err == nil && r.Status == http.StatusBadGateway && strings.Contains(string(r.Body), "resource_exhausted")
	})
}

// TestArtifactsFull shows that an upload for which the stream ARTIFACTS has no room is refused
// with 507 artifacts_full, with and without an announced length, and stores nothing; that
// smaller ones are stored; and that a deletion makes room.
func TestArtifactsFull(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			m := start(t, harness.Options{Env: []string{"BINNACLE_MAX_ARTIFACTS=3MiB"}})
			file := func(name string, size int) string {
				return write(t, name, strings.Repeat(name[:1], size))
			}
			id := strings.TrimSpace(cli(t, m, "artifact", "put", file("a", 2<<20)))
			if out, err := m.CLI("artifact", "put", file("b", 2<<20)); err == nil || !strings.Contains(err.Error()+out, "the store of artifacts is full") {
				t.Errorf("announced: %v %s", err, out)
			}
			put := func(body string) (int, string) {
				t.Helper()
				r, err := m.DoHeader(t.Context(), "POST", "/api/v1/artifacts", body, map[string]string{"Content-Type": "application/octet-stream"})
				if err != nil {
					t.Fatal(err)
				}
				return r.Status, string(r.Body)
			}
			if status, body := put(strings.Repeat("c", 2<<20)); status != http.StatusInsufficientStorage || !strings.Contains(body, `"artifacts_full"`) {
				t.Errorf("%d %s", status, body)
			}
			if status, body := put("small"); status != http.StatusOK {
				t.Errorf("a small one: %d %s", status, body)
			}
			if list := cli(t, m, "artifact", "list"); strings.Count(list, "ar-") != 2 {
				t.Errorf("listed: %s", list)
			}
			cli(t, m, "artifact", "delete", id)
			eventually(t, "a deletion makes room", time.Minute, func() bool {
				status, _ := put(strings.Repeat("d", 2<<20))
				return status == http.StatusOK
			})
			proves(t, m)
		})
	}
}
