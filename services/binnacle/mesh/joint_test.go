package mesh

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// violation fails the test unless the server has rejected the last operation of c
// because of a permission for subject.
func violation(t *testing.T, c *bus.Conn, what, subject string) {
	t.Helper()
	if err := c.NC.Flush(); err != nil { // the server's error arrives before the response to Flush
		t.Fatal(err)
	}
	if err := c.NC.LastError(); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), `"`+subject+`"`) {
		t.Errorf("%s: %s is not refused: %v", what, subject, err)
	}
}

// TestJointPermissions checks that a service that is a user of the account MESH has the
// permissions that its own account would give it: it cannot publish another service's
// events, change or empty a stream, take another service's work, or receive another
// service's messages; and that the response to a request for a sync is not stored under
// an event subject that is named as the reply subject.
func TestJointPermissions(t *testing.T) {
	b := meshtest.StartMode(t, Declarations(), true)
	admin := b.Connect(t, "provision")
	for i := range Declarations() {
		d := &Declarations()[i]
		t.Run(d.Service, func(t *testing.T) {
			c := b.ConnectJoint(t, d.Service)
			offer(t, admin, c, d)
			before := stored(t, admin)
			for _, r := range forbidden(d, anotherThan(d)) {
				if err := c.NC.PublishRequest(r.subject, c.NC.NewInbox(), r.body); err != nil {
					t.Fatal(err)
				}
				violation(t, c, r.what, r.subject)
			}
			for _, subject := range []string{">", "evt.>", "tmp.>", "$JS.>", "_INBOX.>", "_INBOX." + anotherThan(d) + ".>", "_INBOX.provision.>", bus.SyncSubject} {
				if _, err := c.NC.SubscribeSync(subject); err != nil {
					t.Fatal(err)
				}
				violation(t, c, "subscribe", subject)
			}
			if err := c.NC.PublishRequest(bus.SyncSubject, "evt.t."+anotherThan(d)+".-.forged.k", nil); err != nil {
				t.Fatal(err)
			}
			if err := c.Durable(t.Context()); err != nil { // the syncer has processed the request before this one
				t.Error(err)
			}
			unchanged(t, admin, before, ownSubject(d))
		})
	}
}

// TestListener attacks a mesh in one process through its NATS listener. The identities of
// the services in the process cannot connect over the network. The identities of the key
// ring have accounts of their own there, with the permissions that TestPermissions
// checks.
func TestListener(t *testing.T) {
	addr, dir := ports.Free(t), t.TempDir()
	m, err := Start(t.Context(), Config{Dir: dir, Addr: "127.0.0.1:0", NATSListen: addr, Power: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	}()
	ring, err := Init(dir, "default")
	if err != nil {
		t.Fatal(err)
	}
	d := bus.Dialer{URL: "nats://" + addr}
	admin, err := Provisioning(d, ring)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for i := range Declarations() {
		decl := &Declarations()[i]
		t.Run(decl.Service, func(t *testing.T) {
			seed := m.seeds[decl.Service]
			kp, err := nkeys.FromSeed(seed)
			if err != nil {
				t.Fatal(err)
			}
			public, err := kp.PublicKey()
			if err != nil {
				t.Fatal(err)
			}
			if nc, err := nats.Connect(d.URL, nats.Nkey(public, kp.Sign)); !errors.Is(err, nats.ErrAuthorization) {
				if err == nil {
					nc.Close()
				}
				t.Errorf("the identity of this process over the network: %v", err)
			}
			if seed, err = ring.NKey(decl.Service); err != nil {
				t.Fatal(err)
			}
			c, err := bus.Connect(d, seed, decl.Service, false)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.JS.Publish(t.Context(), ownSubject(decl), []byte("{}")); err != nil {
				t.Fatalf("cannot publish its own event: %v", err)
			}
			for _, r := range forbidden(decl, anotherThan(decl)) {
				refused(t, c, r)
			}
			forge(t, c, decl)
			forged := "evt.t." + anotherThan(decl) + ".-.forged.k"
			if seq, err := admin.Last(t.Context(), bus.Events, forged); err != nil || seq != 0 {
				t.Errorf("forged at %d: %v", seq, err)
			}
		})
	}
}
