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

// Key is a signing key. KID is derived from the public key and never chosen.
type Key struct {
	KID     string
	private ed25519.PrivateKey
}

// NewKey makes a key of a 32 byte seed; the seed is the secret.
func NewKey(seed []byte) (*Key, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("signing seed has %d bytes, want %d", len(seed), ed25519.SeedSize)
	}
	k := ed25519.NewKeyFromSeed(seed)
	return &Key{KID: KID(k.Public().(ed25519.PublicKey)), private: k}, nil
}

// Public returns the public key's 32 bytes.
func (k *Key) Public() []byte { return k.private.Public().(ed25519.PublicKey) }

// Raw signs a message that carries its own domain separation (a C2SP note, a
// DSSE pre-authentication encoding).
func (k *Key) Raw(msg []byte) []byte { return ed25519.Sign(k.private, msg) }

// Sign signs domain, newline, canonical body, and returns standard base64.
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

// Verify checks a signature made by Sign.
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

// VerifyRaw checks a signature made by Raw.
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

// Digest names bytes: "sha256:" and lower-case hex.
func Digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}
