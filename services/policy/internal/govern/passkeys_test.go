package govern

import (
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/passkey/passkeytest"
	events "github.com/binnacle-mesh/binnacle/schemas/policy"
)

// TestPasskeys shows that only a gateway registers a passkey, of a registered person, once,
// with a key that is supported; that a passkey is removed by its person or an administrator;
// that the end of the link to an identity removes a person's passkeys; and that a passkey that
// was removed is not found, and is not registered again.
func TestPasskeys(t *testing.T) {
	d := &desk{t: t, lamport: 1}
	for _, p := range []struct{ name, kind string }{{"ann", Person}, {"bob", Person}, {"robot", Agent}} {
		d.fold(0, events.PrincipalRegisteredName, &events.PrincipalRegistered{Principal: p.name, Type: p.kind})
	}
	device := passkeytest.New("https://mesh.example", "mesh.example")
	register := func(actor, client string, change func(*registerPasskeyArgs)) error {
		r := device.Registered(actor)
		a := registerPasskeyArgs{AAGUID: r.AAGUID, Attestation: r.Attestation, ID: r.ID, Name: r.Name, Origin: r.Origin, PublicKey: r.PublicKey, RPID: r.RPID, SignCount: r.SignCount}
		if change != nil {
			change(&a)
		}
		_, err := d.byGateway(actor, client, KindRegisterPasskey, 0, a)
		return err
	}
	remove := func(actor string, held []string, id string) error {
		_, err := d.with(actor, "-", held, KindRemovePasskey, 0, removePasskeyArgs{id, "lost"})
		return err
	}
	id := device.Registered("ann").ID
	d.refused(register("ann", "cli", nil), "on the page /auth/passkeys")
	d.refused(register("robot", "login/browser", nil), "only persons")
	d.refused(register("eve", "login/browser", nil), "not registered")
	d.refused(register("ann", "login/browser", func(a *registerPasskeyArgs) { a.PublicKey = "AAAA" }), "public_key: ")
	d.refused(register("ann", "login/browser", func(a *registerPasskeyArgs) { a.Origin = "http://mesh.example" }), "origin: ")
	d.ok(register("ann", "login/browser", nil))
	d.refused(register("bob", "login/browser", nil), "registered before")
	if p, n, err := d.st.Passkeys.Find(id); err != nil || p.Principal != "ann" || n != 1 {
		t.Fatal(p, n, err)
	}
	d.refused(remove("bob", nil, id), "not found")
	d.refused(remove("bob", []string{"approvals:vote"}, id), "not found")
	d.ok(remove("bob", []string{"policy:admin"}, id))
	d.refused(remove("ann", nil, id), "not found")
	if _, _, err := d.st.Passkeys.Find(id); err == nil {
		t.Error("a passkey that was removed is found")
	}
	d.refused(register("ann", "login/browser", nil), "registered before")

	for n := range MaxPasskeys {
		device = passkeytest.New("https://mesh.example", "mesh.example")
		d.ok(register("ann", "login/browser", func(a *registerPasskeyArgs) { a.Name = strings.Repeat("x", n+1) }))
	}
	d.refused(remove("bob", nil, device.Registered("ann").ID), "not found")
	device = passkeytest.New("https://mesh.example", "mesh.example")
	d.refused(register("ann", "login/browser", nil), "remove one first")
	d.fold(time.Second, events.IdentityUnlinkedName, &events.IdentityUnlinked{Identity: "x", Principal: "ann", Reason: "left"})
	n := 0
	for _, i := range d.st.Identities() {
		if i.Kind == "passkey" {
			if n++; i.Principal != "ann" || i.To == 0 || i.Name == "" {
				t.Errorf("%+v", i)
			}
		}
	}
	if n != MaxPasskeys+1 {
		t.Error(n, "passkeys")
	}
	d.st.Passkeys.Signed(id, 7)
	if !strings.Contains(string(d.st.Dump()), `{"count":7,"passkey":"`+id+`"}`) {
		t.Errorf("%s", d.st.Dump())
	}
	if !Folds(contract.EventPasskeyRegistered) || !InPerson(KindRegisterPasskey) {
		t.Error("the registration is not an event of the state, or may be made with a virtual key")
	}
}
