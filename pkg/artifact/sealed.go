package artifact

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"math"
	"regexp"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Keys provides content keys. Package contentkeys implements it.
type Keys interface {
	// Key returns the content key of a tenant with the given id, or contract.ErrErased if it was
	// destroyed.
	Key(ctx context.Context, tenant, id string) ([]byte, error)
}

// Sealed is a Store that encrypts the parts of the uploads whose ids name a content key, see KeyOf,
// and stores those of other uploads as they are. Its methods return contract.ErrErased if the key
// was destroyed, and contract.ErrEncrypted if Keys is nil.
//
// A stored part is nonce ‖ AES-256-GCM(key, nonce, part), with the key of the part in the store as
// additional data. The encryption key is derived from the content key and the upload. The nonce is
// an HMAC of the key of the part and its content under a second derived key, so that Put can be
// repeated, and no nonce is used for two contents.
type Sealed struct {
	Collected
	Keys Keys
}

// MaxStored is the maximum size in bytes of a part in a store, with the nonce and the tag.
const MaxStored = PartSize + nonceSize + 16

const nonceSize = 12

// keySuffix matches the end of the id of an upload that names a content key.
var keySuffix = regexp.MustCompile(`-(` + contract.IDContentKey + `([0-9a-f]{32}-)?[0-9]{6,})$`)

// KeyOf returns the id of the content key under which an upload is encrypted, which the id of the
// upload contains, or "" if it is not encrypted.
func KeyOf(upload string) string {
	if m := keySuffix.FindStringSubmatch(upload); m != nil {
		return m[1]
	}
	return ""
}

// cipherOf returns the cipher and the key of the nonces for the upload that a part belongs to, or
// nil if the upload is not encrypted.
func (s Sealed) cipherOf(ctx context.Context, key string) (cipher.AEAD, []byte, error) {
	p, ok := partsOf(key)
	id := KeyOf(p.Upload)
	if !ok || id == "" {
		return nil, nil, nil
	}
	if s.Keys == nil {
		return nil, nil, contract.ErrEncrypted
	}
	content, err := s.Keys.Key(ctx, p.Tenant, id)
	if err != nil {
		return nil, nil, fmt.Errorf("content key: %w", err)
	}
	derived, err := hkdf.Key(sha256.New, content, nil, "binnacle artifact v1 "+prefix(p.Tenant, p.Service, p.Upload), 64)
	if err != nil {
		return nil, nil, err
	}
	block, err := aes.NewCipher(derived[:32])
	if err != nil {
		return nil, nil, err
	}
	aead, err := cipher.NewGCM(block)
	return aead, derived[32:], err
}

// Put implements Store.
func (s Sealed) Put(ctx context.Context, key string, part []byte) error {
	aead, nonces, err := s.cipherOf(ctx, key)
	if err != nil {
		return err
	}
	if aead == nil {
		return s.Collected.Put(ctx, key, part)
	}
	m := hmac.New(sha256.New, nonces)
	m.Write([]byte(key + "\x00"))
	m.Write(part)
	nonce := m.Sum(nil)[:nonceSize:nonceSize]
	return s.Collected.Put(ctx, key, aead.Seal(nonce, nonce, part, []byte(key)))
}

// Get implements Store. The error wraps ErrCorrupt if the part cannot be decrypted.
func (s Sealed) Get(ctx context.Context, key string) ([]byte, error) {
	aead, _, err := s.cipherOf(ctx, key)
	if err != nil {
		return nil, err
	}
	stored, err := s.Collected.Get(ctx, key)
	if err != nil || aead == nil {
		return stored, err
	}
	if len(stored) < nonceSize {
		return nil, fmt.Errorf("part %s: %w", key, ErrCorrupt)
	}
	part, err := aead.Open(nil, stored[:nonceSize], stored[nonceSize:], []byte(key))
	if err != nil {
		return nil, fmt.Errorf("part %s cannot be decrypted: %w", key, ErrCorrupt)
	}
	return part, nil
}

// Room implements Bounded. The result is math.MaxInt64 if the Collected has no limit.
func (s Sealed) Room(ctx context.Context) (int64, error) {
	if b, ok := s.Collected.(Bounded); ok {
		return b.Room(ctx)
	}
	return math.MaxInt64, nil
}
