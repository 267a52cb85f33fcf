package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// writeBelow writes a file below a folder, creates the folders that are missing, and returns
// the file's path.
func writeBelow(t *testing.T, dir, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDoctor runs the command against a mesh with several weak settings, in files, in the
// configuration and in the answers of the mesh, and against one whose settings are sound.
func TestDoctor(t *testing.T) {
	alone(t)
	proc := procFS
	t.Cleanup(func() { procFS = proc })
	procFS = t.TempDir()
	writeBelow(t, procFS, "7/comm", "binnacle\n", 0o600)
	core := func(limit string) {
		writeBelow(t, procFS, "7/limits", "Max core file size        "+limit+"                    unlimited            bytes     \n", 0o600)
	}
	core("unlimited")
	sound := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := map[string]string{"/api/v1/identities": `{"identities":[{"kind":"principal","principal":"ann","type":"person"},{"kind":"role","principal":"ann","role":"approver"},
			{"kind":"principal","principal":"bob","type":"person","suspended":true},{"kind":"role","principal":"bob","role":"approver"},{"kind":"principal","principal":"robot","type":"agent"},{"kind":"role","principal":"robot","role":"approver"}]}`,
			"/api/v1/keys": `[{"id":"bot"},{"id":"gone","revoked":"lost"}]`, "/api/v1/calls": `{"output":{"default":"intent","entries":[],"listed":[]},"status":"succeeded"}`}
		if sound {
			body["/api/v1/identities"] = strings.Replace(body["/api/v1/identities"], `,"suspended":true`, "", 1)
			body["/api/v1/keys"] = fmt.Sprintf(`[{"id":"bot","expires":%q,"rate_calls":1}]`, time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000Z"))
			body["/api/v1/calls"], body["/log/checkpoint"] = `{"output":{"default":"deny"},"status":"succeeded"}`, "note"
		}
		text, ok := body[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			text = `{"error":{"code":"not_found","message":"no checkpoint has a cosignature"}}`
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	dir := t.TempDir()
	writeBelow(t, dir, "admin.token", "t", 0o644)
	old := writeBelow(t, dir, "keys/policy.sign", "x", 0o600)
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-100*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	root := writeBelow(t, dir, "keys/root.seed", "x", 0o600)
	writeBelow(t, dir, "backups/mesh.backup", "x", 0o600)
	config := writeBelow(t, dir, "binnacle.yaml", "gateway: {capture: encrypted}\nnats: {listen: '0.0.0.0:4222'}\negress-broker: {hosts: [a.example]}\ndurability: power\n", 0o600)
	run := func(code int, args ...string) []string {
		t.Helper()
		got, out, errOut := invoke(t, append([]string{"doctor", "--data", dir, "--token", "t", "--output", "json", "--config", config}, args...)...)
		var d diagnosis
		if err := json.Unmarshal([]byte(out), &d); err != nil || got != code {
			t.Fatal(got, err, out, errOut)
		}
		ids := []string{}
		for _, f := range d.Findings {
			ids = append(ids, f.ID)
		}
		for _, u := range d.Unknown {
			ids = append(ids, "unknown: "+strings.SplitN(u, ":", 2)[0])
		}
		return ids
	}
	t.Setenv("BINNACLE_ADDR", strings.TrimPrefix(s.URL, "http://"))
	want := []string{"nats-tls", "file-mode", "root-key-online", "old-key", "core-dumps", "second-approver", "key-without-end", "key-without-limit", "no-witness", "secrets-unlisted"}
	if got := run(exitFailed, "--max-key-age", "2160h", "--backups", filepath.Join(dir, "backups")); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := run(exitFailed, "--max-key-age", "2160h", "--offline", "--backups", filepath.Join(dir, "keys"), "--max-backup-age", "1ns"); !slices.Equal(got, []string{"nats-tls", "file-mode", "root-key-online", "old-key", "core-dumps", "old-backup"}) {
		t.Errorf("%q", got)
	}
	code, out, _ := invoke(t, "doctor", "--data", dir, "--token", "t", "--config", config, "--offline", "--output", "table")
	if code != exitFailed || !strings.Contains(out, "weak  file-mode  "+filepath.Join(dir, "admin.token")+"\n  other users have access (mode 0644)\n  mend: chmod go= ") {
		t.Error(code, out)
	}
	sound = true
	core("0")
	if err := os.Remove(root); err != nil {
		t.Fatal(err)
	}
	writeBelow(t, dir, "admin.token", "t", 0o600)
	writeBelow(t, dir, "binnacle.yaml", "gateway: {capture: encrypted}\negress-broker: {hosts: [a.example]}\ndurability: power\n", 0o600)
	got := run(exitOK, "--backups", filepath.Join(dir, "backups"))
	if len(got) != 0 {
		t.Errorf("%q", got)
	}
	t.Setenv("BINNACLE_ADDR", "127.0.0.1:1")
	if got := run(exitOK); !slices.Equal(got, []string{"unknown: the running mesh"}) {
		t.Errorf("%q", got)
	}
}

// TestOwnProcesses reads the limits of core files from a file system of processes: only of
// programs of meshes, and only where they can be read.
func TestOwnProcesses(t *testing.T) {
	proc := t.TempDir()
	limits := func(core string) string {
		return "Limit                     Soft Limit           Hard Limit           Units     \nMax data size             unlimited            unlimited            bytes     \nMax core file size        " + core + "                    unlimited            bytes     \n"
	}
	for pid, p := range map[string]struct{ comm, core string }{"7": {"binnacle", "unlimited"}, "8": {"policy", "0"}, "9": {"bash", "unlimited"}} {
		writeBelow(t, proc, pid+"/comm", p.comm+"\n", 0o600)
		writeBelow(t, proc, pid+"/limits", limits(p.core), 0o600)
	}
	writeBelow(t, proc, "10/comm", "gateway\n", 0o600)
	writeBelow(t, proc, "self/comm", "binnacle\n", 0o600)
	got, err := ownProcesses(proc)
	if err != nil || fmt.Sprint(got) != "[{binnacle 7 unlimited} {policy 8 0}]" {
		t.Error(got, err)
	}
}
