package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// shellImages returns a folder with an OCI archive, shell.tar, and a lock file that names its
// image. The image has busybox as its shell and tools, the program escape of e2e/packs, and the
// programs with the given paths, all in /bin. shellImages also returns the image's digest.
func shellImages(t *testing.T, programs ...string) (dir, digest string) {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v: install the Debian package busybox-static", err)
	}
	var layer bytes.Buffer
	files := tar.NewWriter(&layer)
	escape, err := os.ReadFile(filepath.Join(harness.Root(), "bin/hostile-packs/escape"))
	if err != nil {
		t.Fatal(err)
	}
	putFile(t, files, "bin/busybox", "", busybox)
	putFile(t, files, "bin/escape", "", escape)
	for _, path := range programs {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		putFile(t, files, "bin/"+filepath.Base(path), "", body)
	}
	for _, name := range []string{"sh", "cat", "sleep", "tail", "head", "stat", "echo", "find", "ln", "mkdir", "readlink", "rm", "tar", "ls"} {
		putFile(t, files, "bin/"+name, "busybox", nil)
	}
	_ = files.Close()
	return imageArchive(t, "shell", layer.Bytes())
}

// putFile adds a file or, if link is not empty, a symbolic link to an archive.
func putFile(t *testing.T, w *tar.Writer, name, link string, body []byte) {
	h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(body))}
	if link != "" {
		h.Typeflag, h.Linkname = tar.TypeSymlink, link
	}
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(body)
}

// imageArchive returns a folder with an OCI archive of an image of one layer, and a lock file that
// names it, and the digest of the image.
func imageArchive(t *testing.T, image string, layer []byte) (dir, digest string) {
	t.Helper()
	var archive bytes.Buffer
	out := tar.NewWriter(&archive)
	blob := func(b []byte) string {
		sum := sha256.Sum256(b)
		name := hex.EncodeToString(sum[:])
		putFile(t, out, "blobs/sha256/"+name, "", b)
		return fmt.Sprintf(`"digest":"sha256:%s","size":%d`, name, len(b))
	}
	diff := blob(layer)
	id := strings.Split(diff, `"`)[3]
	config := blob([]byte(`{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["` + id + `"]}}`))
	manifest := blob([]byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json",` + config +
		`},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",` + diff + `}]}`))
	digest = strings.Split(manifest, `"`)[3]
	putFile(t, out, "index.json", "", []byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",`+manifest+`}]}`))
	putFile(t, out, "oci-layout", "", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	_ = out.Close()
	dir = t.TempDir()
	for name, body := range map[string][]byte{image + ".tar": archive.Bytes(), "images.lock": []byte("image " + image + " " + digest + "\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, digest
}

// heldMesh makes calls for held sandboxes on a mesh.
type heldMesh struct {
	t *testing.T
	m *harness.Mesh
}

// call calls the tool sandbox.<tool> in a session and returns the status, the output and the body
// of the response. token is empty for the administrator.
func (h *heldMesh) call(token, session, tool, args string) (int, map[string]any, string) {
	h.t.Helper()
	header := map[string]string{"X-Binnacle-Session": session}
	if token != "" {
		header["Authorization"] = "Bearer " + token
	}
	r, err := h.m.DoHeader(h.t.Context(), "POST", "/api/v1/packs/sandbox."+tool, args, header)
	if err != nil {
		h.t.Fatal(err)
	}
	var doc struct {
		Output map[string]any `json:"output"`
	}
	_ = json.Unmarshal(r.Body, &doc)
	return r.Status, doc.Output, string(r.Body)
}

// must calls a tool in a session as the administrator, and returns the output. The
// call must succeed.
func (h *heldMesh) must(session, tool, args string) map[string]any {
	h.t.Helper()
	status, out, body := h.call("", session, tool, args)
	if status != 200 {
		h.t.Fatalf("%s %s: %d %s; ends: %v", tool, args, status, body, h.ends())
	}
	return out
}

// sh runs a script in the sandbox of a session and returns its standard output.
func (h *heldMesh) sh(session, script string) string {
	h.t.Helper()
	args, _ := json.Marshal(map[string]any{"command": []string{"/bin/sh", "-c", script}})
	out := h.must(session, "exec", string(args))
	return fmt.Sprint(out["stdout"])
}

// ends returns the reason of the end of each sandbox, and the status of the end of each
// command, that are on the ledger.
func (h *heldMesh) ends() map[string]string {
	h.t.Helper()
	out := map[string]string{}
	for _, e := range ledger(h.t, h.m) {
		var sandbox events.SandboxEnded
		var command events.SandboxExecEnded
		switch e.Name {
		case contract.EventSandboxEnded:
			if contract.Decode(e.Data, &sandbox) == nil {
				out[e.Key] = sandbox.Reason
			}
		case contract.EventSandboxExecEnded:
			if contract.Decode(e.Data, &command) == nil {
				out[command.Exec] = command.Status
			}
		}
	}
	return out
}

// TestHeldSandboxes shows, with one process per service and two session-runners, that the
// calls of a session share one sandbox whichever instance takes them, that another
// principal or session does not find it, and that limits, logs, files, expiry and
// termination work; that a sandbox and its files survive the kill of its session-runner,
// whose commands end as lost; that one whose idle time passes while its session-runner is
// down ends; that both session-runners then have the same view, which replay rebuilds; and that
// the ledger verifies.
func TestHeldSandboxes(t *testing.T) {
	images, _ := shellImages(t)
	m := harness.Processes(t, harness.Options{Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_SANDBOX_PER_TENANT=2", "BINNACLE_WARM=0"}})
	m.StartService("session-runner-b", "session-runner")
	h := &heldMesh{t, m}
	one := h.must("s-one", "create", `{"image":"shell","memory_mib":64}`)
	id := fmt.Sprint(one["sandbox"])
	eventually(t, "both instances take calls for the sandbox", time.Minute, func() bool {
		h.sh("s-one", "echo x >> /work/count")
		took := map[string]bool{}
		for _, eff := range effectsOf(t, m, "s-one") {
			took[eff.Instance] = true
		}
		return len(took) == 2
	})
	if a, b := len(h.sh("s-one", "cat /work/count"))/2, len(effectsOf(t, m, "s-one"))-2; a != b {
		t.Errorf("%d commands wrote to the file, and %d calls succeeded", a, b)
	}

	mallory := strings.TrimSpace(cli(t, m, "token", "create", "--actor", "mallory", "--scope", "tools:call"))
	for who, c := range map[string][2]string{"another principal": {mallory, "s-one"}, "another session": {"", "s-two"}} {
		if status, _, body := h.call(c[0], c[1], "exec", `{"sandbox":"`+id+`","command":["/bin/echo"]}`); status != 404 {
			t.Errorf("%s: %d %s", who, status, body)
		}
	}
	if _, out, body := h.call(mallory, "s-one", "list", `{}`); len(out["sandboxes"].([]any)) != 0 {
		t.Errorf("mallory sees %s", body)
	}
	two := h.must("s-two", "create", `{"image":"shell@`+fmt.Sprint(one["image"])+`","memory_mib":64}`)
	if status, _, body := h.call("", "s-three", "create", `{"image":"shell"}`); status != 429 || !strings.Contains(body, contract.CodeTooManySandboxes) {
		t.Errorf("above the limit: %d %s", status, body)
	}
	h.must("s-two", "terminate", `{"sandbox":"`+fmt.Sprint(two["sandbox"])+`"}`)
	if status, _, body := h.call("", "s-two", "exec", `{"sandbox":"`+fmt.Sprint(two["sandbox"])+`","command":["/bin/echo"]}`); status != 410 {
		t.Errorf("after its end: %d %s", status, body)
	}

	h.must("s-one", "write_file", `{"path":"/work/f","content":"kept"}`)
	run := fmt.Sprint(h.must("s-one", "exec", `{"command":["/bin/sh","-c","i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"],"detach":true}`)["exec"])
	cursor, text := 0.0, ""
	for len(text) < 12 {
		out := h.must("s-one", "logs", fmt.Sprintf(`{"exec":%q,"cursor":%v,"wait_ms":10000}`, run, cursor))
		cursor, text = out["cursor"].(float64), text+fmt.Sprint(out["text"])
	}
	if !strings.HasPrefix(text, "0\n1\n2\n3\n") {
		t.Errorf("output by cursor: %q", text)
	}
	brief := fmt.Sprint(h.must("s-brief", "create", `{"image":"shell","memory_mib":64,"idle_ms":5000}`)["sandbox"])

	for _, s := range []string{"session-runner", "session-runner-b"} {
		m.Kill(s)
	}
	time.Sleep(5 * time.Second) // with the kills and restarts, longer than the idle time of brief
	for _, s := range []string{"session-runner", "session-runner-b"} {
		m.Restart(s)
	}
	m.WaitReady()
	foldedAlike(t, m, "session-runner", 2) // one of the sandboxes is open
	eventually(t, "the end of what the session-runners could not end is recorded", time.Minute, func() bool {
		ends := h.ends()
		return ends[run] == "lost" && ends[brief] == "idle"
	})
	if out := h.must("s-one", "read_file", `{"path":"/work/f"}`); out["text"] != "kept" {
		t.Errorf("after a restart: %v", out)
	}
	h.must("s-one", "keep_alive", `{}`)
	h.must("s-one", "terminate", `{}`)
	if ends := h.ends(); ends[id] != "terminated" {
		t.Errorf("ends: %v", ends)
	}
	foldedAlike(t, m, "session-runner", 2)
	pack := filepath.Join(t.TempDir(), "ledger.tar")
	cli(t, m, "export", "--ledger", "--out", pack)
	cli(t, m, "verify", pack)
}
