package keyring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/services"
)

// cellFile is the name of the signed document with which the ledger opens the cell; see
// OpenCell.
const cellFile = "cell.json"

// Log returns the tenant of the ring's first trust document, the root key's. The origin
// of the ledger's log and the subjects of its checkpoints name this tenant for ever.
func (r *Ring) Log() (string, error) {
	docs, err := r.Trust()
	if err != nil {
		return "", err
	}
	return docs[0].Tenant, nil
}

// Tenant returns the mesh's original tenant, which no call created. It is empty if the
// mesh has none.
func (r *Ring) Tenant() (string, error) {
	o, err := r.Cell()
	if err != nil {
		return "", err
	}
	if o != nil {
		return o.Tenant, nil
	}
	return r.Log()
}

// own returns the tenant of new documents about the mesh's own keys and log:
// contract.CellTenant if the ring holds the document that opens the cell, and Log
// otherwise.
func own(r *Ring) (string, error) {
	o, err := r.Cell()
	if err != nil {
		return "", err
	}
	if o != nil {
		return o.Cell, nil
	}
	return r.Log()
}

// Cell returns the ring's document that opens the cell, or nil if it has none. It is an
// error if the document is damaged, is not for this ring, or is not signed by a root key
// of the ring, valid or revoked.
func (r *Ring) Cell() (*contract.CellOpened, error) {
	raw, err := os.ReadFile(r.Path(cellFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var o contract.CellOpened
	if err := contract.Decode(raw, &o); err != nil {
		return nil, fmt.Errorf("%s: %w", cellFile, err)
	}
	docs, err := r.Trust()
	if err != nil {
		return nil, err
	}
	if log := docs[0].Tenant; o.Cell != contract.CellTenant || o.Log != log || log != contract.CellTenant && o.Tenant != log {
		return nil, fmt.Errorf("%s is for another mesh than this ring", cellFile)
	}
	root, _ := rootKey(docs, o.SignerKID)
	if root == nil {
		return nil, fmt.Errorf("%s: its signer %s is not a root key of this ring", cellFile, o.SignerKID)
	}
	body := o
	body.Sig = ""
	if err := sign.Verify(root, sign.DomainCell, contract.Bytes(&body), o.Sig); err != nil {
		return nil, fmt.Errorf("%s: %w", cellFile, err)
	}
	return &o, nil
}

// rootKey returns the public key of the root key kid, and whether it is revoked. It
// returns nil if docs, the trust documents of a ring, publish no such root key.
func rootKey(docs []contract.TrustKey, kid string) (public []byte, revoked bool) {
	for _, d := range docs {
		if d.KID == kid && d.Owner == services.Provision && slices.Contains(d.Uses, contract.UseRoot) {
			public, _ = sign.Base64(d.PublicKey)
			revoked = revoked || d.Revoked
		}
	}
	return public, revoked
}

// OpenCell returns the signed document that opens the cell: from its publication on, the
// ledger may have several tenants, and the mesh's own events are in the tenant
// contract.CellTenant. If the ring, which an earlier release made, has no such document,
// or if the root key that signed it is revoked, OpenCell signs one, which requires the
// root seed, and stores it in the ring; it also makes Operator an operator if the ring
// has no document about operators. From then on, new keys of the mesh's own are for
// contract.CellTenant. It is an error if the tenant of a ring of an earlier release
// has a reserved name.
func (r *Ring) OpenCell() (*contract.CellOpened, error) {
	docs, err := r.Trust()
	if err != nil {
		return nil, err
	}
	o, err := r.Cell()
	if err != nil {
		return nil, err
	}
	original := docs[0].Tenant
	if o != nil {
		if _, revoked := rootKey(docs, o.SignerKID); !revoked {
			return o, nil
		}
		original = o.Tenant
	}
	return openCell(r, docs[0].Tenant, original)
}

// ErrTenant is wrapped by the errors of Init and OpenCell if the original tenant of the
// mesh has a name that is malformed or reserved.
var ErrTenant = errors.New("want a name of letters, digits, - and _, with no _ at its beginning")

// openCell signs the document that opens the cell of the ring whose log has the given
// name, and stores it. If the ring names no operator, openCell first adds the
// document of Operator. The ring's trust documents must be complete.
func openCell(r *Ring, log, original string) (*contract.CellOpened, error) {
	if !contract.Token(original) || contract.Reserved(original) {
		return nil, fmt.Errorf("tenant %q: %w", original, ErrTenant)
	}
	root, err := r.Root()
	if err != nil {
		return nil, err
	}
	o := &contract.CellOpened{Cell: contract.CellTenant, Log: log, SignerKID: root.KID, Tenant: original}
	o.Sig = root.Sign(sign.DomainCell, contract.Bytes(o))
	operators, err := Operators(r)
	if err == nil && len(operators) == 0 {
		_, err = delegate(r, contract.Operator{Principal: Operator}, time.Now())
	}
	if err != nil {
		return nil, err
	}
	return o, r.write(cellFile, contract.Bytes(o)) // written after the document of the operator, because OpenCell adds neither once this file exists
}
