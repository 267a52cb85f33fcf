package evidence

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/translog"
)

// within fails the test if the heap grows by more than limit bytes while f runs,
// or if f does not return an error that contains want.
func within(t *testing.T, what string, limit uint64, f func() error, want string) {
	t.Helper()
	stop, peak := make(chan struct{}), make(chan uint64)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	base := m.HeapInuse
	go func() {
		most := uint64(0)
		for {
			runtime.ReadMemStats(&m)
			if m.HeapInuse > base {
				most = max(most, m.HeapInuse-base)
			}
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	err := f()
	close(stop)
	if most := <-peak; most > limit {
		t.Errorf("%s: %d bytes of memory, want at most %d", what, most, limit)
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// flood returns a reader of n repetitions of line.
func flood(n int64, line string) io.Reader {
	return io.LimitReader(&endless{line: []byte(line)}, n*int64(len(line)))
}

type endless struct {
	line []byte
	at   int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		m := copy(p[n:], e.line[e.at:])
		n, e.at = n+m, (e.at+m)%len(e.line)
	}
	return n, nil
}

// TestHostile shows that input made to exhaust a verifier fails with the expected error
// and uses little memory.
func TestHostile(t *testing.T) {
	w := bound(t, 1)
	root := w.root.KID
	const little = 64 << 20

	// Packs with false sizes, sparse files or deep nesting.
	pack := func(h *tar.Header, body string) []byte {
		var b bytes.Buffer
		z := tar.NewWriter(&b)
		_ = z.WriteHeader(h)
		_, _ = io.WriteString(z, body)
		return b.Bytes()
	}
	verify := func(b []byte) func() error { return func() error { _, err := Verify(b, root); return err } }
	within(t, "a tar of a terabyte", little, verify(pack(&tar.Header{Name: "x", Size: 1 << 40, Format: tar.FormatGNU}, "x")), "ends before its")
	within(t, "a sparse tar", little, verify(pack(&tar.Header{Name: "x", Size: 10, Format: tar.FormatPAX, PAXRecords: map[string]string{"GNU.sparse.major": "1"}}, "0123456789")), "tar:")
	good := build(t, w.source("s-a"), w.keys["audit"])
	files, err := readTar(good)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pathManifest, pathEvents, pathSystem, pathProofs, pathTip, pathAttestation} {
		deep := map[string][]byte{}
		for p, b := range files {
			deep[p] = b
		}
		deep[name] = []byte(strings.Repeat("[", often(8<<20, 1<<16)) + "\n")
		b, err := writeTar(deep)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "eight million brackets in "+name, 4*little, verify(b), "")
	}

	// Exported ledgers with endless lines, too many lines or deep nesting.
	ledger := func(r func() io.Reader) func() error {
		return func() error {
			_, err := VerifyLedgerFrom(func() (io.ReadCloser, error) { return io.NopCloser(r()), nil }, root, Demands{})
			return err
		}
	}
	within(t, "an endless line", little, ledger(func() io.Reader { return flood(1<<30, "x") }), "a line of more than")
	w.call("s-a", "c-last", true, false)
	line := string(w.ledger[len(w.ledger)-4]) + "\n"
	within(t, "a million unsigned events", little, ledger(func() io.Reader { return flood(int64(often(300_000, 5_000)), line) }), "the export is cut off")
	within(t, "deep events", little, ledger(func() io.Reader { return flood(1, `{"actor":`+strings.Repeat("[", 4<<20)+"\n") }), "nesting deeper")

	// Archives that decompress to more data than their index lists.
	archive := func(s Segment, size uint64, body io.Reader) string {
		dir := t.TempDir()
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := io.Copy(z, body); err != nil {
			t.Fatal(err)
		}
		z.Close()
		sum := sha256.Sum256(b.Bytes())
		s.File, s.SHA256, s.Root = "a.gz", hex.EncodeToString(sum[:]), strings.Repeat("0", 64)
		head := translog.Checkpoint{Origin: "binnacle/test", Size: size}
		ix, err := json.Marshal(Archive{Format: ArchiveFormat, Segment: 1024, Checkpoint: string(head.Sign(w.keys["audit"])), Segments: []Segment{s}})
		if err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{ArchiveFile: ix, "a.gz": b.Bytes()} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	open := func(dir string) func() error {
		return func() error { _, err := VerifyFile(dir, root, Demands{}); return err }
	}
	within(t, "a line that unpacks to 256 MiB", little, open(archive(Segment{From: 1, To: 4}, 4, flood(int64(often(256<<20, 20<<20)), "x"))), "a line of more than")
	within(t, "more lines than the index has", little, open(archive(Segment{From: 1, To: 4}, 4, flood(1<<20, "some event\n"))), "more events than the index names")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ArchiveFile), []byte(strings.Repeat(`{"a":`, 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	within(t, "a deep index", little, open(dir), "nesting deeper")

	// A file that is larger than the limit passed to readFile.
	big := filepath.Join(t.TempDir(), "big.tar")
	f, err := os.Create(big)
	if err == nil {
		_, err = f.WriteAt([]byte("x"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := readFile(big, 1<<20); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Error(err)
	}
}
