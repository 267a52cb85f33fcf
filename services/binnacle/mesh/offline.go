package mesh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/binnacle-mesh/binnacle/pkg/bus"
	"github.com/binnacle-mesh/binnacle/pkg/bus/embed"
	"github.com/binnacle-mesh/binnacle/pkg/private"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/keyring"
)

// ErrInUse says that a mesh runs on the folder.
var ErrInUse = errors.New("a mesh runs on this folder")

// lock keeps other processes off a mesh's folder: two servers on one store
// destroy it. The lock ends with the process, or with the file's closing.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, private.FileMode)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", dir, ErrInUse)
	}
	return f, nil
}

// storeFolder is the NATS server's folder in a mesh's. What the server writes into
// it is for its group to read too, so the folder itself is closed.
func storeFolder(dir string) (string, error) {
	nats := filepath.Join(dir, "nats")
	return nats, errors.Join(private.Mkdir(nats), private.CheckOne(nats))
}

// Offline runs the bus of a mesh that is stopped, and nothing else, and
// connects as the provisioning identity. Close the connection before stop.
func Offline(dir string) (c *bus.Conn, stop func(), err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, nil, err
	}
	l, err := lock(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	ring, err := keyring.Open(filepath.Join(dir, "keys"))
	if err != nil {
		return nil, nil, err
	}
	nats, err := storeFolder(dir)
	if err != nil {
		return nil, nil, err
	}
	conf, err := ServerConfig(ring, bus.ServerOptions{StoreDir: nats})
	if err != nil {
		return nil, nil, err
	}
	srv, err := embed.Start(conf, nil)
	if err != nil {
		return nil, nil, err
	}
	stop = func() { srv.Shutdown(); srv.WaitForShutdown(); l.Close() }
	if c, err = Provisioning(bus.Dialer{Server: srv}, ring); err != nil {
		stop()
	}
	return c, stop, err
}

// Provisioning connects as the provisioning identity.
func Provisioning(d bus.Dialer, ring *keyring.Ring) (*bus.Conn, error) {
	seed, err := ring.NKey("provision")
	if err != nil {
		return nil, err
	}
	return bus.Connect(d, seed, "provision", true)
}

// Keeper connects as the identity that makes the mirrors.
func Keeper(d bus.Dialer, ring *keyring.Ring) (*bus.Conn, error) {
	seed, err := ring.NKey("mirror")
	if err != nil {
		return nil, err
	}
	return bus.Connect(d, seed, "mirror", true)
}
