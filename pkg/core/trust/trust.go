// Package trust is the registry of public keys. It is built from the ledger's
// key_published and key_revoked events, and reports, for any Lamport time, whether a
// key belonged to an owner and could be used for a purpose. The package also signs the
// documents that publish and revoke keys, and signs and verifies those that open a log
// epoch.
//
// Time is the Lamport time of the ledger and not the clock, so that two readers of one
// ledger agree on whether a signature was valid. All that a reader must know beforehand
// is the id of the first root key; every other key was published under the signature of
// a root key that was valid at that time. A registry holds public keys only.
package trust

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Registry holds public keys by id. The zero value with Root set is ready to use.
// Root is the reader's trust anchor and must not come from the ledger. A Registry
// may be read concurrently, but not while Apply runs.
type Registry struct {
	Root string // id of the first root key
	keys map[string]entry
}

// entry is a key of the registry with the document that published it.
type entry struct {
	doc            contract.TrustKey
	owner          string // Owner(&doc)
	public         []byte
	since, revoked uint64 // Lamport times of publication and revocation; revoked is 0 for a key that is not revoked
}

// Publish returns k signed with the root key. It sets SignerKID and Sig, and leaves all
// checks to Apply.
func Publish(root *sign.Key, k contract.TrustKey) contract.TrustKey {
	k.SignerKID, k.Sig = root.KID, ""
	k.Sig = root.Sign(sign.DomainTrust, contract.Bytes(&k))
	return k
}

// Apply adds the next trust event with document k, which has the Lamport time lamport.
// The first document must publish the key with the id Root and be signed by that key;
// every later one must be signed by a root key, a key of provision for the use root,
// that is valid at its Lamport time. Several root keys may be valid at the same time.
// The id of a key must be sign.KID of its bytes. A key can be published only once, and
// revoked only after that, by a document for the same owner in the sense of Owner; a
// second revocation has no effect. The last valid root key cannot be revoked. After an
// error, which names the key, the registry is unchanged.
func (r *Registry) Apply(k contract.TrustKey, lamport uint64) error {
	public, err := r.authentic(&k, lamport)
	if err == nil {
		err = r.fold(k, public, lamport)
	}
	if err != nil {
		return fmt.Errorf("trust: key %s: %w", k.KID, err)
	}
	return nil
}

// authentic returns the public key in k. It returns an error unless the key has the id
// that k states, and k is signed by a valid root key or, if k publishes the first root
// key, by that key.
func (r *Registry) authentic(k *contract.TrustKey, lamport uint64) ([]byte, error) {
	public, err := sign.Base64(k.PublicKey)
	if err != nil || len(public) != 32 {
		return nil, errors.New("public key is not 32 bytes of base64")
	}
	if sign.KID(public) != k.KID {
		return nil, errors.New("id does not belong to the public key")
	}
	signer := public
	if !r.anchors(k) {
		if signer, err = r.At(k.SignerKID, "provision", contract.UseRoot, lamport); err != nil {
			return nil, fmt.Errorf("not signed by a trusted root: %w", err)
		}
	}
	body := *k
	body.Sig = ""
	return public, sign.Verify(signer, sign.DomainTrust, contract.Bytes(&body), k.Sig)
}

// anchors reports whether k is the document with which the first root key enters the
// registry. There is no earlier key, so the root key signs this document itself.
func (r *Registry) anchors(k *contract.TrustKey) bool {
	return k.KID == r.Root && k.SignerKID == r.Root && !r.Has(r.Root)
}

// fold applies a document whose signature has been verified: it adds the key, or sets
// the time of the key's revocation. It returns an error if the document breaks one of
// the rules of Apply.
func (r *Registry) fold(k contract.TrustKey, public []byte, lamport uint64) error {
	_, known := r.keys[k.KID]
	switch {
	case k.Revoked && !known:
		return errors.New("revoked before it was published")
	case k.Revoked:
		return r.revoke(&k, lamport)
	case known:
		return errors.New("published twice")
	}
	if r.keys == nil {
		r.keys = map[string]entry{}
	}
	r.keys[k.KID] = entry{doc: k, owner: Owner(&k), public: public, since: lamport}
	return nil
}

// revoke sets the time of the revocation of a published key.
func (r *Registry) revoke(k *contract.TrustKey, lamport uint64) error {
	old := r.keys[k.KID]
	switch {
	case Owner(k) != old.owner:
		return fmt.Errorf("revoked as a key of %s, and belongs to %s", Owner(k), old.owner)
	case old.revoked != 0:
		return nil // the earliest revocation is the valid one
	case r.lastRoot(&old, lamport):
		return errors.New("the last root cannot be revoked")
	}
	old.revoked = lamport
	r.keys[k.KID] = old
	return nil
}

// lastRoot reports whether e is a root key and fewer than two root keys are valid at
// lamport. A key of another owner than provision is not a root key, whatever its uses.
func (r *Registry) lastRoot(e *entry, lamport uint64) bool {
	return e.doc.Owner == "provision" && slices.Contains(e.doc.Uses, contract.UseRoot) && len(r.Publics("provision", contract.UseRoot, lamport)) < 2
}

// Owner returns the owner under which a Registry lists the key that k publishes: k.Owner,
// except that the name of an approver or of a signer of bundles is qualified by the tenant
// of the document, as in "approver:<tenant>/<name>". So equal names of two tenants are two
// owners.
func Owner(k *contract.TrustKey) string {
	for _, prefix := range [...]string{contract.OwnerApprover, contract.OwnerBundle} {
		if name, ok := strings.CutPrefix(k.Owner, prefix); ok {
			return prefix + k.Tenant + "/" + name
		}
	}
	return k.Owner
}

// At returns the public key kid. owner is in the form of Owner. At returns an error
// unless the key belonged to owner, could be used for use, had been published by
// lamport, and had not been revoked by then. The caller must not change the bytes.
func (r *Registry) At(kid, owner, use string, lamport uint64) ([]byte, error) {
	e, ok := r.keys[kid]
	switch {
	case !ok:
		return nil, fmt.Errorf("key %s is not in the trust registry", kid)
	case e.owner != owner:
		return nil, fmt.Errorf("key %s belongs to %s, not to %s", kid, e.owner, owner)
	case !slices.Contains(e.doc.Uses, use):
		return nil, fmt.Errorf("key %s is not for %s", kid, use)
	case lamport < e.since:
		return nil, fmt.Errorf("key %s was not yet published at lamport %d", kid, lamport)
	case e.revoked != 0 && lamport >= e.revoked:
		return nil, fmt.Errorf("key %s was revoked at lamport %d", kid, e.revoked)
	}
	return e.public, nil
}

// Current returns the document of the key that was published last among owner's keys for
// use that are not revoked. The second result is false if there is no such key.
func (r *Registry) Current(owner, use string) (contract.TrustKey, bool) {
	var best entry
	for _, e := range r.keys {
		if e.owner == owner && e.revoked == 0 && slices.Contains(e.doc.Uses, use) && e.since > best.since {
			best = e
		}
	}
	return best.doc, best.since > 0
}

// Has reports whether a key with id kid was published, even if it was revoked later.
func (r *Registry) Has(kid string) bool { _, ok := r.keys[kid]; return ok }

// Publics returns the public keys that owner had for use at lamport, in no
// particular order. The caller must not change their bytes.
func (r *Registry) Publics(owner, use string, lamport uint64) [][]byte {
	var out [][]byte
	for kid := range r.keys {
		if pub, err := r.At(kid, owner, use, lamport); err == nil {
			out = append(out, pub)
		}
	}
	return out
}

// Key is one key of the registry with the Lamport times of its publication and
// revocation. RevokedSince is 0 for a key that is not revoked.
type Key struct {
	contract.TrustKey
	Since        uint64 `json:"since_lamport"`
	RevokedSince uint64 `json:"revoked_since_lamport,omitempty"`
}

// Dump returns the registry's canonical form: one line of canonical JSON for each key,
// in order of publication and then of key id. Two registries have the same dump if they
// have the same keys with the same Lamport times.
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

// Keys returns every key, revoked ones included, in order of publication and then of key
// id. The caller owns the slice, but must not change the Uses of its elements.
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
