// Package sign is Ed25519 (RFC 8032) with domain separation.
//
// A preimage is the domain line, a newline, and the RFC 8785 bytes of every
// field of the document except the signature itself. The key id is one of
// those fields, so a signature cannot be moved to another key's name.
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

// Domain lines of everything that is signed.
const (
	DomainApproval = "binnacle approval v1"
	DomainDecision = "binnacle decision v1"
	DomainEpoch    = "binnacle log epoch v1"
	DomainReceipt  = "binnacle receipt v1"
	DomainTrust    = "binnacle trust v1"
	DomainP0       = "binnacle p0 v1"
	DomainManifest = "binnacle evidence manifest v1"
)

// ErrSignature is returned for every signature that does not verify.
var ErrSignature = errors.New("signature does not verify")

// Key is an Ed25519 key pair. KID is derived from the public key and never
// chosen. A Key may be used from several goroutines.
type Key struct {
	KID     string
	private ed25519.PrivateKey
}

// NewKey returns the key of a seed of 32 bytes, or an error for another length.
// The seed is the secret; it is copied.
func NewKey(seed []byte) (*Key, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("signing seed has %d bytes, want %d", len(seed), ed25519.SeedSize)
	}
	k := ed25519.NewKeyFromSeed(seed)
	return &Key{KID: KID(k.Public().(ed25519.PublicKey)), private: k}, nil
}

// Public returns a copy of the public key's 32 bytes.
func (k *Key) Public() []byte { return k.private.Public().(ed25519.PublicKey) }

// Raw returns the signature, of 64 bytes, over a message that carries its own
// domain separation (a C2SP note, a DSSE pre-authentication encoding).
func (k *Key) Raw(msg []byte) []byte { return ed25519.Sign(k.private, msg) }

// Sign returns the signature over domain, a newline and body, in standard base64.
// body is the canonical bytes of a document without its signature.
func (k *Key) Sign(domain string, body []byte) string {
	return base64.StdEncoding.EncodeToString(ed25519.Sign(k.private, preimage(domain, body)))
}

// Base64 decodes standard base64 in its one spelling: padded, unused bits zero,
// and without the line breaks that encoding/base64 skips.
func Base64(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("line break in base64")
	}
	return base64.StdEncoding.Strict().DecodeString(s)
}

// KID is the key id of a public key: "k-" and the first 16 bytes, in hex, of
// its SHA-256.
func KID(public []byte) string {
	h := sha256.Sum256(public)
	return "k-" + hex.EncodeToString(h[:16])
}

// Verify returns ErrSignature unless sig is the signature, as Sign makes it, over
// domain and body by the key public. A public key that does not have 32 bytes is
// another error.
func Verify(public []byte, domain string, body []byte, sig string) error {
	if len(public) != ed25519.PublicKeySize {
		return fmt.Errorf("public key has %d bytes, want %d", len(public), ed25519.PublicKeySize)
	}
	raw, err := Base64(sig)
	if err != nil || !ed25519.Verify(public, preimage(domain, body), raw) {
		return ErrSignature
	}
	return nil
}

// VerifyRaw returns ErrSignature unless sig is the signature, as Raw makes it, over
// msg by the key public.
func VerifyRaw(public, msg, sig []byte) error {
	if len(public) != ed25519.PublicKeySize || !ed25519.Verify(public, msg, sig) {
		return ErrSignature
	}
	return nil
}

func preimage(domain string, body []byte) []byte {
	b := make([]byte, 0, len(domain)+1+len(body))
	return append(append(append(b, domain...), '\n'), body...)
}

// Digest is the name of bytes: "sha256:" and their SHA-256 in lower-case hex.
func Digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}
