// Package blob stores content that does not fit into an event, and cached content, as
// objects that are named by their commitments. The objects of events are in the stream
// BLOBS, where the server refuses a second write under a name; cached objects are in the
// stream CACHE, where they expire. Open and Kept check content against its commitment;
// Object does not. An event refers to content by contract.Content, inline or as an
// object.
package blob

import (
	"bytes"
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

// chunk is the size in bytes of the messages into which an object is divided.
const chunk = 512 << 10

// MaxSize is the maximum size of content, in bytes.
const MaxSize = 32 << 20

// ErrTooLarge is returned for content above MaxSize, and for a reference to an object
// whose size is above MaxSize or negative.
var ErrTooLarge = fmt.Errorf("content is larger than %d MiB", MaxSize>>20)

// Store reads and writes the content of one tenant. It is safe for concurrent use.
type Store struct {
	Keys   Keys // content keys; nil if the service has no access to them
	Conn   *bus.Conn
	Tenant string
	Recent *Recent // content that this process stored recently; nil for none
}

// shelf is a stream of objects and the first token of its subjects.
type shelf struct{ stream, prefix string }

var (
	evidence = shelf{bus.Blobs, contract.SubjectBlob}
	cache    = shelf{bus.Cache, contract.SubjectCache}
)

// In returns a Store for the content of the given tenant, and s itself if that is its
// tenant.
func (s *Store) In(tenant string) *Store {
	if tenant == s.Tenant {
		return s
	}
	return &Store{Keys: s.Keys, Conn: s.Conn, Tenant: tenant, Recent: s.Recent}
}

// subject returns the subject of part n of an object, counted from 0.
func (s *Store) subject(at shelf, commitment string, n int) string {
	return fmt.Sprintf("%s.%s.payloads.%s.%d", at.prefix, s.Tenant, strings.TrimPrefix(commitment, "sha256:"), n)
}

// Commit returns a reference to content under a fresh salt. Content that is not inline
// in the reference is first stored with Put. The errors of Commit are ErrTooLarge and
// those of Put.
func (s *Store) Commit(ctx context.Context, content []byte, mediaType string) (contract.Content, error) {
	if len(content) > MaxSize {
		return contract.Content{}, ErrTooLarge
	}
	c, object := Refer(content, mediaType)
	return c, s.Put(ctx, &c, object)
}

// Keep caches content, always as an object in the stream CACHE, which is not evidence.
// The object expires after ttl, rounded down to whole seconds, but not before one
// second; if the stream is full, it may be removed earlier. Kept reads it. The errors of
// Keep are those of Commit.
func (s *Store) Keep(ctx context.Context, content []byte, mediaType string, ttl time.Duration) (contract.Content, error) {
	if len(content) > MaxSize {
		return contract.Content{}, ErrTooLarge
	}
	c, object := Withheld(content, mediaType)
	c.Store = contract.StoreObject
	return c, s.put(ctx, cache, &c, object, jetstream.WithMsgTTL(max(ttl, time.Second)))
}

// Kept returns content that Keep stored. It returns contract.ErrErased if the content
// has expired or was removed, an error that wraps ErrRead if it cannot be read,
// ErrTooLarge if the size in the reference is negative or above MaxSize, and an error if
// the content does not match its commitment.
func (s *Store) Kept(ctx context.Context, c *contract.Content) ([]byte, error) {
	object, err := s.object(ctx, cache, c)
	if err != nil {
		return nil, err
	}
	return c.Open(object)
}

// Refer returns a reference to content under a fresh salt, and the object to be stored
// with Put. The object is nil if the content is inline in the reference. Refer does not
// compare the size with MaxSize.
func Refer(content []byte, mediaType string) (c contract.Content, object []byte) {
	salt := make([]byte, contract.SaltSize)
	rand.Read(salt)
	c = contract.NewContent(salt, content, mediaType)
	if c.Store == contract.StoreObject {
		object = contract.Object(salt, content)
	}
	return c, object
}

// Withheld returns a reference to content that is not stored, and the object of the
// content. The reference does not contain the salt. Without the object, the content
// counts as erased.
func Withheld(content []byte, mediaType string) (c contract.Content, object []byte) {
	salt := make([]byte, contract.SaltSize)
	rand.Read(salt)
	return contract.Content{Commitment: contract.Commit(salt, content), MediaType: mediaType, Size: int64(len(content)), Store: contract.StoreWithheld},
		contract.Object(salt, content)
}

// Put stores the object of a reference, in parts, and does nothing for a nil object. If
// the error is nil, the object is durable. The caller must not change object
// afterwards, since s.Recent may hold it. Put may be repeated; it returns an error if
// other bytes are stored under the name of a part.
func (s *Store) Put(ctx context.Context, c *contract.Content, object []byte) error {
	end := s.Recent.storing(s.Tenant, c, object)
	err := s.put(ctx, evidence, c, object)
	end(err)
	return err
}

// codeStoreFailed is the code of the JetStream API for a message that could not be
// stored, for example because its subject has a message already, or because the stream
// is full.
const codeStoreFailed = 10077

// put publishes the parts of an object in order. A part of evidence that is stored
// already with the same bytes is not an error.
func (s *Store) put(ctx context.Context, at shelf, c *contract.Content, object []byte, opts ...jetstream.PublishOpt) error {
	for n := 0; n*chunk < len(object); n++ {
		part := object[n*chunk : min((n+1)*chunk, len(object))]
		_, err := s.Conn.JS.Publish(ctx, s.subject(at, c.Commitment, n), part, opts...)
		var api *jetstream.APIError
		if at == evidence && errors.As(err, &api) && api.ErrorCode == codeStoreFailed {
			err = s.stored(ctx, c.Commitment, n, part, err)
		}
		if err != nil {
			return fmt.Errorf("store content: %w", err)
		}
	}
	return nil
}

// stored returns nil if part n of an object is stored with these bytes. Otherwise it
// returns the error of reading the part, or an error that is or wraps refused, the error
// with which the server refused to store the part.
func (s *Store) stored(ctx context.Context, commitment string, n int, part []byte, refused error) error {
	m, err := s.Conn.Fresh(ctx, evidence.stream, map[string]any{"last_by_subj": s.subject(evidence, commitment, n)})
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return refused
	case err != nil:
		return err
	case !bytes.Equal(m.Data, part):
		return fmt.Errorf("other bytes are stored under its name: %w", refused)
	}
	return nil
}

// ErrRead is wrapped by the error of a read that failed, for example because the server
// did not respond. Whether the content is stored is then unknown.
var ErrRead = errors.New("read content")

// Object returns the stored object. It returns nil and no error if the content is not
// stored as an object, or if a part of the object does not exist, in general because it
// was erased. It does not check the object against its commitment. It returns
// ErrTooLarge if the size in the reference is negative or above MaxSize, and an error
// that wraps ErrRead if a part cannot be read.
func (s *Store) Object(ctx context.Context, c *contract.Content) ([]byte, error) {
	return s.object(ctx, evidence, c)
}

// object reads the parts of an object, until it has the size that follows from the
// reference. It returns nil if a part is missing or the reference is not to an object.
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
			// A replica may lag, so query the leader before the object counts as erased.
			m, err = s.Conn.Fresh(ctx, at.stream, part)
		}
		if errors.Is(err, bus.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrRead, err)
		}
		object = append(object, m.Data...)
	}
	return object, nil
}

// Open returns the content, decrypted and checked against its commitment. If this
// process is storing the content, Open waits until it is stored. Open may return plain
// content without reading the object store if this process stored it recently. It
// returns contract.ErrErased if the content is withheld, if its salt or its object was
// erased, or if its content key was destroyed. It returns contract.ErrEncrypted if the
// content is encrypted and the service has no content keys or the algorithm is not
// A256GCM. It also returns the errors of Object, those of Keys, and an error if the
// content is malformed or does not match its commitment.
func (s *Store) Open(ctx context.Context, c *contract.Content) ([]byte, error) {
	if content, ok := s.Recent.open(ctx, s.Tenant, c); ok {
		return content, nil
	}
	object, err := s.Object(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.OpenObject(ctx, c, object)
}

// OpenObject is like Open for a caller that has the stored object. object is nil if the
// content is inline or was erased.
func (s *Store) OpenObject(ctx context.Context, c *contract.Content, object []byte) ([]byte, error) {
	if c.Encryption != nil {
		return s.unseal(ctx, c, object)
	}
	return c.Open(object)
}
