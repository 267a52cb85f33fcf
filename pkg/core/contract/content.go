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

// InlineMax is the largest content, in bytes, that is stored inside an event.
const InlineMax = 16 << 10

// Where content is stored.
const (
	StoreInline   = "inline"   // Salt and Text are in the reference itself
	StoreObject   = "object"   // salt ‖ bytes is the object named by the commitment
	StoreWithheld = "withheld" // nowhere; the commitment alone was recorded
)

// Content refers to bytes without revealing them: Commitment is
// SHA-256(salt ‖ bytes) over 16 random bytes of salt, so that nobody who knows the
// commitment can test guesses, and destroying salt and bytes erases the content
// while every digest and signature over the commitment still holds.
//
// Encryption, when present, says that what is stored is
// AES-256-GCM(key, nonce, salt ‖ bytes, additional data = commitment);
// destroying the named key erases the content.
type Content struct {
	Commitment string      `json:"commitment"`
	Encryption *Encryption `json:"encryption,omitempty"`
	MediaType  string      `json:"media_type"`
	Salt       string      `json:"salt,omitempty"` // base64url, 16 bytes; inline plaintext only
	Size       int64       `json:"size"`           // of the content, without salt
	Store      string      `json:"store"`
	Text       string      `json:"text,omitempty"` // inline: the content (UTF-8), or base64url ciphertext under Encryption
}

// Encryption names the key that opens a content.
type Encryption struct {
	Algorithm string `json:"algorithm"` // "A256GCM"
	KeyID     string `json:"key_id"`
	Nonce     string `json:"nonce"` // base64url, 12 bytes
}

// Canonical implements canon.Document.
func (e *Encryption) Canonical(c *canon.Codec) {
	c.Str("algorithm", &e.Algorithm)
	c.Str("key_id", &e.KeyID)
	c.Str("nonce", &e.Nonce)
}

// Canonical implements canon.Document.
func (c *Content) Canonical(m *canon.Codec) {
	m.Str("commitment", &c.Commitment)
	canon.OptDoc(m, "encryption", &c.Encryption)
	m.Str("media_type", &c.MediaType)
	m.OptStr("salt", &c.Salt)
	m.Int("size", &c.Size)
	m.Str("store", &c.Store)
	m.OptStr("text", &c.Text)
}

// SaltSize is the length of a content's salt in bytes.
const SaltSize = 16

// Commit is the commitment to content under a salt: "sha256:" and
// SHA-256(salt ‖ content) in lower-case hex.
func Commit(salt, content []byte) string {
	h := sha256.New()
	h.Write(salt)
	h.Write(content)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// NewContent returns a reference to content, of which it keeps a copy where it is
// text of at most InlineMax bytes. Everything else the caller must store as
// Object(salt, content) before the reference is published. salt is 16 fresh random
// bytes.
func NewContent(salt, content []byte, mediaType string) Content {
	c := Content{Commitment: Commit(salt, content), MediaType: mediaType, Size: int64(len(content)), Store: StoreObject}
	if len(content) <= InlineMax && utf8.Valid(content) {
		c.Store, c.Salt, c.Text = StoreInline, base64.RawURLEncoding.EncodeToString(salt), string(content)
	}
	return c
}

// Object returns the bytes that are stored under the commitment's name: the salt
// and the content, in a slice of their own.
func Object(salt, content []byte) []byte { return append(append([]byte(nil), salt...), content...) }

// Errors of Content.Open where content is not there to be read.
var (
	ErrErased    = errors.New("content is erased")
	ErrEncrypted = errors.New("content is encrypted")
)

// Open returns the content after checking it against commitment and size. For
// StoreObject and StoreWithheld the caller brings the object's bytes, which the
// content aliases; nil means that they are gone. It returns ErrErased where salt
// or object are gone, ErrEncrypted where a key is needed, and another error
// where the content is not the one committed to.
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

// split returns salt and content, from where the content is stored.
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
