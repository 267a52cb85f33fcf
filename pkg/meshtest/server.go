// Package meshtest provides provisioned NATS servers for tests. Its own tests check the
// imports and the documents of the repository.
package meshtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
)

// Bus is an embedded, provisioned NATS server.
type Bus struct {
	Server *embed.Server
	Decls  []bus.Declaration
	seeds  map[string][]byte
	config string
}

// joint is the prefix, in Bus.seeds, of the names of identities in the account MESH.
const joint = "joint "

// Start starts and provisions an embedded server for the declarations, with real
// identities and permissions. Its files are in a directory of the test, and it is
// stopped when the test ends.
func Start(t testing.TB, decls []bus.Declaration) *Bus { return StartMode(t, decls, false) }

// StartMode is like Start, in durability mode power if power is set, else in mode
// process.
func StartMode(t testing.TB, decls []bus.Declaration, power bool) *Bus {
	t.Helper()
	b := &Bus{Decls: decls, seeds: map[string][]byte{}}
	opts := bus.ServerOptions{StoreDir: t.TempDir(), MaxFile: "4G", SyncAlways: power, ServiceKeys: map[string]string{}, ProcessKeys: map[string]string{}}
	opts.ProvisionKey = b.identity(t, "provision")
	opts.Mirror = &bus.MirrorKeys{Keeper: b.identity(t, "mirror"), Auditor: b.identity(t, "auditor")}
	for _, d := range decls {
		opts.ServiceKeys[d.Service] = b.identity(t, d.Service)
		opts.ProcessKeys[d.Service] = b.identity(t, joint+d.Service)
	}
	var err error
	if b.config, err = bus.ServerConfig(decls, opts); err != nil {
		t.Fatal(err)
	}
	b.Up(t)
	t.Cleanup(func() { b.Down() })
	return b
}

// Cluster is three embedded servers, with three replicas of every stream.
type Cluster struct {
	Servers [3]*embed.Server
	seeds   map[string][]byte
	configs [3]string
}

// StartCluster starts and provisions a cluster, which is stopped when the test ends.
func StartCluster(t testing.TB, decls []bus.Declaration) *Cluster {
	t.Helper()
	b := &Bus{seeds: map[string][]byte{}}
	keys := map[string]string{}
	provision := b.identity(t, "provision")
	for _, d := range decls {
		keys[d.Service] = b.identity(t, d.Service)
	}
	c := &Cluster{seeds: b.seeds}
	var routes []string
	for range c.Servers {
		routes = append(routes, ports.Free(t))
	}
	for i := range c.Servers {
		conf, err := bus.ServerConfig(decls, bus.ServerOptions{StoreDir: t.TempDir(), MaxFile: "4G", Listen: ports.Free(t), ProvisionKey: provision, ServiceKeys: keys,
			Cluster: &bus.Cluster{Server: fmt.Sprintf("n%d", i+1), Listen: routes[i], Routes: routes, Secret: "of-the-test"}})
		if err != nil {
			t.Fatal(err)
		}
		c.configs[i] = conf
		c.Up(t, i)
	}
	t.Cleanup(func() {
		for i := range c.Servers {
			c.Down(i)
		}
	})
	admin := c.Connect(t, "provision")
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for {
		err := bus.Provision(ctx, admin.JS, decls, len(c.Servers))
		if err == nil {
			return c
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Up starts server i.
func (c *Cluster) Up(t testing.TB, i int) {
	t.Helper()
	var err error
	if c.Servers[i], err = embed.Start(c.configs[i], nil); err != nil {
		t.Fatal(err)
	}
}

// Down stops server i and keeps its files.
func (c *Cluster) Down(i int) { c.Servers[i].Shutdown(); c.Servers[i].WaitForShutdown() }

// Connect connects as a service, or as "provision", to any server that is up. The
// connection is closed when the test ends.
func (c *Cluster) Connect(t testing.TB, service string) *bus.Conn {
	t.Helper()
	var urls []string
	for _, s := range c.Servers {
		urls = append(urls, s.ClientURL())
	}
	conn, err := bus.Connect(bus.Dialer{URL: strings.Join(urls, ",")}, c.seeds[service], service, service == "provision")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.NC.Close)
	return conn
}

// Up starts the server and provisions it.
func (b *Bus) Up(t testing.TB) {
	t.Helper()
	var err error
	if b.Server, err = embed.Start(b.config, nil); err != nil {
		t.Fatal(err)
	}
	admin := b.Connect(t, "provision")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := bus.Provision(ctx, admin.JS, b.Decls, 1); err != nil {
		t.Fatal(err)
	}
}

// Down stops the server and keeps its files.
func (b *Bus) Down() { b.Server.Shutdown(); b.Server.WaitForShutdown() }

// identity creates an nkey for name, stores its seed, and returns its public key.
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

// Connect connects as a service that has an account of its own, or as "provision",
// "mirror" or "auditor". The connection is closed when the test ends.
func (b *Bus) Connect(t testing.TB, service string) *bus.Conn {
	t.Helper()
	return b.connect(t, bus.Dialer{Server: b.Server}, service, b.seeds[service])
}

// ConnectJoint connects as a service in the account MESH, as the services of a mesh in
// one process do. The connection is closed when the test ends.
func (b *Bus) ConnectJoint(t testing.TB, service string) *bus.Conn {
	t.Helper()
	return b.connect(t, bus.Dialer{Server: b.Server, Joint: true}, service, b.seeds[joint+service])
}

func (b *Bus) connect(t testing.TB, d bus.Dialer, service string, seed []byte) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(d, seed, service, slices.Contains([]string{"provision", "mirror", "auditor"}, service))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.NC.Close)
	return c
}
