// Package trust is the key registry: a fold over key_published and
// key_revoked events, with point-in-time answers by lamport.
package trust

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Registry holds keys by id. The zero value with Root set is ready; Root is
// the anchor the reader brings along and is never taken from the ledger.
type Registry struct {
	Root string // KID of the first root key; it endorses its successors
	keys map[string]entry
}

type entry struct {
	doc            contract.TrustKey
	public         []byte
	since, revoked uint64 // lamport; revoked 0 = valid
}

// Publish signs a key document with the root key.
func Publish(root *sign.Key, k contract.TrustKey) contract.TrustKey {
	k.SignerKID, k.Sig = root.KID, ""
	k.Sig = root.Sign(sign.DomainTrust, contract.Bytes(&k))
	return k
}

// Apply folds one trust event in. The first must be the root publishing
// itself; every later one carries the signature of a root key that is valid at
// its lamport. A root key published under the signature of another succeeds
// it; the last valid root cannot be revoked.
func (r *Registry) Apply(k contract.TrustKey, lamport uint64) error {
	bad := func(what string) error { return fmt.Errorf("trust: key %s: %s", k.KID, what) }
	public, err := sign.Base64(k.PublicKey)
	if err != nil || len(public) != 32 {
		return bad("public key is not 32 bytes of base64")
	}
	if sign.KID(public) != k.KID {
		return bad("id does not belong to the public key")
	}
	rootPublic := public
	if k.SignerKID != r.Root || k.KID != r.Root || r.Has(r.Root) {
		if rootPublic, err = r.At(k.SignerKID, "provision", contract.UseRoot, lamport); err != nil {
			return bad("not signed by a trusted root: " + err.Error())
		}
	}
	body := k
	body.Sig = ""
	if err := sign.Verify(rootPublic, sign.DomainTrust, contract.Bytes(&body), k.Sig); err != nil {
		return bad(err.Error())
	}
	if r.keys == nil {
		r.keys = map[string]entry{}
	}
	old, known := r.keys[k.KID]
	switch {
	case k.Revoked && !known:
		return bad("revoked before it was published")
	case k.Revoked && slices.Contains(old.doc.Uses, contract.UseRoot) && len(r.Publics("provision", contract.UseRoot, lamport)) < 2:
		return bad("the last root cannot be revoked")
	case k.Revoked && old.revoked == 0:
		old.revoked = lamport
		r.keys[k.KID] = old
	case !k.Revoked && known:
		return bad("published twice")
	case !k.Revoked:
		r.keys[k.KID] = entry{doc: k, public: public, since: lamport}
	}
	return nil
}

// At returns the public key kid if, at lamport, it was owner's for use.
func (r *Registry) At(kid, owner, use string, lamport uint64) ([]byte, error) {
	e, ok := r.keys[kid]
	switch {
	case !ok:
		return nil, fmt.Errorf("key %s is not in the trust registry", kid)
	case e.doc.Owner != owner:
		return nil, fmt.Errorf("key %s belongs to %s, not to %s", kid, e.doc.Owner, owner)
	case !slices.Contains(e.doc.Uses, use):
		return nil, fmt.Errorf("key %s is not for %s", kid, use)
	case lamport < e.since:
		return nil, fmt.Errorf("key %s was not yet published at lamport %d", kid, lamport)
	case e.revoked != 0 && lamport >= e.revoked:
		return nil, fmt.Errorf("key %s was revoked at lamport %d", kid, e.revoked)
	}
	return e.public, nil
}

// Current returns owner's newest valid key document for use.
func (r *Registry) Current(owner, use string) (contract.TrustKey, bool) {
	var best entry
	for _, e := range r.keys {
		if e.doc.Owner == owner && e.revoked == 0 && slices.Contains(e.doc.Uses, use) && e.since > best.since {
			best = e
		}
	}
	return best.doc, best.since > 0
}

// Has reports whether kid is published.
func (r *Registry) Has(kid string) bool { _, ok := r.keys[kid]; return ok }

// Publics returns the public keys owner had for use at lamport.
func (r *Registry) Publics(owner, use string, lamport uint64) [][]byte {
	var out [][]byte
	for kid := range r.keys {
		if pub, err := r.At(kid, owner, use, lamport); err == nil {
			out = append(out, pub)
		}
	}
	return out
}

// Key is one key with its life, by lamport.
type Key struct {
	contract.TrustKey
	Since        uint64 `json:"since_lamport"`
	RevokedSince uint64 `json:"revoked_since_lamport,omitempty"`
}

// Dump is the registry's canonical form: a JSON line for each key, oldest first.
func (r *Registry) Dump() []byte {
	var b []byte
	for _, k := range r.Keys() {
		w := canon.Object(b)
		w.Raw("key", contract.Bytes(&k.TrustKey))
		w.Str("revoked_since", strconv.FormatUint(k.RevokedSince, 10))
		w.Str("since", strconv.FormatUint(k.Since, 10))
		b = append(w.End(), '\n')
	}
	return b
}

// Keys lists every key, oldest first.
func (r *Registry) Keys() []Key {
	var out []Key
	for _, e := range r.keys {
		out = append(out, Key{e.doc, e.since, e.revoked})
	}
	slices.SortFunc(out, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.KID, b.KID))
	})
	return out
}
