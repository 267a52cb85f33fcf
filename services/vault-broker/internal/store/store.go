// Package store stores values in one encrypted file. Each value is encrypted under its
// own data key, and the data key is encrypted under the key-encryption key. Both
// encryptions use AES-256-GCM with the store's domain, the value's name and its version as
// additional data, so a record that is moved to another domain, name or version does not
// decrypt.
//
// A name has the form <owner>/<name>; names without an owner are those of releases up to
// 0.5, and Rename gives them one.
package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// ErrNotFound is returned by Get if the name was never used.
var ErrNotFound = backend.ErrNotFound

// Store is an open file of values by name. It is safe for concurrent use within one
// process; no other process may have the file open.
type Store struct {
	path   string
	domain string
	kek    []byte
	hmac   []byte // key of the fingerprints of values that releases up to 0.5 stored
	mu     sync.Mutex
	data   map[string]record
	now    func() time.Time
}

type record struct {
	Wrapped []byte `json:"wrapped_key"` // nonce ‖ ciphertext
	Value   []byte `json:"value"`       // nonce ‖ ciphertext
	// Bound is set if the fingerprint of the value depends on the name's owner. It is
	// absent from a value that a release up to 0.5 stored, whose fingerprint must remain
	// the one that is on the ledger.
	Bound bool `json:"bound,omitempty"`
	// Version is the number of the value, which is bound to the ciphertext. It is 0 in a
	// value that a release up to 0.5 stored, which counts as version 1 and is bound to its
	// name only.
	Version int       `json:"version,omitempty"`
	Created time.Time `json:"created,omitzero"`
	Type    string    `json:"type,omitempty"` // see backend.About, as for the following two
	Expires time.Time `json:"expires,omitzero"`
	Overlap time.Time `json:"overlap,omitzero"`
	Older   []record  `json:"older,omitempty"`   // earlier versions, the newest first
	Deleted bool      `json:"deleted,omitempty"` // hidden until it is restored
	Erased  bool      `json:"erased,omitempty"`  // the value is empty and the name is not used again
}

// number returns the number of the record's version.
func (r *record) number() int { return max(r.Version, 1) }

// about returns the description of the record's version.
func (r *record) about() backend.About {
	return backend.About{Type: r.Type, Expires: r.Expires, Overlap: r.Overlap}
}

// bound returns the additional data of a record's ciphertexts: the store's domain, the
// name, the version, if the record has one, and the description, if it is not empty.
func (s *Store) bound(name string, r *record) string {
	if r.Version == 0 {
		return s.domain + name
	}
	b := s.domain + name + "\x00" + strconv.Itoa(r.Version)
	if a := r.about(); a != (backend.About{}) {
		b += fmt.Sprintf("\x00%q %d %d", a.Type, a.Expires.Unix(), a.Overlap.Unix())
	}
	return b
}

// Open reads the file at path, which need not exist, and checks that every value
// decrypts. kek must have 32 bytes; the store retains it. Stores under one kek must have
// different domains, and the domains must be such that the concatenation of domain and
// name identifies one value among all stores.
func Open(path string, kek []byte, domain string) (*Store, error) {
	if len(kek) != 32 {
		return nil, fmt.Errorf("vault key has %d bytes, want 32", len(kek))
	}
	h, err := hkdf.Key(sha256.New, kek, nil, "binnacle vault fingerprint v1", 32)
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, domain: domain, kek: kek, hmac: h, data: map[string]record{}, now: time.Now}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &s.data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for name, newest := range s.data {
		for _, r := range append([]record{newest}, newest.Older...) {
			if _, err := s.open(name, &r); err != nil {
				return nil, fmt.Errorf("%s: the vault key does not decrypt a value: %w", path, err)
			}
		}
	}
	return s, nil
}

// Fingerprint returns the fingerprint of a value that Put stores under a name; see
// backend.Fingerprint.
func (s *Store) Fingerprint(name string, value []byte) (string, error) {
	owner, _, _ := strings.Cut(name, "/")
	return backend.Fingerprint(s.kek, owner, value)
}

// Put stores a value as the next version of a name. The value is durable when Put returns
// nil. The error is backend.ErrErased if the name's value was erased. After an error, Get
// returns the same as before Put, until the store is opened again.
func (s *Store) Put(name string, value []byte) error {
	_, err := s.put(name, value, backend.About{}, backend.Any)
	return err
}

// maxVersions is the maximum number of versions of a value that are stored. Put removes
// the oldest version beyond it.
const maxVersions = 10

// put implements backend.Backend.Put.
func (s *Store) put(name string, value []byte, about backend.About, expect int) (version int, err error) {
	err = s.change(func(data map[string]record) error {
		old, exists := data[name]
		newest := 0
		if exists {
			newest = old.number()
		}
		switch {
		case expect != backend.Any && expect != newest:
			return backend.ErrConflict
		case old.Erased:
			return backend.ErrErased
		}
		version = newest + 1
		r, err := s.seal(name, version, value, about)
		if err != nil {
			return err
		}
		r.Bound, r.Created = true, s.now().UTC()
		if exists {
			r.Older = append(r.Older, old.Older...)
			old.Older = nil
			r.Older = slices.Insert(r.Older, 0, old)
			r.Older = r.Older[:min(len(r.Older), maxVersions-1)]
		}
		data[name] = r
		return nil
	})
	return version, err
}

// seal returns the record of a version of a name, with a new data key.
func (s *Store) seal(name string, version int, value []byte, about backend.About) (r record, err error) {
	dek := make([]byte, 32)
	defer clear(dek)
	rand.Read(dek)
	r = record{Version: version, Type: about.Type, Expires: about.Expires, Overlap: about.Overlap}
	bound := s.bound(name, &r)
	if r.Value, err = encrypt(dek, value, bound); err != nil {
		return r, err
	}
	r.Wrapped, err = encrypt(s.kek, dek, bound)
	return r, err
}

// change applies f to a copy of the values, replaces the file by the copy atomically and
// durably, and then uses the copy. f must not change what a record points to. After an
// error, which may be f's, the values are the same as before.
func (s *Store) change(f func(data map[string]record) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.data)
	if err := f(next); err != nil {
		return err
	}
	b, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := private.Write(s.path, b); err != nil {
		return err
	}
	s.data = next
	return nil
}

// MoveTo moves the values whose names begin with prefix to another store, under their
// names without the prefix. Only the newest version of a value is moved, and it becomes
// version 1. A value whose name exists there is only removed here. Each value is durable
// in the other store before it is removed here. A deleted value stays deleted, and an
// erased name stays erased. After an error, no value is removed here, and MoveTo can be
// repeated. A value in the other store that does not decrypt is an error: it must not be
// replaced by an older one.
func (s *Store) MoveTo(to *Store, prefix string) error {
	names := s.Names(prefix)
	for _, name := range names {
		if _, err := to.Get(strings.TrimPrefix(name, prefix)); err == nil {
			continue
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
		r, v, err := s.newest(name)
		if err != nil {
			return err
		}
		if err := to.adopt(strings.TrimPrefix(name, prefix), v, &r); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return s.change(func(data map[string]record) error {
		for _, name := range names {
			delete(data, name)
		}
		return nil
	})
}

// adopt stores the value v of a record of another store as the first version of a name,
// deleted or erased if the record is. The error is backend.ErrConflict if the name exists.
func (s *Store) adopt(name string, v []byte, from *record) error {
	return s.change(func(data map[string]record) error {
		if _, exists := data[name]; exists {
			return backend.ErrConflict
		}
		r, err := s.seal(name, 1, v, from.about())
		if err != nil {
			return err
		}
		r.Bound, r.Created, r.Deleted, r.Erased = true, s.now().UTC(), from.Deleted, from.Erased
		data[name] = r
		return nil
	})
}

// newest returns the newest record of a name and its decrypted value, also of a deleted or
// erased one, or ErrNotFound.
func (s *Store) newest(name string) (r record, v []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err = s.get(name)
	return s.data[name], v, err
}

// Rename gives an owner to all values whose names have none, in one write: after a crash,
// all of them have their old names or all have their new ones. A value whose new name
// exists is only removed, so a destroyed value stays destroyed; a deleted value stays
// deleted, and an erased name stays erased. After an error, nothing has changed, and
// Rename can be repeated.
func (s *Store) Rename(owner string) error {
	old, added := []string{}, map[string]record{}
	for _, name := range s.Names("") {
		if strings.Contains(name, "/") {
			continue
		}
		old = append(old, name)
		to := owner + "/" + name
		if _, err := s.Get(to); err == nil {
			continue
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
		from, v, err := s.newest(name)
		if err != nil {
			return err
		}
		r, err := s.seal(to, 1, v, from.about())
		if err != nil {
			return err
		}
		r.Deleted, r.Erased = from.Deleted, from.Erased
		added[to] = r
	}
	if len(old) == 0 {
		return nil
	}
	return s.change(func(data map[string]record) error {
		for _, name := range old {
			delete(data, name)
		}
		maps.Copy(data, added)
		return nil
	})
}

// Get returns the newest version of a value, decrypted, in a slice that the caller owns.
// It returns ErrNotFound if the name was never used. Unlike the Backend, it returns a
// deleted value, and an empty one for an erased name.
func (s *Store) Get(name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get(name)
}

// Names returns the names that begin with a prefix, sorted. Names are not secret: the
// file contains them unencrypted.
func (s *Store) Names(prefix string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for n := range s.data {
		if strings.HasPrefix(n, prefix) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// get implements Get. The caller must hold mu.
func (s *Store) get(name string) ([]byte, error) {
	r, ok := s.data[name]
	if !ok {
		return nil, ErrNotFound
	}
	return s.open(name, &r)
}

// open decrypts the value of a record of a name.
func (s *Store) open(name string, r *record) ([]byte, error) {
	dek, err := decrypt(s.kek, r.Wrapped, s.bound(name, r))
	if err != nil {
		return nil, err
	}
	defer clear(dek)
	return decrypt(dek, r.Value, s.bound(name, r))
}

func gcm(key []byte) (cipher.AEAD, error) {
	b, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(b)
}

func encrypt(key, plain []byte, name string) ([]byte, error) {
	g, err := gcm(key)
	if err != nil {
		return nil, err
	}
	return g.Seal(nil, nil, plain, []byte(name)), nil
}

func decrypt(key, sealed []byte, name string) ([]byte, error) {
	g, err := gcm(key)
	if err != nil {
		return nil, err
	}
	return g.Open(nil, nil, sealed, []byte(name))
}
