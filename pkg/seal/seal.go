// Package seal encrypts values for one recipient: HPKE (RFC 9180) in base mode with
// DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-256-GCM. The info string binds a
// sealed value to its context, such as a purpose and a call, so that it cannot be opened
// in another one.
package seal

import (
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/rand"
	"encoding/base64"
	"fmt"
)

// Key is the private key of a recipient.
type Key struct{ private hpke.PrivateKey }

// NewKey returns a random key, for a recipient that needs it only once.
func NewKey() (*Key, error) {
	seed := make([]byte, 32)
	rand.Read(seed)
	return FromSeed(seed)
}

// FromSeed returns the key with a given X25519 private key of 32 bytes. It returns an
// error for any other length.
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

// Public returns the recipient's public key in base64.
func (k *Key) Public() string {
	return base64.StdEncoding.EncodeToString(k.private.PublicKey().Bytes())
}

// Open decrypts a value that was sealed for this key with the same info. It returns an
// error for any other value.
func (k *Key) Open(info string, sealed []byte) ([]byte, error) {
	b, err := hpke.Open(k.private, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(info), sealed)
	if err != nil {
		return nil, fmt.Errorf("cannot open the sealed value with this key and info: %w", err)
	}
	return b, nil
}

// To encrypts plain for the recipient whose public key, in base64, is public. Only a
// call of Open with the recipient's key and the same info decrypts the result. To
// returns an error if public is not a usable X25519 public key.
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
