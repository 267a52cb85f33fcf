package blob

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

// Keys provides the content keys of tenants and of their data subjects. Key ids are unique
// within a tenant only.
type Keys interface {
	// Current returns the key for new content about a data subject of the tenant, or the
	// tenant's own key if subject is "".
	Current(ctx context.Context, tenant, subject string) (id string, key []byte, err error)
	// Key returns the tenant's key with the given id. It returns contract.ErrErased for a
	// destroyed key.
	Key(ctx context.Context, tenant, id string) ([]byte, error)
}

// Under selects the content key under which content is encrypted: the key KeyID or, if that
// is "", the current key of the data subject Subject. The zero value selects the tenant's
// current key.
type Under struct{ Subject, KeyID string }

const (
	algorithm = "A256GCM" // name of AES-256-GCM in JOSE (RFC 7518, section 5.1)
	tagSize   = 16
)

// key returns the id and the bytes of the key that u selects.
func (s *Store) key(ctx context.Context, u Under) (string, []byte, error) {
	if u.KeyID == "" {
		return s.Keys.Current(ctx, s.Tenant, u.Subject)
	}
	key, err := s.Keys.Key(ctx, s.Tenant, u.KeyID)
	return u.KeyID, key, err
}

// Seal returns a reference to content encrypted under the key that u selects, and the
// object to be stored with Put. The object is nil if the ciphertext is inline in the
// reference. Seal returns ErrTooLarge for content above MaxSize, an error that wraps
// contract.ErrErased if the selected key was destroyed, and another error if the service has no
// content keys or the key cannot be fetched or is not valid.
func (s *Store) Seal(ctx context.Context, u Under, content []byte, mediaType string) (contract.Content, []byte, error) {
	if s.Keys == nil {
		return contract.Content{}, nil, errors.New("this service has no content keys")
	}
	if len(content) > MaxSize {
		return contract.Content{}, nil, ErrTooLarge
	}
	id, key, err := s.key(ctx, u)
	if err != nil {
		return contract.Content{}, nil, fmt.Errorf("content key: %w", err)
	}
	g, err := aead(key)
	if err != nil {
		return contract.Content{}, nil, err
	}
	salt, nonce := make([]byte, contract.SaltSize), make([]byte, g.NonceSize())
	rand.Read(salt)
	rand.Read(nonce)
	c := contract.Content{Commitment: contract.Commit(salt, content), MediaType: mediaType, Size: int64(len(content)), Store: contract.StoreObject,
		Encryption: &contract.Encryption{Algorithm: algorithm, KeyID: id, Nonce: base64.RawURLEncoding.EncodeToString(nonce)}}
	object := g.Seal(nil, nonce, contract.Object(salt, content), []byte(c.Commitment))
	if len(content) <= contract.InlineMax {
		c.Store, c.Text = contract.StoreInline, base64.RawURLEncoding.EncodeToString(object)
		return c, nil, nil
	}
	return c, object, nil
}

// CommitSealed is like Commit, but encrypts the content under the key that u selects.
// Its errors are those of Seal and Put.
func (s *Store) CommitSealed(ctx context.Context, u Under, content []byte, mediaType string) (contract.Content, error) {
	c, object, err := s.Seal(ctx, u, content, mediaType)
	if err != nil {
		return c, err
	}
	return c, s.Put(ctx, &c, object)
}

func aead(key []byte) (cipher.AEAD, error) {
	b, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(b)
}

// unseal decrypts content that Seal encrypted. It returns contract.ErrErased if the
// object or the key is destroyed, and contract.ErrEncrypted if the service has no content
// keys or the algorithm is another one. It also returns the errors of Keys, and an error
// if the content is malformed, cannot be decrypted or does not match its commitment.
func (s *Store) unseal(ctx context.Context, c *contract.Content, object []byte) ([]byte, error) {
	if s.Keys == nil || c.Encryption.Algorithm != algorithm {
		return nil, contract.ErrEncrypted
	}
	if c.Store == contract.StoreInline {
		var err error
		if object, err = base64.RawURLEncoding.Strict().DecodeString(c.Text); err != nil {
			return nil, fmt.Errorf("content: %w", err)
		}
	}
	if object == nil {
		return nil, contract.ErrErased
	}
	key, err := s.Keys.Key(ctx, s.Tenant, c.Encryption.KeyID)
	if err != nil {
		return nil, err
	}
	g, err := aead(key)
	if err != nil {
		return nil, err
	}
	nonce, err := base64.RawURLEncoding.Strict().DecodeString(c.Encryption.Nonce)
	if err != nil || len(nonce) != g.NonceSize() {
		return nil, errors.New("content: malformed nonce")
	}
	plain, err := g.Open(nil, nonce, object, []byte(c.Commitment))
	if err != nil {
		return nil, errors.New("content cannot be decrypted: wrong key, or changed ciphertext or commitment")
	}
	bare := *c
	bare.Encryption, bare.Store, bare.Text = nil, contract.StoreObject, ""
	return bare.Open(plain)
}
