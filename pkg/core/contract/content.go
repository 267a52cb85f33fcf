package contract

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
)

// InlineMax is the size in bytes of the largest content that is stored inside an event.
// Larger content, and content that is neither UTF-8 nor encrypted, is an object in the
// store, unless it is withheld.
const InlineMax = 16 << 10

// The values of Content.Store: the places where content can be stored.
const (
	StoreInline   = "inline"   // in the reference itself, as Salt and Text, or as Text alone if it is encrypted
	StoreObject   = "object"   // the object named by the commitment holds salt ‖ bytes, or their ciphertext
	StoreWithheld = "withheld" // nowhere; only the commitment is recorded
)

// Content refers to bytes by a commitment that does not reveal them: SHA-256(salt ‖
// bytes) with a salt of 16 random bytes. Without the salt, a reader of the commitment
// cannot test guesses; and once salt and bytes are destroyed, the content is erased
// while every digest and signature over the commitment still verifies.
//
// Encryption, if present, means that the stored bytes are AES-256-GCM(key, nonce,
// salt ‖ bytes, additional data = commitment). Destroying the named key then
// erases the content in all of its copies.
type Content struct {
	Commitment string      `json:"commitment"`
	Encryption *Encryption `json:"encryption,omitempty"`
	MediaType  string      `json:"media_type"`
	Salt       string      `json:"salt,omitempty"` // base64url of 16 bytes; only with unencrypted inline content, and absent once that is erased
	Size       int64       `json:"size"`           // size of the content in bytes, without the salt
	Store      string      `json:"store"`
	Text       string      `json:"text,omitempty"` // inline only: the content as UTF-8, or the base64url of the ciphertext under Encryption
}

// Encryption names the content key and the nonce that decrypt a content. Keys belong to
// tenants; the vault-broker holds them, and package contentkeys fetches them.
type Encryption struct {
	Algorithm string `json:"algorithm"` // always "A256GCM", AES-256 in Galois/Counter Mode
	KeyID     string `json:"key_id"`
	Nonce     string `json:"nonce"` // base64url of 12 bytes
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (e *Encryption) Canonical(c *canon.Codec) {
	c.Str("algorithm", &e.Algorithm)
	c.Str("key_id", &e.KeyID)
	c.Str("nonce", &e.Nonce)
}

// Canonical implements canon.Document. It lists the members in the order of their JSON
// names.
func (c *Content) Canonical(m *canon.Codec) {
	m.Str("commitment", &c.Commitment)
	canon.OptDoc(m, "encryption", &c.Encryption)
	m.Str("media_type", &c.MediaType)
	m.OptStr("salt", &c.Salt)
	m.Int("size", &c.Size)
	m.Str("store", &c.Store)
	m.OptStr("text", &c.Text)
}

// SaltSize is the length of a content's salt in bytes. Without these 128 random bits, a
// commitment cannot be used to check a guess at the content.
const SaltSize = 16

// Commit returns the commitment to content under salt: "sha256:" and SHA-256(salt
// ‖ content) in lower-case hex.
func Commit(salt, content []byte) string {
	h := sha256.New()
	h.Write(salt)
	h.Write(content)
	const prefix = "sha256:"
	var sum [sha256.Size]byte
	var text [len(prefix) + 2*sha256.Size]byte
	return string(hex.AppendEncode(append(text[:0], prefix...), h.Sum(sum[:0])))
}

// NewContent returns a reference to content. It copies UTF-8 text of at most
// InlineMax bytes into the reference; the caller must store anything else as
// Object(salt, content) before it publishes the reference. salt must be SaltSize
// fresh random bytes.
func NewContent(salt, content []byte, mediaType string) Content {
	c := Content{Commitment: Commit(salt, content), MediaType: mediaType, Size: int64(len(content)), Store: StoreObject}
	if len(content) <= InlineMax && utf8.Valid(content) {
		c.Store, c.Salt, c.Text = StoreInline, base64.RawURLEncoding.EncodeToString(salt), string(content)
	}
	return c
}

// Object returns the bytes to store under the commitment's name: the salt
// followed by the content, in a newly allocated slice.
func Object(salt, content []byte) []byte { return append(append([]byte(nil), salt...), content...) }

// Errors of Content.Open. ErrErased means that the salt or the object does not exist,
// ErrEncrypted that the content must first be decrypted with its content key.
var (
	ErrErased    = errors.New("content is erased")
	ErrEncrypted = errors.New("content is encrypted")
)

// Open returns the content after it has checked it against commitment and size. For
// StoreObject and StoreWithheld the caller passes the object's bytes, which the result
// aliases; nil means that the object does not exist. For StoreInline, object is ignored.
// Open returns ErrErased if the salt or the object does not exist, ErrEncrypted if the
// content is encrypted, and another error if the content is malformed or does not match
// commitment and size.
func (c *Content) Open(object []byte) ([]byte, error) {
	if c.Encryption != nil {
		return nil, ErrEncrypted
	}
	salt, body, err := c.split(object)
	if err != nil {
		return nil, err
	}
	if Commit(salt, body) != c.Commitment {
		return nil, errors.New("content does not match its commitment")
	}
	if int64(len(body)) != c.Size {
		return nil, errors.New("content does not have its stated size")
	}
	return body, nil
}

// split returns the salt and the content, read from the reference or from object, as
// Store requires. It returns ErrErased if the salt or the object does not exist.
func (c *Content) split(object []byte) (salt, body []byte, err error) {
	switch c.Store {
	case StoreInline:
		salt, err = c.inlineSalt()
		return salt, []byte(c.Text), err
	case StoreObject, StoreWithheld:
		if object == nil {
			return nil, nil, ErrErased
		}
		if len(object) < SaltSize {
			return nil, nil, errors.New("content object is shorter than its salt")
		}
		return object[:SaltSize], object[SaltSize:], nil
	}
	return nil, nil, fmt.Errorf("content store %q is unknown", c.Store)
}

// inlineSalt decodes the salt in the reference, and accepts only one encoding of it. It
// returns ErrErased if the salt was removed.
func (c *Content) inlineSalt() ([]byte, error) {
	if c.Salt == "" {
		return nil, ErrErased
	}
	salt, err := base64.RawURLEncoding.Strict().DecodeString(c.Salt)
	if err != nil || len(salt) != SaltSize || len(c.Salt) != base64.RawURLEncoding.EncodedLen(SaltSize) {
		return nil, errors.New("content salt is not 16 bytes in base64url")
	}
	return salt, nil
}
