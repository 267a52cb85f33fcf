package forward

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Receive returns the TCP listener whose descriptor the peer of a connection sends
// (unix(7), SCM_RIGHTS). The peer is in the network namespace of a sandbox.
func Receive(conn *net.UnixConn) (net.Listener, error) {
	var data [1]byte
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(data[:], control)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("the sandbox sent no descriptor"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("the sandbox sent no descriptor"), err)
	}
	file := os.NewFile(uintptr(fds[0]), "listener")
	defer file.Close() // FileListener copies the descriptor
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	if _, ok := l.(*net.TCPListener); !ok {
		return nil, errors.Join(errors.New("the sandbox sent another descriptor than that of a TCP listener"), l.Close())
	}
	return l, nil
}

// Send listens on Address in the network namespace of this process, whose loopback device it
// sets up, and sends the descriptor of the listener through the unix socket with the
// descriptor to. The caller must close the descriptor that it returns.
func Send(to int) (listener int, err error) {
	if err := loopbackUp(); err != nil {
		return -1, err
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	at := netip.MustParseAddrPort(Address)
	if err = unix.Bind(l, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err == nil {
		err = unix.Listen(l, MaxConns)
	}
	if err == nil {
		err = unix.Sendmsg(to, []byte{1}, unix.UnixRights(l), nil, unix.MSG_NOSIGNAL)
	}
	if err != nil {
		_ = unix.Close(l)
		return -1, err
	}
	return l, nil
}
