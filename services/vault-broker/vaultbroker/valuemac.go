package vaultbroker

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"sync/atomic"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/pkg/transient"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// Limits of queries for the MACs of values. A gateway that guesses a value could compare the
// response with the MAC on the ledger, so the number of queries is limited per call.
const (
	maxMACs     = 64
	maxMACCalls = 1 << 16 // calls whose queries are counted
)

// macs computes the MACs by which gateways recognize the repeated request of a call that
// stores a secret.
type macs struct {
	of     func(sealInfo string, sealed []byte) ([]byte, error) // opens a sealed value
	kek    []byte
	counts lru.Cache[*atomic.Int64] // number of queries by tenant and call
}

// serve registers the handler of queries for MACs.
func (m *macs) serve(transport rpc.Registrar) {
	rpc.Serve(&rpc.Server{Transport: transport}, events.ValueMacQuery, func(ctx context.Context, q *events.ValueMacRequest) (string, error) {
		return m.mac(transient.Tenant(ctx), q)
	})
}

// mac returns the MAC of the value of a call, which is sealed for that call. The key depends
// on the tenant, the name and the call, so equal values of two calls have different MACs.
// The error is invalid_input if the value is not sealed for the call, and denied after
// maxMACs queries for one call.
func (m *macs) mac(tenant string, q *events.ValueMacRequest) (string, error) {
	n := m.counts.GetOrPut(fmt.Sprintf("%q %q", tenant, q.CallID), func() *atomic.Int64 { return new(atomic.Int64) })
	if n.Add(1) > maxMACs {
		return "", rpc.Errorf(contract.CodeDenied, "too many requests for call %s; use another Idempotency-Key", q.CallID)
	}
	info := secret.PutInfo(tenant, q.Name, q.CallID)
	value, err := m.of(info, q.Sealed)
	if err != nil {
		return "", rpc.Errorf(contract.CodeInvalidInput, "sealed: the value is not sealed to the vault-broker for this tenant, name and call")
	}
	defer clear(value)
	key, err := hkdf.Key(sha256.New, m.kek, nil, "binnacle vault value mac v1 "+info, 32)
	if err != nil {
		return "", err
	}
	return backend.FingerprintUnder(key, value), nil
}
