package trust_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/core/trust"
)

// registry returns a registry with a root key published at Lamport time 1 and a
// key of policy published at 5.
func registry(t *testing.T) (r *trust.Registry, root, policy *sign.Key) {
	t.Helper()
	root, policy = key(t, "root"), key(t, "policy")
	r = &trust.Registry{Root: root.KID}
	if err := r.Apply(doc(root, root, "provision", false, contract.UseRoot), 1); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(doc(root, policy, "policy", false, contract.UseDecision, contract.UseReceipt), 5); err != nil {
		t.Fatal(err)
	}
	return r, root, policy
}

// TestApplyErrors checks each reason to reject a document, and that a rejected
// document leaves the registry unchanged.
func TestApplyErrors(t *testing.T) {
	evil := key(t, "evil")
	for name, c := range map[string]struct {
		doc  func(root, policy *sign.Key) contract.TrustKey
		want string
	}{
		"no key": {func(root, policy *sign.Key) contract.TrustKey {
			return trust.Publish(root, contract.TrustKey{KID: "k"})
		}, "public key is not 32 bytes"},
		"a key that is cut": {func(root, _ *sign.Key) contract.TrustKey {
			return trust.Publish(root, contract.TrustKey{KID: "k", PublicKey: "AAAA"})
		}, "public key is not 32 bytes"},
		"a key in no base64": {func(root, _ *sign.Key) contract.TrustKey {
			return trust.Publish(root, contract.TrustKey{KID: "k", PublicKey: "!"})
		}, "public key is not 32 bytes"},
		"another's id": {func(root, _ *sign.Key) contract.TrustKey {
			d := doc(root, evil, "x", false)
			d.KID = "k-0"
			return trust.Publish(root, d)
		}, "id does not belong to the public key"},
		"signed by a service":  {func(_, policy *sign.Key) contract.TrustKey { return doc(policy, evil, "x", false) }, "not signed by a trusted root"},
		"signed by a stranger": {func(_, _ *sign.Key) contract.TrustKey { return doc(evil, evil, "x", false) }, "not signed by a trusted root"},
		"the root again": {func(root, _ *sign.Key) contract.TrustKey {
			return doc(root, root, "provision", false, contract.UseRoot)
		}, "published twice"},
		"changed after": {func(root, _ *sign.Key) contract.TrustKey {
			d := doc(root, evil, "x", false)
			d.Owner = "policy"
			return d
		}, "signature does not verify"},
		"revoked unpublished": {func(root, _ *sign.Key) contract.TrustKey { return doc(root, evil, "x", true) }, "revoked before it was published"},
		"revoked for another owner": {func(root, policy *sign.Key) contract.TrustKey {
			return doc(root, policy, "audit", true, contract.UseDecision, contract.UseReceipt)
		}, "revoked as a key of audit, and belongs to policy"},
		"the last root": {func(root, _ *sign.Key) contract.TrustKey { return doc(root, root, "provision", true, contract.UseRoot) }, "the last root cannot be revoked"},
	} {
		r, root, policy := registry(t)
		before := r.Dump()
		d := c.doc(root, policy)
		if err := r.Apply(d, 9); err == nil || !strings.HasPrefix(err.Error(), "trust: key "+d.KID+": "+c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if !bytes.Equal(before, r.Dump()) {
			t.Errorf("%s: changed the registry", name)
		}
	}
}

// TestRevokedByTenant shows that a document for another owner or tenant does not revoke a
// person's key, and that a revocation of a service's key for another tenant is accepted, since
// the mesh's own keys move to another tenant when the cell is opened.
func TestRevokedByTenant(t *testing.T) {
	r, root, policy := registry(t)
	ann := key(t, "ann")
	of := func(k *sign.Key, owner, tenant string, revoked bool) contract.TrustKey {
		d := doc(root, k, owner, revoked, contract.UseApproval)
		d.Tenant = tenant
		return trust.Publish(root, d)
	}
	if err := r.Apply(of(ann, contract.OwnerApprover+"ann", "a", false), 6); err != nil {
		t.Fatal(err)
	}
	for _, d := range []contract.TrustKey{of(ann, contract.OwnerApprover+"ann", "b", true), of(ann, contract.OwnerApprover+"bob", "a", true), of(ann, contract.OwnerBundle+"ann", "a", true)} {
		if err := r.Apply(d, 7); err == nil || !strings.Contains(err.Error(), "belongs to approver:a/ann") {
			t.Errorf("%s of %s: %v", d.Owner, d.Tenant, err)
		}
	}
	if _, err := r.At(ann.KID, "approver:a/ann", contract.UseApproval, 8); err != nil {
		t.Error("the key is revoked:", err)
	}
	if err := r.Apply(of(ann, contract.OwnerApprover+"ann", "a", true), 9); err != nil {
		t.Error(err)
	}
	if _, err := r.At(ann.KID, "approver:a/ann", contract.UseApproval, 9); err == nil {
		t.Error("the key is not revoked")
	}
	if err := r.Apply(of(policy, "policy", contract.CellTenant, true), 10); err != nil {
		t.Error(err)
	}
}

// TestForeignRoot shows that a key of policy with the use root is not a root key: it can
// be revoked while there is one root key, and that root key still cannot be revoked.
func TestForeignRoot(t *testing.T) {
	r, root, _ := registry(t)
	foreign := key(t, "foreign")
	if err := r.Apply(doc(root, foreign, "policy", false, contract.UseRoot), 7); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(doc(root, root, "provision", true, contract.UseRoot), 8); err == nil {
		t.Error("a foreign key counts as a second root key")
	}
	if err := r.Apply(doc(root, foreign, "policy", true, contract.UseRoot), 9); err != nil {
		t.Error("a foreign key counts as the last root key:", err)
	}
	if _, err := r.At(foreign.KID, "policy", contract.UseRoot, 9); err == nil {
		t.Error("the foreign key is not revoked")
	}
}

// TestAt shows that a key is valid for its owner and its uses only, from its publication
// until just before its first revocation. It also checks Publics and Has.
func TestAt(t *testing.T) {
	r, root, policy := registry(t)
	if err := r.Apply(doc(root, policy, "policy", true, contract.UseDecision, contract.UseReceipt), 9); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(doc(root, policy, "policy", true, contract.UseDecision, contract.UseReceipt), 12); err != nil {
		t.Fatal("revoked again:", err)
	}
	for _, c := range []struct {
		kid, owner, use string
		lamport         uint64
		want            string // part of the expected error; empty = the key is valid
	}{
		{policy.KID, "policy", contract.UseDecision, 5, ""}, {policy.KID, "policy", contract.UseReceipt, 8, ""},
		{policy.KID, "policy", contract.UseDecision, 4, "not yet published at lamport 4"}, {policy.KID, "policy", contract.UseDecision, 9, "was revoked at lamport 9"},
		{policy.KID, "audit", contract.UseDecision, 5, "belongs to policy, not to audit"}, {policy.KID, "policy", contract.UseRoot, 5, "is not for root"}, {"k-0", "policy", contract.UseDecision, 5, "is not in the trust registry"},
	} {
		got, err := r.At(c.kid, c.owner, c.use, c.lamport)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || (err == nil) != bytes.Equal(got, policy.Public()) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if n := len(r.Publics("policy", contract.UseDecision, 8)); n != 1 {
		t.Errorf("%d keys", n)
	}
	if n := len(r.Publics("policy", contract.UseDecision, 9)); n != 0 {
		t.Errorf("%d keys after the revocation", n)
	}
	if !r.Has(policy.KID) || r.Has("k-0") {
		t.Error("Has")
	}
}

// TestCurrent shows that Current returns the newest key of the owner for the use that is
// not revoked, and false if there is none.
func TestCurrent(t *testing.T) {
	r, root, old := registry(t)
	next := key(t, "policy-2")
	current := func() string { k, _ := r.Current("policy", contract.UseDecision); return k.KID }
	if current() != old.KID {
		t.Error(current())
	}
	for _, step := range []struct {
		doc  contract.TrustKey
		want string
	}{
		{doc(root, next, "policy", false, contract.UseDecision), next.KID},
		{doc(root, key(t, "other use"), "policy", false, contract.UseReceipt), next.KID},
		{doc(root, key(t, "other owner"), "audit", false, contract.UseDecision), next.KID},
		{doc(root, next, "policy", true, contract.UseDecision), old.KID},
		{doc(root, old, "policy", true, contract.UseDecision, contract.UseReceipt), ""},
	} {
		if err := r.Apply(step.doc, 9); err != nil {
			t.Fatal(err)
		}
		if got := current(); got != step.want {
			t.Errorf("%s, want %s", got, step.want)
		}
	}
	if _, ok := r.Current("policy", contract.UseDecision); ok {
		t.Error("a revoked key is current")
	}
}

// TestDump shows that the dump has one line per key, with the Lamport times of its
// publication and revocation, in order of publication and then of key id.
func TestDump(t *testing.T) {
	r, root, policy := registry(t)
	if err := r.Apply(doc(root, key(t, "a"), "a", false, contract.UseSeal), 5); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(doc(root, policy, "policy", true, contract.UseDecision, contract.UseReceipt), 9); err != nil {
		t.Fatal(err)
	}
	ids := []string{policy.KID, key(t, "a").KID}
	revoked := []string{"9", "0"}
	if ids[0] > ids[1] {
		ids[0], ids[1], revoked[0], revoked[1] = ids[1], ids[0], "0", "9"
	}
	lines := strings.Split(string(r.Dump()), "\n")
	if len(lines) != 4 || lines[3] != "" {
		t.Fatalf("%q", lines)
	}
	for i, want := range []string{root.KID, ids[0], ids[1]} {
		if !strings.Contains(lines[i], `"kid":"`+want+`"`) {
			t.Errorf("line %d is not of %s: %s", i+1, want, lines[i])
		}
	}
	for i, since := range []string{`"revoked_since":"0","since":"1"}`, `"revoked_since":"` + revoked[0] + `","since":"5"}`, `"revoked_since":"` + revoked[1] + `","since":"5"}`} {
		if !strings.HasSuffix(lines[i], since) {
			t.Errorf("line %d: %s, want …%s", i+1, lines[i], since)
		}
	}
}

// TestEpoch shows that VerifyEpoch accepts only canonical documents of provision that a
// root key signed, that open an epoch after the first, and that are for the tenant of
// their event.
func TestEpoch(t *testing.T) {
	r, root, policy := registry(t)
	for name, c := range map[string]struct {
		change func(e *contract.Event, l *contract.LogEpoch)
		signer *sign.Key
		want   string
	}{
		"opened":               {func(*contract.Event, *contract.LogEpoch) {}, root, ""},
		"the first":            {func(_ *contract.Event, l *contract.LogEpoch) { l.Epoch = 1 }, root, "not the opening of a log epoch"},
		"by another service":   {func(e *contract.Event, _ *contract.LogEpoch) { e.Source = "audit/audit-1" }, root, "not the opening of a log epoch"},
		"of another mesh":      {func(_ *contract.Event, l *contract.LogEpoch) { l.Tenant = "u" }, root, "not the opening of a log epoch"},
		"by a key of policy's": {func(*contract.Event, *contract.LogEpoch) {}, policy, "belongs to policy"},
		"by a stranger":        {func(*contract.Event, *contract.LogEpoch) {}, key(t, "evil"), "not in the trust registry"},
		"before the root":      {func(e *contract.Event, _ *contract.LogEpoch) { e.Lamport = 0 }, root, "not yet published"},
	} {
		e, l := &contract.Event{Source: "provision/p", Tenant: "t", Lamport: 20}, contract.LogEpoch{Checkpoint: "sha256:0", Epoch: 2, Reason: "lost", Tenant: "t"}
		c.change(e, &l)
		l = trust.SignEpoch(c.signer, l)
		e.Data = contract.Bytes(&l)
		got, err := trust.VerifyEpoch(e, r.At)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got != l {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, c.want)
		}
	}
	l := trust.SignEpoch(root, contract.LogEpoch{Epoch: 2, Tenant: "t"})
	l.Reason = "another"
	e := &contract.Event{Source: "provision/p", Tenant: "t", Lamport: 20, Data: contract.Bytes(&l)}
	if _, err := trust.VerifyEpoch(e, r.At); err == nil {
		t.Error("changed and accepted")
	}
	e.Data = append(e.Data, ' ')
	if _, err := trust.VerifyEpoch(e, r.At); err == nil || strings.Contains(err.Error(), "signature") {
		t.Error("not canonical:", err)
	}
}
