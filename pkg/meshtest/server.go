// Package meshtest gives tests a real, provisioned bus.
package meshtest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
)

// Bus is an embedded, provisioned server.
type Bus struct {
	Server *server.Server
	Decls  []bus.Declaration
	seeds  map[string][]byte
	config string
}

// Start brings up an embedded server for the declarations in a directory of
// the test, with real identities and permissions.
func Start(t testing.TB, decls []bus.Declaration) *Bus { return StartMode(t, decls, false) }

// StartMode is Start in durability mode power, or process.
func StartMode(t testing.TB, decls []bus.Declaration, power bool) *Bus {
	t.Helper()
	b := &Bus{Decls: decls, seeds: map[string][]byte{}}
	opts := bus.ServerOptions{StoreDir: t.TempDir(), MaxFile: "4G", SyncAlways: power, ServiceKeys: map[string]string{}}
	opts.ProvisionKey = b.identity(t, "provision")
	for _, d := range decls {
		opts.ServiceKeys[d.Service] = b.identity(t, d.Service)
	}
	var err error
	if b.config, err = bus.ServerConfig(decls, opts); err != nil {
		t.Fatal(err)
	}
	b.Up(t)
	t.Cleanup(func() { b.Down() })
	return b
}

// Up starts the server and provisions it; Down stops it. Files stay.
func (b *Bus) Up(t testing.TB) {
	t.Helper()
	var err error
	if b.Server, err = embed.Start(b.config); err != nil {
		t.Fatal(err)
	}
	admin := b.Connect(t, "provision")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := bus.Provision(ctx, admin.JS, b.Decls, 1); err != nil {
		t.Fatal(err)
	}
}

// Down stops the server.
func (b *Bus) Down() { b.Server.Shutdown(); b.Server.WaitForShutdown() }

func (b *Bus) identity(t testing.TB, name string) string {
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := kp.Seed()
	b.seeds[name] = seed
	public, _ := kp.PublicKey()
	return public
}

// Seed returns a service's nkey seed.
func (b *Bus) Seed(service string) []byte { return b.seeds[service] }

// Connect dials as a service, or as "provision".
func (b *Bus) Connect(t testing.TB, service string) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(bus.Dialer{Server: b.Server}, b.seeds[service], service, service == "provision")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.NC.Close)
	return c
}
