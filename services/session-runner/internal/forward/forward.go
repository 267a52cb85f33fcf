// Package forward connects a sandbox to its proxy: it listens on a TCP port in the sandbox's
// network namespace and copies each connection to a unix socket on the host.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Address is the address of the listener in the sandbox.
const Address = "127.0.0.1:3128"

// MaxConns is the maximum number of connections that a Forwarder copies at a time. A
// further connection waits until another one has ended.
const MaxConns = 128

// dialTime is the maximum time to connect to the unix socket.
const dialTime = 5 * time.Second

// Forwarder copies the connections of one sandbox. It is safe for concurrent use.
type Forwarder struct {
	listener net.Listener
	socket   string
	slots    chan struct{}
	ctx      context.Context // done when Close was called
	stop     context.CancelFunc
	all      sync.WaitGroup
	bytes    atomic.Int64
}

// Start listens on Address in the network namespace ns, and copies each connection to the unix
// socket with the given path until Close is called. The loopback device of the namespace is up when
// Start returns without an error. The caller can close ns then. Start returns an error if ns is the
// namespace of this process, if the path is not that of a socket, if Address is in use in ns, or if
// this process lacks a capability that it needs: CAP_SYS_ADMIN, and CAP_NET_ADMIN if the loopback
// device is down.
func Start(ns *os.File, socket string) (*Forwarder, error) {
	if err := check(socket); err != nil {
		return nil, err
	}
	var l net.Listener
	if err := within(ns, func() (err error) {
		if err = loopbackUp(); err == nil {
			var plain net.ListenConfig
			plain.SetMultipathTCP(false)
			l, err = plain.Listen(context.Background(), "tcp4", Address)
		}
		return err
	}); err != nil {
		if l != nil {
			_ = l.Close()
		}
		return nil, err
	}
	return serve(l, socket), nil
}

// Serve copies each connection of a TCP listener, which is in the network namespace of a sandbox,
// to the unix socket with the given path until Close is called, which also closes the listener. It
// returns an error, and does not close the listener, if the path is not that of a socket.
func Serve(l net.Listener, socket string) (*Forwarder, error) {
	if err := check(socket); err != nil {
		return nil, err
	}
	return serve(l, socket), nil
}

func serve(l net.Listener, socket string) *Forwarder {
	f := &Forwarder{listener: l, socket: socket, slots: make(chan struct{}, MaxConns)}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.all.Go(f.accept)
	return f
}

// check returns an error if the path is not that of a unix socket.
func check(socket string) error {
	switch i, err := os.Stat(socket); {
	case err != nil:
		return err
	case i.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s is not a unix socket", socket)
	}
	return nil
}

// Close closes the listener and all connections, including those whose data was not
// copied yet. When it returns, no goroutine and no descriptor of the Forwarder is left,
// and Bytes no longer changes.
func (f *Forwarder) Close() {
	f.stop()
	_ = f.listener.Close()
	f.all.Wait()
}

// Bytes returns the number of bytes that were copied, in both directions together.
func (f *Forwarder) Bytes() int64 { return f.bytes.Load() }

// acceptPause is the time after which accept repeats a failed call.
const acceptPause = 10 * time.Millisecond

// accept accepts connections until Close is called.
func (f *Forwarder) accept() {
	for {
		select {
		case f.slots <- struct{}{}:
		case <-f.ctx.Done():
			return
		}
		inside, err := f.listener.Accept()
		if err == nil {
			f.all.Go(func() {
				defer func() { <-f.slots }()
				f.serve(inside.(*net.TCPConn))
			})
			continue
		}
		<-f.slots
		select {
		case <-f.ctx.Done():
			return
		case <-time.After(acceptPause): // the process may have no descriptor left for now
		}
	}
}

// serve copies one connection in both directions until both have ended or Close is
// called. It closes the connection at once if the unix socket cannot be reached.
func (f *Forwarder) serve(inside *net.TCPConn) {
	defer inside.Close()
	dialer := net.Dialer{Timeout: dialTime}
	conn, err := dialer.DialContext(f.ctx, "unix", f.socket)
	if err != nil {
		return
	}
	outside := conn.(*net.UnixConn)
	defer outside.Close()
	abort := func() { _, _ = inside.Close(), outside.Close() }
	ended := make(chan struct{})
	defer close(ended)
	f.all.Go(func() {
		select {
		case <-f.ctx.Done():
			abort()
		case <-ended:
		}
	})
	var both sync.WaitGroup
	both.Go(func() { f.copy(outside, inside, abort) })
	both.Go(func() { f.copy(inside, outside, abort) })
	both.Wait()
}

// half is a connection whose direction of writing can be closed alone.
type half interface {
	io.ReadWriter
	CloseWrite() error
}

// copy copies from one connection to the other until the end of from, and then closes the
// direction of writing of to. It calls abort if reading fails. If writing fails, it
// discards the rest of from, because the other direction may still transfer data.
func (f *Forwarder) copy(to, from half, abort func()) {
	buf := make([]byte, 32<<10)
	var failed error
	for {
		n, err := from.Read(buf)
		if n > 0 && failed == nil {
			var written int
			written, failed = to.Write(buf[:n])
			f.bytes.Add(int64(written))
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = to.CloseWrite() // fails if the connection was closed
			return
		case err != nil:
			abort()
			return
		}
	}
}
