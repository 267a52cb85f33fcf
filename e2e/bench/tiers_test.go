//go:build bench

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/artifact/s3"
	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/s3test"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// tiers measures calls of a pack that does almost nothing, in each tier: as requests that wait
// for the outcome, and as jobs.
func tiers(t *testing.T) {
	dir := t.TempDir()
	for name, env := range map[string][]string{"upper": nil, "upper.wasm": {"GOOS=wasip1", "GOARCH=wasm"}} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), "./upper")
		cmd.Dir = filepath.Join(harness.Root(), "examples", "packs")
		cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	all := []string{"process", "wasi", "container"}
	for _, tier := range all {
		file := map[string]string{"process": "upper-process", "wasi": "upper-wasi.wasm", "container": "upper-container"}[tier]
		from := "upper" + filepath.Ext(file)
		body, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			t.Fatal(err)
		}
		manifest := fmt.Sprintf("name: cmd.upper-%s\ntier: %s\ninput_schema: {required: [text], properties: {text: string}}\ntimeout_s: 60\nmemory_mib: 64\n", tier, tier)
		for name, content := range map[string][]byte{file: body, "upper-" + tier + ".pack.yaml": []byte(manifest)} {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"upper", "upper.wasm"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	m := harness.One(t, harness.Options{Noop: true, Packs: dir, Containerd: "/run/containerd/containerd.sock"})
	for _, tier := range all {
		at := "/api/v1/packs/cmd.upper-" + tier
		if _, err := post(m.URL()+at, m.Token, "s-tier", []byte(`{"text":"a"}`)); err != nil {
			t.Fatal(err)
		}
		for _, clients := range []int{1, 8, 32} {
			lat, rate, err := load(clients, span, func(c int) error {
				_, err := post(m.URL()+at, m.Token, fmt.Sprint("s-tier-", c), []byte(`{"text":"a"}`))
				return err
			})
			if err != nil {
				t.Fatal(tier, err)
			}
			add(row{Name: "pack that does almost nothing, tier " + tier, Durability: "process", Clients: clients, P50us: us(lat, .5), P99us: us(lat, .99), PerSecond: rate})
		}
		lat, _, err := load(1, span, func(int) error { return job(m, "tool.cmd.upper-"+tier, "cmd.upper-"+tier) })
		if err != nil {
			t.Fatal(tier, err)
		}
		add(row{Name: "job, from its start to its result, tier " + tier, Durability: "process", Clients: 1, P50us: us(lat, .5), P99us: us(lat, .99)})
	}
}

// job starts a call as a job and reads its state until it has an outcome.
func job(m *harness.Mesh, kind, tool string) error {
	body, err := json.Marshal(map[string]any{"kind": kind, "tool": tool, "args": map[string]string{"text": "a"}})
	if err != nil {
		return err
	}
	do := func(method, path string, body []byte) (int, http.Header, error) {
		req, err := http.NewRequest(method, m.URL()+path, bytes.NewReader(body))
		if err != nil {
			return 0, nil, err
		}
		for name, value := range map[string]string{"Authorization": "Bearer " + m.Token, "X-Binnacle-Session": "s-tier-job", "Prefer": "respond-async"} {
			req.Header.Set(name, value)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Header, err
	}
	status, header, err := do(http.MethodPost, "/api/v1/calls", body)
	for at := header.Get("Location"); err == nil && status == http.StatusAccepted; time.Sleep(5 * time.Millisecond) {
		status, _, err = do(http.MethodGet, at, nil)
	}
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the job ended with status %d", status)
	}
	return err
}

// artifactSize is the size in bytes of the artifacts that are measured.
const artifactSize = 8 << 20

// artifacts measures uploads and downloads of artifacts on two meshes in one process, one of which
// stores them in S3, and as their floors writes and reads of the same parts in another stream
// ARTIFACTS and the same bucket.
func artifacts(t *testing.T) {
	b := meshtest.Start(t, []bus.Declaration{{Service: services.Gateway, Artifacts: true}})
	storedIn(t, harness.One(t, harness.Options{}), artifact.Stream{Conn: b.Connect(t, services.Gateway)}, "the stream")
	e := s3test.Start(t)
	bucket, err := s3.New(s3.Config{Endpoint: e.URL, Bucket: s3test.Bucket, AccessKey: s3test.Writer, SecretKey: s3test.Secret(s3test.Writer)})
	if err != nil {
		t.Fatal(err)
	}
	storedIn(t, harness.One(t, harness.Options{Env: e.Env(t)}), bucket, "S3")
}

// storedIn measures uploads and downloads of artifacts of m, and writes and reads of their parts in
// a store of the same kind.
func storedIn(t *testing.T, m *harness.Mesh, store artifact.Store, where string) {
	content := make([]byte, artifactSize)
	for i := range content {
		content[i] = byte(i * i >> 7)
	}
	var uploads atomic.Int64
	bare := func() error {
		key := fmt.Sprintf("t.gateway.u-bench%d.", uploads.Add(1))
		for at := 0; at < len(content); at += artifact.PartSize {
			if err := store.Put(t.Context(), key+fmt.Sprint(at/artifact.PartSize), content[at:at+artifact.PartSize]); err != nil {
				return err
			}
		}
		return nil
	}
	read := func() error {
		for i := range artifactSize / artifact.PartSize {
			if _, err := store.Get(t.Context(), fmt.Sprintf("t.gateway.u-bench1.%d", i)); err != nil {
				return err
			}
		}
		return nil
	}
	id := ""
	upload := func() (err error) { id, err = stores(m, content); return err }
	download := func() error { return loads(m, id) }
	if err := errors.Join(bare(), upload()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); download() != nil; time.Sleep(50 * time.Millisecond) { // the view of artifacts follows the ledger
		if time.Now().After(end) {
			t.Fatal(download())
		}
	}
	for _, r := range []struct {
		name string
		one  func() error
	}{{"floor: the parts of an artifact into " + where, bare}, {"upload of an artifact into " + where, upload}, {"floor: the parts of an artifact from " + where, read}, {"download of an artifact from " + where, download}} {
		lat, rate, err := load(1, span/2, func(int) error { return r.one() })
		if err != nil {
			t.Fatal(r.name, err)
		}
		add(row{Name: r.name, Durability: "process", Clients: 1, P50us: us(lat, .5), P99us: us(lat, .99), Value: fmt.Sprintf("%.0f MB/s", rate*artifactSize/1e6)})
	}
}

// stores uploads an artifact and returns its id.
func stores(m *harness.Mesh, content []byte) (id string, err error) {
	body, err := post(m.URL()+"/api/v1/artifacts?name=bench", m.Token, "s-bench-artifacts", content)
	if err != nil {
		return "", err
	}
	var r struct{ Output struct{ Artifact string } }
	err = json.Unmarshal(body, &r)
	return r.Output.Artifact, err
}

// loads downloads an artifact of artifactSize.
func loads(m *harness.Mesh, id string) error {
	req, err := http.NewRequest(http.MethodGet, m.URL()+"/api/v1/artifacts/"+id+"/content", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+m.Token)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || n != artifactSize) {
		err = fmt.Errorf("status %d and %d bytes", resp.StatusCode, n)
	}
	return err
}
