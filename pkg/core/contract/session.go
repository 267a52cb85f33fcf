package contract

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// A session id is derived from the tenant, the owner and the owner's name for the
// session, so that no name can refer to another owner's session. The id is "s-x" and 26
// characters of [a-z2-7], the base32 of two parts: the first 10 bytes of a digest of the
// three strings, and the first 6 bytes of a digest of those 10 bytes, tenant and owner.
// The second part lets any service check the owner of a session without a query. Session
// ids in other forms were made by releases before 0.5.

const (
	derivedPrefix = IDSession + "x"
	nameBytes     = 10
	ownerBytes    = 6
)

var sessionEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

var derivedLen = len(derivedPrefix) + sessionEncoding.EncodedLen(nameBytes+ownerBytes)

// SessionID returns the id of the session for which owner uses the given name in tenant.
// It is a pure function, so every gateway derives the same id.
func SessionID(tenant, owner, name string) string {
	h := fields("binnacle session v1", tenant, owner, name)
	id := append(h[:nameBytes:nameBytes], ownerTag(tenant, owner, h[:nameBytes])...)
	return derivedPrefix + sessionEncoding.EncodeToString(id)
}

// DerivedSession reports whether s has the form of a derived session id. Such a
// string is always treated as an id and never as a name.
func DerivedSession(s string) bool {
	b, ok := derivedBytes(s)
	return ok && len(b) == nameBytes+ownerBytes
}

// OwnsSession reports whether id is the derived id of a session of owner in tenant. It
// returns false for strings in any other form.
func OwnsSession(tenant, owner, id string) bool {
	b, ok := derivedBytes(id)
	return ok && string(b[nameBytes:]) == string(ownerTag(tenant, owner, b[:nameBytes]))
}

// derivedBytes decodes a derived session id. It rejects other encodings of the
// same bytes, so that a session has one id.
func derivedBytes(s string) ([]byte, bool) {
	if len(s) != derivedLen || !strings.HasPrefix(s, derivedPrefix) {
		return nil, false
	}
	b, err := sessionEncoding.DecodeString(s[len(derivedPrefix):])
	return b, err == nil && sessionEncoding.EncodeToString(b) == s[len(derivedPrefix):]
}

// ownerTag returns the second part of a derived session id, which proves its owner. name
// is the first part.
func ownerTag(tenant, owner string, name []byte) []byte {
	h := fields("binnacle session owner v1", tenant, owner, string(name))
	return h[:ownerBytes]
}

// fields returns a digest of parts. Each part is hashed by itself first, so that
// different lists of strings never result in the same input of the digest.
func fields(parts ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range parts {
		d := sha256.Sum256([]byte(p))
		h.Write(d[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// SessionRefused is the name of the session that records the calls of a principal that
// were refused because they named a session that the principal may not use. Callers
// cannot choose this name.
const SessionRefused = "refused"

// The principals of the tokens that a new mesh is created with. Policy registers each as
// the first person of its tenant.
const (
	BootstrapAdmin    = "admin"    // of the original tenant
	BootstrapOperator = "operator" // of CellTenant; the first operator of the mesh
)
