package containerd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/forward"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/sandbox"
)

// A container for a run with egress has a folder of the host mounted, read-only. Before the
// program, the launcher executes the listener: a program of about 400 bytes that listens at
// forward.Address in the network namespace of the container, sends the descriptor of its
// listener through a unix socket in that folder (unix(7), SCM_RIGHTS), and executes the
// launcher again. It exits with listenerFailed if one of its system calls fails. The
// session-runner accepts the connections of the container on that descriptor, so it needs
// neither to be root nor to see the processes of the container. The socket is removed before
// the program starts.
const (
	listenerPath   = "/pack/listener"
	listenerFailed = 126
	listenerFolder = "/run/egress" // the listener connects to the socket "s" in it
	listenerTime   = 10 * time.Second
	endedTime      = time.Second // time to accept the connection of a listener that has ended
)

// listeners holds the listener's machine code by GOARCH.
var listeners = map[string][]byte{"amd64": listenerAMD64, "arm64": listenerARM64}

// listenerELF returns the listener as a static ELF executable for the architecture, or nil if
// there is none for it.
func listenerELF(goarch string) []byte { return elf(launchers[goarch].machine, listeners[goarch]) }

// wayOut is the path of the folder on the host that is mounted in a container for a run
// with egress; "" means that the container has no egress. The folder has a folder for the
// socket, and a file for the certificate authority of the call.
type wayOut string

func (w wayOut) sockets() string   { return filepath.Join(string(w), "s") }
func (w wayOut) authority() string { return filepath.Join(string(w), "ca") }

// create creates the folder, with modes that let the container's user id read its content.
func (w wayOut) create() error {
	if err := os.MkdirAll(w.sockets(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(w.authority(), nil, 0o644)
}

// mounts returns the mounts of the container. The program can change nothing in them.
func (w wayOut) mounts() []specs.Mount {
	options := []string{"bind", "ro", "nosuid", "nodev", "noexec"}
	return []specs.Mount{{Destination: listenerFolder, Type: "bind", Source: w.sockets(), Options: options}, {Destination: sandbox.CAPath, Type: "bind", Source: w.authority(), Options: options}}
}

// checkEgress returns an error if a run cannot have this egress. e may be nil.
func checkEgress(e *sandbox.Egress) error {
	switch {
	case e == nil:
		return nil
	case launcherCode == nil:
		return fmt.Errorf("%w on this architecture", sandbox.ErrNoEgress)
	}
	return e.Check()
}

// egress writes the certificate authority of the call, obtains the listener of the container
// and starts the forwarder. It must be called before the program starts. It returns a
// function that ends the forwarder and returns the number of bytes that it copied. If way is
// nil, there is no forwarder, and the number is 0.
func (c *prepared) egress(way *sandbox.Egress) (stop func() int64, err error) {
	if way == nil {
		return way.Forward(nil)
	}
	if err := os.WriteFile(c.way.authority(), way.CA, 0o644); err != nil {
		return nil, fmt.Errorf("egress: certificate authority: %w", err)
	}
	l, err := c.listener()
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	f, err := forward.Serve(l, way.Socket)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", errors.Join(err, l.Close()))
	}
	return func() int64 { f.Close(); return f.Bytes() }, nil
}

// listener sends the launcher the message by which it executes the listener program, and returns
// the listener that this program opens in the network namespace of the container.
func (c *prepared) listener() (net.Listener, error) {
	message, err := startMessage([]string{listenerPath}, nil)
	if err != nil {
		return nil, err
	}
	// The launcher reads no byte after the message, so the start message of the program can follow.
	return c.way.receive(c.ended, func() error { _, err := c.stdin.Write(message); return err })
}

// receive returns the listener whose descriptor the container's listener program sends. begin
// starts that program, or sends the launcher the message by which it executes that program;
// ended is the end of the process that becomes it. begin is called in a goroutine of its own.
func (w wayOut) receive(ended *ending, begin func() error) (net.Listener, error) {
	dir, err := os.Open(w.sockets())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := fmt.Sprintf("/proc/self/fd/%d/s", dir.Fd()) // the path of a socket has at most 107 bytes
	in, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer in.Close()                                                                                         // removes the file of the socket too
	if err := errors.Join(os.Chmod(path, 0o666), in.SetDeadline(time.Now().Add(listenerTime))); err != nil { // no other container has the folder mounted
		return nil, err
	}
	begun := make(chan error, 1)
	go func() { begun <- begin() }()
	accepted := make(chan struct{})
	defer close(accepted)
	go func() {
		select {
		case <-ended.done:
			_ = in.SetDeadline(time.Now().Add(endedTime))
		case <-accepted:
		}
	}()
	conn, err := in.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("no listener in the container: %w", err)
	}
	defer conn.Close()
	if err := errors.Join(<-begun, conn.SetDeadline(time.Now().Add(listenerTime))); err != nil {
		return nil, err
	}
	return forward.Receive(conn)
}
