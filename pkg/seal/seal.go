// Package seal encrypts to one recipient: HPKE (RFC 9180) in base mode with
// DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-256-GCM. The info string binds a
// sealed value to its purpose and call, so that it cannot be opened for another.
package seal

import (
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/rand"
	"encoding/base64"
	"fmt"
)

// Key is a recipient.
type Key struct{ private hpke.PrivateKey }

// NewKey makes an ephemeral recipient.
func NewKey() (*Key, error) {
	seed := make([]byte, 32)
	rand.Read(seed)
	return FromSeed(seed)
}

// FromSeed makes the recipient of a 32 byte X25519 private key.
func FromSeed(seed []byte) (*Key, error) {
	k, err := ecdh.X25519().NewPrivateKey(seed)
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	p, err := hpke.NewDHKEMPrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	return &Key{p}, nil
}

// Public is the recipient's public key in base64.
func (k *Key) Public() string {
	return base64.StdEncoding.EncodeToString(k.private.PublicKey().Bytes())
}

// Open decrypts a value that was sealed to this key with the same info. Every failure is
// one error, which does not say why.
func (k *Key) Open(info string, sealed []byte) ([]byte, error) {
	b, err := hpke.Open(k.private, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(info), sealed)
	if err != nil {
		return nil, fmt.Errorf("sealed value does not open: %w", err)
	}
	return b, nil
}

// To encrypts for a public key in base64.
func To(public, info string, plain []byte) ([]byte, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(public)
	if err != nil {
		return nil, fmt.Errorf("seal: public key: %w", err)
	}
	pub, err := ecdh.X25519().NewPublicKey(raw)
	if err != nil {
		return nil, fmt.Errorf("seal: public key: %w", err)
	}
	p, err := hpke.NewDHKEMPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("seal: public key: %w", err)
	}
	return hpke.Seal(p, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(info), plain)
}
