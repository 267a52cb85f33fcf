package keyring

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/canon"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/private"
)

// operatorDir is the folder of the documents about operators, one file each, whose names
// begin with numbers in the order in which they were signed.
const operatorDir = "operators"

// Operator is the principal that OpenCell makes the first operator of the mesh.
const Operator = contract.BootstrapOperator

// Operators returns the ring's signed documents that delegate the operation of the mesh
// to principals of the tenant contract.CellTenant, or withdraw it, in the order in which
// they were signed.
func Operators(r *Ring) ([]contract.Operator, error) {
	return documents(r, operatorDir, func(o *contract.Operator) canon.Document { return o })
}

// Newest returns the newest of the documents for each principal, sorted by principal. The
// documents in all must be in the order in which they were signed.
func Newest(all []contract.Operator) []contract.Operator {
	last := map[string]contract.Operator{}
	for _, o := range all {
		last[o.Principal] = o
	}
	out := make([]contract.Operator, 0, len(last))
	for _, principal := range slices.Sorted(maps.Keys(last)) {
		out = append(out, last[principal])
	}
	return out
}

// Delegate makes a principal of contract.CellTenant an operator: it adds a document, signed
// with the root key, to the ring, and returns it. The delegation ends at now plus lasts; if
// lasts is 0, it has no end. Delegate returns an error if lasts is negative, if principal is
// empty or has spaces at an end, or if the ring has no root seed or no document that opens the
// cell.
func Delegate(r *Ring, principal string, lasts time.Duration, now time.Time) (*contract.Operator, error) {
	if principal == "" || strings.TrimSpace(principal) != principal {
		return nil, fmt.Errorf("operator %q: want the name of a principal", principal)
	}
	if lasts < 0 {
		return nil, fmt.Errorf("operator %q: want a duration that is not negative", principal)
	}
	if err := opened(r); err != nil {
		return nil, err
	}
	o := contract.Operator{Principal: principal}
	if lasts > 0 {
		o.NotAfter = contract.Time(now.Add(lasts))
	}
	return delegate(r, o, now)
}

// Withdraw adds to the ring a document, signed with the root key, which states that a
// principal is no longer an operator. It returns an error if the ring has no delegation
// to the principal that is not withdrawn.
func Withdraw(r *Ring, principal string, now time.Time) (*contract.Operator, error) {
	all, err := Operators(r)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(Newest(all), func(o contract.Operator) bool { return o.Principal == principal && !o.Withdrawn }) {
		return nil, fmt.Errorf("%q is not an operator; `binnacle trust operator list` lists them", principal)
	}
	return delegate(r, contract.Operator{Principal: principal, Withdrawn: true}, now)
}

// opened returns an error unless the ring has the document that opens the cell.
func opened(r *Ring) error {
	o, err := r.Cell()
	if err == nil && o == nil {
		err = errors.New("the mesh has no operators before its cell is open; `binnacle trust cell` opens it")
	}
	return err
}

// delegate signs o with the root key, adds it to the ring, and returns it. It sets
// SignerKID, Sig and Issued: now, or a millisecond after the last document for the
// principal if that was signed at the same time or later by the clock.
func delegate(r *Ring, o contract.Operator, now time.Time) (*contract.Operator, error) {
	root, err := r.Root()
	if err != nil {
		return nil, err
	}
	all, err := Operators(r)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Principal != o.Principal {
			continue
		}
		last, err := contract.ParseTime(all[i].Issued)
		if err != nil {
			return nil, err
		}
		if next := last.Add(time.Millisecond); now.Before(next) {
			now = next
		}
	}
	if err := private.Mkdir(r.Path(operatorDir)); err != nil {
		return nil, err
	}
	o.Issued, o.SignerKID, o.Sig = contract.Time(now), root.KID, ""
	o.Sig = root.Sign(sign.DomainOperator, contract.Bytes(&o))
	return &o, r.write(fmt.Sprintf("%s/%04d.json", operatorDir, len(all)+1), contract.Bytes(&o))
}
