// Package blob stores content that does not fit into an event, as an object named by its
// commitment. The server refuses a second write under a name, and every reader checks
// the content against the name. An event refers to content by contract.Content, inline
// or as an object.
package blob

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
)

const chunk = 512 << 10

// MaxSize is the largest content, in bytes.
const MaxSize = 32 << 20

// ErrTooLarge is returned for content above MaxSize.
var ErrTooLarge = fmt.Errorf("content is larger than %d MiB", MaxSize>>20)

// Store reads and writes content of one tenant. It is safe for concurrent use.
type Store struct {
	Keys   Keys // opens encrypted content; nil where the service may not
	Conn   *bus.Conn
	Tenant string
}

// shelf is a stream and the first token of its subjects.
type shelf struct{ stream, prefix string }

var (
	evidence = shelf{bus.Blobs, "blob"}
	cache    = shelf{bus.Cache, "cache"}
)

func (s *Store) subject(at shelf, commitment string, n int) string {
	return fmt.Sprintf("%s.%s.payloads.%s.%d", at.prefix, s.Tenant, strings.TrimPrefix(commitment, "sha256:"), n)
}

// Commit returns a reference to content under a fresh salt. Content that is too large
// for an event is stored when Commit returns. Errors are ErrTooLarge and those of the
// connection.
func (s *Store) Commit(ctx context.Context, content []byte, mediaType string) (contract.Content, error) {
	if len(content) > MaxSize {
		return contract.Content{}, ErrTooLarge
	}
	c, object := Refer(content, mediaType)
	return c, s.Put(ctx, &c, object)
}

// Keep stores content outside the evidence, always as an object. The object expires
// after ttl, at the earliest after a second. Kept reads it.
func (s *Store) Keep(ctx context.Context, content []byte, mediaType string, ttl time.Duration) (contract.Content, error) {
	if len(content) > MaxSize {
		return contract.Content{}, ErrTooLarge
	}
	c, object := Withheld(content, mediaType)
	c.Store = contract.StoreObject
	return c, s.put(ctx, cache, &c, object, jetstream.WithMsgTTL(max(ttl, time.Second)))
}

// Kept returns content that Keep stored, checked against its commitment, or
// contract.ErrErased after it has expired.
func (s *Store) Kept(ctx context.Context, c *contract.Content) ([]byte, error) {
	object, err := s.object(ctx, cache, c)
	if err != nil {
		return nil, err
	}
	return c.Open(object)
}

// Refer returns a reference to content under a fresh salt, and the object that must be
// stored with Put; the object is nil if the content is inline in the reference.
func Refer(content []byte, mediaType string) (c contract.Content, object []byte) {
	salt := make([]byte, contract.SaltSize)
	rand.Read(salt)
	c = contract.NewContent(salt, content, mediaType)
	if c.Store == contract.StoreObject {
		object = contract.Object(salt, content)
	}
	return c, object
}

// Withheld returns a reference to content that is not stored. Only the returned object
// contains the salt, so without it the content counts as erased.
func Withheld(content []byte, mediaType string) (c contract.Content, object []byte) {
	salt := make([]byte, contract.SaltSize)
	rand.Read(salt)
	return contract.Content{Commitment: contract.Commit(salt, content), MediaType: mediaType, Size: int64(len(content)), Store: contract.StoreWithheld},
		contract.Object(salt, content)
}

// Put stores the object of a reference; a nil object needs no storing. It is durable on
// return.
func (s *Store) Put(ctx context.Context, c *contract.Content, object []byte) error {
	return s.put(ctx, evidence, c, object)
}

func (s *Store) put(ctx context.Context, at shelf, c *contract.Content, object []byte, opts ...jetstream.PublishOpt) error {
	for n := 0; n*chunk < len(object); n++ {
		part := object[n*chunk : min((n+1)*chunk, len(object))]
		_, err := s.Conn.JS.Publish(ctx, s.subject(at, c.Commitment, n), part, opts...)
		var api *jetstream.APIError
		if errors.As(err, &api) && api.ErrorCode == 10077 {
			err = nil // the name exists: it has this content, or readers detect the difference
		}
		if err != nil {
			return fmt.Errorf("store content: %w", err)
		}
	}
	return nil
}

// Object returns the stored object, or nil if it is erased.
func (s *Store) Object(ctx context.Context, c *contract.Content) ([]byte, error) {
	return s.object(ctx, evidence, c)
}

func (s *Store) object(ctx context.Context, at shelf, c *contract.Content) ([]byte, error) {
	if c.Store != contract.StoreObject {
		return nil, nil
	}
	size := int(c.Size) + contract.SaltSize
	if c.Encryption != nil {
		size += tagSize
	}
	if c.Size < 0 || c.Size > MaxSize {
		return nil, ErrTooLarge
	}
	object := make([]byte, 0, size)
	for n := 0; len(object) < size; n++ {
		part := map[string]any{"last_by_subj": s.subject(at, c.Commitment, n)}
		m, err := s.Conn.Get(ctx, at.stream, part)
		if errors.Is(err, bus.ErrNotFound) && at == evidence {
			// A replica may lag, so the leader is queried before an object counts as
			// erased.
			m, err = s.Conn.Fresh(ctx, at.stream, part)
		}
		if errors.Is(err, bus.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read content: %w", err)
		}
		object = append(object, m.Data...)
	}
	return object, nil
}

// Open returns the content, checked against its commitment, or contract.ErrErased.
func (s *Store) Open(ctx context.Context, c *contract.Content) ([]byte, error) {
	object, err := s.Object(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.OpenObject(ctx, c, object)
}

// OpenObject is Open for a caller that has the stored object.
func (s *Store) OpenObject(ctx context.Context, c *contract.Content, object []byte) ([]byte, error) {
	if c.Encryption != nil {
		return s.unseal(ctx, c, object)
	}
	return c.Open(object)
}
