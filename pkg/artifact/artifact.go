// Package artifact stores and reads the bytes of artifacts: files that calls make or
// read, of any size. The bytes are divided into parts of PartSize, which are stored under
// the id of one upload, and followed by an index of the parts' SHA-256 digests. Parts are
// never overwritten: a Store refuses other bytes under the key of a part. An Object names
// the upload, the digest of the whole content and that of the index, so that a reader
// verifies every part that it reads, also of a range, without reading the rest. A reader
// or writer holds only a few parts and the index in memory; the index has 32 bytes for
// each part.
//
// An artifact is content that the ledger names: package artifact decides neither who may
// read it nor when it is removed; see services/work.
package artifact

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// PartSize is the size in bytes of every part but the last.
const PartSize = 512 << 10

// MaxSize is the maximum size of an artifact in bytes, 1 TiB.
const MaxSize = 1 << 40

// Errors of this package.
var (
	// ErrNotFound is returned by a Store for a key without a part. A reader returns it, or
	// an error that wraps it, for content that was removed.
	ErrNotFound = errors.New("artifact content not found")
	// ErrExists is returned by a Store for a key that has a part with other bytes.
	ErrExists = errors.New("other bytes are stored under the key of an artifact's part")
	// ErrCorrupt is wrapped by the error of a reader if stored bytes do not match the
	// digests of their Object.
	ErrCorrupt = errors.New("artifact content does not match its digest")
	// ErrTooLarge is returned for content that is larger than the writer permits.
	ErrTooLarge = errors.New("artifact is larger than permitted")
)

// Store stores parts. Implementations are safe for concurrent use. A key has the form
// TENANT.SERVICE.UPLOAD.PART, in the characters [A-Za-z0-9._-].
type Store interface {
	// Put stores a part. A nil error means that the part is stored. Put may be repeated
	// with the same bytes; for other bytes under the key it returns ErrExists.
	Put(ctx context.Context, key string, part []byte) error
	// Get returns the part with a key, or ErrNotFound.
	Get(ctx context.Context, key string) ([]byte, error)
}

// Object describes stored content.
type Object struct {
	Tenant  string
	Service string // service that stored the content
	Upload  string // id of the upload
	Size    int64  // size of the content in bytes
	Digest  string // "sha256:" and the SHA-256 of the content in hex
	Index   string // "sha256:" and the SHA-256 of the index in hex
}

// NewUpload returns the id of a new upload.
func NewUpload() string { return contract.IDUpload + rand.Text() }

// inline begins the ids of InlineUpload after contract.IDUpload. rand.Text returns no
// lower-case letters.
const inline = "inline-"

// InlineUpload returns the id of the upload of the content that is in the arguments of a
// call. It depends on the call only, so a call that runs again stores no second upload.
func InlineUpload(tenant, session, call string) string {
	sum := sha256.Sum256([]byte(tenant + "\x00" + session + "\x00" + call))
	return contract.IDUpload + inline + hex.EncodeToString(sum[:16])
}

// IsInline reports whether an id has the form of those of InlineUpload.
func IsInline(upload string) bool { return strings.HasPrefix(upload, contract.IDUpload+inline) }

// ID returns the id of the artifact with a digest, or "" if the digest is malformed. The
// id contains the digest: equal content has the same id.
func ID(digest string) string {
	hexed, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || !isDigest(hexed) {
		return ""
	}
	return contract.IDArtifact + hexed
}

// DigestOf returns the digest of the content of the artifact with an id, or "" if id is
// not the id of an artifact.
func DigestOf(id string) string {
	hexed, ok := strings.CutPrefix(id, contract.IDArtifact)
	if !ok || !isDigest(hexed) {
		return ""
	}
	return "sha256:" + hexed
}

// isDigest reports whether s is a SHA-256 digest in lower-case hex.
func isDigest(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size && s == strings.ToLower(s)
}

// Valid returns nil if the members of an object are well formed, and otherwise an error
// that names the first one that is not. The object may come from untrusted arguments. It
// does not check Tenant and Service, which the caller sets.
func (o *Object) Valid() error {
	switch {
	case !strings.HasPrefix(o.Upload, contract.IDUpload) || !contract.Token(o.Upload) || len(o.Upload) > 64:
		return errors.New("upload: want the id of an upload, u-…")
	case o.Size < 0 || o.Size > MaxSize:
		return fmt.Errorf("size: want 0 to %d bytes", int64(MaxSize))
	case ID(o.Digest) == "":
		return errors.New("digest: want sha256: and 64 lower-case hex digits")
	case ID(o.Index) == "":
		return errors.New("index: want sha256: and 64 lower-case hex digits")
	}
	return nil
}

// parts returns the number of parts of content with size bytes.
func parts(size int64) int64 { return (size + PartSize - 1) / PartSize }

// prefix returns the beginning of the keys of an upload's parts.
func prefix(tenant, service, upload string) string {
	return tenant + "." + service + "." + upload
}

// partKey returns the key of part n of an upload, counted from 0.
func partKey(prefix string, n int64) string { return fmt.Sprintf("%s.%d", prefix, n) }

// indexKey returns the key of part n of an upload's index, counted from 0.
func indexKey(prefix string, n int64) string { return fmt.Sprintf("%s.index-%d", prefix, n) }

func digest(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

// Named returns the ids of artifacts that text contains, each once, in the order of the
// text, and at most limit of them. It omits an id that is a part of a longer word.
func Named(text []byte, limit int) (ids []string) {
	for from := 0; len(ids) < limit; {
		at := bytes.Index(text[from:], []byte(contract.IDArtifact))
		if at < 0 || len(text) < from+at+idBytes {
			return ids
		}
		begin, end := from+at, from+at+idBytes
		from = begin + len(contract.IDArtifact)
		id := string(text[begin:end])
		if DigestOf(id) == "" || slices.Contains(ids, id) || begin > 0 && isWord(text[begin-1]) || end < len(text) && isWord(text[end]) {
			continue
		}
		ids = append(ids, id)
	}
	return ids
}

// idBytes is the length of the id of an artifact.
const idBytes = len(contract.IDArtifact) + 64

// isWord reports whether a byte beside an id makes it a part of a longer word.
func isWord(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '-' || b == '_'
}
