package bus

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// connectTimeout is the maximum time of an attempt to connect to the server.
const connectTimeout = 2 * time.Second

// identity is the NATS user key of a connection. It can be replaced; each attempt to connect
// uses the key that is current then. As the dialer of the connection it is called at the
// beginning of each attempt, while the connection's lock is held, so that it can
// set the public key that the attempt presents. It is safe for concurrent use.
type identity struct {
	timeout time.Duration
	conn    atomic.Pointer[nats.Conn] // nil until the connection was made

	mu     sync.Mutex
	pair   nkeys.KeyPair
	public string

	next  string    // public part of the key that Identify will use
	since time.Time // when the server was first found to accept it
}

// use makes the key of the seed the current one. It returns an error if the seed is invalid.
func (i *identity) use(seed []byte) error {
	pair, err := nkeys.FromSeed(seed)
	if err != nil {
		return err
	}
	public, err := pair.PublicKey()
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pair, i.public = pair, public
	return nil
}

// sign signs a nonce of the server with the current key.
func (i *identity) sign(nonce []byte) ([]byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pair.Sign(nonce)
}

// current returns the public part of the current key.
func (i *identity) current() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.public
}

// present sets the public key that an attempt to connect presents. The caller is called by the
// connection while its lock is held.
func (i *identity) present() {
	if nc := i.conn.Load(); nc != nil {
		nc.Opts.Nkey = i.current()
	}
}

// Dial implements nats.CustomDialer.
func (i *identity) Dial(network, address string) (net.Conn, error) {
	i.present()
	return net.DialTimeout(network, address, i.timeout)
}

// inProcess is an identity of connections to a server in this process.
type inProcess struct {
	*identity
	server nats.InProcessConnProvider
}

// InProcessConn implements nats.InProcessConnProvider.
func (p inProcess) InProcessConn() (net.Conn, error) {
	p.present()
	return p.server.InProcessConn()
}

// IdentityOf returns the public part of the NATS user key that the connection presents, or will
// present when it reconnects.
func IdentityOf(c *Conn) string { return c.id.current() }

// PullExpiry is the time after which the pull requests of consumers expire.
const PullExpiry = 10 * time.Second

// settle is the time between the first success of Identify and the reconnection. If a service
// reconnects while the server has a pull request that it received before it reloaded its
// accounts, the server delivers messages to that request until it expires, and they are lost.
const settle = PullExpiry + time.Second

// Identify makes the connection use the key of the seed, for which it is called repeatedly: it
// connects to the server with the new key, and returns an error without an effect if the server
// does not accept it. Once the server has accepted it for the duration settle, the next call
// replaces the key and reconnects. Requests that wait for a response then fail, as at every loss of
// the connection. It does nothing if the key is the current one. Only one goroutine may call it.
func Identify(c *Conn, seed []byte) error {
	var next identity
	if err := next.use(seed); err != nil {
		return err
	}
	if next.public == IdentityOf(c) {
		return nil
	}
	opts := []nats.Option{nats.Nkey(next.public, next.sign), nats.Timeout(connectTimeout), nats.NoReconnect()}
	if c.dialer.CA != "" {
		opts = append(opts, nats.RootCAs(c.dialer.CA))
	}
	url := c.dialer.URL
	if c.dialer.Server != nil {
		url, opts = nats.DefaultURL, append(opts, nats.InProcessServer(c.dialer.Server))
	}
	probe, err := nats.Connect(url, opts...)
	if err != nil {
		return fmt.Errorf("the server does not accept the new identity: %w", err)
	}
	probe.Close()
	if c.id.next != next.public {
		c.id.next, c.id.since = next.public, time.Now()
	}
	if time.Since(c.id.since) < settle {
		return nil
	}
	if err := c.id.use(seed); err != nil {
		return err
	}
	return c.NC.ForceReconnect()
}
