package sessionrunner

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/handle"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// publisher returns a key, and the keys that trust it.
func publisher(t *testing.T, seed byte) (*sign.Key, PackKeys) {
	t.Helper()
	key, err := sign.NewKey(bytes.Repeat([]byte{seed}, 32))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ParsePackKeys([]string{hex.EncodeToString(key.Public())})
	if err != nil {
		t.Fatal(err)
	}
	return key, keys
}

// TestSignedArchive checks that an archive verifies only as it was signed, by a trusted key.
func TestSignedArchive(t *testing.T) {
	key, keys := publisher(t, 1)
	other, _ := publisher(t, 2)
	for want, change := range map[string]func(*SignedArchive) *sign.Key{
		"":                     func(*SignedArchive) *sign.Key { return key },
		"is not trusted":       func(*SignedArchive) *sign.Key { return other },
		"digest: ":             func(a *SignedArchive) *sign.Key { a.Digest = sign.Digest(nil); return key },
		`name: "../x"`:         func(a *SignedArchive) *sign.Key { a.Name = "../x"; return key },
		`version: "1.0"`:       func(a *SignedArchive) *sign.Key { a.Version = "1.0"; return key },
		"signature: signature": nil,
	} {
		a := SignedArchive{Name: "tides", Version: "v1", Digest: sign.Digest([]byte("archive"))}
		if change != nil {
			a.Sign(change(&a))
		} else {
			a.Sign(key)
			a.Version = "v2"
		}
		err := keys.Verify(&a, []byte("archive"))
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, bad := range []string{"", "00", strings.Repeat("z", 64)} {
		if _, err := ParsePackKeys([]string{bad}); err == nil || !strings.Contains(err.Error(), "/session-runner/pack_keys/0") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestUnpack checks which archives are refused, and that nothing is written beside the folder.
func TestUnpack(t *testing.T) {
	archive := func(headers ...tar.Header) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		for _, h := range headers {
			if h.Typeflag == 0 {
				h.Typeflag = tar.TypeReg
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				if _, err := w.Write(make([]byte, h.Size)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	many := make([]tar.Header, maxFiles+1)
	for i := range many {
		many[i].Name = "f" + strings.Repeat("x", i%100) + string(rune('a'+i/100))
	}
	ok := archive(tar.Header{Name: "a.sh", Mode: 0o755, Size: 3}, tar.Header{Name: "a.pack.yaml", Mode: 0o644})
	for name, x := range map[string]struct {
		archive []byte
		want    string
	}{
		"files":             {ok, ""},
		"a parent":          {archive(tar.Header{Name: "../a"}), `"../a" is not a file`},
		"an absolute path":  {archive(tar.Header{Name: "/etc/a"}), `"/etc/a" is not a file`},
		"a folder":          {archive(tar.Header{Name: "d/", Typeflag: tar.TypeDir}), `"d/" is not a file`},
		"a file in one":     {archive(tar.Header{Name: "d/a"}), `"d/a" is not a file`},
		"a symbolic link":   {archive(tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), `"a" is not a file`},
		"a hard link":       {archive(tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), `"a" is not a file`},
		"a device":          {archive(tar.Header{Name: "a", Typeflag: tar.TypeChar}), `"a" is not a file`},
		"two of one name":   {archive(tar.Header{Name: "a"}, tar.Header{Name: "a"}), `"a" occurs twice`},
		"too many files":    {archive(many...), "more than 256 files"},
		"a bomb":            {archive(tar.Header{Name: "a", Size: maxUnpacked}, tar.Header{Name: "b", Size: 1}), "more than 256 files or"},
		"no gzip":           {[]byte("text"), "gzip: "},
		"cut off":           {ok[:len(ok)/2], "unexpected EOF"},
		"a name of nothing": {archive(tar.Header{Name: ".."}), `".." is not a file`},
	} {
		parent := t.TempDir()
		dir := filepath.Join(parent, "in")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		err := unpack(dir, x.archive)
		if (err == nil) != (x.want == "") || err != nil && (!errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if beside, err := os.ReadDir(parent); err != nil || len(beside) != 1 {
			t.Errorf("%s: files beside the folder: %v %v", name, beside, err)
		}
	}
}

// TestArchivePacks checks that the archive of a folder is equal to the archive of its unpacked
// files, and that a link in the folder is an error.
func TestArchivePacks(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	for name, mode := range map[string]os.FileMode{"a.sh": 0o755, "a.pack.yaml": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	first, err := ArchivePacks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unpack(out, first); err != nil {
		t.Fatal(err)
	}
	again, err := ArchivePacks(out)
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("the archive of the unpacked files differs: %v", err)
	}
	if err := os.Symlink("a.sh", filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if _, err := ArchivePacks(dir); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("an archive of a folder with a link: %v", err)
	}
}

// TestInstalledBy checks which archives are installed after a history.
func TestInstalledBy(t *testing.T) {
	event := func(name string, data []byte) handle.Stored {
		return handle.Stored{Event: &contract.Event{Tenant: "t", Name: name, Data: data}}
	}
	in := func(name, version string) handle.Stored {
		return event(contract.EventPackInstalled, contract.Bytes(&events.PackInstalled{Name: name, Version: version}))
	}
	out := func(name string) handle.Stored {
		return event(contract.EventPackUninstalled, contract.Bytes(&events.PackUninstalled{Name: name}))
	}
	got := installedBy([]handle.Stored{in("a", "v1"), in("b", "v1"), in("a", "v2"), out("b"), out("c"), in("d", "v1"), out("d"), in("d", "v1"), event(contract.EventPackInstalled, []byte(`{}`))})
	if len(got) != 2 || got["a"].Version != "v2" || got["a"].tenant != "t" || got["d"].Version != "v1" {
		t.Errorf("%+v", got)
	}
}
