// Package backend defines the interface between the vault-broker and the systems that
// store its values: the encrypted file of package store, and HashiCorp Vault of package
// hashivault. Package backendtest tests that an implementation fulfils the contract.
package backend

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"
)

// Errors of a Backend. Every error of a method wraps one of them, or is the error of the
// context or an internal one. No error contains a value.
var (
	ErrNotFound    = errors.New("value not found")                         // the name or the version has no value
	ErrDeleted     = errors.New("value is deleted and can be restored")    // Delete was called
	ErrErased      = errors.New("value was erased")                        // Erase was called; nothing restores it
	ErrConflict    = errors.New("value was changed meanwhile")             // Put expected another version, or others stored versions during Erase
	ErrDenied      = errors.New("the store denies access")                 // the store's own permissions
	ErrSealed      = errors.New("the store is sealed")                     // an operator has to unseal it
	ErrUnavailable = errors.New("the store does not respond or is broken") // a change may have been made or not
)

// Retryable reports whether a repetition of the request that failed with err may succeed
// without a change of the configuration.
func Retryable(err error) bool { return errors.Is(err, ErrSealed) || errors.Is(err, ErrUnavailable) }

// Any is the expected version of a Put that replaces whatever version is stored.
const Any = -1

// About describes a version. It is stored with the value and is not secret. Its times have
// whole seconds.
type About struct {
	Type    string    // type of the value, which the store does not interpret; "" if it has none
	Expires time.Time // when the version ceases to be valid; zero if never
	Overlap time.Time // until when the version before this one remains valid too; zero if it does not
}

// Value is one version of a stored value. The caller owns Bytes.
type Value struct {
	About
	Bytes       []byte
	Version     int    // 1 or more
	Fingerprint string // see Fingerprint
	Created     time.Time
	// Dynamic is the path at which the store issues credentials for one call at a time.
	// If it is set, the value itself is empty. Only the administrator of the store can
	// set it.
	Dynamic string
}

// Backend stores versions of values by owner and name, which contain no slash. It is safe
// for concurrent use. Several instances of the broker may use one store of package
// hashivault, but not one of package store.
type Backend interface {
	// Put stores a value as the next version and returns the version's number. expect is
	// Any, or the number of the newest version that must be stored, 0 for none; if another
	// one is stored, Put returns ErrConflict. The version is durable when Put returns nil.
	// After ErrUnavailable it may be stored or not. A Put after Delete stores a version that
	// is not deleted. After Erase, a Put that does not return ErrConflict returns ErrErased.
	Put(ctx context.Context, owner, name string, value []byte, about About, expect int) (version int, err error)
	// Get returns a version, or the newest if version is 0. It returns ErrNotFound if the
	// version is not stored, ErrDeleted after Delete, and ErrErased after Erase.
	Get(ctx context.Context, owner, name string, version int) (Value, error)
	// Newest returns the number of the newest version, also of a deleted or erased value,
	// and 0 if the name was never used.
	Newest(ctx context.Context, owner, name string) (int, error)
	// Delete makes the stored versions unreadable until Restore is called. It returns
	// ErrNotFound if the name was never used, and ErrErased after Erase.
	Delete(ctx context.Context, owner, name string) error
	// Restore makes the versions readable that Delete has made unreadable. Its errors are
	// those of Delete.
	Restore(ctx context.Context, owner, name string) error
	// Erase destroys all versions for ever. The name stays, so that no version number is used
	// again. Erase returns ErrNotFound if the name was never used, nil if the value was erased
	// before, and ErrConflict if other writers store versions during all its attempts.
	Erase(ctx context.Context, owner, name string) error
	// Names returns the owner's names, sorted, also those of deleted and erased values.
	Names(ctx context.Context, owner string) ([]string, error)
}

// Fingerprint returns an identifier of an owner's value that does not reveal it: the first
// 16 bytes of an HMAC-SHA-256 under a key derived from the key-encryption key and the
// owner. Equal values of two owners have different fingerprints.
func Fingerprint(kek []byte, owner string, value []byte) (string, error) {
	key, err := hkdf.Key(sha256.New, kek, nil, "binnacle vault fingerprint v2 "+owner, 32)
	if err != nil {
		return "", err
	}
	return FingerprintUnder(key, value), nil
}

// FingerprintUnder returns the fingerprint of a value under a derived key.
func FingerprintUnder(key, value []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write(value)
	return "hmac-sha256:" + hex.EncodeToString(m.Sum(nil)[:16])
}
