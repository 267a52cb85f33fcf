package e2e

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// shellPack writes a shell pack that prints a document. The file replaces an earlier one
// atomically.
func shellPack(t *testing.T, dir, name, document string) {
	t.Helper()
	scriptPack(t, dir, name, "/bin/busybox sh", document)
}

// scriptPack is shellPack for any interpreter.
func scriptPack(t *testing.T, dir, name, interpreter, document string) {
	t.Helper()
	temporary := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(temporary, []byte("#!"+interpreter+"\nprintf '"+document+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// TestChangedPacks shows that a running mesh takes up packs that are added to the folder,
// changed and removed; that a changed one does not run before it is approved, by a command or
// by a running pack approve --follow; and that a signed archive can be installed, replaced and
// removed, remains installed after a restart, and is refused if it or its index was changed or
// if it is signed with an unknown key.
func TestChangedPacks(t *testing.T) {
	for name, start := range harness.Topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work, key := publisher(t)
			folder := t.TempDir()
			shellPack(t, folder, "first.sh", `{"n":1}`)
			m := start(t, harness.Options{Packs: folder, Env: []string{"BINNACLE_PACK_KEYS=" + key}})
			changedFolder(t, m, folder)
			installed(t, m, work, func() {
				for _, p := range m.Names() {
					m.Restart(p)
				}
				m.WaitReady()
			})
		})
	}
}

// publisher writes the seed of a publisher of packs to a file of a new folder, and returns the folder
// and the public key.
func publisher(t *testing.T) (folder, key string) {
	t.Helper()
	folder = t.TempDir()
	seed := bytes.Repeat([]byte{7}, 32)
	if err := os.WriteFile(filepath.Join(folder, "seed"), []byte(hex.EncodeToString(seed)), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder, hex.EncodeToString(ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey))
}

// outcome returns the status and the body of a call of a pack.
func outcome(t *testing.T, m *harness.Mesh, pack string) (int, string) {
	t.Helper()
	r, err := m.Do(t.Context(), "POST", "/api/v1/packs/"+pack, "", "{}")
	if err != nil {
		t.Fatal(err)
	}
	return r.Status, string(r.Body)
}

// packBecomes waits until a call of a pack has a status and a text in its body.
func packBecomes(t *testing.T, m *harness.Mesh, pack string, status int, text string) {
	t.Helper()
	var last string
	defer func() {
		if t.Failed() {
			t.Log(pack, last)
		}
	}()
	eventually(t, pack+" has an outcome with "+text, time.Minute, func() bool {
		got, body := outcome(t, m, pack)
		last = body
		return got == status && strings.Contains(body, text)
	})
}

// changedFolder checks that changes of the folder of packs are taken up.
func changedFolder(t *testing.T, m *harness.Mesh, folder string) {
	packBecomes(t, m, "cmd.first", 200, `{"n":1}`)
	shellPack(t, folder, "second.sh", `{"n":2}`)
	packBecomes(t, m, "cmd.second", 200, `{"n":2}`)
	shellPack(t, folder, "first.sh", `{"n":3}`)
	packBecomes(t, m, "cmd.first", 403, "TOOL_DRIFT")
	cli(t, m, "pack", "approve", "cmd.first")
	packBecomes(t, m, "cmd.first", 200, `{"n":3}`)
	follow := exec.Command(filepath.Join(harness.Root(), "bin", "binnacle"), "pack", "approve", "--follow", "cmd.first")
	follow.Env = append(os.Environ(), m.Env()...)
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = follow.Process.Kill()
		_ = follow.Wait()
	}()
	shellPack(t, folder, "first.sh", `{"n":4}`)
	packBecomes(t, m, "cmd.first", 200, `{"n":4}`)
	if err := os.Remove(filepath.Join(folder, "second.sh")); err != nil {
		t.Fatal(err)
	}
	packBecomes(t, m, "cmd.second", 403, "UNKNOWN_TOOL")
}

// installed checks that archives of packs are installed, replaced, refused and removed, and remain
// installed when restart has restarted the mesh.
func installed(t *testing.T, m *harness.Mesh, work string, restart func()) {
	packs, index := filepath.Join(work, "packs"), filepath.Join(work, "index")
	if err := os.Mkdir(packs, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := func(version, document, seed string) {
		t.Helper()
		shellPack(t, packs, "tides.sh", document)
		cli(t, m, "pack", "archive", packs, "--name", "tides", "--version", version, "--key", filepath.Join(work, seed), "--index", index)
	}
	refused := func(index, why string) {
		t.Helper()
		if out, err := m.CLI("pack", "install", "tides", "--index", index); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q: %s %v", why, out, err)
		}
	}
	archive("v1", `{"tide":"high"}`, "seed")
	if out := cli(t, m, "pack", "install", "tides", "--index", index); !strings.Contains(out, "cmd.tides") {
		t.Error(out)
	}
	packBecomes(t, m, "cmd.tides", 200, "high")
	restart()
	packBecomes(t, m, "cmd.tides", 200, "high")

	archive("v2", `{"tide":"low"}`, "seed")
	web := httptest.NewServer(http.FileServer(http.Dir(index)))
	defer web.Close()
	cli(t, m, "pack", "install", "tides", "--index", web.URL)
	packBecomes(t, m, "cmd.tides", 403, "TOOL_DRIFT")
	cli(t, m, "pack", "approve", "cmd.tides")
	packBecomes(t, m, "cmd.tides", 200, "low")

	cli(t, m, "pack", "key", filepath.Join(work, "other"))
	archive("v3", `{"tide":"stolen"}`, "other")
	refused(index, "is not trusted")
	document := filepath.Join(index, "index.json")
	body, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(document, bytes.ReplaceAll(body, []byte(`"v2"`), []byte(`"v9"`)), 0o644); err != nil {
		t.Fatal(err)
	}
	refused(index, "signature does not verify")
	if err := os.WriteFile(filepath.Join(index, "tides-v2.tar.gz"), []byte("other bytes"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused(index, "nothing was installed")
	eventually(t, "every session-runner has the archive installed before, after refused ones", time.Minute, func() bool {
		for range 8 {
			if status, body := outcome(t, m, "cmd.tides"); status != 200 || !strings.Contains(body, "low") {
				return false
			}
		}
		return true
	})
	user := m.As(tenantToken(t, m, "default", "ann", "tools:call"))
	r, err := user.Do(t.Context(), "POST", "/api/v1/calls", "", `{"kind":"pack.uninstall","tool":"pack.uninstall","args":{"name":"tides"}}`)
	if err != nil || r.Status != http.StatusForbidden {
		t.Errorf("a tenant removes packs: %v %d %s", err, r.Status, r.Body)
	}
	cli(t, m, "pack", "uninstall", "tides")
	packBecomes(t, m, "cmd.tides", 403, "UNKNOWN_TOOL")
	if out, err := m.CLI("pack", "uninstall", "tides"); err == nil || !strings.Contains(err.Error(), "no archive of this name") {
		t.Errorf("removed twice: %s %v", out, err)
	}
}
