// Package password stores and verifies the passwords of persons, with which they log in
// before an identity provider is configured. Only Argon2id hashes (RFC 9106) are stored, in
// a file of the ring of keys, which the gateways read. They are never on the ledger,
// because its readers could guess passwords from them.
package password

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// File is the name of the file in the ring of keys.
const File = "passwords.json"

// MinLength is the minimum length of a password in characters (NIST SP 800-63B-4,
// section 3.1.1.2). maxBytes is the maximum length in bytes; it bounds the work of a
// verification.
const (
	MinLength = 15
	maxBytes  = 1024
)

// The cost of a new hash: the minimum that OWASP's Password Storage Cheat Sheet recommends,
// because one gateway hashes for every person that logs in.
const (
	passes    = 2
	memoryKiB = 19 << 10
	lanes     = 1
	hashBytes = 32
	saltBytes = 16
)

// entry is the hash of one person's password, with the cost that it was computed with.
type entry struct {
	Tenant    string `json:"tenant"`
	Principal string `json:"principal"`
	Salt      []byte `json:"salt"`
	Hash      []byte `json:"hash"`
	Passes    uint32 `json:"passes"`
	MemoryKiB uint32 `json:"memory_kib"`
	Lanes     uint8  `json:"lanes"`
}

// noPassword is an entry that no password matches. Verify computes its hash for a person
// without a password, so that the time does not show whether there is one.
var noPassword = entry{Salt: make([]byte, saltBytes), Passes: passes, MemoryKiB: memoryKiB, Lanes: lanes}

func (e *entry) of(password []byte) []byte {
	return argon2.IDKey(password, e.Salt, e.Passes, e.MemoryKiB, e.Lanes, hashBytes)
}

// Verify reports whether password is that of a principal of a tenant, according to the file at
// path. It takes the same time for a principal without a password as for one with a password. A
// missing file has no passwords; another error means that the file cannot be read.
func Verify(path, tenant, principal string, password []byte) (bool, error) {
	all, err := load(path)
	if err != nil {
		return false, err
	}
	e := &noPassword
	for i := range all {
		if all[i].Tenant == tenant && all[i].Principal == principal {
			e = &all[i]
		}
	}
	if len(password) > maxBytes {
		password = password[:0]
	}
	return subtle.ConstantTimeCompare(e.of(password), e.Hash) == 1 && len(password) > 0, nil
}

// Set stores the hash of a principal's password in the file at path, in place of an earlier
// one. It returns an error if the password is shorter than MinLength characters or too
// long, or if a name is malformed.
func Set(path, tenant, principal string, password []byte) error {
	switch {
	case !contract.Token(tenant):
		return fmt.Errorf("tenant %q: want the id of a tenant", tenant)
	case principal == "" || len(principal) > 128:
		return errors.New("principal: want 1 to 128 characters")
	case utf8.RuneCount(password) < MinLength || len(password) > maxBytes:
		return fmt.Errorf("password: want %d characters or more, and at most %d bytes", MinLength, maxBytes)
	}
	all, err := without(path, tenant, principal)
	if err != nil {
		return err
	}
	e := noPassword
	e.Tenant, e.Principal, e.Salt = tenant, principal, make([]byte, saltBytes)
	_, _ = rand.Read(e.Salt) // never fails
	e.Hash = e.of(password)
	return store(path, append(all, e))
}

// Remove removes a principal's password from the file at path. It returns an error if there
// is none.
func Remove(path, tenant, principal string) error {
	before, err := load(path)
	if err != nil {
		return err
	}
	all, err := without(path, tenant, principal)
	if err == nil && len(all) == len(before) {
		err = fmt.Errorf("principal %s of tenant %s has no password", principal, tenant)
	}
	if err != nil {
		return err
	}
	return store(path, all)
}

func without(path, tenant, principal string) ([]entry, error) {
	all, err := load(path)
	return slices.DeleteFunc(all, func(e entry) bool { return e.Tenant == tenant && e.Principal == principal }), err
}

func load(path string) (all []entry, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("passwords cannot be read: %w", err)
	}
	return all, nil
}

func store(path string, all []entry) error {
	b, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return private.Write(path, append(b, '\n'))
}
