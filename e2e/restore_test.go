package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// restoreUnder restores a backup under umask 0, so that file modes are restricted by the
// program alone.
func restoreUnder(t *testing.T, backup, data string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `umask 0 && exec "$0" restore --in "$1" --data "$2"`, harness.Bin(t, "binnacle"), backup, data)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// open lists the folders and regular files, of dir and everything below it, that users
// other than the owner may access, with their modes.
func open(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err == nil && (i.IsDir() || i.Mode().IsRegular()) && i.Mode().Perm()&0o077 != 0 {
			out = append(out, fmt.Sprintf("%s %s", path, i.Mode().Perm()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRestoredModes shows that only the owner can access restored files, even under
// umask 0, and that modes that were made more permissive since are reported and repaired
// at the next start.
func TestRestoredModes(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	restoreUnder(t, filepath.Join(harness.Root(), "e2e/testdata/releases/0.4.0.backup"), data)
	if bad := open(t, data); len(bad) > 0 {
		t.Errorf("restore wrote what others may use: %q", bad)
	}
	m := harness.One(t, harness.Options{Dir: data})
	m.StopAll()
	loose := []string{"keys", "keys/audit.sign", "vault", "vault/secrets.json", "audit", "audit/view.db", "audit/checkpoint", "admin.token", "nats"}
	for _, name := range loose {
		path := filepath.Join(data, name)
		i, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, i.Mode().Perm()|0o055); err != nil {
			t.Fatal(err)
		}
	}
	before := len(m.Log())
	m = harness.One(t, harness.Options{Dir: data})
	log := m.Log()[before:]
	for _, name := range loose {
		path := filepath.Join(data, name)
		if !strings.Contains(log, "path="+path+" ") {
			t.Errorf("%s is open for others, and the start does not report it", name)
		}
		if i, err := os.Stat(path); err != nil || i.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, i.Mode(), err)
		}
	}
}

// TestRestoredContentKeys shows that content that release 0.4.0 encrypted, with its
// content keys among the secrets, can be read after a restore and an upgrade, and that
// destroying a content key erases the content under it and no other content.
func TestRestoredContentKeys(t *testing.T) {
	file := filepath.Join(harness.Root(), "e2e/testdata/releases/encrypted/0.4.0.backup")
	data := filepath.Join(t.TempDir(), "data")
	restoreUnder(t, file, data)
	const first, second = "the first key keeps this sentence", "the second key keeps this sentence"
	if old, err := os.ReadFile(filepath.Join(data, "vault/secrets.json")); err != nil || !bytes.Contains(old, []byte("content-key/tk-000002")) {
		t.Fatalf("the recorded vault has no content keys among its secrets: %v", err)
	}
	o := harness.Options{Dir: data, Capture: "encrypted"}
	m := harness.One(t, o)
	read := func() string {
		t.Helper()
		pack := filepath.Join(t.TempDir(), "p.tar")
		if out, err := m.CLI("export", "--session", "s-encrypted", "--out", pack); err != nil {
			t.Fatal(out, err)
		}
		if out, err := m.CLI("verify", pack); err != nil {
			t.Fatal(out, err)
		}
		var conversation string
		for _, id := range []string{"resp_LLVVKLVVDCCGCHQX4AF6PWI4QZ", "resp_6XNPYISUNJXE423FMDN4QKO4KP"} {
			r, err := m.Do(t.Context(), http.MethodGet, "/v1/responses/"+id, "", "")
			if err != nil {
				t.Fatal(err)
			}
			conversation += string(r.Body) + "\n"
		}
		return conversation
	}
	if got := read(); !strings.Contains(got, first) || !strings.Contains(got, second) {
		t.Fatalf("content of release 0.4.0 cannot be read: %s", got)
	}
	moved, err := os.ReadFile(filepath.Join(data, "vault/content-keys.json"))
	if err != nil || !bytes.Contains(moved, []byte("tk-000001")) || !bytes.Contains(moved, []byte("tk-000002")) {
		t.Fatalf("the content keys were not moved to their store: %v", err)
	}
	if left, err := os.ReadFile(filepath.Join(data, "vault/secrets.json")); err != nil || bytes.Contains(left, []byte("content-key")) {
		t.Fatalf("content keys are left among the secrets: %v", err)
	}
	for _, args := range [][]string{{"principals", "register", "keeper", "person"}, {"roles", "grant", "keeper", "approver"}} {
		if out, err := m.CLI(args...); err != nil {
			t.Fatal(out, err)
		}
	}
	if end := destroyKey(t, m, "tk-000001"); !strings.Contains(end, `"succeeded"`) {
		t.Fatal(end)
	}
	for _, when := range []string{"", "after a restart"} {
		if when != "" {
			m.StopAll()
			m = harness.One(t, o)
		}
		var got string
		for end := time.Now().Add(40 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			if got = read(); !strings.Contains(got, first) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: content under the destroyed key can be read: %s", when, got)
			}
		}
		if !strings.Contains(got, second) {
			t.Fatalf("%s: content under the other key is gone: %s", when, got)
		}
	}
	if out, err := m.CLI("replay"); err != nil {
		t.Error(out, err)
	}
}

// TestRestoredErasures shows that what was erased after a backup, of a data subject, of a tenant and under one
// key, can be read after a restore of that backup, and cannot if the restore has the exported ledger, also
// after another start; that what was recorded after the erasure of the subject is not erased by it; and that
// a ledger that is no continuation of the backup is refused.
func TestRestoredErasures(t *testing.T) {
	o := harness.Options{Capture: "encrypted", Noop: true, Dir: t.TempDir()}
	m := harness.One(t, o)
	dir := t.TempDir()
	early, late, export, other := filepath.Join(dir, "early"), filepath.Join(dir, "late"), filepath.Join(dir, "ledger.jsonl"), filepath.Join(dir, "other.jsonl")
	calls := map[string]string{}
	record := func(subject, what string) {
		t.Helper()
		h := bearer(m, "s-kept")
		if subject != "" {
			h["X-Binnacle-Subject"] = subject
		}
		r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/noop", `{"text":"words of `+what+`"}`, h)
		if err != nil || r.Status != http.StatusOK {
			t.Fatalf("%v %d %s", err, r.Status, r.Body)
		}
		calls[what] = r.Header.Get("X-Binnacle-Call-Id")
	}
	gone := func(want string, whose ...string) {
		t.Helper()
		for _, what := range whose {
			r, err := m.Do(t.Context(), http.MethodGet, "/api/v1/calls/"+calls[what], "", "")
			if err != nil || strings.Contains(string(r.Body), "words of "+what) != (want == "readable") || (r.Status == http.StatusGone) != (want == "erased") {
				t.Errorf("the words of %s are not %s: %v %d %s", what, want, err, r.Status, r.Body)
			}
		}
	}
	stopped := func(args ...string) string {
		t.Helper()
		m.StopAll()
		out := cli(t, m, args...)
		return out
	}
	record("ann", "ann")
	record("bob", "bob")
	record("", "the tenant")
	for _, args := range [][]string{{"principals", "register", "keeper", "person"}, {"roles", "grant", "keeper", "approver"}} {
		cli(t, m, args...)
	}
	stopped("backup", "--out", early)
	m = harness.One(t, o)
	granted(t, m, "erase", "--subject", "ann", "--reason", "request")
	if end := destroyKey(t, m, "tk-000001"); !strings.Contains(end, `"succeeded"`) {
		t.Fatal(end)
	}
	record("ann", "ann again")
	cli(t, m, "export", "--ledger", "--out", export)
	record("", "the tenant, later")
	stopped("backup", "--out", late)

	restored := func(backup string, more ...string) (string, error) {
		data := filepath.Join(t.TempDir(), "again")
		out, err := m.CLI(append([]string{"restore", "--in", backup, "--data", data}, more...)...)
		if err == nil {
			m = harness.One(t, harness.Options{Capture: "encrypted", Noop: true, Dir: data})
		}
		return out, err
	}
	if out, err := restored(early); err != nil || !strings.Contains(out, "--ledger") {
		t.Fatal(out, err)
	}
	gone("readable", "ann", "bob", "the tenant")
	m.StopAll()
	if out, err := restored(early, "--ledger", export); err != nil || !strings.Contains(out, "2 erasures") {
		t.Fatal(out, err)
	}
	again := harness.Options{Capture: "encrypted", Noop: true, Dir: m.Dir}
	for range 2 {
		gone("erased", "ann", "the tenant")
		gone("readable", "bob")
		m.StopAll()
		m = harness.One(t, again)
	}
	record("ann", "ann in the restored mesh")
	gone("readable", "ann in the restored mesh")
	cli(t, m, "export", "--ledger", "--out", other)
	if out := cli(t, m, "replay", "--json"); !strings.Contains(out, `"equal":true`) {
		t.Error(out)
	}
	m.StopAll()
	if out, err := restored(late, "--ledger", export); err == nil || !strings.Contains(err.Error()+out, "does not begin with the events of the backup") {
		t.Errorf("a ledger that is older than the backup: %s %v", out, err)
	}
	if out, err := restored(late, "--ledger", other); err == nil || !strings.Contains(err.Error()+out, "does not begin with the events of the backup") {
		t.Errorf("the ledger of another mesh: %s %v", out, err)
	}
	if out, err := restored(early, "--ledger", early); err == nil {
		t.Errorf("a file that is no ledger: %s", out)
	}
}

// composeModes shows that on compose only the user of the services can access the volumes of
// keys, of audit and of the vault. More permissive modes are reported when audit starts, and
// are then repaired in its own volume; the command init repairs the mode of a key.
func composeModes(t *testing.T, m *harness.Mesh) {
	if i, err := os.Stat(m.Volume("ledger")); err != nil || i.Mode().Perm() != 0o700 { // the files of the NATS server are inside this volume
		t.Errorf("the ledger's volume: %v %v", i.Mode(), err)
	}
	volumes := []string{"audit", "vault"}
	for _, s := range append([]string{"nats", "provision"}, harness.Services...) {
		volumes = append(volumes, "keys-"+s)
	}
	for _, v := range volumes {
		if bad := open(t, m.Volume(v)); len(bad) > 0 {
			t.Errorf("volume %s: others may use %q", v, bad)
		}
		if i, err := os.Stat(m.Volume(v)); err != nil || i.Sys().(*syscall.Stat_t).Uid != 65532 {
			t.Errorf("volume %s is not its service's: %v", v, err)
		}
	}
	loose := map[string]string{"audit": "view.db", "keys-audit": "audit.sign"}
	for v, name := range loose {
		for _, path := range []string{m.Volume(v), filepath.Join(m.Volume(v), name)} {
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := m.ComposeCLI("restart", "audit"); err != nil {
		t.Fatal(err)
	}
	m.WaitReady()
	for _, want := range []string{`"path":"/state/view.db"`, `"path":"/run/secrets/audit.sign"`} {
		eventually(t, "audit reports "+want, 20*time.Second, func() bool {
			log, err := m.ComposeCLI("logs", "--no-color", "audit")
			return err == nil && strings.Contains(log, want)
		})
	}
	if bad := open(t, m.Volume("audit")); len(bad) > 0 {
		t.Errorf("not repaired at audit's start: %q", bad)
	}
	if _, err := m.ComposeCLI("run", "--rm", "-T", "keys", "init"); err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(filepath.Join(m.Volume("keys-audit"), "audit.sign")); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("not repaired by init: %v %v", i.Mode(), err)
	}
}
