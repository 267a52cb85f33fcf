package keyring

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// TestTenants checks the tenants of a ring's documents: keys of approvers and signers of
// bundles are for the tenant that AddKey received, or for the original tenant; all other
// keys are for the cell's tenant, or for the original tenant in the ring of an earlier
// release. A revocation is for the same tenant as the key.
func TestTenants(t *testing.T) {
	for name, r := range map[string]*Ring{contract.CellTenant: newRing(t), "acme": released(t)} {
		t.Run(name, func(t *testing.T) { checkTenants(t, r, name) })
	}
}

// checkTenants adds keys to a ring whose original tenant is acme, and rotates and revokes
// keys. own is the tenant of the mesh's own keys.
func checkTenants(t *testing.T, r *Ring, own string) {
	add := func(use, name, tenant string) string {
		t.Helper()
		kid, err := r.AddKey(use, name, tenant, nil)
		if err != nil {
			t.Fatal(err)
		}
		return kid
	}
	want := map[string]string{ // tenants by key id
		add(contract.UseApproval, "bob", ""):      "acme",
		add(contract.UseApproval, "bob", "b_p_e"): "b_p_e",
		add(contract.UseBundle, "ci", "b_p_e"):    "b_p_e",
		add(contract.UseWitness, "w1", ""):        own,
	}
	kid, err := r.Rotate("policy")
	if err != nil {
		t.Fatal(err)
	}
	want[kid] = own
	for kid := range want {
		if err := r.Revoke(kid); err != nil {
			t.Fatal(err)
		}
	}
	docs, err := r.Trust()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range docs {
		if w, ok := want[d.KID]; ok {
			found++
			if d.Tenant != w {
				t.Errorf("%s of %s, revoked %t: tenant %s, want %s", d.KID, d.Owner, d.Revoked, d.Tenant, w)
			}
		} else if d.Tenant != own {
			t.Errorf("%s of %s: tenant %s, want %s", d.KID, d.Owner, d.Tenant, own)
		}
	}
	if found != 2*len(want) {
		t.Errorf("%d documents of %d keys", found, len(want))
	}
	if tenant, err := r.Tenant(); err != nil || tenant != "acme" {
		t.Error(tenant, err)
	}
	for _, name := range []string{"approval-bob.seed", "approval-b_p_e.bob.seed", "bundle-b_p_e.ci.seed", "witness-w1.seed"} {
		if _, err := r.Seed(name); err != nil {
			t.Error(err)
		}
	}
}

// TestAddKeyErrors checks the errors for an invalid use, name or tenant, and that no file is
// then added to the ring's folder itself.
func TestAddKeyErrors(t *testing.T) {
	r := newRing(t)
	before, err := os.ReadDir(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ use, name, tenant, want string }{
		{contract.UseReceipt, "bob", "", "want approval, bundle or witness"},
		{contract.UseApproval, "bob.smith", "", "is not made of"},
		{contract.UseApproval, "", "", "is not made of"},
		{contract.UseWitness, "w1", "b_p_e", "belongs to the whole mesh"},
		{contract.UseApproval, "bob", "b.p.e", "want the id of a tenant"},
		{contract.UseBundle, "ci", "_org-x", "want the id of a tenant"},
	} {
		if kid, err := r.AddKey(c.use, c.name, c.tenant, nil); kid != "" || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %s, %v", c, kid, err)
		}
	}
	if after, err := os.ReadDir(r.Dir); err != nil || len(after) != len(before) {
		t.Errorf("%d files, were %d: %v", len(after), len(before), err)
	}
}

// newRing returns a new ring with the original tenant acme.
func newRing(t *testing.T) *Ring {
	t.Helper()
	r, err := Init(t.TempDir(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// released returns a ring as an earlier release made it: its keys are for the tenant acme,
// and it has no documents about the cell and operators.
func released(t *testing.T) *Ring {
	t.Helper()
	r := newRing(t)
	docs, err := r.Trust()
	if err != nil {
		t.Fatal(err)
	}
	root, err := r.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{trustDir, operatorDir, cellFile} {
		if err := os.RemoveAll(r.Path(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range docs {
		d.Tenant, d.Sig = "acme", ""
		if err := r.publish(root, d); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// TestInit shows that a new ring holds the document that opens the cell with the given
// original tenant, and one operator; that a second Init changes neither; that an interrupted
// Init is completed; and that Init with an invalid tenant leaves no file.
func TestInit(t *testing.T) {
	r := newRing(t)
	check := func() *contract.CellOpened {
		t.Helper()
		again, err := Init(r.Dir, "ignored")
		if err != nil || again.RootKID != r.RootKID {
			t.Fatal(again, err)
		}
		o, err := again.Cell()
		if want := (contract.CellOpened{Cell: contract.CellTenant, Log: contract.CellTenant, Tenant: "acme", SignerKID: r.RootKID}); err != nil || o == nil || o.Sig == "" {
			t.Fatalf("%+v, %v", o, err)
		} else if body := *o; func() bool { body.Sig = ""; return body != want }() {
			t.Errorf("%+v, want %+v", body, want)
		}
		operators, err := Operators(again)
		if err != nil || len(operators) != 1 || operators[0].Principal != Operator {
			t.Errorf("operators %+v, %v", operators, err)
		}
		if log, err := again.Log(); log != contract.CellTenant || err != nil {
			t.Error(log, err)
		}
		if tenant, err := again.Tenant(); tenant != "acme" || err != nil {
			t.Error(tenant, err)
		}
		return o
	}
	first := check()
	if o, err := r.OpenCell(); err != nil || *o != *first {
		t.Error("signed again:", o, err)
	}
	for _, missing := range [][]string{{rootKID}, {rootKID, cellFile}} {
		for _, name := range missing {
			if err := os.Remove(r.Path(name)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Init(r.Dir, "acme"); err != nil {
			t.Fatal(err)
		}
		check()
	}

	for _, tenant := range []string{"", "_cell", "_x", "a.b", "a b"} {
		dir := t.TempDir()
		if _, err := Init(dir, tenant); !errors.Is(err, ErrTenant) {
			t.Errorf("%q: %v", tenant, err)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Errorf("%q: %d files are left, %v", tenant, len(files), err)
		}
	}
}

// TestInitContinued shows that Init completes a ring that an earlier release began to
// make, and that the ring keeps its tenant although Init receives another one.
func TestInitContinued(t *testing.T) {
	r := released(t)
	if err := os.Remove(r.Path(rootKID)); err != nil {
		t.Fatal(err)
	}
	r, err := Init(r.Dir, "other")
	if err != nil {
		t.Fatal(err)
	}
	if o, err := r.Cell(); err != nil || o.Log != "acme" || o.Tenant != "acme" {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestCell checks the document that opens the cell of a ring of an earlier release: that it
// is signed only once, also after a rotation of the root key or without the root seed; that
// it is signed again if the key that signed it was revoked; and to which tenants keys belong
// then. A document that is changed, cut off or of another ring is an error, and so is a
// tenant with a reserved name.
func TestCell(t *testing.T) {
	r := released(t)
	if o, err := r.Cell(); o != nil || err != nil {
		t.Fatal(o, err)
	}
	first, err := r.OpenCell()
	if err != nil {
		t.Fatal(err)
	}
	if want := (contract.CellOpened{Cell: contract.CellTenant, Log: "acme", Sig: first.Sig, SignerKID: r.RootKID, Tenant: "acme"}); *first != want {
		t.Errorf("%+v, want %+v", first, want)
	}
	if _, err := r.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	if o, err := r.OpenCell(); err != nil || *o != *first {
		t.Error("signed again:", o, err)
	}
	if err := r.Revoke(r.RootKID); err != nil {
		t.Fatal(err)
	}
	next, err := r.OpenCell()
	if err != nil || next.SignerKID == first.SignerKID || next.Tenant != "acme" {
		t.Fatal(next, err)
	}
	for use, want := range map[string]string{contract.UseApproval: "acme", contract.UseWitness: contract.CellTenant} {
		if _, err := r.AddKey(use, "w", "", nil); err != nil {
			t.Fatal(err)
		}
		docs, err := r.Trust()
		if err != nil || docs[len(docs)-1].Tenant != want {
			t.Errorf("%s: %+v, %v", use, docs[len(docs)-1], err)
		}
	}
	if err := os.Remove(r.Path(rootSeed)); err != nil {
		t.Fatal(err)
	}
	if o, err := r.OpenCell(); err != nil || *o != *next {
		t.Error(o, err)
	}

	foreign := newRing(t)
	for name, content := range map[string]func() []byte{
		"of another ring": func() []byte { b, _ := os.ReadFile(foreign.Path(cellFile)); return b },
		"changed":         func() []byte { o := *next; o.SignerKID = first.SignerKID; return contract.Bytes(&o) },
		"of another log":  func() []byte { o := *next; o.Log = "b"; return contract.Bytes(&o) },
		"cut off":         func() []byte { return contract.Bytes(next)[:20] },
	} {
		if err := os.WriteFile(r.Path(cellFile), content(), 0o600); err != nil {
			t.Fatal(err)
		}
		if o, err := r.Cell(); o != nil || err == nil {
			t.Errorf("%s: accepted as %+v", name, o)
		}
		if tenant, err := r.Tenant(); tenant != "" || err == nil {
			t.Errorf("%s: tenant %s", name, tenant)
		}
	}

	if err := os.Remove(foreign.Path(cellFile)); err != nil { // a ring of an earlier release whose tenant has the reserved name
		t.Fatal(err)
	}
	if o, err := foreign.OpenCell(); o != nil || !errors.Is(err, ErrTenant) {
		t.Error(o, err)
	}
}

// TestAddKeyTwice shows that a public key that is in the ring, of another tenant or of the
// mesh itself, cannot be added again. With such a key, the ledger would not verify.
func TestAddKeyTwice(t *testing.T) {
	r := newRing(t)
	k, err := sign.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.AddKey(contract.UseApproval, "bob", "", k.Public()); err != nil {
		t.Fatal(err)
	}
	docs, err := r.Trust()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range docs {
		if d.Algorithm != "ed25519" {
			continue
		}
		public, err := sign.Base64(d.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		if kid, err := r.AddKey(contract.UseApproval, "eve", "b_p_e", public); kid != "" || err == nil || !strings.Contains(err.Error(), "key of its own") {
			t.Errorf("the key of %s: %s %v", d.Owner, kid, err)
		}
	}
	if after, err := r.Trust(); err != nil || len(after) != len(docs) {
		t.Error(len(after), err)
	}
}
