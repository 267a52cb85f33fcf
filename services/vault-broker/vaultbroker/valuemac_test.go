package vaultbroker

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/lru"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	events "github.com/binnacle-mesh/binnacle/schemas/vaultbroker"
	"github.com/binnacle-mesh/binnacle/services/vault-broker/internal/backend"
)

// TestValueMAC shows that the MAC of a value depends on the value, the tenant, the name, the
// call and the broker's key, that it is not the value's fingerprint, that a value which is
// sealed for another call has none, and that the queries for one call are limited.
func TestValueMAC(t *testing.T) {
	key, err := seal.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	kek := bytes.Repeat([]byte{1}, 32)
	broker := func(kek []byte) *macs {
		return &macs{of: key.Open, kek: kek, counts: lru.Cache[*atomic.Int64]{Max: maxMACCalls}}
	}
	m := broker(kek)
	of := func(m *macs, tenant, name, call, value string) string {
		t.Helper()
		sealed, err := seal.To(key.Public(), secret.PutInfo(tenant, name, call), []byte(value))
		if err != nil {
			t.Fatal(err)
		}
		mac, err := m.mac(tenant, &events.ValueMacRequest{CallID: call, Name: name, Sealed: sealed})
		if err != nil {
			t.Fatal(err)
		}
		return mac
	}
	mac := of(m, "t", "k", "c-1", "value")
	if again := of(broker(kek), "t", "k", "c-1", "value"); again != mac {
		t.Error("another instance returns another MAC")
	}
	fingerprint, err := backend.Fingerprint(kek, "t", []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]string{
		"value": of(m, "t", "k", "c-1", "other"), "tenant": of(m, "u", "k", "c-1", "value"), "name": of(m, "t", "l", "c-1", "value"), "call": of(m, "t", "k", "c-2", "value"),
		"key": of(broker(bytes.Repeat([]byte{2}, 32)), "t", "k", "c-1", "value"), "fingerprint": fingerprint,
	} {
		if other == mac {
			t.Errorf("the MAC does not depend on the %s", name)
		}
	}
	sealed, err := seal.To(key.Public(), secret.PutInfo("t", "k", "c-1"), []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []events.ValueMacRequest{{CallID: "c-2", Name: "k", Sealed: sealed}, {CallID: "c-1", Name: "l", Sealed: sealed}, {CallID: "c-1", Name: "k", Sealed: []byte("x")}, {}} {
		if _, err := m.mac("t", &q); rpc.CodeOf(err) != contract.CodeInvalidInput {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for range maxMACs {
		_, err = m.mac("t", &events.ValueMacRequest{CallID: "c-1", Name: "k", Sealed: sealed})
	}
	if rpc.CodeOf(err) != contract.CodeDenied {
		t.Errorf("too many queries for a call: %v", err)
	}
	if got := of(m, "u", "k", "c-1", "value"); got == "" {
		t.Error("the queries of another tenant are limited")
	}
}
