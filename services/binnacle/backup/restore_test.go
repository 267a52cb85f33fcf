package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
	"github.com/binnacle-mesh/binnacle/pkg/ledger"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// TestRestoreProves shows that streams are restored only if the events that the newest
// checkpoint covers are all there and have its root. A checkpoint over fewer events than
// the backup has is sufficient.
func TestRestoreProves(t *testing.T) {
	key, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	var log ledger.Tree
	var roots []translog.Hash
	var stored []message
	for i := range 3 {
		data := []byte{'{', '}', byte('0' + i)}
		if err := log.Add(data); err != nil {
			t.Fatal(err)
		}
		root, err := log.Root()
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, root)
		stored = append(stored, message{Seq: uint64(i + 1), Subject: "evt.t.a.-.x.k", Data: data})
	}
	for name, c := range map[string]struct {
		size uint64
		root translog.Hash
		want string
	}{
		"over all events":   {3, roots[2], ""},
		"over fewer events": {2, roots[1], ""},
		"another root":      {2, roots[2], "do not have the root"},
		"over more events":  {4, roots[2], "covers 4 events and the backup holds 3"},
	} {
		spool := t.TempDir()
		head := translog.Checkpoint{Origin: "binnacle/x/t", Size: c.size, Root: c.root}
		for stream, list := range map[string][]message{bus.Events: stored, bus.Blobs: nil, bus.Checkpoints: {{Seq: 1, Subject: bus.LogSubject("t", bus.CheckpointSubject), Data: head.Sign(key)}}} {
			var b []byte
			for _, m := range list {
				line, err := json.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				b = append(b, line...)
			}
			if err := os.MkdirAll(filepath.Join(spool, "streams"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(spool, "streams", stream+".jsonl"), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		conn := meshtest.Start(t, nil).Connect(t, "provision")
		f := Folders{State: map[string]string{services.Audit: filepath.Join(spool, "audit")}}
		_, err := restoreStreams(t.Context(), conn, spool, &index{Events: 3}, f, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestForeignBackup checks that the error for a backup of another format names both
// formats, and that the error for an index that is not JSON names the file.
func TestForeignBackup(t *testing.T) {
	for doc, want := range map[string]string{
		`{"format":"binnacle-backup/v9"}`: `backup.json: format "binnacle-backup/v9", this program reads ` + format,
		`{`:                               "backup.json: unexpected EOF",
	} {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		if err := w.WriteHeader(&tar.Header{Name: "backup.json", Mode: 0o600, Size: int64(len(doc))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(doc)); err != nil {
			t.Fatal(err)
		}
		w.Close()
		z.Close()
		dir := t.TempDir()
		folders := Folders{Keys: filepath.Join(dir, "keys"), State: map[string]string{}}
		for _, s := range services.Stateful() {
			folders.State[s] = filepath.Join(dir, s)
		}
		_, err := Restore(t.Context(), &b, nil, folders, nil, nil)
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestTakeDurable shows that Take fails and writes nothing if the ledger cannot be
// synced.
func TestTakeDurable(t *testing.T) {
	b := meshtest.StartMode(t, nil, true)
	c := b.Connect(t, "provision")
	dir := t.TempDir()
	f := Folders{Keys: filepath.Join(dir, "keys"), State: map[string]string{}}
	for _, s := range services.Stateful() {
		f.State[s] = filepath.Join(dir, s)
	}
	for _, folder := range append(slices.Collect(maps.Values(f.State)), f.Keys) {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var w bytes.Buffer
	b.StopSyncer(t)
	if _, err := Take(t.Context(), c, nil, f, &w); !errors.Is(err, bus.ErrNotDurable) || w.Len() > 0 {
		t.Errorf("%d bytes, %v", w.Len(), err)
	}
}
