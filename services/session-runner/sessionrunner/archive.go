package sessionrunner

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Limits of an archive of packs.
const (
	MaxArchive  = 8 << 20  // bytes of the archive
	maxUnpacked = 64 << 20 // bytes of its files
	maxFiles    = 256
)

// ErrArchive is wrapped by the error for an archive that must not be installed.
var ErrArchive = errors.New("archive of packs refused")

var (
	archiveName    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	archiveVersion = regexp.MustCompile(`^v[1-9][0-9]{0,8}$`)
)

// SignedArchive describes an archive of packs in an index. The archive is a gzipped tar file of
// programs and manifests, without folders.
type SignedArchive struct {
	Archive   string `json:"archive"` // file name of the archive, beside the index
	Digest    string `json:"digest"`  // "sha256:" and the SHA-256 of the archive in hex
	Key       string `json:"key"`     // id of the key that signed it
	Name      string `json:"name"`
	Signature string `json:"signature"`
	Version   string `json:"version"` // v1, v2, …
}

// signed returns the bytes that the signature covers, after the domain line.
func (a *SignedArchive) signed() []byte {
	w := canon.Object(nil)
	w.Str("digest", a.Digest)
	w.Str("name", a.Name)
	w.Str("version", a.Version)
	return w.End()
}

// Sign sets Key and Signature.
func (a *SignedArchive) Sign(key *sign.Key) {
	a.Key, a.Signature = key.KID, key.Sign(sign.DomainPack, a.signed())
}

// Valid returns an error that wraps ErrArchive unless the name and the version have the forms
// that an index may contain.
func (a *SignedArchive) Valid() error {
	switch {
	case !archiveName.MatchString(a.Name):
		return fmt.Errorf("name: %q is not 1 to 63 characters a-z 0-9 - that begin with a letter: %w", a.Name, ErrArchive)
	case !archiveVersion.MatchString(a.Version):
		return fmt.Errorf("version: %q is not v1, v2, …: %w", a.Version, ErrArchive)
	}
	return nil
}

// PackKeys are the public keys whose signatures of archives the operator trusts, by id.
type PackKeys map[string][]byte

// ParsePackKeys returns the keys of a list of Ed25519 public keys in hex.
func ParsePackKeys(list []string) (PackKeys, error) {
	keys := PackKeys{}
	for i, text := range list {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("/session-runner/pack_keys/%d: want an Ed25519 public key, 64 hex digits", i)
		}
		keys[sign.KID(b)] = b
	}
	return keys, nil
}

// Verify returns an error that wraps ErrArchive unless a is valid, the archive has the digest
// that a states, and a trusted key has signed a.
func (k PackKeys) Verify(a *SignedArchive, archive []byte) error {
	if err := a.Valid(); err != nil {
		return err
	}
	if got := sign.Digest(archive); got != a.Digest {
		return fmt.Errorf("digest: the archive has %s, not %s: %w", got, a.Digest, ErrArchive)
	}
	public := k[a.Key]
	if public == nil {
		return fmt.Errorf("key: %s is not trusted: add the public key to session-runner.pack_keys: %w", a.Key, ErrArchive)
	}
	if err := sign.Verify(public, sign.DomainPack, a.signed(), a.Signature); err != nil {
		return fmt.Errorf("signature: %w: %w", err, ErrArchive)
	}
	return nil
}

// unpack writes the files of an archive to the empty folder dir. It refuses entries other than
// regular files without a folder in their name, a name that occurs twice, and an archive of
// more than maxFiles files or maxUnpacked bytes. Its errors wrap ErrArchive, except those of
// creating and writing a file.
func unpack(dir string, archive []byte) error {
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return fmt.Errorf("gzip: %w: %w", err, ErrArchive)
	}
	t := tar.NewReader(z)
	left := int64(maxUnpacked)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("tar: %w: %w", err, ErrArchive)
		}
		switch {
		case h.Typeflag != tar.TypeReg || h.Name != filepath.Base(h.Name) || !filepath.IsLocal(h.Name) || h.Name == ".":
			return fmt.Errorf("%q is not a file without a folder: %w", h.Name, ErrArchive)
		case n >= maxFiles || h.Size > left:
			return fmt.Errorf("it has more than %d files or %d bytes: %w", maxFiles, int64(maxUnpacked), ErrArchive)
		}
		left -= h.Size
		mode := os.FileMode(0o600)
		if h.Mode&0o111 != 0 {
			mode = 0o700
		}
		f, err := os.OpenFile(filepath.Join(dir, h.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%q occurs twice: %w", h.Name, ErrArchive)
		}
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		var local *fs.PathError // the file cannot be written, for example because the disk is full
		if err != nil && !errors.As(err, &local) {
			err = fmt.Errorf("%s: %w: %w", h.Name, err, ErrArchive)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// ArchivePacks returns the archive of the files in a folder. The archive has no times and no
// owners, so the archives of equal files are equal. An entry that is not a regular file is an
// error, and so is an archive of more than MaxArchive bytes.
func ArchivePacks(dir string) ([]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, en := range entries {
		info, err := en.Info()
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is not a regular file: an archive of packs has no folders and links", filepath.Join(dir, en.Name()))
		}
		body, err := os.ReadFile(filepath.Join(dir, en.Name()))
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		if err := t.WriteHeader(&tar.Header{Name: en.Name(), Size: int64(len(body)), Mode: mode}); err != nil {
			return nil, err
		}
		if _, err := t.Write(body); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return nil, err
	}
	if b.Len() > MaxArchive {
		return nil, fmt.Errorf("%s: the archive has %d bytes, more than %d", dir, b.Len(), MaxArchive)
	}
	return b.Bytes(), nil
}
