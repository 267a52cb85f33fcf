// Package sign signs and verifies with Ed25519 (RFC 8032) and domain separation, and
// computes the SHA-256 digests by which documents refer to bytes.
//
// The bytes that Sign signs are the domain line, a newline, and the RFC 8785 bytes of
// the document without its signature. The domain prevents a signature over one type of
// document from being valid for another. The key id is one of the signed fields of
// every document, so a signature cannot be attributed to another key. Each type of
// document that Sign signs has a domain constant in this package.
package sign

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// The domain lines of the documents that Sign signs. The version in a line changes if
// the signed fields of that document change their meaning.
const (
	DomainApproval = "binnacle approval v1"
	DomainCell     = "binnacle cell v1"
	DomainDecision = "binnacle decision v1"
	DomainEpoch    = "binnacle log epoch v1"
	DomainExport   = "binnacle tenant export v1"
	DomainLink     = "binnacle artifact link v1"
	DomainOperator = "binnacle operator v1"
	DomainPack     = "binnacle pack archive v1"
	DomainReceipt  = "binnacle receipt v1"
	DomainTrust    = "binnacle trust v1"
	DomainPasskey  = "binnacle passkey vote v1"
	DomainP0       = "binnacle p0 v1"
	DomainManifest = "binnacle evidence manifest v1"
	DomainSnapshot = "binnacle snapshot v1"
)

// ErrSignature is returned by Verify and VerifyRaw if a signature does not verify. It
// does not state the reason.
var ErrSignature = errors.New("signature does not verify")

// Key is an Ed25519 key pair. KID is derived from the public key and must not be
// changed. The methods of a Key may be called concurrently.
type Key struct {
	KID     string
	private ed25519.PrivateKey
}

// NewKey returns the key with this seed, or an error if seed does not have 32 bytes. The
// seed is the secret key material (RFC 8032 section 5.1.5); NewKey copies it.
func NewKey(seed []byte) (*Key, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("signing seed has %d bytes, want %d", len(seed), ed25519.SeedSize)
	}
	k := ed25519.NewKeyFromSeed(seed)
	return &Key{KID: KID(k.Public().(ed25519.PublicKey)), private: k}, nil
}

// Public returns the 32 bytes of the public key in a newly allocated slice, which
// the caller owns.
func (k *Key) Public() []byte { return k.private.Public().(ed25519.PublicKey) }

// Raw returns the 64-byte signature over msg. msg must have a domain separation
// of its own, such as a C2SP signed note or a DSSE pre-authentication encoding.
func (k *Key) Raw(msg []byte) []byte { return ed25519.Sign(k.private, msg) }

// Sign returns the signature over domain, a newline and body, in standard base64.
// body is the canonical bytes of a document without its signature.
func (k *Key) Sign(domain string, body []byte) string {
	msg := preimage(make([]byte, 0, usual), domain, body)
	sig := ed25519.Sign(k.private, msg)
	if d, ok := known.digestOf(k.private[ed25519.SeedSize:], sig, msg); ok {
		known.add(d)
	}
	return base64.StdEncoding.EncodeToString(sig)
}

// Base64 decodes standard base64 and accepts only its canonical form: padded, with
// unused bits zero, and without the line breaks that encoding/base64 ignores. Any other
// form is an error, because a signed or hashed document could otherwise exist in several
// forms.
func Base64(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("line break in base64")
	}
	return base64.StdEncoding.Strict().DecodeString(s)
}

// KID returns the id of a public key: KIDPrefix and the first 16 bytes of the key's
// SHA-256 in lower-case hex.
func KID(public []byte) string {
	h := sha256.Sum256(public)
	return KIDPrefix + hex.EncodeToString(h[:16])
}

// Verify returns nil if sig is the signature, in the form of Sign, over domain
// and body by the key public. It returns ErrSignature if sig is not, and another
// error if public does not have 32 bytes.
func Verify(public []byte, domain string, body []byte, sig string) error {
	if len(public) != ed25519.PublicKeySize {
		return fmt.Errorf("public key has %d bytes, want %d", len(public), ed25519.PublicKeySize)
	}
	raw, err := Base64(sig)
	if err != nil {
		return ErrSignature
	}
	msg := preimage(make([]byte, 0, usual), domain, body)
	d, ok := known.digestOf(public, raw, msg)
	if ok && known.has(d) {
		return nil
	}
	if !ed25519.Verify(public, msg, raw) {
		return ErrSignature
	}
	if ok {
		known.add(d)
	}
	return nil
}

// VerifyRaw returns nil if sig is the signature, in the form of Raw, over msg by the key
// public. Otherwise, and also if public does not have 32 bytes, it returns ErrSignature.
func VerifyRaw(public, msg, sig []byte) error {
	if len(public) != ed25519.PublicKeySize || !ed25519.Verify(public, msg, sig) {
		return ErrSignature
	}
	return nil
}

// usual is the length up to which the bytes that Sign signs are built on the stack.
const usual = 4 << 10

// preimage appends the bytes that Sign signs to dst: the domain line, a newline and the
// body.
func preimage(dst []byte, domain string, body []byte) []byte {
	return append(append(append(dst, domain...), '\n'), body...)
}

// Digest returns the digest by which documents refer to b: "sha256:" and the SHA-256 of
// b in lower-case hex.
func Digest(b []byte) string {
	const prefix = "sha256:"
	h := sha256.Sum256(b)
	var text [len(prefix) + 2*sha256.Size]byte
	return string(hex.AppendEncode(append(text[:0], prefix...), h[:]))
}
