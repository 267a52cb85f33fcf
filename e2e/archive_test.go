package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// TestArchive shows that the ledger can be archived in sealed segments, from the mesh and
// from its mirror, that the archive is extended as the ledger grows, but not with another
// size of segments, and that removed and exchanged segments and changes of the index are
// detected.
func TestArchive(t *testing.T) {
	m := harness.Processes(t, harness.Options{Noop: true, Mirror: true})
	calls := func(n int) {
		for i := range n {
			if r, err := m.Do(t.Context(), "POST", "/api/v1/packs/noop", fmt.Sprint("s-arc-", i%3), "{}"); err != nil || r.Status != 200 {
				t.Fatal(err, r)
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "archive")
	run := func(args ...string) string {
		t.Helper()
		out, err := m.CLI(args...)
		if err != nil {
			t.Fatal(out, err)
		}
		return out
	}
	calls(40)
	run("archive", "--to", dir, "--segment", "64")
	first, err := os.ReadFile(filepath.Join(dir, "archive.json"))
	if err != nil {
		t.Fatal(err)
	}
	calls(40)
	run("archive", "--to", dir, "--segment", "64")
	if out := run("verify", dir); !strings.Contains(out, "VERIFIED ledger") {
		t.Fatal(out)
	}
	var before, after struct {
		Segments []struct{ File, SHA256 string }
	}
	now, err := os.ReadFile(filepath.Join(dir, "archive.json"))
	if err != nil || json.Unmarshal(first, &before) != nil || json.Unmarshal(now, &after) != nil || len(before.Segments) < 2 || len(after.Segments) <= len(before.Segments) {
		t.Fatalf("%v\n%s\n%s", err, first, now)
	}
	for i, s := range before.Segments[:len(before.Segments)-1] {
		if after.Segments[i] != s {
			t.Errorf("sealed segment %s changed", s.File)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.gz"))
	if err != nil || len(files) != len(after.Segments) {
		t.Errorf("%d files for %d segments", len(files), len(after.Segments))
	}

	// An archive cannot be extended with another segment size.
	if out, err := m.CLI("archive", "--to", dir, "--segment", "128"); err == nil || !strings.Contains(err.Error(), "has segments of 64") {
		t.Error(out, err)
	}

	// The error describes the damage, for example by the number of segments that verify
	// or by the name of a missing one.
	bad := func(what, want string, change func(dir string)) {
		t.Helper()
		spoiled := filepath.Join(t.TempDir(), "a")
		if err := os.CopyFS(spoiled, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		change(spoiled)
		if out, err := m.CLI("verify", spoiled); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s %v", what, out, err)
		}
	}
	for _, s := range after.Segments {
		bad("segment missing", fmt.Sprintf("%d of %d segments verify", len(after.Segments)-1, len(after.Segments)), func(d string) {
			if err := os.Remove(filepath.Join(d, s.File)); err != nil {
				t.Fatal(err)
			}
		})
	}
	bad("two missing", after.Segments[0].File+" is missing", func(d string) {
		_ = os.Remove(filepath.Join(d, after.Segments[0].File))
		_ = os.Remove(filepath.Join(d, after.Segments[1].File))
	})
	bad("one for another", after.Segments[1].File+" is not the file", func(d string) {
		b, _ := os.ReadFile(filepath.Join(d, after.Segments[0].File))
		_ = os.WriteFile(filepath.Join(d, after.Segments[1].File), b, 0o644)
	})
	index := func(change func(string) string) func(string) {
		return func(d string) {
			if err := os.WriteFile(filepath.Join(d, "archive.json"), []byte(change(string(now))), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	bad("not named", "are in no segment", index(func(s string) string {
		a := strings.Index(s, "  {\n   \"file\": \""+after.Segments[1].File)
		b := strings.Index(s[a:], "},\n") + a
		return s[:a] + s[b+3:]
	}))
	bad("another root", "do not have the checkpoint's root", index(func(s string) string {
		at := strings.Index(s, `"root": "`) + 9
		return s[:at] + "0000" + s[at+4:]
	}))
	bad("another signature", "checkpoint", index(func(s string) string {
		at := strings.Index(s, `\n",`) - 12
		return s[:at] + "AAAA" + s[at+4:]
	}))

	// The archive of the mirror has the same segments, except possibly one; it is made
	// with a key that permits only reading.
	keys := t.TempDir()
	key, err := os.ReadFile(filepath.Join(m.Dir, "keys/auditor.nkey"))
	if err != nil || os.WriteFile(filepath.Join(keys, "auditor.nkey"), key, 0o600) != nil {
		t.Fatal(err)
	}
	mirrored := filepath.Join(t.TempDir(), "mirrored")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		out, err := m.CLI("archive", "--to", mirrored, "--segment", "64", "--mirror", m.NATS, "--keys", keys)
		if err == nil && strings.Contains(out, fmt.Sprint(len(after.Segments), " segments")) {
			break
		}
		if time.Now().After(end) {
			t.Fatal(out, err)
		}
	}
	run("verify", mirrored)
	same := 0
	for _, s := range after.Segments {
		if _, err := os.Stat(filepath.Join(mirrored, s.File)); err == nil {
			same++
		}
	}
	if same < len(after.Segments)-1 {
		t.Errorf("%d of %d segments of the mirror are the mesh's", same, len(after.Segments))
	}
	ledger := filepath.Join(t.TempDir(), "l.jsonl")
	run("export", "--ledger", "--mirror", m.NATS, "--keys", keys, "--out", ledger)
	run("verify", ledger)
}
