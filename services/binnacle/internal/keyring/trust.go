package keyring

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/guard"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// Most methods in this file require the root seed. All of them work only on files, so
// they can be called on a machine without a network. The provisioner of a running mesh
// finds new trust documents and log epochs in the ring and publishes them.

// Root returns the current root key, from root.seed.
func (r *Ring) Root() (*sign.Key, error) {
	seed, err := r.Seed(rootSeed)
	if err != nil {
		return nil, fmt.Errorf("the root seed is needed here: %w", err)
	}
	return sign.NewKey(seed)
}

// Prefixes of the owners in trust documents of keys that do not belong to a service; the
// name of the owner follows.
const (
	approverOwner = "approver:"
	bundleOwner   = "bundle:"
	witnessOwner  = "witness:"
)

// OfTenant reports whether the owner of a trust document is a person or a program of one
// tenant: an approver or a signer of bundles. All other keys are the mesh's own.
func OfTenant(owner string) bool {
	return strings.HasPrefix(owner, approverOwner) || strings.HasPrefix(owner, bundleOwner)
}

// AddKey adds to the ring a signed trust document of the Ed25519 key of an approver, a
// signer of bundles or a witness; use is contract.UseApproval, contract.UseBundle or
// contract.UseWitness. It returns the key id. An approver's or signer's key is valid in
// one tenant; "" stands for the mesh's original tenant, and is an error if the mesh has
// none. For a witness, tenant must be "". If public is nil, AddKey generates a key pair
// and stores its seed in the ring as <use>-<name>.seed, or as <use>-<tenant>.<name>.seed
// if tenant is not "", in place of an earlier seed. It is safer if the owner generates
// the pair and provides only the public key.
func (r *Ring) AddKey(use, name, tenant string, public []byte) (kid string, err error) {
	owner := map[string]string{contract.UseApproval: approverOwner, contract.UseBundle: bundleOwner, contract.UseWitness: witnessOwner}[use] + name
	switch {
	case owner == name:
		return "", fmt.Errorf("use %q: want %s, %s or %s", use, contract.UseApproval, contract.UseBundle, contract.UseWitness)
	case !contract.Token(name):
		return "", fmt.Errorf("name %q is not made of [A-Za-z0-9_-]", name)
	case tenant != "" && !OfTenant(owner):
		return "", errors.New("a witness belongs to the whole mesh, not to a tenant")
	case tenant != "" && (!contract.Token(tenant) || contract.Reserved(tenant) && tenant != contract.CellTenant):
		return "", fmt.Errorf("tenant %q: want the id of a tenant, or %s for signers and approvers of the whole mesh", tenant, contract.CellTenant)
	}
	root, err := r.Root()
	if err != nil {
		return "", err
	}
	file := use + "-" + name + ".seed"
	switch {
	case tenant != "":
		file = use + "-" + tenant + "." + name + ".seed"
	case OfTenant(owner):
		tenant, err = r.Tenant()
	default:
		tenant, err = own(r)
	}
	if err != nil {
		return "", err
	}
	if tenant == "" {
		return "", errors.New("the mesh has no original tenant; name the tenant")
	}
	if public == nil {
		k, err := fresh(r, file)
		if err != nil {
			return "", err
		}
		public = k.Public()
	}
	if len(public) != 32 {
		return "", errors.New("public key: want 32 bytes of base64")
	}
	doc := publicDoc(public, owner, algorithm, tenant, use)
	docs, err := r.Trust()
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(docs, func(d contract.TrustKey) bool { return d.KID == doc.KID }); i >= 0 {
		// A ledger with two publications of one key does not verify, and a revocation of one
		// would revoke both.
		return "", fmt.Errorf("public key: %s is the key of %s already; every owner and every tenant needs a key of its own", doc.KID, docs[i].Owner)
	}
	return doc.KID, r.publish(root, doc)
}

// fresh makes a new key, and replaces the content of the file with its seed.
func fresh(r *Ring, file string) (*sign.Key, error) {
	seed := make([]byte, 32)
	rand.Read(seed)
	k, err := sign.NewKey(seed)
	if err != nil {
		return nil, err
	}
	return k, r.write(file, []byte(hex.EncodeToString(seed)+"\n"))
}

// Rotate makes a new signing key for a service, adds its signed trust document to the
// ring, and returns its key id. It returns an error for a service that signs nothing. A
// running service that reads its key from the ring, or from a copy of the ring, switches
// to the new key some time after the publication. The old key stays valid until it is
// revoked.
func (r *Ring) Rotate(service string) (kid string, err error) {
	s, ok := services.Get(service)
	if !ok || len(s.Uses) == 0 {
		return "", fmt.Errorf("service %q signs nothing", service)
	}
	root, err := r.Root()
	if err != nil {
		return "", err
	}
	tenant, err := own(r)
	if err != nil {
		return "", err
	}
	k, err := fresh(r, service+signEnd)
	if err != nil {
		return "", err
	}
	return k.KID, r.publish(root, publicDoc(k.Public(), service, algorithm, tenant, s.Uses...))
}

// complete makes the NATS identities and signing keys of services that were added after
// the ring was made, and new signing keys for services whose keys lack a use. Without
// the root seed it makes no signing keys; Rotate can make them later.
func complete(r *Ring) error {
	if err := Identities(r); err != nil {
		return err
	}
	if _, err := os.Stat(r.Path(rootSeed)); err != nil {
		return nil
	}
	docs, err := r.Trust()
	if err != nil {
		return err
	}
	for _, s := range services.Programs() {
		if len(s.Uses) == 0 {
			continue
		}
		complete, err := hasUses(r, &s, docs)
		if err != nil {
			return err
		}
		if complete {
			continue
		}
		if _, err := r.Rotate(s.Name); err != nil {
			return err
		}
	}
	return nil
}

// hasUses reports whether the service has a signing key, and docs, the trust documents of
// the ring, publish the key for all uses of the service or do not contain it.
func hasUses(r *Ring, s *services.Service, docs []contract.TrustKey) (bool, error) {
	seed, err := r.Seed(s.Name + signEnd)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	k, err := sign.NewKey(seed)
	if err != nil {
		return false, err
	}
	for _, d := range docs {
		if d.KID == k.KID {
			return !slices.ContainsFunc(s.Uses, func(use string) bool { return !slices.Contains(d.Uses, use) }), nil
		}
	}
	return true, nil // the ring has no document of the key, so its uses are unknown; it is not replaced
}

// RotateRoot makes a new root key, which the old one signs, and stores the old seed as
// root.seed.<kid>. The trust anchor remains the first root key.
func (r *Ring) RotateRoot() (kid string, err error) {
	old, err := r.Root()
	if err != nil {
		return "", err
	}
	tenant, err := own(r)
	if err != nil {
		return "", err
	}
	seed, err := os.ReadFile(r.Path(rootSeed))
	if err != nil {
		return "", err
	}
	if err := r.write(rootSeed+"."+old.KID, seed); err != nil {
		return "", err
	}
	k, err := fresh(r, rootSeed)
	if err != nil {
		return "", err
	}
	return k.KID, r.publish(old, publicDoc(k.Public(), services.Provision, algorithm, tenant, contract.UseRoot))
}

// Revoke revokes a key as of the publication of its revocation. Earlier signatures of
// the key stay valid. The revocation is a document for the key's own tenant if OfTenant
// returns true for its owner, and for the tenant of the mesh's own keys otherwise. It is
// an error if the key is not in the ring, is revoked already, or is the current root
// key.
func (r *Ring) Revoke(kid string) error {
	root, err := r.Root()
	if err != nil {
		return err
	}
	tenant, err := own(r)
	if err != nil {
		return err
	}
	docs, err := r.Trust()
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(docs) {
		switch {
		case d.KID != kid:
		case d.Revoked:
			return fmt.Errorf("key %s is revoked already", kid)
		case kid == root.KID:
			return errors.New("the current root key cannot revoke itself; rotate it first")
		default:
			if !OfTenant(d.Owner) {
				d.Tenant = tenant
			}
			d.Revoked, d.Sig = true, ""
			return r.publish(root, d)
		}
	}
	return fmt.Errorf("key %s is not in this ring", kid)
}

// OpenEpoch signs the opening of a new log epoch that starts after the checkpoint note,
// and stores it in the ring. It is for a ledger that has lost events. If an epoch was
// already opened after that checkpoint, OpenEpoch returns that epoch.
func (r *Ring) OpenEpoch(note []byte, reason string) (contract.LogEpoch, error) {
	root, err := r.Root()
	if err != nil {
		return contract.LogEpoch{}, err
	}
	tenant, err := own(r)
	if err != nil {
		return contract.LogEpoch{}, err
	}
	epochs, err := r.Epochs()
	if err != nil {
		return contract.LogEpoch{}, err
	}
	for _, old := range epochs {
		if old.Checkpoint == sign.Digest(note) {
			return old, nil
		}
	}
	l := trust.SignEpoch(root, contract.LogEpoch{Checkpoint: sign.Digest(note), Epoch: int64(len(epochs)) + 2, Reason: reason, Tenant: tenant})
	if err := private.Mkdir(r.Path(epochDir)); err != nil {
		return l, err
	}
	name := fmt.Sprintf("%s/%04d.json", epochDir, l.Epoch)
	return l, r.write(name, contract.Bytes(&l))
}

// epochDir is the folder of the opened log epochs, with one file per epoch.
const epochDir = "epochs"

// Epochs returns the opened log epochs in order. The first epoch of a log has no
// document.
func (r *Ring) Epochs() ([]contract.LogEpoch, error) {
	return documents(r, epochDir, func(e *contract.LogEpoch) canon.Document { return e })
}

// documents decodes the files of a folder of the ring, one document in each, in the order
// of the files' names. It returns an error if a file cannot be read or is malformed.
func documents[T any](r *Ring, dir string, of func(*T) canon.Document) ([]T, error) {
	files, err := filepath.Glob(r.Path(dir + "/*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	out := make([]T, len(files))
	for i, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if err := contract.Decode(raw, of(&out[i])); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(f), err)
		}
	}
	return out, nil
}

// SignP0 signs ceilings with the root key, stores them in the ring as p0.json, and
// returns the signed document. It returns an error if the ceilings are invalid.
func (r *Ring) SignP0(c guard.Ceilings) ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	root, err := r.Root()
	if err != nil {
		return nil, err
	}
	doc := guard.SignP0(root, c)
	return doc, r.write(p0File, doc)
}

// PublicKey decodes a public key of 32 bytes from base64. It returns nil for an empty
// text.
func PublicKey(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(b) != 32 {
		return nil, errors.New("public key: want 32 bytes of base64")
	}
	return b, nil
}
