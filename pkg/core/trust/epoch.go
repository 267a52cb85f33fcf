package trust

import (
	"errors"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// SignEpoch returns l, the opening of a log epoch, signed with the root key. It sets
// SignerKID and Sig, and checks nothing.
func SignEpoch(root *sign.Key, l contract.LogEpoch) contract.LogEpoch {
	l.SignerKID, l.Sig = root.KID, ""
	l.Sig = root.Sign(sign.DomainEpoch, contract.Bytes(&l))
	return l
}

// VerifyEpoch returns the document in the data of e. It returns an error unless
// provision produced e, and the document opens a log epoch after the first, for the
// tenant of the event, and is signed by a key that was a root key at the event's Lamport
// time. After an error the document must not be used. keyAt is Registry.At.
func VerifyEpoch(e *contract.Event, keyAt func(kid, owner, use string, lamport uint64) ([]byte, error)) (l contract.LogEpoch, err error) {
	if err := contract.Decode(e.Data, &l); err != nil {
		return l, err
	}
	if e.Service() != "provision" || l.Tenant != e.Tenant || l.Epoch < 2 {
		return l, errors.New("not the opening of a log epoch of this mesh")
	}
	public, err := keyAt(l.SignerKID, "provision", contract.UseRoot, e.Lamport)
	if err != nil {
		return l, err
	}
	body := l
	body.Sig = ""
	return l, sign.Verify(public, sign.DomainEpoch, contract.Bytes(&body), l.Sig)
}
