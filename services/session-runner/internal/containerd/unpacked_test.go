package containerd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// layerWith returns a layer in tar with files of the given sizes.
func layerWith(t *testing.T, sizes ...int64) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i, n := range sizes {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeReg, Mode: 0o644, Size: n}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// sparse returns a layer with one sparse file (PAX, GNU 1.0) of 1 TiB that has no data.
func sparse() []byte {
	const size = 1 << 40
	record := func(k, v string) string {
		n := len(k) + len(v) + 3
		for len(fmt.Sprint(n))+len(k)+len(v)+3 != n {
			n = len(fmt.Sprint(n)) + len(k) + len(v) + 3
		}
		return fmt.Sprintf("%d %s=%s\n", n, k, v)
	}
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", "hole") + record("GNU.sparse.realsize", fmt.Sprint(size))
	block := func(s string) []byte { return append([]byte(s), make([]byte, (512-len(s)%512)%512)...) }
	head := func(name string, kind byte, n int) []byte {
		b := make([]byte, 512)
		copy(b, name)
		copy(b[100:], "0000644\x000000000\x000000000\x00")
		copy(b[124:], fmt.Sprintf("%011o\x0000000000000\x00        ", n))
		b[156] = kind
		copy(b[257:], "ustar\x0000")
		sum := 0
		for _, c := range b {
			sum += int(c)
		}
		copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
		return b
	}
	data := block(fmt.Sprintf("1\n%d\n0\n", size))
	out := append(head("x", 'x', len(pax)), block(pax)...)
	out = append(append(out, head("hole", '0', len(data))...), data...)
	return append(out, make([]byte, 1024)...)
}

// TestUnpackedRoom shows that a layer is refused if its files have too many bytes, also if it
// is compressed or if the bytes are a hole; if it has too many files; or if it is padding
// without end or no tar archive. It also shows that the layers of an image share the room.
func TestUnpackedRoom(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(layerWith(t, 8<<20)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	most := room{bytes: 1 << 20, entries: 50}
	for name, c := range map[string]struct {
		layer io.Reader
		want  error
	}{
		"fits":     {bytes.NewReader(layerWith(t, 1<<19, 1<<19)), nil},
		"empty":    {bytes.NewReader(layerWith(t)), nil},
		"bytes":    {bytes.NewReader(layerWith(t, 1<<19, 1<<19, 1)), ErrUnpacked},
		"gzip":     {&zipped, ErrUnpacked},
		"entries":  {bytes.NewReader(layerWith(t, make([]int64, 51)...)), ErrUnpacked},
		"hole":     {bytes.NewReader(sparse()), ErrUnpacked},
		"no files": {io.MultiReader(bytes.NewReader(layerWith(t, 1<<20)[:512]), zeros{}), ErrUnpacked},
	} {
		r := most
		if err := r.take(c.layer); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	r := most
	if err := r.take(bytes.NewReader(layerWith(t, 1<<19))); err != nil {
		t.Fatal(err)
	}
	if err := r.take(bytes.NewReader(layerWith(t, 1<<20))); !errors.Is(err, ErrUnpacked) {
		t.Errorf("the second layer: %v", err)
	}
	if err := new(room).take(strings.NewReader("no tar archive, which is longer than the room is")); err == nil {
		t.Error("a layer that is no tar archive is not refused")
	}
}
