package contract

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// A session id is derived from tenant, owner and the owner's name for the
// session, so that no name reaches a session of somebody else's. It has a
// syntax of its own, "s-x" and 26 of [a-z2-7]: the first 10 bytes of a digest
// of the three, then the first 6 bytes of a digest of those bytes, tenant and
// owner. The second part tells whose session it is without a query.
// Ids of other forms are those that releases before 0.5 left.

const (
	derivedPrefix = "s-x"
	nameBytes     = 10
	ownerBytes    = 6
)

var sessionEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

var derivedLen = len(derivedPrefix) + sessionEncoding.EncodedLen(nameBytes+ownerBytes)

// SessionID returns the id of the session that owner calls name.
func SessionID(tenant, owner, name string) string {
	h := fields("binnacle session v1", tenant, owner, name)
	id := append(h[:nameBytes:nameBytes], ownerTag(tenant, owner, h[:nameBytes])...)
	return derivedPrefix + sessionEncoding.EncodeToString(id)
}

// DerivedSession reports whether s has the syntax of a derived session id. Such
// a string is always an id and never a name.
func DerivedSession(s string) bool {
	b, ok := derivedBytes(s)
	return ok && len(b) == nameBytes+ownerBytes
}

// OwnsSession reports whether a derived session id is one of owner's.
func OwnsSession(tenant, owner, id string) bool {
	b, ok := derivedBytes(id)
	return ok && string(b[nameBytes:]) == string(ownerTag(tenant, owner, b[:nameBytes]))
}

func derivedBytes(s string) ([]byte, bool) {
	if len(s) != derivedLen || !strings.HasPrefix(s, derivedPrefix) {
		return nil, false
	}
	b, err := sessionEncoding.DecodeString(s[len(derivedPrefix):])
	return b, err == nil && sessionEncoding.EncodeToString(b) == s[len(derivedPrefix):]
}

func ownerTag(tenant, owner string, name []byte) []byte {
	h := fields("binnacle session owner v1", tenant, owner, string(name))
	return h[:ownerBytes]
}

// fields digests strings so that no two splits look alike.
func fields(parts ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range parts {
		d := sha256.Sum256([]byte(p))
		h.Write(d[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// SessionRefused is the name, which no caller can give, of a principal's session
// of refusals: calls that named a session that the principal may not use.
const SessionRefused = "refused"

// BootstrapAdmin is the principal of the token that a new mesh is made with.
// Policy registers it as the first person.
const BootstrapAdmin = "admin"
