package trust_test

import (
	"crypto/sha256"
	"encoding/base64"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

func key(t *testing.T, name string) *sign.Key {
	h := sha256.Sum256([]byte(name))
	k, err := sign.NewKey(h[:])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func doc(signer, k *sign.Key, owner string, revoked bool, uses ...string) contract.TrustKey {
	return trust.Publish(signer, contract.TrustKey{Algorithm: "ed25519", KID: k.KID, Owner: owner, PublicKey: base64.StdEncoding.EncodeToString(k.Public()), Revoked: revoked, Tenant: "t", Uses: uses})
}

// TestRegistry checks the life cycle of a key: publication by the root key, use, and
// revocation. It also checks that documents that no root key signed are rejected.
func TestRegistry(t *testing.T) {
	root, policy, evil := key(t, "root"), key(t, "policy"), key(t, "evil")
	r := &trust.Registry{Root: root.KID}
	if err := r.Apply(doc(root, policy, "policy", false, contract.UseDecision), 1); err == nil {
		t.Fatal("a key before the root")
	}
	if err := r.Apply(doc(evil, evil, "provision", false, contract.UseRoot), 1); err == nil {
		t.Fatal("another root")
	}
	if err := r.Apply(doc(root, root, "provision", false, contract.UseRoot), 1); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(doc(evil, policy, "policy", false, contract.UseDecision), 2); err == nil {
		t.Fatal("a key signed by a stranger")
	}
	forged := doc(root, policy, "policy", false, contract.UseDecision)
	forged.Uses = append(forged.Uses, contract.UseCheckpoint)
	if err := r.Apply(forged, 2); err == nil {
		t.Fatal("a key with uses the root did not sign")
	}
	if err := r.Apply(doc(root, policy, "policy", true, contract.UseDecision), 2); err == nil {
		t.Fatal("revoked before published")
	}
	if err := r.Apply(doc(root, policy, "policy", false, contract.UseDecision), 5); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(doc(root, policy, "policy", false, contract.UseDecision), 6); err == nil {
		t.Fatal("published twice")
	}
	if err := r.Apply(doc(root, policy, "policy", true, contract.UseDecision), 9); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		owner, use string
		lamport    uint64
		ok         bool
	}{{"policy", contract.UseDecision, 4, false}, {"policy", contract.UseDecision, 5, true}, {"policy", contract.UseDecision, 8, true}, {"policy", contract.UseDecision, 9, false},
		{"audit", contract.UseDecision, 6, false}, {"policy", contract.UseReceipt, 6, false}} {
		if _, err := r.At(policy.KID, c.owner, c.use, c.lamport); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, ok := r.Current("policy", contract.UseDecision); ok {
		t.Error("a revoked key is current")
	}
}

// TestRootRotation shows that a root key publishes its successor, which can sign
// documents after the first root key is revoked. The first root key, and a key that it
// published, remain valid for times before the revocation.
func TestRootRotation(t *testing.T) {
	first, second, policy, late := key(t, "root"), key(t, "second"), key(t, "policy"), key(t, "late")
	r := &trust.Registry{Root: first.KID}
	apply := func(want bool, k contract.TrustKey, lamport uint64) {
		t.Helper()
		if err := r.Apply(k, lamport); (err == nil) != want {
			t.Fatalf("lamport %d: %v", lamport, err)
		}
	}
	apply(true, doc(first, first, "provision", false, contract.UseRoot), 1)
	apply(false, doc(first, first, "provision", true, contract.UseRoot), 2) // an error, because it is the only root key
	apply(false, doc(second, second, "provision", false, contract.UseRoot), 2)
	apply(true, doc(first, policy, "policy", false, contract.UseDecision), 3)
	apply(true, doc(first, second, "provision", false, contract.UseRoot), 4)
	apply(true, doc(second, first, "provision", true, contract.UseRoot), 6)
	apply(false, doc(first, late, "policy", false, contract.UseDecision), 7)
	apply(true, doc(second, late, "policy", false, contract.UseDecision), 7)
	apply(false, doc(second, second, "provision", true, contract.UseRoot), 8)
	apply(true, doc(second, first, "provision", true, contract.UseRoot), 9) // no effect: the key is revoked already
	if _, err := r.At(policy.KID, "policy", contract.UseDecision, 5); err != nil {
		t.Error("what the first root signed before its end must stand:", err)
	}
	if _, err := r.At(first.KID, "provision", contract.UseRoot, 5); err != nil {
		t.Error(err)
	}
	if _, err := r.At(first.KID, "provision", contract.UseRoot, 6); err == nil {
		t.Error("a revoked root is valid")
	}
	keys := r.Keys()
	if len(keys) != 4 || keys[0].KID != first.KID || keys[0].Since != 1 || keys[0].RevokedSince != 6 {
		t.Errorf("%+v", keys)
	}
}
