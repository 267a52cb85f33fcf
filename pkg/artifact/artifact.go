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
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

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
	// ErrFull is returned by a Store that has no room for another part.
	ErrFull = errors.New("the store of artifacts is full: delete artifacts, or raise the limit nats.max_artifacts")
)

// Store stores parts. Implementations are safe for concurrent use. A key has the form
// TENANT.SERVICE.UPLOAD.PART, in the characters [A-Za-z0-9._-].
type Store interface {
	// Put stores a part. A nil error means that the part is stored. Put may be repeated
	// with the same bytes; for other bytes under the key it returns ErrExists. If the store
	// is full, it returns ErrFull.
	Put(ctx context.Context, key string, part []byte) error
	// Get returns the part with a key, or ErrNotFound.
	Get(ctx context.Context, key string) ([]byte, error)
}

// Collected is a Store from which the collector removes parts.
type Collected interface {
	Store
	// Begun returns the time at which the first part of an upload was stored, or ErrNotFound
	// if that part does not exist.
	Begun(ctx context.Context, p Parts) (time.Time, error)
	// Uploads calls f for each upload that has a first part, until f returns an error, which
	// Uploads returns.
	Uploads(ctx context.Context, f func(Parts) error) error
	// Remove removes the parts of an upload. It may be repeated. Only the collector has the
	// right to call it.
	Remove(ctx context.Context, tenant, service, upload string) error
}

// Parts identifies an upload that has parts in a store.
type Parts struct{ Tenant, Service, Upload string }

// Bounded is implemented by a Store that has a limit.
type Bounded interface {
	// Room returns the number of bytes that the store accepts until it is full.
	Room(ctx context.Context) (int64, error)
}

// Remote is a Store that sends requests to a server.
type Remote interface {
	// Connect replaces the connections to the server: later requests are sent by the result of via,
	// which receives the configuration of TLS. Only the first call has an effect.
	Connect(via func(*tls.Config) http.RoundTripper)
	// Server returns the URL of the server.
	Server() string
}

// ServerOf returns the URL of the server of s, or "" if s is not a Remote.
func ServerOf(s Store) string {
	if r, ok := s.(Remote); ok {
		return r.Server()
	}
	return ""
}

// Connect calls s.Connect if s is a Remote.
func Connect(s Store, via func(*tls.Config) http.RoundTripper) {
	if r, ok := s.(Remote); ok {
		r.Connect(via)
	}
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

// maxUpload is the maximum length of the id of an upload.
const maxUpload = 64

// NewUpload returns the id of a new upload. If key, the id of a content key, is not "", the upload
// is encrypted under it; see Sealed.
func NewUpload(key string) string {
	if key == "" {
		return contract.IDUpload + rand.Text()
	}
	return contract.IDUpload + rand.Text()[:19] + "-" + key // 95 random bits, and the maximum length
}

// inline follows contract.IDUpload in the ids that InlineUpload returns. NewUpload returns no
// such id, because rand.Text returns no lower-case letters.
const inline = "inline-"

// InlineUpload returns the id of the upload of the content that is in the arguments of a
// call. It depends on the call and the content key only, so a call that runs again stores no
// second upload. If key is not "", the upload is encrypted under it; see Sealed.
func InlineUpload(tenant, session, call, key string) string {
	sum := sha256.Sum256([]byte(tenant + "\x00" + session + "\x00" + call))
	if key == "" {
		return contract.IDUpload + inline + hex.EncodeToString(sum[:16])
	}
	return contract.IDUpload + inline + base64.RawURLEncoding.EncodeToString(sum[:9]) + "-" + key
}

// IsInline reports whether an id has the form of those that InlineUpload returns.
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
	case !strings.HasPrefix(o.Upload, contract.IDUpload) || !contract.Token(o.Upload) || len(o.Upload) > maxUpload:
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

// MaxLabels is the maximum number of labels of an upload.
const MaxLabels = 16

// LabelPattern is the pattern of a label, NAME=VALUE. A label has no comma.
const LabelPattern = `^[A-Za-z0-9._-]{1,63}=[A-Za-z0-9._/:@+ -]{0,127}$`

// WantLabel is the message of an error about a label that IsLabel does not accept.
const WantLabel = "want NAME=VALUE with a name of 1 to 63 characters A-Z a-z 0-9 . _ - and a value of at most 127, which may also have / : @ + and spaces"

var labelForm = regexp.MustCompile(LabelPattern)

// IsLabel reports whether s has the form of a label.
func IsLabel(s string) bool { return labelForm.MatchString(s) }

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
