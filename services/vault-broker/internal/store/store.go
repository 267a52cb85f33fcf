// Package store stores values in one encrypted file. Each value is encrypted under its
// own data key, and the data key is encrypted under the key-encryption key. Both
// encryptions use AES-256-GCM with the store's domain and the value's name as additional
// data, so a record that is moved to another domain or name does not decrypt.
//
// A name has the form <owner>/<name>; names without an owner are those of releases up to
// 0.5, and Rename gives them one.
package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// ErrNotFound is returned by Get and Read if the name has no value.
var ErrNotFound = errors.New("value not found")

// Store is an open file of values by name. It is safe for concurrent use within one
// process; no other process may have the file open.
type Store struct {
	path   string
	domain string
	kek    []byte
	hmac   []byte // key of the fingerprints of values that releases up to 0.5 stored
	mu     sync.Mutex
	data   map[string]record
}

type record struct {
	Wrapped []byte `json:"wrapped_key"` // nonce ‖ ciphertext
	Value   []byte `json:"value"`       // nonce ‖ ciphertext
	// Bound is set if the fingerprint of the value depends on the name's owner. It is
	// absent from a value that a release up to 0.5 stored, whose fingerprint must remain
	// the one that is on the ledger.
	Bound bool `json:"bound,omitempty"`
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
	s := &Store{path: path, domain: domain, kek: kek, hmac: h, data: map[string]record{}}
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
	for name := range s.data {
		if _, err := s.get(name); err != nil {
			return nil, fmt.Errorf("%s: the vault key does not decrypt a value: %w", path, err)
		}
	}
	return s, nil
}

// Fingerprint returns the fingerprint of a value that Put stores under a name: an
// identifier that does not reveal the value. It is the first 16 bytes of an HMAC-SHA-256
// under a key derived from the key-encryption key and the owner in the name, so equal
// values of two owners have different fingerprints.
func (s *Store) Fingerprint(name string, value []byte) (string, error) {
	owner, _, _ := strings.Cut(name, "/")
	key, err := hkdf.Key(sha256.New, s.kek, nil, "binnacle vault fingerprint v2 "+owner, 32)
	if err != nil {
		return "", err
	}
	return fingerprint(key, value), nil
}

// fingerprint returns the fingerprint of a value under a key.
func fingerprint(key, value []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write(value)
	return "hmac-sha256:" + hex.EncodeToString(m.Sum(nil)[:16])
}

// Put stores a value and replaces an older one. The value is durable when Put returns
// nil. After an error, Get returns the same as before Put, until the store is opened
// again.
func (s *Store) Put(name string, value []byte) error {
	r, err := s.seal(name, value)
	if err != nil {
		return err
	}
	r.Bound = true
	return s.change(func(data map[string]record) { data[name] = r })
}

// seal returns the record of a value under a name, with a new data key.
func (s *Store) seal(name string, value []byte) (r record, err error) {
	dek := make([]byte, 32)
	rand.Read(dek)
	if r.Value, err = encrypt(dek, value, s.domain+name); err != nil {
		return r, err
	}
	r.Wrapped, err = encrypt(s.kek, dek, s.domain+name)
	return r, err
}

// change applies f to a copy of the values, replaces the file by the copy atomically and
// durably, and then uses the copy. After an error, the values are the same as before.
func (s *Store) change(f func(data map[string]record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.data)
	f(next)
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
// names without the prefix. A value whose name exists there is only removed here. Each
// value is durable in the other store before it is removed here. After an error, no value
// is removed here, and MoveTo can be repeated. A value in the other store that does not
// decrypt is an error: it must not be replaced by an older one.
func (s *Store) MoveTo(to *Store, prefix string) error {
	names := s.Names(prefix)
	for _, name := range names {
		if _, err := to.Get(strings.TrimPrefix(name, prefix)); err == nil {
			continue
		} else if !errors.Is(err, ErrNotFound) {
			return err
		}
		v, err := s.Get(name)
		if err != nil {
			return err
		}
		if err := to.Put(strings.TrimPrefix(name, prefix), v); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return s.change(func(data map[string]record) {
		for _, name := range names {
			delete(data, name)
		}
	})
}

// Rename gives an owner to all values whose names have none, in one write: after a crash,
// all of them have their old names or all have their new ones. A value whose new name
// exists is only removed, so a destroyed value stays destroyed. After an error, nothing
// has changed, and Rename can be repeated.
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
		v, err := s.Get(name)
		if err != nil {
			return err
		}
		if added[to], err = s.seal(to, v); err != nil {
			return err
		}
	}
	if len(old) == 0 {
		return nil
	}
	return s.change(func(data map[string]record) {
		for _, name := range old {
			delete(data, name)
		}
		maps.Copy(data, added)
	})
}

// Read returns a decrypted value, which the caller owns, and its fingerprint. It returns
// ErrNotFound if the name has no value.
func (s *Store) Read(name string) (value []byte, fp string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value, err = s.get(name); err != nil {
		return nil, "", err
	}
	if !s.data[name].Bound {
		return value, fingerprint(s.hmac, value), nil
	}
	fp, err = s.Fingerprint(name, value)
	return value, fp, err
}

// Get returns a decrypted value, which the caller owns. It returns ErrNotFound if the
// name has no value.
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
	dek, err := decrypt(s.kek, r.Wrapped, s.domain+name)
	if err != nil {
		return nil, err
	}
	return decrypt(dek, r.Value, s.domain+name)
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
